"""What ``calibrate --quick`` would reach, with sweep journals in the place of the device.

    python perf/quick_calibration.py OUT.csv JOURNAL...

Problems are drawn from the journals at random, for each the configs that :func:`spread` takes of
those measured, by the model of usual constants (the device's calibration and its siblings' are
hidden). They are drawn until the journals' own pace (seconds of a run over its outcomes, three
finals a problem included) has used the budget. The model fitted to them chooses for the problems
left out, among their measured configs: one CSV row a seed, with the shares of the best config's
speed that it reaches, that the shipped calibration reaches, and that the usual constants reach.

The shipped calibration has learned from the problems left out, which flatters it. A journal of
`sweep --top` holds only configs that a calibrated model ranked first: what a fresh draw over the
spaces would add or miss, this cannot show.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from tritongemm import selection, settings
from tritongemm.calibration import quick
from tritongemm.calibration.calibrate import corrected, fit, learned
from tritongemm.calibration.regret import Summary
from tritongemm.calibration.regret import shipped as judged_as_shipped
from tritongemm.calibration.sustained import sustained
from tritongemm.calibration.timing_table import TimingTable
from tritongemm.calibration.timings import read_timings
from tritongemm.records.codec import problem_from_json
from tritongemm.records.journal import read_journal

COLUMNS = ("seed", "budget_s", "drawn_problems", "drawn_timings", "fit_s", "left_out",
           "quick_mean", "quick_worst", "quick_below_0.9", "shipped_mean", "shipped_worst",
           "usual_mean", "usual_worst")


def pace(journals: list[str]) -> dict:
    """Problem -> seconds an outcome, of the slowest run that measured it."""
    found: dict = {}
    for path in journals:
        first, last, count, problems = {}, {}, defaultdict(int), defaultdict(set)
        for record in read_journal(path):
            if record["kind"] == "result":
                run = record["run_id"]
                at = datetime.fromisoformat(record["utc"].replace("Z", "+00:00")).timestamp()
                first.setdefault(run, at)
                last[run] = at
                count[run] += 1
                problems[run].add(problem_from_json(record["problem"]))
        for run, members in problems.items():
            each = (last[run] - first[run]) / count[run]
            found.update((p, max(each, found.get(p, 0.0))) for p in members)
    return found


def main(out: str, journals: list[str]) -> None:
    seconds = pace(journals)
    measured = next(part for units, part in read_timings(journals).parts() if "bf16" in units)
    rows: dict = defaultdict(list)
    for number, timing in enumerate(measured.timings):
        rows[timing.problem].append(number)
    reached = {r.problem: r.share(r.model) for r in judged_as_shipped(journals)
               if r.model is not None}
    truth = TimingTable(sustained(measured).timings, measured.device)
    extents = sorted({(p.batch, p.m, p.n, p.k) for p in rows})
    found = []
    with tempfile.TemporaryDirectory() as empty, settings.override(config_dir=Path(empty),
                                                                   config_only=True):
        selection.reload()
        promise = {problem: dict(zip(selection.by_promise(
            problem, measured.device, [measured.timings[i].config for i in own]), range(999)))
            for problem, own in rows.items()}
    selection.reload()
    for seed in range(3):
        order = [extents[i] for i in np.random.default_rng(seed).permutation(len(extents))]
        spent, drawn, trained = 0.0, [], set()
        for one in order:
            for problem in (p for p in rows if (p.batch, p.m, p.n, p.k) == one):
                if spent > quick._FOR_SWEEPING * quick.BUDGET_S:
                    break
                by_config = {measured.timings[i].config: i for i in rows[problem]}
                configs = quick.spread(sorted(by_config, key=promise[problem].__getitem__),
                                       quick.CONFIGS, str(problem))
                spent += (len(configs) + quick.FINALISTS) * seconds[problem]
                drawn += [by_config[c] for c in configs]
                trained.add(one)
        started = time.monotonic()
        taken = {(measured.timings[i].problem, measured.timings[i].config) for i in drawn}
        finals: dict = defaultdict(list)
        for final in measured.finals:
            if (final.problem, final.config) in taken:
                finals[final.rounds].append(final)
        few = [f for of in finals.values()
               for f in sorted(of, key=lambda f: f.coarse_us)[:quick.FINALISTS]]
        part = sustained(replace(measured, timings=tuple(measured.timings[i] for i in drawn),
                                 finals=tuple(few)))
        everything = TimingTable(part.timings + tuple(
            t for t in measured.timings if (t.problem.batch, t.problem.m, t.problem.n, t.problem.k)
            not in trained), measured.device)
        fitted = fit(everything.rows(np.arange(len(part.timings))))
        network = learned(everything.rows(np.arange(len(part.timings))), fitted)
        fit_s = time.monotonic() - started
        shares: dict = {"quick": [], "shipped": [], "usual": []}
        test = everything.rows(np.arange(len(part.timings), len(everything.log_time)))
        expected = corrected(test, fitted, network)
        by_problem = defaultdict(list)
        for row, config in enumerate(test.columns.configs):
            by_problem[test.problem[row]].append((row, config))
        for number, own in by_problem.items():
            problem = test.problems[number]
            times = {measured.timings[i].config: float(np.exp(truth.log_time[i]))
                     for i in rows[problem]}
            usual = min(promise[problem], key=promise[problem].__getitem__)
            chosen = own[int(np.argmin(expected[[r for r, _ in own]]))][1]
            best = min(times.values())
            shares["quick"].append(best / times[chosen])
            shares["usual"].append(best / times[usual])
            if problem in reached:
                shares["shipped"].append(reached[problem])
        q, s, u = (Summary.of(shares[name]) for name in ("quick", "shipped", "usual"))
        found.append([seed, quick.BUDGET_S, len({measured.timings[i].problem for i in drawn}),
                      len(drawn), round(fit_s, 1), q.count, *(round(x, 4) for x in (
                          q.mean, q.worst)), sum(x < 0.9 for x in shares["quick"]),
                      *(round(x, 4) for x in (s.mean, s.worst, u.mean, u.worst))])
        print(dict(zip(COLUMNS, found[-1])), flush=True)
    with open(out, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *found])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

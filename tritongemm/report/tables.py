"""The tables of a report as text cells, for Markdown, the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritongemm.records.control import CONTROL
from tritongemm.report import aggregate, style
from tritongemm.report.load import Results

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A table of formatted cells.

    Attributes:
        name: a short id.
        title: one line.
        heads: column heads.
        cells: rows of text.
        numeric: for each column, whether it is right-aligned and sorted as numbers.
        note: a remark below the table; may be empty.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    note: str = ""


def summary_table(results: Results) -> Table:
    """The summary: one line for each suite, dtype, layout and provider (and device, if there are
    several)."""
    frame = aggregate.summary(results.headline)
    several, fell_back = len(results.devices) > 1, bool(frame["fallback"].sum())
    untimed, failed = bool((frame["timed"] == 0).any()), bool(frame["failed"].sum())
    roof = bool(frame["of_roof_pct"].notna().any())
    heads = [*(["device"] if several else []), "suite", "dtype", "layout", "provider", "shapes",
             "geomean", "min", "at", "max", "faster / tie / slower",
             *(["of roof"] if roof else []), *(["not ok"] if failed else []),
             *(["by torch"] if fell_back else [])]
    text = {"device", "suite", "dtype", "layout", "provider", "at", "faster / tie / slower"}
    cells = []
    for row in frame.to_dict("records"):
        timed = row["timed"] > 0
        shapes = style.count(row["rows"])
        if row["timed"] != row["rows"]:
            shapes = f"{style.count(row['timed'])} of {shapes}"
        calls = f"{row['faster']} / {row['tie']} / {row['slower']}"
        cells.append((*([row["device"]] if several else []), row["suite"], row["dtype"],
                      row["layout"], row["provider"], shapes, style.ratio(row["geomean"]),
                      style.ratio(row["min"]), row["min_at"], style.ratio(row["max"]),
                      calls if timed else "–",
                      *([style.percent(row["of_roof_pct"])] if roof else []),
                      *([style.count(row["failed"])] if failed else []),
                      *([style.count(row["fallback"])] if fell_back else [])))
    notes = ["Ratios are torch's time / the provider's time: above 1 is faster than torch. A tie "
             "is a row whose 95 % interval contains 1; it enters the mean as measured."]
    if failed:
        notes.append("Rows that are not ok are counted and never averaged.")
    if fell_back:
        notes.append("By torch: rows for which the provider called torch's kernel.")
    if untimed:
        notes.append("A dash: nothing was timed there; see the correctness table.")
    return _table("summary", "Against torch.matmul", heads, cells, text, " ".join(notes))


def correctness_table(results: Results) -> Table:
    """The rows checked against the float64 reference, and the largest errors."""
    heads = ("suite", "dtype", "layout", "provider", "rows", "checked", "wrong", "other failures",
             "worst error / limit", "worst RMS error / limit")
    cells = [(r["suite"], r["dtype"], r["layout"], r["provider"], style.count(r["rows"]),
              style.count(r["checked"]), style.count(r["wrong"]), style.count(r["other"]),
              style.number(r["max_err_ratio"], 3), style.number(r["rms_err_ratio"], 3))
             for r in aggregate.correctness(results.headline).to_dict("records")]
    return _table("correctness", "Correctness", heads, cells, set(heads[:4]),
                  "Error of each result against a float64 reference, divided by the limit that it "
                  "must keep. Above 1 the result is wrong.")


def failures_table(results: Results, limit: int = 200) -> Table:
    """Rows that are not ok, the first ``limit`` of them."""
    frame = aggregate.failures(results.headline)
    heads = ("suite", "problem", "dtype", "layout", "provider", "config", "status", "error")
    cells = [(r["suite"], r["problem"], r["dtype"], r["layout"], r["provider"], r["config_id"],
              r["status"], style.shorten(r["error"], 160))
             for r in frame.head(limit).to_dict("records")]
    note = ""
    if len(frame) > limit:
        note = f"The first {limit} of {style.count(len(frame))}; the CSV has them all."
    return _table("failures", "Rows that are not ok", heads, cells, set(heads), note)


def slowest_table(results: Results, count: int = 15) -> Table:
    """The ``count`` lowest ratios to torch."""
    heads = ("suite", "problem", "dtype", "layout", "provider", "ratio", "interval", "us",
             "torch us", "TFLOP/s", "of roof", "config", "chosen by")
    cells = [(r["suite"], r["problem"], r["dtype"], r["layout"], r["provider"],
              style.ratio(r["ratio_vs_torch"]),
              f"{style.ratio(r['ratio_low'])} to {style.ratio(r['ratio_high'])}",
              style.number(r["time_us_p50"]),
              style.number(r["time_us_p50"] * r["ratio_vs_torch"]), style.rate(r["tflops"]),
              style.percent(r["pct_of_roof"]), r["config_id"], r["selection_source"])
             for r in aggregate.slowest(results.headline, count).to_dict("records")]
    text = {"suite", "problem", "dtype", "layout", "provider", "interval", "config", "chosen by"}
    return _table("slowest", f"The {count} lowest ratios", heads, cells, text,
                  "torch us is the provider's time times the paired ratio.")


def control_table(results: Results) -> Table:
    """The torch control (torch against torch) of each run."""
    heads = ("run", "rows", "mean ratio", "limit", "within")
    cells = [(r["run_id"], style.count(r["rows"]), style.number(r["mean"], 4),
              _margin(r["limit"]), "yes" if r["within"] else "NO")
             for r in aggregate.control(results.rows).to_dict("records")]
    return _table("control", "Control: torch against torch", heads, cells,
                  {"run", "limit", "within"},
                  "Torch is also measured as a second, hidden provider; its ratio to torch shows "
                  "the error of the measurement.")


def _margin(limit: float) -> str:
    return f"1 ± {100 * limit:g} %"


def energy_table(results: Results) -> Table:
    """The energy of a call against torch's, by group."""
    group = aggregate.GROUP[0 if len(results.devices) > 1 else 1:]
    heads = (*group, "shapes", "geomean", "min", "at", "max", "median mJ")
    cells = [(*(r[name] for name in group), style.count(r["rows"]),
              style.ratio(r["geomean"]), style.ratio(r["min"]), r["min_at"], style.ratio(r["max"]),
              style.number(r["energy_mj"], 3))
             for r in aggregate.energy(results.headline, results.rows).to_dict("records")]
    return _table("energy", "Energy of a call", heads, cells, {*group, "at"},
                  "Ratios are torch's energy / the provider's, of the whole board: above 1 takes "
                  "less than torch. Measured where a provider draws near the power cap, in blocks "
                  "of half a second.")


#: The provider that :func:`rivals_table` compares the others with, and one that is ours too.
_OURS, _ALSO_OURS = "tritongemm", "tritongemm-auto"


def rivals_table(results: Results) -> Table:
    """How this package's kernels stand against each other provider, suite by suite."""
    group = aggregate.GROUP[0 if len(results.devices) > 1 else 1:]
    heads = (*group, "shapes", "geomean", "min", "at", "max", "faster than ours", "fastest of all")
    others = results.headline[results.headline["provider"] != _ALSO_OURS]
    cells = [(*(r[name] for name in group), style.count(r["rows"]), style.ratio(r["geomean"]),
              style.ratio(r["min"]), r["min_at"], style.ratio(r["max"]), style.count(r["behind"]),
              style.count(r["fastest"]))
             for r in aggregate.rivals(others, _OURS).to_dict("records")]
    return _table("rivals", "Against each other provider", heads, cells, {*group, "at"},
                  "Ratios are the other provider's time / ours, each measured against torch in the "
                  "same rounds: above 1 we are faster. The last columns count shapes by their "
                  "ratios alone, however near to 1 they are.")


def sources_table(results: Results) -> Table:
    """Selection sources of each provider's configs."""
    heads = ("provider", "chosen by", "rows")
    cells = [(r["provider"], r["selection_source"], style.count(r["rows"]))
             for r in aggregate.sources(results.headline).to_dict("records")]
    return _table("sources", "Where the configs came from", heads, cells, set(heads[:2]))


#: Fields of a run's record that describe the run and not its machine; :func:`runs_table` shows
#: them.
_OF_THE_RUN = ("run_id", "started_utc", "finished_utc", "suite", "dtypes", "layouts", "epilogues",
               "seed", "fresh_seed", "processes", "control", "complete", "void", "void_reason",
               "tags", "budget_s", "providers", "precision")
#: Most values listed for one field of the environment; further ones are only counted.
_MAX_VALUES = 6


def runs_table(results: Results) -> Table:
    """One line a run: when it began, what it measured, and its control."""
    rows = results.rows.groupby("run_id", sort=False, observed=True)
    heads = ("run", "started", "suites", "dtypes", "layouts", "rows", "processes", "seed",
             "torch / torch", "state")
    cells = []
    for run, own in rows:
        meta = results.sidecars.get(str(run), {})
        control = meta.get("control")
        mean = control.get("mean_ratio") if isinstance(control, Mapping) else None
        state = ("void" if run in results.void_runs else "no environment record" if not meta
                 else "complete" if meta.get("complete", True) else "incomplete")
        cells.append((str(run), str(meta.get("started_utc") or min(own["timestamp_utc"].unique())),
                      style.shorten(", ".join(sorted(filter(None, own["suite"].unique()))), 90),
                      ", ".join(sorted(own["dtype"].unique())),
                      ", ".join(sorted(own["layout"].unique())), style.count(len(own)),
                      str(meta.get("processes", "")), str(meta.get("seed", "")),
                      style.number(mean, 4) if isinstance(mean, (int, float)) else "–", state))
    return _table("runs", "Runs", heads, cells,
                  set(heads) - {"rows", "processes", "seed", "torch / torch"},
                  "torch / torch: the control's mean ratio, torch measured against itself.")


def environment_table(results: Results) -> Table:
    """One line for each field and value of the run records, with the number of runs that have it.
    """
    values: dict[str, dict[str, int]] = {}
    for meta in results.sidecars.values():
        for name, text in flatten({k: v for k, v in meta.items() if k not in _OF_THE_RUN}):
            seen = values.setdefault(name.removeprefix("environment."), {})
            seen[text] = seen.get(text, 0) + 1
    total = len(results.sidecars)
    cells = []
    for name, seen in values.items():
        listed = sorted(seen.items(), key=lambda item: -item[1])[:_MAX_VALUES]
        cells += [(name, style.shorten(text, 160), "all" if count == total else style.count(count))
                  for text, count in listed]
        if len(seen) > len(listed):
            cells.append((name, f"and {len(seen) - len(listed)} other values", ""))
    note = ""
    if results.without_sidecar:
        note = ("runs.json has no record of "
                + style.shorten(", ".join(results.without_sidecar), 200) + ".")
    heads = ("field", "value", "runs")
    return _table("environment", "Environment", heads, cells, set(heads), note)


def flatten(meta: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """``{"a": {"b": 1}}`` -> ``[("a.b", "1")]``, in the record's order."""
    result: list[tuple[str, str]] = []
    for name, value in meta.items():
        label = f"{prefix}{name}"
        if isinstance(value, Mapping):
            result += flatten(value, label + ".")
        elif isinstance(value, (list, tuple)):
            result.append((label, ", ".join(map(str, value))))
        else:
            result.append((label, "" if value is None else str(value)))
    return result


def alarms(results: Results) -> list[str]:
    """Warnings shown before the tables: void runs, a control outside its limit, wrong results."""
    lines = []
    for run, reason in results.void_runs.items():
        rows = int((results.rows["run_id"] == run).sum())
        lines.append(f"Run {run} is VOID: {reason}. Its {style.plural(rows, 'row')} left out of "
                     "every figure.")
    measured = aggregate.control(results.rows)
    for row in measured[~measured["within"].astype(bool)].to_dict("records"):
        if row["run_id"] not in results.void_runs:
            lines.append(f"Run {row['run_id']}: torch against torch averages {row['mean']:.4f}, "
                         f"outside {_margin(row['limit'])}; do not rely on its ratios.")
    wrong = results.headline["status"] == "wrong"
    if wrong.any():
        lines.append(f"{style.plural(wrong.sum(), 'result')} WRONG: they are listed, and no mean "
                     "includes them.")
    return lines


def facts(results: Results) -> list[str]:
    """Lines of context: device, versions, how rows were timed, which rows were left out."""
    rows = results.headline
    lines = []
    if results.devices:
        lines.append("Device: " + ", ".join(results.devices) + ".")
    versions = sorted({text for meta in results.sidecars.values() if (text := _versions(meta))})
    if versions:
        lines.append("Software: " + style.shorten("; ".join(versions), 300) + ".")
    conditions = aggregate.conditions(rows)
    if rows["time_us_p50"].notna().any():
        parts = [f"{what} {', '.join(conditions[name])}" for name, what in
                 (("timer", "timer"), ("l2_state", "L2"), ("torch_backend", "torch by"))
                 if conditions[name]]
        lines.append("Timed: " + "; ".join(parts) + "." if parts else "Timed.")
    elif len(rows):
        lines.append("Nothing here was timed; results were checked for correctness only.")
    dates = sorted(d[:10] for d in rows["timestamp_utc"].unique() if d)
    if dates:
        lines.append(f"Measured {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")
                     + f", {style.plural(len(rows), 'row')} of "
                     + style.plural(rows["run_id"].nunique(), "run") + ".")
    throttled = int((~rows["throttled"].isin(["", "no"])).sum())
    if throttled:
        reasons = sorted({word for text in rows["throttled"].unique() for word in text.split("|")
                          if word not in ("", "no")})
        lines.append(f"{style.plural(throttled, 'row')} measured while the GPU lowered its clock "
                     f"({', '.join(reasons)}).")
    if results.superseded:
        lines.append(f"{style.plural(results.superseded, 'older row')} of the same problem and "
                     "provider left out (--all-runs keeps them).")
    if results.skipped:
        lines.append(f"Skipped, no rows of a bench: {', '.join(p.name for p in results.skipped)}.")
    return lines


def plain(shown: Table) -> str:
    """The table as aligned text for a terminal."""
    lines = [shown.heads, *shown.cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(shown.heads))]
    text = ["  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right
                      in zip(line, widths, shown.numeric, strict=True)).rstrip()
            for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([shown.title, *text, *([shown.note] if shown.note else [])])


def _versions(meta: Mapping[str, Any]) -> str:
    # Compare the last part of the name: a record may nest its versions.
    flat = {name.rsplit(".", 1)[-1]: value for name, value in flatten(meta)}
    return ", ".join(f"{name} {flat[name]}" for name in ("torch", "triton", "driver")
                     if flat.get(name))


def _table(name: str, title: str, heads: Sequence[str], cells: Sequence[Sequence[str]],
           text: set[str], note: str = "") -> Table:
    if not cells and name != "environment":
        note = ""  # but the environment's note names runs without a record
    return Table(name, title, tuple(heads), tuple(tuple(c) for c in cells),
                 tuple(head not in text for head in heads), note)


def problem_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns of the page's table of every row, contenders and torch, without the control."""
    columns = ["device", "suite", "problem", "dtype", "layout", "epilogue", "provider", "status",
               "ratio_vs_torch", "ratio_low", "ratio_high", "time_us_p50", "tflops", "gbps",
               "pct_of_roof", "max_err_ratio", "config_id", "selection_source", "throttled",
               "side"]
    return rows[rows["provider"] != CONTROL][columns]


#: Terms of a report and their meanings.
TERMS = (
    ("ratio", "torch's time divided by the provider's time, measured in the same rounds. Above 1 "
     "the provider is faster than torch.matmul."),
    ("interval, tie", "The 95 % bootstrap interval of the ratio. A row whose interval contains 1 "
     "is a tie; it enters the mean as measured."),
    ("geometric mean", "The mean of a suite's ratios. Rows that are not ok are left out of it and "
     "counted apart."),
    ("throttled", "The driver reported a reason for lowering the SM clock when the row was "
     "measured: sw_power_cap means that the board drew as much power as its limit allows, "
     "sw_thermal and hw_thermal that it was hot, hw_slowdown and hw_power_brake that the hardware "
     "intervened. Large products reach the power limit by themselves, so this is normal for them. "
     "The ratio stays valid, since torch and the provider alternate under the same conditions; "
     "microseconds and TFLOP/s are those of the lowered clock."),
    ("of roof", "The least time that the device's peaks allow, divided by the measured time. The "
     "roof is the peak rate of the unit that does the work, or memory bandwidth times arithmetic "
     "intensity, whichever is lower."),
    ("error / limit", "The largest error against a float64 reference, divided by the limit that "
     "the result must keep. Above 1 the result is wrong."),
    ("L2 cold, warm", "Cold: the calls rotate over operands that together exceed three times the "
     "L2 cache, so each call reads its operands from memory. Warm: the operands are too few for "
     "that, so a call finds some of them in the L2 cache."),
    ("by torch", "Rows for which the provider called torch's own kernel."),
    ("chosen by", "exact: a tuned row of this problem. twin: the row of the same problem in the "
     "other 16-bit type. sibling: a row measured on another GPU of the architecture. model: the "
     "calibrated model. nearest: the row of the nearest problem. rule: the default."),
)

"""The search: what it asks for, when it ends, and what a sweep makes of it."""

from __future__ import annotations

import math
from pathlib import Path

import fakes
import numpy as np
import pytest
from test_sweep import results

from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.errors import UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.journal import read_journal
from tritongemm.selection import candidates
from tritongemm.selection.model import Served, model_for, model_of
from tritongemm.selection.work import class_of
from tritongemm.tuning.candidates import Candidates, PruneReport
from tritongemm.tuning.search import (
    BATCH,
    LEAST,
    PARTS,
    Search,
    _normal_cdf,
    follow,
    spread_of,
)
from tritongemm.tuning.sweep import sweep

H200 = device_named("nvidia-h200")


def space(count: int = 400) -> list[KernelConfig]:
    """Configs of many tiles, pipelines and two kernels."""
    found = [KernelConfig(kernel, m, n, 64, num_stages=stages, group_m=group)
             for kernel in ("tiled", "persistent_tma")
             for m in (32, 64, 128, 256) for n in (32, 64, 96, 128, 192)
             for stages in (2, 3, 4) for group in (1, 4, 8, 16)]
    return found[:count]


class Truth:
    """Times drawn as the search assumes them about predictions from 100 us to ``slowest`` us.

    Args:
        scale: the errors in units of ``PARTS``.
    """

    def __init__(self, configs: list[KernelConfig], seed: int, scale: float = 1.0,
                 slowest: float = 400.0) -> None:
        rng = np.random.default_rng(seed)
        self.predicted = np.exp(rng.uniform(math.log(100), math.log(slowest), len(configs)))
        drawn: dict[tuple, float] = {}

        def part(key: tuple, sd: float) -> float:
            return drawn.setdefault(key, scale * sd * rng.standard_normal())

        self.times = {}
        for config, time_us in zip(configs, self.predicted, strict=True):
            tile = (config.kernel, config.block_m, config.block_n)
            miss = (part(("problem",), PARTS[0]) + part((config.kernel,), PARTS[1])
                    + part(tile, PARTS[2]) + part((class_of(config),), PARTS[3])
                    + part((class_of(config), config.num_stages), PARTS[4])
                    + part((config,), PARTS[5]))
            self.times[config] = float(time_us * math.exp(miss))

    @property
    def best_us(self) -> float:
        return min(self.times.values())


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_search_ends_near_the_best_long_before_all_configs_are_timed(scale):
    configs = space()
    shares = []
    for seed in range(12):
        truth = Truth(configs, seed, scale)
        search = Search(configs, truth.predicted, spread=scale)
        timed = follow(search, truth.times)
        shares.append(search.best_us / truth.best_us)
        assert LEAST <= timed < len(configs) / 2
        assert search.over and search.next() == []
    assert np.median(shares) < 1.005
    assert sum(share > 1.03 for share in shares) <= 1  # P(3 %) < 5 % is where it ends


def test_a_smaller_gain_times_more():
    configs = space()
    truth = Truth(configs, 3, 3.0, slowest=150.0)
    timed = [follow(Search(configs, truth.predicted, spread=3.0, gain=gain), truth.times)
             for gain in (0.05, 0.01, 0.0005)]
    assert timed[0] <= timed[1] <= timed[2] and timed[0] < timed[2]


def test_a_kernel_that_the_model_underrates_is_found():
    configs = space()
    truth = Truth(configs, 1)
    factor = {c: 0.8 if c.kernel == "persistent_tma" else 1.0 for c in configs}
    times = {c: t * factor[c] for c, t in truth.times.items()}
    predicted = np.where([c.kernel == "persistent_tma" for c in configs], 1.1, 1.0
                         ) * truth.predicted
    search = Search(configs, predicted)
    follow(search, times)
    assert search.best_us < 1.02 * min(times.values())


def test_one_time_that_is_far_too_long_does_not_keep_a_search_going():
    configs = space()
    truth = Truth(configs, 2)
    first = Search(configs, truth.predicted).next()[1]
    spoilt = {**truth.times, first: 80 * truth.times[first]}
    timed = follow(Search(configs, truth.predicted), truth.times)
    assert follow(Search(configs, truth.predicted), spoilt) <= timed + 2 * BATCH


@pytest.mark.parametrize("seed", [1, 2])
def test_configs_far_slower_than_predicted_do_not_keep_a_search_going(seed):
    configs = space()
    truth = Truth(configs, seed)
    slow = np.random.default_rng(0).random(len(configs)) < 0.2
    spoilt = {c: t * (1.35 if bad else 1.0)
              for (c, t), bad in zip(truth.times.items(), slow, strict=True)}
    timed = follow(Search(configs, truth.predicted), truth.times)
    search = Search(configs, truth.predicted)
    assert follow(search, spoilt) <= timed + BATCH
    assert search.best_us < 1.03 * min(spoilt.values())


def test_a_model_with_larger_errors_than_it_states_is_searched_for_longer():
    configs = space()
    truths = [Truth(configs, seed, scale=5.0) for seed in range(12)]
    timed = [follow(Search(configs, truth.predicted), truth.times) for truth in truths]
    assert max(timed) > LEAST


def test_each_config_is_asked_for_once_and_the_ones_in_use_first():
    configs = space(200)
    truth = Truth(configs, 2, slowest=110.0)
    slow = configs[int(truth.predicted.argmax())]
    search = Search(configs, truth.predicted, first=[slow], gain=1e-9)
    seen: list[KernelConfig] = []
    while asked := search.next():
        assert len(asked) <= BATCH
        seen += asked
        for config in asked:
            search.observe(config, truth.times[config])
    assert seen[0] == slow
    assert LEAST < len(seen) == len(set(seen)) == search.settled
    assert search.left == 200 - len(seen) and search.over and search.gain_left < 1e-6


def test_a_batch_holds_kernels_and_tiles_that_nothing_was_timed_of():
    configs = space(240)  # all of the kernel `tiled`
    predicted = [100.0 + i for i in range(240)]
    first = Search(configs, predicted).next()
    assert len({(c.block_m, c.block_n) for c in first}) >= 4  # the first 16 have two tiles


def test_what_fails_counts_and_is_not_asked_for_again():
    configs = space(40)
    search = Search(configs, [100.0] * 40)
    asked = search.next()
    for config in asked:
        search.observe(config, None)
    assert search.best_us is None and search.gain_left is None and not search.over
    assert not set(search.next()) & set(asked)
    for config in configs:
        search.observe(config, None)
    assert search.over and search.settled == 40


def test_what_an_earlier_run_measured_is_known():
    configs = space()
    truth = Truth(configs, 5)
    whole = Search(configs, truth.predicted)
    follow(whole, truth.times)
    again = Search(configs, truth.predicted)
    for config in configs:
        if config in [whole._configs[i] for i in whole._timed]:
            again.observe(config, truth.times[config])
    assert again.settled == len(whole._timed) and again.over
    assert again.gain_left < 0.01


def test_no_more_is_asked_for_once_the_requested_ones_suffice():
    """Builds that nothing waits for would cost the next problem its time."""
    configs = space()
    truth = Truth(configs, 4, 0.2)
    search = Search(configs, truth.predicted)
    asked = []
    for _ in range(12):
        asked += search.next()
        for config in asked[search.settled:max(0, len(asked) - BATCH)]:
            search.observe(config, truth.times[config])
    assert LEAST <= len(asked) <= 48 and not search.over  # the last batch has no outcomes
    for config in asked[search.settled:]:
        search.observe(config, truth.times[config])
    assert search.over and search.best_us < 1.01 * truth.best_us


def test_the_first_outcomes_change_what_the_next_batch_expects():
    configs = space()
    predicted = [100.0 + i / 10 for i in range(len(configs))]
    slow = {c: 1.5 if c.num_stages == 2 else 1.0 for c in configs}
    search = Search(configs, predicted)
    first = search.next()
    for config in first:
        search.observe(config, predicted[configs.index(config)] * slow[config])
    later = search.next()
    assert (sum(c.num_stages == 2 for c in later) < sum(c.num_stages == 2 for c in first))


def test_no_configs_is_over_at_once():
    search = Search([], [])
    assert search.over and search.next() == [] and search.forecast() == 0


def test_the_expected_gain_is_that_of_samples():
    rng = np.random.default_rng(0)
    search = Search(space(50), np.exp(rng.uniform(4.6, 4.7, 50)))
    search.observe(search._configs[0], 100.0)
    search._update(force=True)
    rows = search._remaining()
    drawn = search._mean[rows] + search._sd[rows] * rng.standard_normal((20000, len(rows)))
    gains = np.maximum(0.0, math.log(100.0) - drawn.min(1))
    assert search._prospect(rows)[0] == pytest.approx(1 - math.exp(-gains.mean()), rel=0.05)


def test_the_normal_distribution():
    x = np.array([-4.0, -1.0, 0.0, 0.5, 3.0])
    exact = [0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    assert _normal_cdf(x) == pytest.approx(exact, abs=2e-7)


def test_a_device_without_a_calibration_has_wider_errors():
    problem = GemmProblem.contiguous(1024, 1024, 1024, layout="nt")
    known = model_for(problem, H200)
    unknown = model_of(Served(None, H200.name, H200), problem)
    assert spread_of(known, H200) == pytest.approx(1.0, abs=0.05)
    assert spread_of(unknown, H200) > 3
    assert spread_of(known, device_named("nvidia-h100-80gb-hbm3")) > 1


# -- in a sweep -------------------------------------------------------------------------------

PROBLEM = GemmProblem.contiguous(512, 512, 512, layout="nt")


class Some:
    """Every ``step``-th legal config of the shipped spaces, the last in use."""

    space_hash = "some"

    def __init__(self, step: int = 12) -> None:
        self._step = step

    def __call__(self, problem: GemmProblem, device) -> Candidates:
        configs = tuple(candidates(problem, device)[::self._step])
        return Candidates(configs, PruneReport(considered=len(configs), kept=len(configs)),
                          configs[-1:])


def searched(journal: Path, **options):
    return sweep([PROBLEM], journal, candidates=options.pop("candidates", Some()),
                 search="model", measurer="fakes:ModelMeasurer", builder=fakes.BUILDER,
                 compile_workers=1, **{"per_config_timeout_s": 30.0, **options})


def test_a_sweep_stops_where_no_gain_is_expected_and_a_resume_adds_nothing(tmp_path):
    report = searched(tmp_path / "j.jsonl")
    (one,) = report.problems
    everything = Some()(PROBLEM, H200).configs
    assert len(everything) > 150
    assert LEAST <= one.measured <= 120
    assert one.left == len(everything) - one.measured
    assert 0 <= one.gain_left < 0.02 and not one.skipped
    times = fakes.ModelMeasurer.times(PROBLEM, everything)
    assert one.time_us <= 1.03 * min(times)
    found = results(tmp_path / "j.jsonl")
    assert (512, everything[-1].config_id) in found
    header = next(read_journal(tmp_path / "j.jsonl"))
    assert header["search"] == "model, gain 0.01"
    again = searched(tmp_path / "j.jsonl", resume=True)
    assert again.measured == 0 and again.problems[0].note == "measured before"


@pytest.mark.thorough
def test_a_search_that_was_cut_short_by_the_budget_goes_on_where_it_was(tmp_path):
    cut = searched(tmp_path / "j.jsonl", budget_s=1.5, measurer_arguments={"each_s": 0.1})
    (one,) = cut.problems
    assert one.skipped > 0 and one.measured < LEAST
    again = searched(tmp_path / "j.jsonl", resume=True)
    assert again.resumed == one.measured
    assert again.problems[0].winner is not None and not again.problems[0].skipped
    assert len(results(tmp_path / "j.jsonl")) == one.measured + again.measured


@pytest.mark.parametrize(("options", "words"), [
    ({"search": "best"}, "search='best'"), ({"gain": 0.0}, "gain=0.0"), ({"gain": 1.5}, "gain=1.5"),
    ({"search": "model", "subset": 3}, "at random"),
])
def test_bad_searches_are_refused(tmp_path, options, words):
    with pytest.raises(UsageError, match=words):
        sweep([PROBLEM], tmp_path / "j.jsonl", **options)
    assert list(tmp_path.iterdir()) == []

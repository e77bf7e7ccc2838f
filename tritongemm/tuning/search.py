"""Decides which configs of a problem to time next, and when to stop.

The selection's model predicts a time for each config. The logarithms of measured / predicted time
are modelled as a Gaussian process over the configs: the sum of a bias of the problem, of the
kernel, the tile, the family (class and split), the pipeline, and an independent term of each
config. The scale of the posterior is shrunk towards the known errors of the model (a Student-t
process: Shah et al., AISTATS 2014), with large errors to the slow side winsorized. The posterior
gives the distribution of the time of each config that was not timed. The configs with the largest
expected improvement (Jones et al., 1998) are next; a share of each batch goes to kernels and tiles
of which none was timed yet. The search ends when the expected largest improvement among the
remaining configs is below ``gain``, and an improvement of three times ``gain`` is unlikely. Its
distribution treats the configs as independent, P(more than u) = 1 - prod(1 - P(config i improves by
more than u)), which is an upper bound if their errors are positively correlated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import Model, model_for
from tritongemm.selection.work import class_of

GAIN = 0.01
#: Configs of a batch, and how many of them belong to kernels and tiles of which none was timed yet.
BATCH, _NEW = 16, 4
#: How many of a batch are those with the least predicted time, of any family: for problems that the
#: model predicts well, the best config is among these.
_FIRST = 6
#: Most configs of one family (class and split) in a batch, as long as other families remain.
_OF_A_FAMILY = 3
#: The least number of outcomes before a search may end; with fewer than _USUAL it ends only if the
#: expected improvement is below this share of the gain. In the replays this loses up to 0.7 % of
#: the best time, and a least number of 48 up to 0.1 %.
LEAST, _USUAL, _EARLY_SHARE = 32, 48, 0.05
#: Standard deviations of the terms of the model's error, as logarithms: problem, kernel, tile,
#: family (class and split), pipeline, config. Fitted by maximum likelihood to 100 problems of eight
#: journals of an H200 that the network was not trained on (perf/search_replay.py predict), with
#: about 90 configs each, predicted within 1.3 of the fastest.
PARTS = (0.019, 0.012, 0.021, 0.018, 0.021, 0.016)
#: Weight of :data:`PARTS` as prior of the scale, as a number of timings; from the same fit.
_PRIOR = 6.0
#: RMS error of that network near the best, in the definition of ``Section.rms_log_error``. The
#: ratio to another calibration's error scales PARTS to it.
_RMS_LOG_ERROR = 0.0271
#: The same without a calibration that covers the problem: the typical constants are off by 25 %.
_RMS_UNKNOWN = 0.15
#: Factor on the error for a device that uses only its sibling's measurements.
_SIBLING = 1.5
#: A config predicted this many standard deviations behind the fastest is not tried as a new kernel.
_HOPELESS = 8.0
#: Most configs that a search considers, by least predicted time: more cost more time than they
#: gain.
_MOST = 4096
#: A search continues while an improvement of more than _MUCH times the gain has a probability above
#: _UNLIKELY.
_MUCH, _UNLIKELY = 3.0, 0.05
#: The posterior is recomputed after _OFTEN new outcomes, or after 1 / _SHARE of all outcomes so far
#: if that is more: its cost grows with the square of their number.
_OFTEN, _SHARE = 4, 8
#: Steps of the numerical integral, and its limit in standard deviations.
_STEPS, _REACH = 24, 5.0
#: A time that is so many standard deviations slower than predicted, relative to the median of all,
#: counts as that slow: one config that is a hundred times slower says little about the others.
_SLOWEST = 5.0
#: A config that is slower than predicted by more standard deviations counts as so many in the
#: scale: some are far slower, which does not make the others likely to be faster. In the replays
#: with left-out predictions (search-replay.csv) a search times at most 48 configs instead of 304
#: and loses at most 0.7 % of the best time, as without it.
_LARGE = 1.5


class Search:
    """The search over the configs of one problem. Deterministic.

    Args:
        configs: all legal configs.
        predicted_us: their predicted times, microseconds.
        first: configs to time first, whatever their predicted times.
        spread: factor of :data:`PARTS`.
        gain: the search ends when it expects less; 0.01 for 1 %.
    """

    def __init__(self, configs: Sequence[KernelConfig], predicted_us: Sequence[float], *,
                 first: Sequence[KernelConfig] = (), spread: float = 1.0, gain: float = GAIN
                 ) -> None:
        predicted = np.asarray(predicted_us, float)
        order = np.argsort(predicted, kind="stable")
        wanted = set(first)
        order = np.array([i for place, i in enumerate(order.tolist())
                          if place < _MOST or configs[i] in wanted], int)
        self._configs = [configs[i] for i in order]
        self._index = {config: i for i, config in enumerate(self._configs)}
        self._predicted = np.log(predicted[order])
        self._groups = _groups(self._configs)
        self._variances = (spread * np.array(PARTS)) ** 2
        self._gain = gain
        count = len(self._configs)
        self._open = np.ones(count, bool)  # neither timed, failed nor asked for
        self._asked: set[int] = set()
        self._timed: list[int] = []
        self._log_us: list[float] = []
        self._mean, self._sd = self._predicted, np.full(count, self._variances.sum() ** 0.5)
        self._first = [self._index[config] for config in dict.fromkeys(first)]
        self._fresh = 0  # observations since the last update of the posterior
        self._gain_left, self._worth_it = math.inf, True
        self.settled = 0

    @classmethod
    def of(cls, problem: GemmProblem, device: DeviceSpec, configs: Sequence[KernelConfig],
           first: Sequence[KernelConfig] = (), gain: float = GAIN) -> Search:
        """A search with the selection's model for ``problem`` on ``device``. Raises DataFileError
        for a damaged calibration."""
        model = model_for(problem, device)
        times = model.times(problem, Columns(configs)) if configs else ()
        return cls(configs, times, first=first,  # type: ignore[arg-type]
                   spread=spread_of(model, device), gain=gain)

    @property
    def best_us(self) -> float | None:
        """The fastest time so far, microseconds."""
        return math.exp(min(self._log_us)) if self._log_us else None

    @property
    def gain_left(self) -> float | None:
        """The improvement expected from the configs that were not timed, 0.01 for 1 %; None before
        the first timing."""
        return self._gain_left if math.isfinite(self._gain_left) else None

    @property
    def left(self) -> int:
        """The number of configs without an outcome."""
        return int(self._open.sum()) + len(self._asked)

    @property
    def over(self) -> bool:
        """Whether the search is over, so that configs that were requested need not be timed
        either."""
        if not self._open.any() and not self._asked:
            return True
        self._update(force=not self._asked)
        return self._ends_with(self.settled)

    def observe(self, config: KernelConfig, time_us: float | None) -> None:
        """Records the time of a config in microseconds, or None if it failed."""
        index = self._index.get(config)
        if index is None or not (self._open[index] or index in self._asked):
            return
        self._open[index] = False
        self._asked.discard(index)
        self.settled += 1
        self._fresh += 1
        if time_us is not None:
            self._timed.append(index)
            self._log_us.append(math.log(time_us))

    def next(self, count: int = BATCH) -> list[KernelConfig]:
        """At most ``count`` configs to time now; none once the search is over, or if it will be
        unless an outcome of those that were requested changes what it expects. They count as
        requested from then on."""
        if self.over or count < 1:
            return []
        if self._ends_with(self.settled + len(self._asked)):
            return []
        value = self._value()
        found = [i for i in self._first if self._open[i]][:count]
        found += self._unseen(min(max(1, count * _NEW // BATCH), count - len(found)), found)
        found += [i for i in range(len(self._configs)) if self._open[i] and i not in found
                  ][:min(max(1, count * _FIRST // BATCH), count - len(found))]
        taken = set(found)
        of_a_family: Counter[int] = Counter(int(self._groups[i, 2]) for i in found)
        ranked = [i for i in np.argsort(-value, kind="stable").tolist()
                  if self._open[i] and i not in taken]
        later = []
        for i in ranked:
            if len(found) >= count:
                break
            family = int(self._groups[i, 2])
            if of_a_family[family] < _OF_A_FAMILY:
                of_a_family[family] += 1
                found.append(i)
            else:
                later.append(i)
        found += later[:count - len(found)]
        self._open[found] = False
        self._asked.update(found)
        return [self._configs[i] for i in found]

    def forecast(self) -> int:
        """The number of further configs that the search is expected to time if none of them
        improves."""
        if self.over:
            return 0
        remaining = self._remaining()
        if not self._timed:
            return min(len(remaining), LEAST)
        least = LEAST if self._gain_left < _EARLY_SHARE * self._gain else _USUAL
        least = max(0, min(least, len(self._configs)) - self.settled)
        ranked = remaining[np.argsort(-self._value()[remaining], kind="stable")]
        low, high = 0, len(ranked)
        while low < high:
            middle = (low + high) // 2
            if not self._prospect(ranked[middle:])[1]:
                high = middle
            else:
                low = middle + 1
        return max(low, least)

    def _ends_with(self, outcomes: int) -> bool:
        """Whether the search is over with so many outcomes, if they leave its expectation as it
        is."""
        count = len(self._configs)
        if self._worth_it or outcomes < min(LEAST, count):
            return False
        return (outcomes >= min(_USUAL, count)
                or self._gain_left < _EARLY_SHARE * self._gain)

    def _remaining(self) -> np.ndarray:
        """Indices of configs that were neither timed nor failed."""
        open_ = self._open.copy()
        open_[list(self._asked)] = True
        return np.flatnonzero(open_)

    def _unseen(self, count: int, chosen: Sequence[int]) -> list[int]:
        """The configs with the least expected time of each kernel, then of each tile, of which no
        config was timed, requested or ``chosen``."""
        touched = ~self._open
        touched[list(chosen)] = True
        limit = self._predicted[0] + _HOPELESS * self._variances.sum() ** 0.5
        order = np.argsort(self._mean, kind="stable")
        order = order[~touched[order] & (self._predicted[order] <= limit)]
        found: list[int] = []
        for group in (0, 1):
            seen = set(self._groups[touched, group].tolist())
            seen.update(int(self._groups[i, group]) for i in found)
            for i in order:
                if len(found) >= count:
                    return found
                if (key := int(self._groups[i, group])) not in seen:
                    seen.add(key)
                    found.append(int(i))
        return found

    def _value(self) -> np.ndarray:
        """The logarithm of each config's expected improvement; before the first timing, minus its
        predicted time."""
        if not self._timed:
            return -self._predicted
        ahead = min(self._log_us) - self._mean
        z = ahead / self._sd
        return ahead * _normal_cdf(z) + self._sd * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    def _prospect(self, rows: np.ndarray) -> tuple[float, bool]:
        """The expected largest improvement among ``rows``, as a share of the best time, and whether
        they are worth timing."""
        if not len(rows):
            return 0.0, False
        ahead, sd = min(self._log_us) - self._mean[rows], self._sd[rows]
        near = ahead > -_REACH * sd
        ahead, sd = ahead[near], sd[near]
        if not len(ahead):
            return 0.0, False
        steps = np.linspace(0.0, float((ahead + _REACH * sd).max()), _STEPS)
        below = 1.0 - _normal_cdf((ahead[:, None] - steps) / sd[:, None])
        more = 1.0 - np.exp(np.log(np.maximum(below, 1e-30)).sum(0))  # P(more than each step)
        expected = 1 - math.exp(-(more.sum() - (more[0] + more[-1]) / 2) * steps[1])
        much = float(np.interp(-math.log1p(-min(_MUCH * self._gain, 0.9)), steps, more))
        return expected, expected >= self._gain or much > _UNLIKELY

    def _update(self, force: bool = False) -> None:
        """Recomputes the posterior of every config and the remaining gain, if there are enough new
        outcomes."""
        enough = 1 if force else max(_OFTEN, self.settled // _SHARE)
        if self._fresh < enough:
            return
        self._fresh = 0
        if not self._timed:
            return
        timed = np.array(self._timed)
        miss = np.array(self._log_us) - self._predicted[timed]
        miss = np.minimum(miss, np.median(miss) + _SLOWEST * self._variances.sum() ** 0.5)
        shared = self._covariance(timed, timed)
        lower = np.linalg.cholesky(shared + self._variances[-1] * np.eye(len(timed)))
        across = np.linalg.solve(lower, self._covariance(timed, np.arange(len(self._configs))))
        white = np.linalg.solve(lower, miss)
        usual = np.minimum(white, _LARGE)
        scale = (_PRIOR + usual @ usual) / (_PRIOR + len(timed))
        self._mean = self._predicted + white @ across
        variance = self._variances.sum() - (across * across).sum(0)
        self._sd = np.sqrt(scale * np.maximum(variance, self._variances[-1]))
        self._gain_left, self._worth_it = self._prospect(self._remaining())

    def _covariance(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """[rows, columns], without the independent term of each config."""
        found = np.full((len(rows), len(columns)), self._variances[0])
        for group, variance in enumerate(self._variances[1:-1]):
            found += variance * (self._groups[rows, group][:, None]
                                 == self._groups[columns, group][None])
        return found


def follow(search: Search, times: Mapping[KernelConfig, float]) -> int:
    """Runs a search over known ``times``, microseconds. Outcomes arrive one batch late, as in a
    sweep that compiles ahead. Returns the number of configs that it timed."""
    timed, asked = 0, search.next()
    while asked:
        ahead = search.next()
        for config in asked:
            search.observe(config, times[config])
            timed += 1
        asked = [] if search.over else ahead or search.next()
    return timed


def spread_of(model: Model, device: DeviceSpec) -> float:
    """The size of a model's errors, as a factor of :data:`PARTS`."""
    if model.section is None:
        return _RMS_UNKNOWN / _RMS_LOG_ERROR
    known = max(model.section.rms_log_error, _RMS_LOG_ERROR) / _RMS_LOG_ERROR
    return known if device.name in model.where else _SIBLING * known


def _groups(configs: Sequence[KernelConfig]) -> np.ndarray:
    """[configs, 4]: numbers of the kernel, the tile, the family and the pipeline of each config."""
    numbers: dict[tuple, int] = {}
    rows = []
    for config in configs:
        tile = (config.kernel, config.block_m, config.block_n)
        family = (class_of(config), config.split_k)
        pipeline = (*family, config.num_stages, config.swap_ab, config.pad_operands)
        rows.append([numbers.setdefault((i, key), len(numbers)) for i, key in enumerate(
            (config.kernel, tile, family, pipeline))])
    return np.array(rows, int).reshape(-1, 4)


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    """The CDF of the standard normal distribution, by Abramowitz and Stegun 7.1.26; errors below
    1e-7."""
    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (
        -1.453152027 + t * 1.061405429)))) * np.exp(-z * z) / 2
    return np.where(x >= 0, 1 - tail, tail)

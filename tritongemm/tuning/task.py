"""The state of one problem in a sweep: configs to compile, built, being measured, and finalists."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem
from tritongemm.selection.work import class_of
from tritongemm.tuning.search import LEAST, Search
from tritongemm.workers.messages import Outcome

#: A finalist is at most this many times slower than the fastest of the coarse stage.
FINALIST_FACTOR = 1.25
#: Most finalists with one tile, cluster and split, while there are others: over 766 finals of seven
#: or more configs, the third and later ones would have gained 0.03 %; configs with another tile
#: gain more when power is the limit (perf/results/nvidia-h200/exploratory/sustained.txt).
_OF_A_KIND = 2


@dataclass(frozen=True)
class ProblemReport:
    """The result of a sweep for one problem.

    Attributes:
        winner: None if no config passed the final stage.
        time_us, ratio_vs_torch, ratio_low, ratio_high: of the winner, interleaved with torch.
        margin_vs_second: paired ratio of the second finalist's time to the winner's, minus 1.
        measured: configs with an outcome of this run. skipped: configs left out for lack of time.
        failures: outcomes other than ok, by status.
        left: configs that a search did not measure, because it expected too little gain.
        gain_left: the gain expected of these, 0.01 for 1 %; None without a search.
        note: why there is no winner, or that nothing was left to do.
    """

    problem: GemmProblem
    winner: KernelConfig | None = None
    time_us: float | None = None
    ratio_vs_torch: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    margin_vs_second: float | None = None
    measured: int = 0
    skipped: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    left: int = 0
    gain_left: float | None = None


@dataclass(eq=False)
class Task:
    """The state of one problem. A config is in one state at a time: ``building`` (in the compile
    pool), ``ready`` (built), ``measuring`` (on a device), or settled.

    Attributes:
        coarse: (time in microseconds, config) of the configs that passed the coarse stage.
        owner: the device that measures the problem: times of two cards are not compared.
        deadline: when the problem's share of the budget ends.
        final_groups: finalists still to be measured, each group in the same rounds.
        search: requests more configs as long as it expects a gain; None: all configs were requested
            at once.
        ended: the search must not request more configs, whatever it expects.
        partial: legal configs of the spaces are not among the candidates (``top``), so that the end
            of the search says nothing of the spaces.
    """

    problem: GemmProblem
    total: int
    building: set[KernelConfig] = field(default_factory=set)
    ready: deque[KernelConfig] = field(default_factory=deque)
    measuring: set[KernelConfig] = field(default_factory=set)
    built: dict[KernelConfig, Mapping[str, object]] = field(default_factory=dict)
    coarse: list[tuple[float, KernelConfig]] = field(default_factory=list)
    owner: object | None = None
    deadline: float | None = None
    torch_us: float | None = None
    final_groups: deque[tuple[KernelConfig, ...]] = field(default_factory=deque)
    finals: dict[KernelConfig, Outcome] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    skipped: int = 0
    breaks: int = 0
    note: str = ""
    search: Search | None = None
    ended: bool = False
    partial: bool = False

    @property
    def busy(self) -> bool:
        """Whether a device is measuring this problem."""
        return bool(self.measuring)

    @property
    def coarse_over(self) -> bool:
        """Whether every config has passed or failed the coarse stage, or was left out."""
        return not self.outstanding and not self.searching

    @property
    def outstanding(self) -> int:
        """Configs that were requested and have no outcome yet."""
        return len(self.building) + len(self.ready) + len(self.measuring)

    @property
    def searching(self) -> bool:
        """Whether a search may request more configs."""
        return self.search is not None and not self.ended and not self.search.over

    @property
    def settled(self) -> int:
        """The number of configs with an outcome of this run or an earlier one."""
        if self.search is not None:
            return self.search.settled
        return self.total - self.outstanding

    @property
    def expected(self) -> int:
        """The number of configs that will have an outcome in the end."""
        if self.search is None:
            return self.total
        if not self.searching:
            return self.settled + self.outstanding
        more = self.search.forecast() if self.coarse else min(LEAST, self.total)
        return max(self.settled + more, self.settled + self.outstanding)

    @property
    def best_us(self) -> float | None:
        """The fastest coarse time so far."""
        return min((time_us for time_us, _ in self.coarse), default=None)

    def next_finalists(self, count: int) -> tuple[KernelConfig, ...]:
        """The best ``count`` configs of the coarse stage that were not finalists yet. Configs
        ranked behind two of their own kind come last."""
        left = sorted((t, c.config_id, c) for t, c in self.coarse if c not in self.finals)
        seen: Counter[tuple[str, int]] = Counter()
        first: list[KernelConfig] = []
        last: list[KernelConfig] = []
        for time_us, _, config in left:
            if time_us > FINALIST_FACTOR * left[0][0]:
                break
            kind = class_of(config), config.split_k
            (first if seen[kind] < _OF_A_KIND else last).append(config)
            seen[kind] += 1
        return (*first, *last)[:count]

    def ranking(self) -> list[tuple[KernelConfig, Outcome]]:
        """Finalists with correct results, best first, by the paired ratio to torch."""
        good = [(c, o) for c, o in self.finals.items() if o.ok]
        paired = all(o.values.get("ratio_vs_torch") for _, o in good)

        def order(item: tuple[KernelConfig, Outcome]) -> tuple[float, str]:
            config, outcome = item
            key = (-float(outcome.values["ratio_vs_torch"]) if paired  # type: ignore[arg-type]
                   else float(outcome.values["time_us"]))  # type: ignore[arg-type]
            return key, config.config_id

        return sorted(good, key=order)

    def report(self) -> ProblemReport:
        """The report of the finished problem."""
        ranking = self.ranking()
        counts = {"measured": self.measured, "skipped": self.skipped,
                  "failures": dict(self.failures)}
        if self.search is not None:
            counts |= {"left": self.search.left, "gain_left": self.search.gain_left}
        if not ranking:
            note = self.note or ("no config passed the final stage" if self.coarse else
                                 "no config was right" if self.measured else
                                 "no config is legal here, or it is empty" if self.total == 0 else
                                 "no time was left")
            return ProblemReport(self.problem, note=note, **counts)  # type: ignore[arg-type]
        (winner, first), *others = ranking
        values = first.values
        ratio = values.get("ratio_vs_torch")
        margin = None
        if others:
            second = others[0][1].values
            margin = (float(ratio) / float(second["ratio_vs_torch"])  # type: ignore[arg-type]
                      if ratio and second.get("ratio_vs_torch") else
                      float(second["time_us"]) / float(values["time_us"])  # type: ignore
                      ) - 1
        return ProblemReport(
            self.problem, winner, values["time_us"], ratio,  # type: ignore[arg-type]
            values.get("ratio_low"), values.get("ratio_high"), margin,  # type: ignore[arg-type]
            note=self.note, **counts)  # type: ignore[arg-type]

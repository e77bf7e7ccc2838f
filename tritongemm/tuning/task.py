"""One problem on its way through the sweep: what is to compile, ready, measured, final."""

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
#: Finalists of one tile, cluster and split, while there are others: of 766 finals of seven and more
#: the third and later of their kind would have brought 0.03 %, another kind brings more where the
#: card's power bounds them (perf/results/nvidia-h200/exploratory/sustained.txt).
_OF_A_KIND = 2


@dataclass(frozen=True)
class ProblemReport:
    """What a sweep found for one problem.

    Attributes:
        winner: None where no config reached the end.
        time_us, ratio_vs_torch, ratio_low, ratio_high: the winner's, interleaved with torch.
        margin_vs_second: time of the second finalist / the winner's, minus 1, paired.
        measured, skipped: configs with an outcome of this run; left out for lack of time.
        failures: outcomes other than ok, by status.
        left: configs that a search did not measure, since no gain was expected of them.
        gain_left: what was still expected of these, 0.01 for 1 %; None without a search.
        note: why there is no winner, or that there was nothing left to do.
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
    """The state of one problem. A config is in one place at a time: ``building`` (with the
    compile pool), ``ready`` (built), ``measuring`` (with a device), or settled.

    Attributes:
        coarse: (time in microseconds, config) of what has passed the coarse stage.
        owner: the device that measures it: times of two cards are not compared.
        deadline: when its share of the budget is used up.
        final_groups: finalists still to be measured, each group in the same rounds.
        search: what asks for more configs as long as it expects a gain; None: every config was
            asked for at once.
        ended: the search is to ask for no more, whatever it expects.
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

    @property
    def busy(self) -> bool:
        """Whether a device is on it."""
        return bool(self.measuring)

    @property
    def coarse_over(self) -> bool:
        """Whether every config has passed or failed the coarse stage, or was left out."""
        return not self.outstanding and not self.searching

    @property
    def outstanding(self) -> int:
        """Configs that were asked for and have no outcome yet."""
        return len(self.building) + len(self.ready) + len(self.measuring)

    @property
    def searching(self) -> bool:
        """Whether a search may ask for more configs."""
        return self.search is not None and not self.ended and not self.search.over

    @property
    def settled(self) -> int:
        """Configs with an outcome, of this run or an earlier one."""
        if self.search is not None:
            return self.search.settled
        return self.total - self.outstanding

    @property
    def expected(self) -> int:
        """How many configs will have an outcome in the end."""
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
        """The best ``count`` of the coarse stage that have not been in the final one, those behind
        two of their own kind last."""
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
        """Finalists that are right, the best first: by the ratio to torch, which is paired."""
        good = [(c, o) for c, o in self.finals.items() if o.ok]
        paired = all(o.values.get("ratio_vs_torch") for _, o in good)

        def order(item: tuple[KernelConfig, Outcome]) -> tuple[float, str]:
            config, outcome = item
            key = (-float(outcome.values["ratio_vs_torch"]) if paired  # type: ignore[arg-type]
                   else float(outcome.values["time_us"]))  # type: ignore[arg-type]
            return key, config.config_id

        return sorted(good, key=order)

    def report(self) -> ProblemReport:
        """What is known at the end."""
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

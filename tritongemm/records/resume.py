"""What a sweep that is resumed need not repeat: the outcomes that its journal holds."""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import digest, problem_key
from tritongemm.records.journal_format import CACHE_LIMIT, RecordChecker, records

#: Fastest configs remembered of each problem when resuming; more than any sweep re-measures.
REMEMBERED = 16
#: Reasons of ``died`` that say nothing about the config: its worker was killed from outside, by the
#: user or by a system that ran out of memory.
_KILLED = re.compile(r"was killed by SIG(KILL|TERM|INT|HUP|QUIT)\b")


def _outcome_key(problem: GemmProblem, config: KernelConfig, stage: str) -> int:
    return digest(problem_key(problem)) ^ digest(config.config_id) ^ digest(stage)


class DoneKeys:
    """What a journal holds of one environment: a digest an outcome with its time, and of each
    problem its fastest configs and whether it has a winner."""

    def __init__(self) -> None:
        self._outcomes: dict[int, float | None] = {}
        #: Outcomes whose worker was killed from outside, once.
        self._killed: set[int] = set()
        #: Of outcomes that are timeouts, the limit in seconds, where the record states it.
        self._limits: dict[int, float] = {}
        #: Problem -> hash of the spaces -> the gain, of the winners that no later outcome may beat.
        self._winners: dict[int, dict[object, float | None]] = {}
        self._fastest: dict[int, list[tuple[float, int, KernelConfig]]] = {}

    def __len__(self) -> int:
        """How many different outcomes there are."""
        return len(self._outcomes)

    def has(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse",
            limit_s: float = 0.0) -> bool:
        """Whether ``config`` has an outcome, good or bad, for ``problem`` at ``stage``. A timeout
        at a limit below ``limit_s`` does not count."""
        key = _outcome_key(problem, config, stage)
        return key in self._outcomes and self._limits.get(key, limit_s) >= limit_s

    def retries(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse",
                limit_s: float = 0.0) -> bool:
        """Whether ``config`` was tried, and :meth:`has` does not count the outcome."""
        key = _outcome_key(problem, config, stage)
        return ((key in self._outcomes or key in self._killed)
                and not self.has(problem, config, stage, limit_s))

    def time_us(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse"
                ) -> float | None:
        """The last time of ``config`` for ``problem`` at ``stage``, microseconds; None: it has no
        outcome there, or one without a time."""
        return self._outcomes.get(_outcome_key(problem, config, stage))

    def has_winner(self, problem: GemmProblem) -> bool:
        """Whether the problem has a winner and no later outcome, so that it is finished unless
        there are more configs."""
        return digest(problem_key(problem)) in self._winners

    def searched_to(self, problem: GemmProblem, space_hash: object) -> float | None:
        """The gain below which a search of the spaces ``space_hash`` gave up when it found the
        problem's winner, 0.01 for 1 %; None: no such winner, or one of another way of choosing
        configs, or of a search cut short. A winner whose record has no hash counts for all
        spaces."""
        found = self._winners.get(digest(problem_key(problem)), {})
        return found.get(space_hash, found.get(None))

    def fastest(self, problem: GemmProblem, count: int = REMEMBERED
                ) -> list[tuple[float, KernelConfig]]:
        """At most ``count`` (and REMEMBERED) of the coarse stage's results, fastest first, as
        (time in microseconds, config)."""
        found: dict[KernelConfig, float] = {}
        for time_us, _, config in sorted(self._fastest.get(digest(problem_key(problem)), ()),
                                         reverse=True):
            found.setdefault(config, -time_us)
        return [(time_us, config) for config, time_us in found.items()][:count]


def read_done(path: str | os.PathLike[str], environment: object) -> DoneKeys:
    """What was measured in ``environment``; see :class:`DoneKeys`. Streams the file once.

    An outcome is stored as the exclusive or of the digests of its problem, config and stage, each
    hashed once. A million rows take a few seconds and about 100 bytes each.

    A config whose worker was killed from outside is not done, unless that happened twice: then it
    may be what made the system kill it. A winner counts until the next outcome of its problem,
    which may be of a faster config.

    Raises:
        DataFileError: as :func:`tritongemm.records.journal.read_journal`.
    """
    path = Path(path)
    return _done(records(path), environment, path)


def done_among(lines: Iterable[Mapping[str, object]], environment: object) -> DoneKeys:
    """What the records ``lines`` of a journal, headers included, hold of ``environment``.

    Raises:
        DataFileError: as :func:`tritongemm.records.journal.read_journal`.
    """
    return _done(enumerate(lines, 1), environment, Path("records"))


def _done(numbered: Iterable[tuple[int, Mapping[str, object]]], environment: object,
          path: Path) -> DoneKeys:
    done = DoneKeys()
    outcomes, remembered, winners = done._outcomes, done._fastest, done._winners
    killed, limits = done._killed, done._limits
    check = RecordChecker(path).check
    stages: dict[object, int] = {}
    wanted = _canonical(environment)
    ours = False
    for line, record in numbered:
        known = check(line, record)
        if known is None:
            if record["kind"] == "header":
                ours = _canonical(record["environment"]) == wanted
            continue
        if not ours:
            continue
        (_, problem), (config, config_digest) = known
        if record["kind"] == "winner":
            winners.setdefault(problem, {})[record.get("space_hash")] = (
                record.get("gain"))  # type: ignore[assignment]
            continue
        stage = str(record.get("stage", "coarse"))
        if stage not in stages:
            if len(stages) >= CACHE_LIMIT:
                stages.clear()
            stages[stage] = digest(stage)
        outcome = problem ^ config_digest ^ stages[stage]
        time_us: float | None = record.get("time_us")  # type: ignore[assignment]
        if stage != "final":
            winners.pop(problem, None)
        limits.pop(outcome, None)
        limit_s = record.get("limit_s")
        if record["status"] == "timeout" and isinstance(limit_s, (int, float)):
            limits[outcome] = limit_s
        if (record["status"] == "died" and outcome not in killed
                and _KILLED.search(str(record.get("reason")))):
            killed.add(outcome)
        else:
            outcomes[outcome] = time_us
        if time_us is not None and stage == "coarse":
            heap = remembered.setdefault(problem, [])
            if len(heap) < REMEMBERED:
                heapq.heappush(heap, (-time_us, line, config))
            elif -time_us > heap[0][0]:
                heapq.heapreplace(heap, (-time_us, line, config))
    return done


def _canonical(environment: object) -> str:
    return json.dumps(environment, sort_keys=True)

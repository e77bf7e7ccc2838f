"""Which binaries a pack should have: those that the choices for random problems need most often.

Problems are drawn as fresh suites are (``bench/fresh.py``), as many of each family. What the
shipped tables and models choose for them is kept in a journal: an interrupted run goes on.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tritongemm.bench.fresh import draw_up_to
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, device_named, known_devices
from tritongemm.errors import (
    ConfigError,
    DataFileError,
    ProblemError,
    UnsupportedError,
    UsageError,
)
from tritongemm.kernels.compile import launch_key, launches_of
from tritongemm.kernels.revision import device_code_digest
from tritongemm.ops.float32 import default_precision
from tritongemm.problem import GemmProblem
from tritongemm.records import atomic
from tritongemm.records.codec import (
    config_from_json,
    config_to_json,
    problem_from_json,
    problem_key,
    problem_to_json,
)
from tritongemm.records.reading import Fields, lines, open_regular, parse_json
from tritongemm.records.revision import choices_digest
from tritongemm.records.suites import known_suites
from tritongemm.selection import choose, torch_wins
from tritongemm.selection.columns import kind_of
from tritongemm.selection.hosttime import usual_path
from tritongemm.selection.sibling import calibrated

#: Suites that are no family: ``sources`` lists shapes of the others.
_NO_FAMILY = {"sources"}
#: Of a shape whose suite does not name a layout: of ``torch.nn.functional.linear``, and of
#: ``torch.matmul`` of two contiguous matrices.
_LAYOUTS = ("nt", "nn")
#: Problems that a process is given at a time.
_AT_ONCE = 64


@dataclass(frozen=True)
class PackChoice:
    """What a call of ``problem`` on a device launches.

    Attributes:
        config: None where the call is torch's.
        keys: of its binaries (``compile.launch_key``), in the order of the launches.
    """

    device: str
    problem: GemmProblem
    config: KernelConfig | None
    keys: tuple[str, ...]


def measured(arch: int) -> list[DeviceSpec]:
    """The shipped devices of an architecture that have a calibration: the others choose as one of
    these. Raises :class:`UsageError` where there is none."""
    found = [device for device in known_devices().values()
             if device.arch == arch and calibrated(device.slug, None)]
    if not found:
        raise UsageError(f"no device of sm_{arch} in configs/devices has a calibration")
    return found


def drawn(count: int, seed: int, dtype: str = "bf16") -> list[GemmProblem]:
    """``count`` different problems, the same number of each family as far as it has them.

    Shapes without a layout of their own are ``nt`` or ``nn``, at random. Raises UsageError for a
    count below 1.
    """
    if count < 1:
        raise UsageError(f"count {count} is below 1")
    families = sorted({*known_suites()} - _NO_FAMILY)
    found: dict[GemmProblem, None] = {}
    # Small families first: what they lack, the others give.
    shapes = {family: draw_up_to(family, seed, count) for family in families}
    for place, family in enumerate(sorted(families, key=lambda x: len(shapes[x]))):
        share = -(-(count - len(found)) // (len(families) - place))
        rng = random.Random(f"{family}:{seed}:layouts")
        for shape in shapes[family][:share]:
            found[shape.problem(dtype=dtype, layout=shape.layout or rng.choice(_LAYOUTS),
                                precision=default_precision(dtype))] = None
    return list(found)


def chosen(problem: GemmProblem, device: DeviceSpec) -> PackChoice:
    """What a call of gapless operands of ``problem`` on ``device`` launches."""
    try:
        choice = choose(problem, device)
    except UnsupportedError:
        return PackChoice(device.slug, problem, None, ())
    if torch_wins(problem, choice, device, usual_path()):
        return PackChoice(device.slug, problem, None, ())
    return PackChoice(device.slug, problem, choice.config,
                      tuple(launch_key(x, device.arch)
                            for x in launches_of(problem, choice.config, device)))


def choices(problems: Sequence[GemmProblem], devices: Sequence[DeviceSpec], *,
            journal: Path | None = None, workers: int | None = None,
            progress: Callable[[int, int], None] = lambda done, total: None) -> list[PackChoice]:
    """What calls of ``problems`` launch on each of ``devices``.

    Args:
        journal: choices that it holds are not asked for again, new ones are added to it.
        workers: processes; by default one a core. 1: this one.
        progress: called with (done, total).

    Raises:
        DataFileError: the journal is damaged, cannot be written, or was made by other kernels,
            tables, calibrations, code or settings.
    """
    known = {} if journal is None else _read(journal)
    # Problems of a kind share most of the work of choosing.
    todo = sorted(((device.slug, p) for device in devices for p in problems
                   if (device.slug, problem_key(p)) not in known),
                  key=lambda x: (x[0], str(kind_of(x[1]))))
    parts = [todo[i:i + _AT_ONCE] for i in range(0, len(todo), _AT_ONCE)]
    done = 0

    def add(part: list[PackChoice]) -> None:
        nonlocal done
        known.update(((x.device, problem_key(x.problem)), x) for x in part)
        if journal is not None:
            _append(journal, part)
        done += len(part)
        progress(done, len(todo))

    workers = min(workers or len(os.sched_getaffinity(0)), len(parts))
    if workers <= 1:
        for part in parts:
            add(_part(part))
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            for future in as_completed([pool.submit(_part, part) for part in parts]):
                add(future.result())
    return [known[device.slug, problem_key(p)] for device in devices for p in problems]


def _part(part: Sequence[tuple[str, GemmProblem]]) -> list[PackChoice]:
    return [chosen(problem, device_named(slug)) for slug, problem in part]


def _append(path: Path, part: Iterable[PackChoice]) -> None:
    begun = path.exists() and path.stat().st_size > 0  # a full disk leaves an empty one
    text = "" if begun else json.dumps(_made_by()) + "\n"
    text += "".join(json.dumps({
        "device": x.device, "problem": problem_to_json(x.problem),
        "config": None if x.config is None else config_to_json(x.config),
        "keys": x.keys}) + "\n" for x in part)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise atomic.write_error(path, error) from error


def _made_by() -> dict[str, str]:
    """What the choices of a journal depend on."""
    return {"device_code": device_code_digest(), "choices": choices_digest()}


_WHAT = {"device_code": "another revision of the kernels",
         "choices": "other tables, calibrations, selection code or settings"}


def _check_made_by(path: Path, head: object) -> None:
    """Raises DataFileError for a journal whose choices are out of date."""
    read = Fields(path, head, 1, "head")
    for name, digest in _made_by().items():
        if read.values.get(name) != digest:
            raise read.error(name, f"is of {_WHAT[name]}: the choices are out of date; delete it")


def _read(path: Path) -> dict[tuple[str, str], PackChoice]:
    """A journal's choices. Raises DataFileError, also for a last line that was cut."""
    found: dict[tuple[str, str], PackChoice] = {}
    if not path.exists():
        return found
    with open_regular(path) as file:
        for number, line in lines(file, path):
            if not line.endswith(b"\n"):
                raise DataFileError(path, "is cut short; delete the last line", row=number)
            values = parse_json(path, line.decode(errors="replace"), number)
            try:
                if number == 1:
                    _check_made_by(path, values)
                    continue
                config = values["config"]  # type: ignore[index,call-overload]
                choice = PackChoice(
                    values["device"], problem_from_json(values["problem"]),  # type: ignore
                    None if config is None else config_from_json(config),
                    tuple(values["keys"]))  # type: ignore[index,call-overload]
            except (KeyError, TypeError, ConfigError, ProblemError) as error:
                raise DataFileError(path, f"is no choice of a problem: {error}",
                                    row=number) from error
            found[choice.device, problem_key(choice.problem)] = choice
    return found


def by_use(found: Iterable[PackChoice]) -> list[PackChoice]:
    """One choice for each set of binaries that calls need together, those of most problems first.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    one: dict[tuple[str, ...], PackChoice] = {}
    for choice in found:
        if choice.config is not None:
            key = tuple(sorted(choice.keys))
            counts[key] += 1
            one.setdefault(key, choice)
    return [one[key] for key, _ in counts.most_common()]


@dataclass(frozen=True)
class Coverage:
    """How many problems a set of binaries serves.

    Attributes:
        served: problems all of whose binaries are in the set.
        problems: those that are not torch's.
        torchs: those that are.
    """

    served: int
    problems: int
    torchs: int

    @property
    def share(self) -> float:
        """Of the problems that are not torch's."""
        return self.served / self.problems if self.problems else 1.0

    def __str__(self) -> str:
        return (f"{100 * self.share:.2f} % ({self.served} of {self.problems} problems; "
                f"{self.torchs} more go to torch)")


def coverage(found: Iterable[PackChoice], keys: Collection[str]) -> Coverage:
    """How many of the choices the binaries ``keys`` serve."""
    served = problems = torchs = 0
    for choice in found:
        if choice.config is None:
            torchs += 1
        else:
            problems += 1
            served += all(key in keys for key in choice.keys)
    return Coverage(served, problems, torchs)


def needed(found: Sequence[PackChoice], share: float) -> list[PackChoice]:
    """The first of :func:`by_use` that serve ``share`` of the problems that are not torch's."""
    uses = Counter(frozenset(choice.keys) for choice in found if choice.config is not None)
    missing = {keys: len(keys) for keys in uses}
    with_key: dict[str, list[frozenset[str]]] = {}
    for keys in uses:
        for key in keys:
            with_key.setdefault(key, []).append(keys)
    kept: list[PackChoice] = []
    served, enough = 0, share * uses.total()
    for choice in by_use(found):
        if served >= enough:
            break
        kept.append(choice)
        for key in choice.keys:
            for keys in with_key.pop(key, ()):
                missing[keys] -= 1
                served += uses[keys] * (missing[keys] == 0)
    return kept

"""The bench of faults: each is injected by name, and one table says what happened.

A fault runs in a process of its own with a cache and a folder of tables of its own, and is ended
when it takes too long: a hang is a result.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import TritonGemmError

#: Seconds after which a fault counts as one that hangs.
LIMIT_S = 15.0


@dataclass(frozen=True)
class Seen:
    """What a fault led to.

    Attributes:
        what: one line.
        healed: the program went on as it should, or refused with one clear error; nothing that is
            not its own was touched.
        lost: rows that were written and are gone, or that should have been written.
    """

    what: str
    healed: bool
    lost: int = 0


@dataclass(frozen=True)
class Fault:
    """``run(folder)`` injects it; ``about``: one line."""

    name: str
    about: str
    run: Callable[[Path], Seen]


FAULTS: dict[str, Fault] = {}


def fault(about: str) -> Callable[[Callable[[Path], Seen]], Callable[[Path], Seen]]:
    """Registers a function under its name, with hyphens."""
    def register(run: Callable[[Path], Seen]) -> Callable[[Path], Seen]:
        name = run.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, about, run)
        return run
    return register


def load() -> dict[str, Fault]:
    """Every fault by its name."""
    from . import of_files, of_sweeps  # noqa: F401 (they register)

    return FAULTS


def inject(names: Iterable[str], limit_s: float = LIMIT_S) -> Iterable[tuple[Fault, Seen, float]]:
    """Injects faults one by one: each with what was seen and the seconds that it took."""
    faults = load()
    for name in names:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            seen = _alone(faults[name], Path(folder), limit_s)
        yield faults[name], seen, time.monotonic() - begun


def _alone(one: Fault, folder: Path, limit_s: float) -> Seen:
    """Runs a fault in a forked process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(one, folder, there))
    process.start()
    there.close()
    try:
        if here.poll(limit_s):
            return here.recv()
        return Seen(f"hangs: no end after {limit_s:g} s", False)
    except EOFError:
        process.join()
        return Seen(f"the process ended with {process.exitcode}", False)
    finally:
        process.kill()
        process.join()


def _child(one: Fault, folder: Path, pipe) -> None:
    os.chdir(folder)
    os.environ["TRITONGEMM_CACHE_DIR"] = str(folder / "cache")
    os.environ["TRITONGEMM_USER_DIR"] = str(folder / "user")
    settings.reload()
    try:
        pipe.send(one.run(folder))
    except BaseException as error:  # an escaped exception is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send(Seen(f"escaped: {type(error).__name__}: {error} "
                       f"({Path(last.filename).name}:{last.lineno})"[:200], False))
    pipe.close()


def clear(error: BaseException) -> bool:
    """Whether an error is one of the package's own, which name the thing and the way out."""
    return isinstance(error, TritonGemmError)


def refused(call: Callable[[], object]) -> Seen:
    """A call that must end with a clear error."""
    try:
        result = call()
    except Exception as error:
        return Seen(f"{type(error).__name__}: {error}"[:150], clear(error))
    return Seen(f"accepted: {result!r}"[:150], False)

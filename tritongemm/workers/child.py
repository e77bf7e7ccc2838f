"""What runs inside a child process: it serves one object's work over a pipe, item by item.

The served object ("module:attribute", called with keyword arguments) has

* ``info() -> dict``: told once, when the child is ready;
* ``open(problem) -> dict``: once before the first config of another problem than the last;
* ``one(problem, config) -> Outcome``: builds or measures one config;
* ``together(problem, configs) -> list[Outcome]``: the final stage.

Whatever these raise becomes the config's outcome; after a fatal one the child ends itself.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from tritongemm.errors import TritonGemmError
from tritongemm.workers.batch import (
    COMPILE,
    FINAL,
    OPENING,
    TOGETHER,
    Job,
    Outcome,
    failure,
    one_line,
)

_WATCH_INTERVAL_S = 0.5


def main(descriptor: int, parent: int) -> None:
    """Serves until the pipe closes, the parent is gone, or a fatal outcome."""
    faulthandler.enable()
    # A compiler started from here must not hold the pipe open after this process died.
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_follow_parent, args=(parent,), daemon=True).start()
    connection = Connection(descriptor)
    try:
        target, arguments = connection.recv()
        served = _start(connection, target, arguments)
        if served is not None:
            _serve(connection, served)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed its end
    # Not the interpreter's own shutdown: after a device fault it can hang.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _follow_parent(parent: int) -> None:
    """Ends this process group when the parent was killed, even while a kernel hangs."""
    while os.getppid() == parent:
        time.sleep(_WATCH_INTERVAL_S)
    os.killpg(0, signal.SIGKILL)


def resolve(target: str) -> object:
    """``"module:attribute"`` -> the attribute."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _start(connection: Connection, target: str, arguments: dict) -> object | None:
    try:
        served = resolve(target)(**arguments)  # type: ignore[operator]
        info = served.info()
    except Exception as error:  # told to the parent, which decides
        own = isinstance(error, TritonGemmError)
        connection.send(("unready", one_line(str(error) if own else
                                             f"{type(error).__name__}: {error}")))
        return None
    connection.send(("ready", info))
    return served


def _serve(connection: Connection, served: object) -> None:
    opened = None
    while True:
        job = connection.recv()
        if job.stage != COMPILE and opened != job.problem:
            opened = None
            connection.send(("begin", OPENING))
            try:
                connection.send(("opened", served.open(job.problem)))  # type: ignore[attr-defined]
                opened = job.problem
            except Exception as error:  # the problem's outcome
                outcome = failure(error, job.stage)
                connection.send(("outcome", OPENING, outcome))
                if outcome.fatal:
                    return
                connection.send(("end",))
                continue
        if not _work(connection, served, job):
            return
        connection.send(("end",))


def _work(connection: Connection, served: object, job: Job) -> bool:
    """Does the job's configs; false after a fatal outcome."""
    if job.stage == FINAL:
        connection.send(("begin", TOGETHER))
        try:
            outcomes = served.together(job.problem, job.configs)  # type: ignore[attr-defined]
        except Exception as error:  # an outcome of the finalists together
            outcome = failure(error, job.stage)
            connection.send(("outcome", TOGETHER, outcome))
            return not outcome.fatal
        for item, outcome in enumerate(outcomes):
            connection.send(("outcome", item, outcome))
        return not any(outcome.fatal for outcome in outcomes)
    for item, config in enumerate(job.configs):
        connection.send(("begin", item))
        try:
            outcome = served.one(job.problem, config)  # type: ignore[attr-defined]
        except Exception as error:  # the config's outcome
            outcome = failure(error, job.stage)
        assert isinstance(outcome, Outcome)
        connection.send(("outcome", item, outcome))
        if outcome.fatal:
            return False
    return True

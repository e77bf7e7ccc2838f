"""The main loop of a worker process: serves one object's methods over a pipe, call by call.

The served object ("module:attribute", called with keyword arguments) has ``info()``, whose result
is sent once when the worker is ready, and the methods that requests name. An exception of a method
becomes the call's :class:`~tritongemm.workers.messages.Outcome`; after a fatal one the process ends
itself.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from tritongemm import plugins
from tritongemm.errors import TritonGemmError
from tritongemm.workers.messages import SETUP, Call, failure

_WATCH_INTERVAL_S = 0.5


def main(descriptor: int, parent: int) -> None:
    """Serves until the pipe closes, the parent is gone, or a fatal outcome."""
    faulthandler.enable()
    # A compiler started by this process must not keep the pipe open after this process has died.
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_follow_parent, args=(parent,), daemon=True).start()
    connection = Connection(descriptor)
    try:
        target, arguments = connection.recv()
        served = _start(connection, target, arguments)
        if served is not None:
            _serve(connection, served)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent closed its end
    # Skip the interpreter's shutdown, which can hang after a device fault.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _follow_parent(parent: int) -> None:
    """Ends this process group when the parent dies, even while a kernel hangs."""
    while os.getppid() == parent:
        time.sleep(_WATCH_INTERVAL_S)
    os.killpg(0, signal.SIGKILL)


def resolve(target: str) -> object:
    """``"module:attribute"`` -> the attribute."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _start(connection: Connection, target: str, arguments: dict) -> object | None:
    try:
        plugins.load()  # before the first problem, which may use a format that a plugin registers
        served = resolve(target)(**arguments)  # type: ignore[operator]
        info = served.info()
    except Exception as error:  # sent to the parent, which decides
        own = isinstance(error, TritonGemmError)
        text = str(error) if own else f"{type(error).__name__}: {error}"
        connection.send(("unready", text, type(error).__name__))
        return None
    connection.send(("ready", info))
    return served


def _serve(connection: Connection, served: object) -> None:
    last_setup: tuple[str, tuple] | None = None
    while True:
        calls, setup = connection.recv()
        todo = list(enumerate(calls))
        if setup is not None and (setup.method, setup.arguments) != last_setup:
            last_setup = None
            todo.insert(0, (SETUP, setup))
        for index, call in todo:
            connection.send(("begin", index))
            message = _work(served, index, call)
            connection.send(message)
            kind, *_, result = message
            if kind == "failed" and result.fatal:
                return
            if index == SETUP:
                if kind == "failed":
                    break
                last_setup = (call.method, call.arguments)
        connection.send(("end",))


def _work(served: object, index: int, call: Call) -> tuple:
    """Makes one call; returns ("returned", index, value) or ("failed", index, where, outcome)."""
    try:
        return "returned", index, getattr(served, call.method)(*call.arguments)
    except Exception as error:  # the call's outcome
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return ("failed", index, f"{frame.name}, line {frame.lineno}",
                failure(error, call.doing))

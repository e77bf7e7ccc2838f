"""Compiling ahead: every kernel that a bench will need, on all cores, before the first time.

Compiling while the device is timed would take the host from under it, so the two do not overlap
here. Results land in the store of binaries, where the measuring process finds them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem

Build = tuple[GemmProblem, KernelConfig, DeviceSpec]
#: The problem, the config's id, and the seconds that it took; None: it was there, or it failed.
Built = tuple[GemmProblem, str, "float | None"]
#: A compile that takes longer is left to the measuring process, whose row then says so.
TIMEOUT_S = 120.0
_LOG = logging.getLogger("tritongemm")


def cores() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compile_ahead(builds: Sequence[Build], *, workers: int | None = None,
                  progress: Callable[[int, int], None] | None = None,
                  compiler: Callable[[Build], Built] | None = None) -> list[Built]:
    """Compiles ``builds``; what came of those that ended. Failures are left to the rows.

    Args:
        workers: processes, by default one a core.
        progress: called with (done, total).
        compiler: called in a worker process with one build.
    """
    if not builds:
        return []
    count = min(workers or cores(), len(builds))
    context = multiprocessing.get_context("spawn")
    done: list[Built] = []
    with context.Pool(count, initializer=_begin) as pool:  # terminated on the way out
        results = pool.imap_unordered(compiler or build_one, builds)
        for _ in builds:
            try:
                done.append(results.next(TIMEOUT_S))
            except multiprocessing.TimeoutError:
                break  # a worker hangs or was killed by the system; the rest is compiled later
            if progress is not None:
                progress(len(done), len(builds))
    return done


def build_one(build: Build) -> Built:
    """Compiles one. Where that fails the reason is logged, and the measuring process meets it
    again, in its row."""
    from tritongemm.kernels.compile import build as compile_one

    problem, config, device = build
    try:
        report = compile_one(problem, config, device)
    except Exception as error:  # an illegal config, the compiler, a full disk: its row will say
        _LOG.info("%s of %s is not compiled ahead: %s: %s", config.config_id, problem,
                  type(error).__name__, error)
        return problem, config.config_id, None
    return problem, config.config_id, None if report.cached else report.seconds


def _begin() -> None:
    """A worker leaves Ctrl-C to its parent, and does not outlive a parent that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

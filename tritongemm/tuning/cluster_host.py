"""Starts one Dask worker for each GPU of this host. Each worker sees only its GPU. Under
TRITON_INTERPRET=1 the host has one worker, which sees none."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tritongemm import settings
from tritongemm.errors import DeviceError, UsageError, missing

#: Threads of a worker: one measures a problem, one compiles the next, one serves short calls.
THREADS = 3
#: CUDA_VISIBLE_DEVICES of a worker that measures on the CPU.
_NO_GPU = ""
_POLL_S = 0.2
_END_TIMEOUT_S = 20.0


def gpus_of(text: str) -> list[str]:
    """The GPUs that ``text`` names: ``all``, or indices or UUIDs separated by commas. If
    CUDA_VISIBLE_DEVICES is set, as a batch system does, indices refer to that list. Under
    TRITON_INTERPRET=1 the CPU, as one entry that names no GPU.

    Raises:
        UsageError: no such GPU. DeviceError: the host has none.
    """
    if settings.current().interpret:
        require_cpu(text)
        return [_NO_GPU]
    visible = list(settings.current().visible_devices)
    if not visible:
        import torch

        visible = [str(index) for index in range(torch.cuda.device_count())]
    if not visible:
        raise DeviceError("torch sees no CUDA device on this host; `tritongemm doctor` says what "
                          "is missing")
    if text == "all":
        return visible
    found = []
    for word in text.split(","):
        if word in visible and not word.isdigit():
            found.append(word)
        elif word.isdigit() and int(word) < len(visible):
            found.append(visible[int(word)])
        else:
            raise UsageError(f"--devices {text}: {word!r} is not one of this host's "
                             f"{len(visible)} GPUs; give indices from 0 to {len(visible) - 1}, or "
                             "`all`")
    return list(dict.fromkeys(found))


def require_cpu(devices: str) -> None:
    """Refuses a ``--devices`` under TRITON_INTERPRET=1 that names more than the first.

    Raises:
        UsageError: it does.
    """
    if devices not in ("0", "all"):
        raise UsageError(f"--devices {devices} under TRITON_INTERPRET=1: the interpreter runs on "
                         "the CPU; unset one of the two")


def command(address: str, name: str, place: str, others: Sequence[str]) -> list[str]:
    """The command line of a worker.

    Args:
        name: of the host in the cluster; "" lets Dask name the workers.
        place: what the worker has of the host, such as ``gpu0``.
        others: further options of ``dask worker``.
    """
    named = ["--name", f"{name}-{place}"] if name else []
    return [sys.executable, "-m", "distributed.cli.dask_worker", address, *named, "--nthreads",
            str(THREADS), "--no-dashboard", *others]


def shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """``cores`` split into ``count`` contiguous blocks, at least one core each."""
    return [list(cores[len(cores) * i // count:len(cores) * (i + 1) // count])
            or [cores[i % len(cores)]] for i in range(count)]


def serve(address: str, gpus: Sequence[str], name: str = "", others: Sequence[str] = ()) -> int:
    """Runs the workers until all have ended or a signal arrives; returns 0 if all succeeded.

    Each worker compiles on its own share of the host's cores.

    Raises:
        MissingDependencyError: Dask distributed is not installed.
        KeyboardInterrupt: on SIGINT or SIGTERM, with all workers ended.
    """
    if importlib.util.find_spec("distributed") is None:
        raise missing("distributed", "cluster", "tritongemm worker")
    commands = [command(address, name, "cpu" if gpu == _NO_GPU else f"gpu{number}", others)
                for number, gpu in enumerate(gpus)]
    cores = sorted(os.sched_getaffinity(0))
    workers: list[subprocess.Popen[bytes]] = []

    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        asked.append(number)  # not an exception: it could lose a process that just started

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        for gpu, words, share in zip(gpus, commands, shares(cores, len(gpus)), strict=True):
            os.sched_setaffinity(0, share)  # a child inherits the affinity
            workers.append(subprocess.Popen(
                words, env=settings.child_environment(CUDA_VISIBLE_DEVICES=gpu)))
        os.sched_setaffinity(0, cores)
        while not asked and any(worker.poll() is None for worker in workers):
            time.sleep(_POLL_S)
    finally:
        os.sched_setaffinity(0, cores)
        _end(workers)
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt
    return 0 if all(worker.returncode == 0 for worker in workers) else 1


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    deadline = time.monotonic() + _END_TIMEOUT_S
    for worker in workers:
        try:
            worker.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()

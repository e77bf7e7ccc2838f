"""A program on several GPUs: one process per GPU, all measuring the same job synchronously.

Every rank runs the same code. All ranks use the times of rank 0, so that they make the same
decisions, run the same number of steps and rounds, and their collectives match.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from tritongemm.bench.session import SessionSpec
from tritongemm.errors import DeviceError
from tritongemm.measure.host import HostCalls, HostTimer
from tritongemm.workers.messages import Call, Request
from tritongemm.workers.worker import Failed, Finished, Ready, Refused, Worker

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.models.envelope import Verdict
    from tritongemm.models.job import ProgramJob

#: Seconds after which a collective that other ranks do not join raises an error.
_COLLECTIVE_S = 300
_JOB_S = 3600.0


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def joined(rank: int, count: int, port: int, cuda: bool) -> Iterator[None]:
    """Joins this process to a group of ``count``: NCCL on GPUs, gloo on the CPU."""
    import torch.distributed as distributed

    distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
        world_size=count, timeout=timedelta(seconds=_COLLECTIVE_S))
    try:
        yield
    finally:
        distributed.destroy_process_group()


def agreed(verdict: Verdict, ours: Sequence[object], theirs: Sequence[object]) -> Verdict:
    """The verdict of all ranks: the first one that is not good, else that of the largest error. It
    is not good either where torch's results are the same bits on all ranks, and ours are not.

    Args:
        ours, theirs: this rank's results, tensors or losses, by this package and by torch.
    """
    count = torch.distributed.get_world_size()
    found: list = [None] * count
    torch.distributed.all_gather_object(found, (verdict, _digest(ours), _digest(theirs)))
    for rank, (each, *_) in enumerate(found):
        if not each.ok:
            return replace(each, reason=f"rank {rank}: {each.reason}")
    worst = max((each for each, *_ in found), key=lambda each: each.largest)
    if len({digest for *_, digest in found}) == 1 and len({digest for _, digest, _ in found}) > 1:
        return replace(worst, alike=False, reason="the ranks' results differ, and torch's do not")
    return worst


def _digest(results: Sequence[object]) -> str:
    """A hash of the values' bits."""
    done = hashlib.sha256()
    for x in results:
        values = x.detach().cpu() if isinstance(x, torch.Tensor) else torch.tensor(
            x, dtype=torch.float64)
        done.update(values.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return done.hexdigest()


class SharedTimer(HostTimer):
    """A host timer whose items begin and end on all ranks together; the times are those of rank
    0."""

    def __init__(self, drain: Callable[[], None] | None = None,
                 least_us: float | None = None) -> None:
        def together() -> None:
            if drain is not None:
                drain()
            torch.distributed.barrier()
        super().__init__(together, least_us)

    def run(self, order: Sequence[HostCalls],
            while_busy: Callable[[], None] | None = None) -> list[float]:
        """As :meth:`HostTimer.run`."""
        times = [super().run(order, while_busy)]
        torch.distributed.broadcast_object_list(times, 0)
        return times[0]


@contextlib.contextmanager
def followers(count: int, target: Target, job: ProgramJob) -> Iterator[None]:
    """Runs the ranks from 1 on in processes that measure ``job`` during the block.

    Raises:
        DeviceError: one of them could not start, or failed.
    """
    workers: list[Worker] = []
    try:
        for rank in range(1, count):
            device = f"cuda:{rank}" if target.kind == "cuda" else "cpu"
            worker = Worker(f"rank {rank}", "tritongemm.bench.session:SessionServer", {
                "spec": SessionSpec(device, ()),
                "opener": "tritongemm.models.session:open_session"})
            workers.append(worker)
            worker.start()
        for worker in workers:
            event = worker.wait_for(Ready, Refused)[-1]
            if not isinstance(event, Ready):
                raise DeviceError(f"{worker.name} could not start: {event.reason}")
        for rank, worker in enumerate(workers, 1):
            worker.send(Request((Call("measure", (replace(job, rank=rank),), _JOB_S),)))
        yield
        for worker in workers:
            events = worker.wait_for(Finished)
            failed = [event for event in events if isinstance(event, Failed)]
            if failed:
                raise DeviceError(f"{worker.name}: {failed[0].outcome.reason}")
    finally:
        for worker in workers:
            worker.kill()

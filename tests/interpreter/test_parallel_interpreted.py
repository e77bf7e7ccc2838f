"""Tensor parallel and FSDP over processes that really communicate (gloo), by interpreted kernels:
under ``override`` every local product is taken, and losses and gradients are one process's."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("this torch is not distributed", allow_module_level=True)

import torch.multiprocessing
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import tritongemm as tg
from tritongemm.ops import execute
from tritongemm.ops.plans import plans

pytestmark = [pytest.mark.interpreter, pytest.mark.thorough]


class Block(nn.Module):
    """A norm and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def inputs() -> torch.Tensor:
    return torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def step(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of a step, and its result, whole."""
    result = model(x)
    whole(result).square().mean().backward()
    found = {name: whole(p.grad).detach().clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return {**found, "result": whole(result).detach().clone()}


def tensor_parallel(mesh) -> nn.Module:
    return parallelize_module(Block(), mesh, {
        "up": ColwiseParallel(), "down": RowwiseParallel()})


def sequence_parallel(mesh) -> nn.Module:
    return parallelize_module(Block(), mesh, {
        "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)})


def fully_sharded(mesh) -> nn.Module:
    model = Block()
    fully_shard(model.up, mesh=mesh)
    fully_shard(model.down, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def both(mesh) -> nn.Module:
    """FSDP over the first axis of a mesh, tensor parallel over the second."""
    model = parallelize_module(Block(), mesh["tp"], {
        "up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


WAYS = {"tensor": tensor_parallel, "sequence": sequence_parallel, "fsdp": fully_sharded,
        "both": both}


def part_of(way: str, x: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """The input of a rank: with sequence parallelism its tokens, else all."""
    return x.chunk(ranks, 1)[rank] if way == "sequence" else x


def one_way(way: str, compiled: bool, mesh, rank: int, ranks: int) -> dict:
    """What a way took and found, compared with one process and with torch."""
    expected = step(Block(), inputs())
    x = part_of(way, inputs(), rank, ranks)
    torchs = step(WAYS[way](mesh), x)
    model = WAYS[way](mesh)
    if compiled:
        model.compile(backend="aot_eager")
    execute.clear_plans()
    tg.override_report(clear=True)
    with tg.override(strict=True):
        found = step(model, x)
    report = tg.override_report()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], msg=f"{way}: {name} of one process")
        torch.testing.assert_close(value, torchs[name], msg=f"{way}: {name} of torch")
    return {"taken": report.taken, "declined": report.declined, "found": found,
            "plans": [str(key[0]) for key in plans._plans]}


def rank_main(rank: int, ranks: int, ways: tuple, folder: str) -> None:
    """One process: writes what its products were, or raises."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                         world_size=ranks)
    try:
        mesh = (init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")) if ranks == 4
                else init_device_mesh("cpu", (ranks,)))
        torch.save([one_way(way, compiled, mesh, rank, ranks) for way, compiled in ways],
                   f"{folder}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def run_ranks(main, ranks: int, *args) -> None:
    """Runs ``main`` in a process for each rank. They are forked from a process that imports what
    they need, some 3 s of work, once for all, and does nothing else. Its environment is that of the
    first call."""
    multiprocessing.set_forkserver_preload([
        "torch.distributed.fsdp", "torch.distributed.tensor.parallel",
        "torch._functorch.aot_autograd", "tritongemm.ops.execute"])
    torch.multiprocessing.start_processes(main, (ranks, *args), ranks, start_method="forkserver")


@pytest.mark.parametrize(("ranks", "ways"), [
    (2, (("tensor", False), ("sequence", False), ("fsdp", False), ("tensor", True))),
    (4, (("both", False),))], ids=["two", "four"])
def test_every_rank_takes_every_product_and_finds_what_one_process_does(ranks, ways, tmp_path):
    run_ranks(rank_main, ranks, ways, str(tmp_path))
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    for each in zip(*found):
        # Two products forward; backward two for each layer: the norm before them has weights.
        assert [(one["taken"], one["declined"]) for one in each] == [(6, 0)] * ranks
        for other in each[1:]:
            assert other["plans"] == each[0]["plans"] and each[0]["plans"]
            for name, value in other["found"].items():  # the same bits
                assert torch.equal(value, each[0]["found"][name]), name


def column_after_row(product, x, w1, w2, w3) -> torch.Tensor:
    """Its ``h`` is a partial sum, of whose gradient each rank finds a part."""
    hidden = x + product(product(x, w1).relu(), w2)
    return product(hidden, w3).square().mean()


def row_times_sharded(product, x, w, factor) -> torch.Tensor:
    return (product(x, w).sin() * factor).sum()


def addend_of_parts(product, addend, x, w) -> torch.Tensor:
    """The gradient of what is added is a part on each rank, and so is the addend."""
    return product(x, w, addend).square().sum()


R, P, S0, S1 = Replicate(), Partial(), Shard(0), Shard(1)
#: A loss of DTensors: the shapes of its operands and their placements, and whether it is to be
#: derived twice.
LOSSES = (
    (column_after_row, ((4, 8), (12, 8), (8, 12), (6, 8)), (R, S0, S1, S0), True),
    (row_times_sharded, ((4, 8), (6, 8), (4, 6)), (S1, S1, S0), True),
    (row_times_sharded, ((4, 8), (6, 8), (4, 6)), (S1, S1, R), True),
    (row_times_sharded, ((4, 8), (6, 8), (4, 6)), (R, S0, S0), True),
    (row_times_sharded, ((4, 8), (6, 8), (4, 6)), (S0, R, S1), True),
    (row_times_sharded, ((5, 8), (6, 8), (5, 6)), (S0, R, R), True),
    (addend_of_parts, ((6,), (4, 8), (6, 8)), (P, S0, R), False),
)


def derived(loss, product, leaves: list, operands: list, twice: bool) -> list[torch.Tensor]:
    """The gradients of a loss; ``twice``: and those of their squares, whole."""
    grads = torch.autograd.grad(loss(product, *operands), leaves, create_graph=twice)
    if twice:
        squares = sum(whole(grad).square().sum() for grad in grads)
        grads += torch.autograd.grad(squares, leaves)
    return [whole(grad).detach() for grad in grads]


def ours(x, w, bias=None) -> torch.Tensor:
    """A partial sum times a sharded weight is the one product here that is torch's."""
    return tg.linear(x, w, bias, strict=P not in x.placements)


def gradients_main(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                         world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        for loss, shapes, placements, twice in LOSSES:
            made = torch.Generator().manual_seed(0)
            one = [torch.randn(shape, generator=made).requires_grad_() for shape in shapes]
            expected = derived(loss, nn.functional.linear, one, one, twice)
            leaves, operands = [], []
            for x, place in zip(one, placements):
                if place == P:
                    leaves.append((x.detach() / ranks).requires_grad_())
                    operands.append(DTensor.from_local(leaves[-1], mesh, [P], run_check=False))
                else:
                    leaves.append(distribute_tensor(x.detach(), mesh, [place]).requires_grad_())
                    operands.append(leaves[-1])
            found = derived(loss, ours, leaves, operands, twice)
            for mine, theirs in zip(found, expected):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
            if loss is column_after_row:
                run = torch.compile(loss, fullgraph=True, backend="aot_eager")
                run(ours, *operands).backward()
                for leaf, theirs in zip(leaves, expected):
                    torch.testing.assert_close(whole(leaf.grad), theirs, rtol=1e-4, atol=1e-4)
    finally:
        torch.distributed.destroy_process_group()


def test_gradients_whose_placements_are_not_the_results_are_of_one_process(tmp_path):
    run_ranks(gradients_main, 2, str(tmp_path))

"""Tensor parallel and FSDP over NCCL: every product is taken on each rank, and every rank makes the
same choices and finds the same result."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch is not distributed", allow_module_level=True)

import torch.multiprocessing  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, init_device_mesh  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.ops.plans import plans  # noqa: E402

pytestmark = pytest.mark.gpu


def model(way: str, mesh) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda().bfloat16()
    if way == "tensor":
        return parallelize_module(made, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(made[0], mesh=mesh)
    fully_shard(made[2], mesh=mesh)
    return fully_shard(made, mesh=mesh)


def step(made: nn.Module) -> list[torch.Tensor]:
    """The result of a step and the gradients, whole."""
    x = torch.randn(2048, 1024, generator=torch.Generator().manual_seed(1)).cuda().bfloat16()
    result = made(x)
    result.float().square().mean().backward()
    return [x.full_tensor() if isinstance(x, DTensor) else x
            for x in (result.detach(), *(p.grad for p in made.parameters()))]


def rank_main(rank: int, ranks: int, way: str, budget: int | None, folder: str) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank,
                                         world_size=ranks)
    try:
        mesh = init_device_mesh("cuda", (ranks,))
        theirs = step(model(way, mesh))
        with (settings.override(policy="own"), tg.override(min_flops=0, strict=True),
              tg.sm_budget(budget)):
            ours = step(model(way, mesh))
            chosen = [f"{key[0]} {getattr(plan, 'config', '')}" for key, plan in
                      plans._plans.items()]
        for found, expected in zip(ours, theirs):
            scale = expected.float().abs().max().item()
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * scale)
        report = tg.override_report()
        torch.save({"taken": report.taken, "declined": report.declined, "chosen": chosen,
                    "ours": [x.cpu() for x in ours]}, f"{folder}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("budget", [None, 100], ids=["all-sms", "budget"])
@pytest.mark.parametrize("way", ["tensor", "fsdp"])
def test_ranks_take_every_product_alike(way, budget, tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    torch.multiprocessing.spawn(rank_main, (2, way, budget, str(tmp_path)), 2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first["declined"] == second["declined"] == 0
    assert first["taken"] == second["taken"] == 5  # the input needs no gradient
    assert first["chosen"] == second["chosen"] and first["chosen"]
    assert all(map(torch.equal, first["ours"], second["ours"]))

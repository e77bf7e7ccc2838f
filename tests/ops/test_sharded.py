"""Products of DTensors: one rank of a mesh whose collectives do nothing; its products are ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch is not distributed", allow_module_level=True)

from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    init_device_mesh,
)
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.ops import execute  # noqa: E402

RANKS = 4
R, P = Replicate(), Partial()


@pytest.fixture(params=[0, 3], ids=["rank0", "rank3"])
def mesh(request):
    """A mesh of four ranks, of which this process is one."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=request.param,
                                         world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    torch.distributed.destroy_process_group()


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def placed(x: torch.Tensor, mesh, *placements) -> DTensor:
    """This rank's part of ``x``; of a partial sum, a part of its own."""
    local = x
    for at, place in enumerate(placements):
        if place.is_shard():
            parts = torch.chunk(local, mesh.size(at), place.dim)
            rank = mesh.get_local_rank(at)
            local = parts[rank] if rank < len(parts) else local.narrow(place.dim, 0, 0)
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=x.shape,
                              stride=x.stride())


@dataclass(frozen=True)
class Case:
    name: str
    call: Callable[..., torch.Tensor]
    operands: tuple[tuple[tuple[int, ...], object], ...]
    result: object

    def __str__(self) -> str:
        return self.name


A, B = (8, 12), (12, 16)
CASES = (
    Case("replicated", tg.mm, ((A, R), (B, R)), R),
    Case("rows", tg.mm, ((A, Shard(0)), (B, R)), Shard(0)),
    Case("columns", tg.mm, ((A, R), (B, Shard(1))), Shard(1)),
    Case("inner", tg.mm, ((A, Shard(1)), (B, Shard(0))), P),
    Case("partial", tg.matmul, ((A, P), (B, R)), P),
    Case("uneven-rows", tg.mm, (((10, 12), Shard(0)), (B, R)), Shard(0)),
    Case("batch", tg.bmm, (((4, 8, 12), Shard(0)), ((4, 12, 16), Shard(0))), Shard(0)),
    Case("sequence", tg.matmul, (((2, 8, 12), Shard(1)), (B, R)), Shard(1)),
    Case("broadcast-batch", tg.matmul, (((4, 1, 8, 12), Shard(0)), ((8, 12, 16), R)), Shard(0)),
    Case("addmm", tg.addmm, (((16,), Shard(0)), (A, R), (B, Shard(1))), Shard(1)),
    Case("addmm-moves-the-input", tg.addmm, (((16,), R), (A, R), (B, Shard(1))), Shard(1)),
    Case("baddbmm", tg.baddbmm, (((4, 8, 16), Shard(0)), ((4, 8, 12), Shard(0)),
                                 ((4, 12, 16), Shard(0))), Shard(0)),
    Case("linear", tg.linear, ((A, R), ((16, 12), Shard(0)), ((16,), Shard(0))), Shard(1)),
    Case("linear-sequence", tg.linear, (((2, 8, 12), Shard(1)), ((16, 12), R), ((16,), R)),
         Shard(1)),
    Case("linear-no-bias", tg.linear, ((A, Shard(1)), ((16, 12), Shard(1))), P),
    Case("gelu", lambda x, w, b: tg.linear(x, w, b, activation="gelu"),
         ((A, R), ((16, 12), Shard(0)), ((16,), Shard(0))), Shard(1)),
    Case("residual", lambda x, w, r: tg.linear(x, w, residual=r),
         ((A, Shard(0)), ((16, 12), R), ((8, 16), Shard(0))), Shard(0)),
    Case("gated-rows", tg.gated_linear, ((A, Shard(0)), ((16, 12), R)), Shard(0)),
    Case("gated-columns", lambda x, w, b: tg.gated_linear(x, w, b, interleaved=True),
         ((A, R), ((16, 12), Shard(0)), ((16,), Shard(0))), Shard(1)),
    Case("two-gated-rows", lambda x, w, u: tg.gated_linear(x, w, up=u),
         ((A, Shard(0)), ((16, 12), R), ((16, 12), R)), Shard(0)),
    Case("two-gated-columns", lambda x, w, u: tg.gated_linear(x, w, up=u, activation="gelu"),
         ((A, R), ((16, 12), Shard(0)), ((16, 12), Shard(0))), Shard(1)),
)


def locally(case: Case, operands: list, rank: int) -> torch.Tensor:
    """This rank's part of the result, computed by torch."""
    with settings.override(disable=True):
        whole = case.call(*operands)
    if not case.result.is_shard():
        return whole
    parts = torch.chunk(whole, RANKS, case.result.dim)
    return parts[rank] if rank < len(parts) else whole.narrow(case.result.dim, 0, 0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_local_product_is_ours(case, mesh, plans):
    whole = [randn(*shape) for shape, _ in case.operands]
    found = case.call(*(placed(x, mesh, place) for x, (_, place) in zip(whole, case.operands)))
    assert isinstance(found, DTensor) and found.placements == (case.result,)
    assert len(plans.made) == 1
    rank = mesh.get_local_rank()
    if case.result != P or case.name == "partial":
        expected = locally(case, whole, rank)
    else:
        a, b = (torch.chunk(x, RANKS, place.dim)[rank]
                for x, (_, place) in zip(whole, case.operands))
        expected = a @ (b.t() if case.call is tg.linear else b)
    torch.testing.assert_close(found.to_local(), expected)
    with settings.override(disable=True):
        theirs = case.call(*whole)
    assert found.shape == theirs.shape


@pytest.mark.parametrize("case", [c for c in CASES if c.name in (
    "rows", "inner", "sequence", "addmm", "linear-sequence", "gelu", "gated-columns",
    "two-gated-rows", "two-gated-columns")], ids=str)
def test_gradients_are_local_products_of_known_placements(case, mesh, plans):
    whole = [randn(*shape).requires_grad_() for shape, _ in case.operands]
    parts = [placed(x.detach(), mesh, place).requires_grad_()
             for x, (_, place) in zip(whole, case.operands)]
    result = case.call(*parts)
    assert len(plans.made) == 1
    result.to_local().sum().backward()
    assert len(plans.made) == 3
    rank = mesh.get_local_rank()
    mine = locally(case, whole, rank) if case.result != P else None
    if mine is not None:
        mine.sum().backward()
    for x, part, (_, place) in zip(whole, parts, case.operands):
        grad, = part.grad.placements
        if place.is_shard():
            assert grad == place
        else:  # each rank has its part of the gradient of what all ranks hold
            assert grad == P
        if mine is not None:
            expected = x.grad if not place.is_shard() else torch.chunk(
                x.grad, RANKS, place.dim)[rank]
            torch.testing.assert_close(part.grad.to_local(), expected)


def test_of_a_partial_sum_the_first_rank_adds_the_bias(mesh, plans):
    x, w, bias = randn(8, 12), randn(16, 12), randn(16)
    parts = [placed(t, mesh, place).requires_grad_()
             for t, place in ((x, Shard(1)), (w, Shard(1)), (bias, R))]
    found = tg.linear(*parts, strict=True)
    assert found.placements == (P,) and len(plans.made) == 1
    rank = mesh.get_local_rank()
    local = torch.chunk(x, RANKS, 1)[rank] @ torch.chunk(w, RANKS, 1)[rank].t()
    torch.testing.assert_close(found.to_local(), local + bias if rank == 0 else local)
    found.to_local().sum().backward()  # the gradient of the sum is on every rank
    assert parts[2].grad.placements == (R,)
    torch.testing.assert_close(parts[2].grad.to_local(), torch.full((16,), 8.0))


UNSUITED = (
    ("rows-and-columns", lambda m: tg.mm(placed(randn(*A), m, Shard(0)),
                                         placed(randn(*B), m, Shard(1)), strict=True),
     "placements are"),
    ("one-inner", lambda m: tg.mm(placed(randn(*A), m, Shard(1)), placed(randn(*B), m, R),
                                  strict=True), "placements are"),
    ("two-partial", lambda m: tg.mm(placed(randn(*A), m, P), placed(randn(*B), m, P),
                                    strict=True), "placements are"),
    ("maximum", lambda m: tg.mm(placed(randn(*A), m, Partial("max")), placed(randn(*B), m, R),
                                strict=True), "placements are"),
    ("strided", lambda m: tg.mm(
        DTensor.from_local(randn(2, 12), m, (_StridedShard(0, split_factor=2),), run_check=False,
                           shape=(8, 12), stride=(12, 1)), placed(randn(*B), m, R), strict=True),
     "placements are"),
    ("vector", lambda m: tg.matmul(placed(randn(*A), m, R), placed(randn(12), m, R), strict=True),
     "vector"),
    *((f"{name}-not-on-every-rank", call, "a rank has no part of an operand")
      for name, call in (
          ("rows", lambda m: tg.mm(placed(randn(9, 12), m, Shard(0)), placed(randn(*B), m, R),
                                   strict=True)),
          ("inner", lambda m: tg.mm(placed(randn(8, 5), m, Shard(1)),
                                    placed(randn(5, 16), m, Shard(0)), strict=True)),
          ("activation", lambda m: tg.linear(placed(randn(3, 12), m, Shard(0)),
                                             placed(randn(16, 12), m, R), activation="gelu",
                                             strict=True)),
          ("gated", lambda m: tg.gated_linear(placed(randn(3, 12), m, Shard(0)),
                                              placed(randn(16, 12), m, R), strict=True)))),
)


@pytest.mark.parametrize(("call", "reason"), [case[1:] for case in UNSUITED],
                         ids=[case[0] for case in UNSUITED])
def test_strict_names_the_placements_that_no_rule_is_for(call, reason, mesh, plans):
    with pytest.raises(UnsupportedError, match=reason):
        call(mesh)
    assert not plans.made


def test_what_no_rule_is_for_is_torchs(mesh, plans):
    a, b = placed(randn(*A), mesh, Shard(0)), placed(randn(*B), mesh, Shard(1))
    found = tg.mm(a, b)
    assert isinstance(found, DTensor) and found.shape == (8, 16) and not plans.made


def test_a_gate_and_an_activation_are_of_whole_sums(mesh, plans):
    x, w = placed(randn(*A), mesh, Shard(1)), placed(randn(16, 12), mesh, Shard(1))
    assert tg.linear(x, w, activation="gelu").shape == (8, 16)
    assert tg.gated_linear(x, w).shape == (8, 8)
    halves = placed(randn(16, 12), mesh, Shard(0))  # the gate is on the first two ranks
    assert tg.gated_linear(placed(randn(*A), mesh, R), halves).shape == (8, 8)
    assert tg.gated_linear(x, w, up=w).shape == (8, 16)
    for problem, _ in plans.made:  # the products alone
        assert problem.epilogue == "none"
    bias = placed(randn(32), mesh, Shard(0))  # of both halves: not on the ranks of their rows
    assert tg.gated_linear(placed(randn(*A), mesh, R), halves, bias, up=halves).shape == (8, 16)
    assert not any(problem.gated for problem, _ in plans.made)


def test_two_axes_of_a_mesh(plans):
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2))
        a, b = randn(*A), randn(*B)
        found = tg.mm(placed(a, mesh, Shard(0), R), placed(b, mesh, R, Shard(1)), strict=True)
        assert found.placements == (Shard(0), Shard(1)) and found.shape == (8, 16)
        torch.testing.assert_close(found.to_local(), (a @ b)[4:, 8:])
    finally:
        torch.distributed.destroy_process_group()


def test_every_rank_plans_the_same(plans):
    """Nothing of the rank is in the problem, the choice or the plan."""
    made = []
    for rank in range(RANKS):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank,
                                             world_size=RANKS)
        try:
            mesh = init_device_mesh("cpu", (RANKS,))
            tg.linear(placed(randn(*A), mesh, Shard(1)), placed(randn(16, 12), mesh, Shard(1)),
                      placed(randn(16), mesh, R))
            made.append(plans.made[-1])
        finally:
            torch.distributed.destroy_process_group()
            execute.clear_plans()
    assert len(plans.made) == RANKS and len(set(made)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("case", [c for c in CASES if c.name in (
    "columns", "inner", "addmm", "linear-sequence", "gelu", "gated-columns")], ids=str)
def test_compiled_in_one_graph_it_is_ours(case, mesh, plans):
    parts = [placed(randn(*shape), mesh, place).requires_grad_()
             for shape, place in case.operands]
    expected = case.call(*parts)
    seen = len(plans.made)
    torch._dynamo.reset()
    execute.clear_plans()
    found = torch.compile(case.call, fullgraph=True, backend="aot_eager")(*parts)
    assert len(plans.made) > seen and found.placements == expected.placements
    torch.testing.assert_close(found.to_local(), expected.to_local())
    found.to_local().sum().backward()
    assert all(isinstance(part.grad, DTensor) for part in parts)


def test_what_no_rule_is_for_compiles_as_torchs(mesh, plans):
    a, b = placed(randn(*A), mesh, Shard(0)), placed(randn(*B), mesh, Shard(1))
    torch._dynamo.reset()
    assert torch.compile(tg.mm, backend="eager")(a, b).shape == (8, 16) and not plans.made


@pytest.mark.parametrize("backend", (None, "aot_eager"))
def test_a_factor_multiplies_a_sharded_product(backend, mesh, plans):
    whole = randn(8, 12), randn(8, 24), randn(24, 12)
    parts = [placed(x, mesh, place) for x, place in zip(whole, (Shard(0), Shard(0), R))]
    torch._dynamo.reset()
    run = tg.mulmm if backend is None else torch.compile(tg.mulmm, fullgraph=True, backend=backend)
    found = run(*parts, gradient_of="gelu")
    assert found.placements == (Shard(0),) and found.shape == (8, 12)
    assert [problem.epilogue for problem, _ in plans.made] == ["none"]

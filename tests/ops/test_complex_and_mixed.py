"""Calls of complex64 and of two dtypes: how they are known, declined and refused, with no GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import representative  # noqa: E402
from tritongemm.errors import UnsupportedError, UsageError  # noqa: E402
from tritongemm.ops import calls, execute, native  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.selection import Choice  # noqa: E402

SPLIT = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def test_lazy_conjugates_are_calls_of_their_own(plans):
    a, b = draw(5, 7), draw(7, 3)
    for x, y in ((a, b), (a.conj(), b), (a, b.conj()), (a.conj(), b.conj())) * 2:
        assert torch.equal(tg.mm(x, y, strict=True), x @ y)
    assert [g.conjugated for _, g in plans.made] == [
        (False, False), (True, False), (False, True), (True, True)]
    assert {p.dtype_a for p, _ in plans.made} == {"c64"}


def test_the_precision_that_torch_is_set_to_is_part_of_a_complex_call(plans, monkeypatch):
    a, b = draw(5, 7), draw(7, 3)
    for setting in ("ieee", "tf32", "ieee"):
        monkeypatch.setattr(execute, "precision_setting", lambda *_, found=setting: found)
        tg.mm(a, b, strict=True)
    assert len(execute.MM.hits) + len(execute.MM.forced.hits) == 2


def test_the_native_table_is_offered_no_complex_call(plans, monkeypatch):
    table = _Table()
    monkeypatch.setattr(native, "table", lambda: table)
    tg.mm(draw(5, 7), draw(7, 3).conj(), strict=True)
    execute.product(execute.MM, draw(5, 7), draw(5, 7))
    assert not table.offered
    execute.product(execute.MM, torch.ones(5, 7), torch.ones(5, 7))  # declined, and offered so
    assert table.offered


class _Table:
    """Counts the calls that a native table would hold."""

    offered = 0

    def offer(self, *_):
        self.offered += 1

    refuse = offer


def test_an_input_or_out_that_is_a_lazy_conjugate_is_torchs(plans):
    a, b, d = draw(5, 7), draw(7, 3), draw(5, 3)
    assert torch.allclose(tg.addmm(d.conj(), a, b), d.conj() + a @ b)
    with pytest.raises(UnsupportedError, match="the input is a lazy conjugate"):
        tg.addmm(d.conj(), a, b, strict=True)
    result = execute.product_into(execute.MM, a, b, torch.empty_like(d).conj())
    assert "out= is a lazy conjugate" in str(result)


def split_on_hopper(monkeypatch, make_plan):
    """Every call is a split product of sm_90 by ``make_plan``."""
    monkeypatch.setattr(kept, "make_plan", make_plan)
    monkeypatch.setattr(kept, "device_of", lambda where: representative(90))
    monkeypatch.setattr(kept, "choose", lambda *_: Choice(SPLIT, "exact"))
    monkeypatch.setattr(kept, "torch_wins", lambda *_: None)
    monkeypatch.setattr(kept, "torch_wins_converting", lambda *_: None)
    monkeypatch.setattr(calls, "_precision_of", lambda a: "fp16x3")


def test_without_memory_for_the_arranged_operands_torch_runs_with_one_warning(
        plans, monkeypatch, logged):
    from tritongemm.kernels.compile import launches_of
    from tritongemm.ops.plan import scratch_of

    asked = []

    def make_plan(problem, config, device, geometry, where):
        def plan(a, b, c, *rest):
            asked.append(scratch_of(launches_of(problem, config, device, geometry)))
            raise torch.OutOfMemoryError(f"no {asked[-1]} bytes")
        return plan

    split_on_hopper(monkeypatch, make_plan)
    a, b = draw(256, 256), draw(256, 256)
    for _ in range(3):
        assert torch.equal(tg.matmul(a, b.mH), a @ b.mH)
    assert len(asked) == 3 and asked[0] > 2 * 8 * 256 * 256
    (level, text), = logged.said
    assert level == "WARNING" and "no memory for the scratch of" in text and "go to torch" in text


MIXED = {
    "mm": (tg.mm, torch.mm, (5, 7), (7, 3)), "bmm": (tg.bmm, torch.bmm, (2, 5, 7), (2, 7, 3)),
    "matmul": (tg.matmul, torch.matmul, (2, 5, 7), (7, 3)),
    "linear": (tg.linear, torch.nn.functional.linear, (2, 5, 7), (3, 7)),
}


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(("ours", "theirs", "shape_a", "shape_b"), MIXED.values(), ids=MIXED)
def test_mixed_products_are_those_of_the_widened_operand(ours, theirs, shape_a, shape_b, narrow,
                                                         plans):
    a = torch.randn(shape_a).to(narrow).requires_grad_()
    b = torch.randn(shape_b).requires_grad_()
    found, expected = ours(a, b, mixed=True, strict=True), theirs(a.float(), b)
    assert found.dtype is torch.float32 and torch.allclose(found, expected)
    grads = [torch.autograd.grad(x.square().sum(), (a, b)) for x in (found, expected)]
    for one, other in zip(*grads):
        assert one.dtype is other.dtype and torch.allclose(one, other)
    with pytest.raises(RuntimeError):  # torch's own error
        ours(a, b)


def test_a_split_product_reads_a_16_bit_input_as_it_is(plans, monkeypatch):
    from tritongemm.kernels.compile import launches_of

    made = []

    def make_plan(problem, config, device, geometry, where):
        launches_of(problem, config, device, geometry)
        made.append((problem, geometry))

        def plan(a, b, c, d=None, alpha=1.0, beta=1.0):
            assert a.dtype is (torch.bfloat16 if geometry.stored_a else torch.float32)
            c.copy_(a.float() @ b + (0.0 if d is None else d))
        return plan

    split_on_hopper(monkeypatch, make_plan)
    a, w, bias = torch.randn(130, 71).bfloat16(), torch.randn(130, 71), torch.randn(130)
    expected = a.float() @ w.mT
    assert torch.allclose(tg.linear(a, w, bias, mixed=True), expected + bias)
    assert torch.allclose(tg.mm(a, w.mT, mixed=True), expected)
    out = torch.empty(130, 130)
    assert tg.mm(a, w.mT, out=out, mixed=True) is out and torch.allclose(out, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(tg.mm(a, w.mT, mixed=True), expected)
    assert {g.stored_a for _, g in made} == {"bf16"}
    assert {(p.dtype_a, p.align_a, p.align_b) for p, _ in made} == {("fp32", 4, 4)}
    found = tg.mm(a, w.mT.clone().requires_grad_(), mixed=True)  # a gradient: converted before
    assert torch.allclose(found, expected) and made[-1][1].stored_a == ""
    monkeypatch.setattr(calls, "_precision_of", lambda a: "tf32")
    monkeypatch.setattr(execute, "precision_setting", lambda *_: "tf32")
    assert torch.allclose(tg.mm(a, w.mT, mixed=True), expected)
    assert made[-1][1].stored_a == "" and made[-1][0].precision == "tf32"


def test_under_batch_invariance_every_16_bit_input_is_converted(plans, monkeypatch):
    made = []

    def make_plan(problem, config, device, geometry, where):
        made.append(geometry.stored_a)
        return lambda a, b, c, *rest: c.copy_(a.float() @ b)

    split_on_hopper(monkeypatch, make_plan)
    a, w = torch.randn(130, 71).bfloat16(), torch.randn(130, 71)
    with tg.batch_invariant():
        assert torch.allclose(tg.linear(a, w, mixed=True), a.float() @ w.mT)
    assert torch.allclose(tg.linear(a, w, mixed=True), a.float() @ w.mT)
    assert made == ["", "bf16"]


def test_without_memory_for_scratch_a_config_that_reads_a_16_bit_input_is_found():
    from dataclasses import replace

    from tritongemm.device import device_named
    from tritongemm.kernels.compile import launches_of
    from tritongemm.kernels.launch import Geometry
    from tritongemm.ops.plan import scratch_of
    from tritongemm.problem import GemmProblem

    h200 = device_named("nvidia-h200")
    problem = GemmProblem.contiguous(16, 4096, 4096, dtype="fp32", layout="nt", precision="fp16x3")
    geometry = replace(Geometry.contiguous(problem), stored_a="bf16")
    found = kept._without_scratch(problem, h200, geometry, SPLIT)
    assert not scratch_of(launches_of(problem, found, h200, geometry))


def test_a_kernel_that_does_not_convert_refuses_a_16_bit_input():
    from dataclasses import replace

    from tritongemm.kernels.compile import launches_of
    from tritongemm.kernels.launch import Geometry
    from tritongemm.problem import GemmProblem

    problem = GemmProblem.contiguous(64, 64, 64, dtype="fp32", precision="fp16x3")
    geometry = replace(Geometry.contiguous(problem), stored_a="bf16")
    with pytest.raises(UnsupportedError, match="tiled reads A in fp32, not in bf16"):
        launches_of(problem, KernelConfig("tiled", 64, 64, 32), representative(90), geometry)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_bias_that_is_not_float32_is_named(dtype):
    a, w = torch.randn(4, 7).bfloat16(), torch.randn(3, 7)
    with pytest.raises(UsageError, match=f"bias is float32, .* not {dtype}; convert it"):
        tg.linear(a, w, torch.ones(3, dtype=dtype), mixed=True)


def test_mixed_stays_float32_under_autocast(plans):
    a, w = torch.randn(4, 7).bfloat16(), torch.randn(3, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tg.linear(a, w, torch.ones(3), mixed=True).dtype is torch.float32
        assert tg.linear(a.float(), w).dtype is torch.bfloat16


@pytest.mark.parametrize(("dtype_a", "dtype_b"), (
    (torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16),
    (torch.float64, torch.float32), (torch.complex64, torch.float32), (torch.int8, torch.float32)))
def test_mixed_refuses_other_dtypes(dtype_a, dtype_b):
    a, b = torch.ones(2, 2).to(dtype_a), torch.ones(2, 2).to(dtype_b)
    for call in (tg.mm, tg.matmul, tg.linear):
        with pytest.raises(UsageError, match="mixed=True multiplies bfloat16 or float16 by"):
            call(a, b, mixed=True)


def test_explain_tells_the_float32_product_of_a_complex_call():
    told = str(tg.explain(4096, 4096, 4096, dtype="c64", device="nvidia-h100"))
    assert "as 4096x8192x8192 fp32 nn fp16x3" in told and "us to arrange operands" in told
    assert "float32    split: three fp16" in told and "4096x4096x4096 c64 nn fp16x3" in told
    small = tg.explain(64, 64, 64, dtype="c64", device="nvidia-h100")
    assert "call       torch, because " in str(small)
    assert small.alternatives_us == tuple(sorted(small.alternatives_us))
    with tg.fp32_compute("ieee"):
        told = str(tg.explain(4096, 4096, 4096, dtype="c64", device="nvidia-h100"))
    assert "complex64 at precision ieee is torch's" in told and "float32    torch" in told
    assert "an extent is 0" in str(tg.explain(0, 64, 64, dtype="c64", device="nvidia-h100"))
    refused = str(tg.explain(64, 64, 64, dtype="c64", epilogue="relu", device="nvidia-h100"))
    assert "complex64 has the epilogues scale, bias and add alone" in refused

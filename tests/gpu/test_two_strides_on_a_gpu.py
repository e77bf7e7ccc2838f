"""Batches that no single stride walks, on a real device: right, and read without a copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import violation  # noqa: E402
from tritongemm.measure.numerics import check, reference  # noqa: E402
from tritongemm.ops.calls import NAMES  # noqa: E402
from tritongemm.ops.operands import StridedShape, form_of, problem_of_form  # noqa: E402
from tritongemm.ops.plan import make_plan  # noqa: E402

pytestmark = pytest.mark.gpu
#: Every way in which a kernel reads two strides.
CONFIGS = (
    KernelConfig("tiled", 64, 64, 64, num_warps=4, num_stages=3),
    KernelConfig("tiled", 32, 64, 64, num_warps=4, num_stages=3, split_k=2),
    KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4),
    KernelConfig("warp_specialized", 128, 96, 64, num_warps=8, num_stages=4),
    KernelConfig("warp_specialized", 64, 64, 64, num_warps=8, num_stages=4, pingpong=1),
    KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4, cluster_m=2),
    KernelConfig("warp_specialized", 64, 128, 64, num_warps=4, num_stages=4, cluster_k=2),
    KernelConfig("warp_specialized", 128, 64, 64, num_warps=8, num_stages=4, split_k=2),
    KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4, swap_ab=2))
FP32 = KernelConfig("simt", 64, 64, 32, num_warps=2, num_stages=2, thread_m=8, thread_n=8)
NARROW = (
    KernelConfig("gemv", 4, 16, 128, num_warps=4, num_stages=2),
    KernelConfig("warp_specialized", 64, 16, 64, num_warps=4, num_stages=6, swap_ab=1))


def operand(letter: str, rows: int, cols: int, dtype, shared: str) -> torch.Tensor:
    """[4, 6, rows, cols]: of heads ([4, rows, 6, cols] in memory), or broadcast along one axis of
    the batch; stored row by row or (``t``) column by column."""
    rows, cols = (rows, cols) if letter == "n" else (cols, rows)
    if shared == "heads":
        x = torch.randn(4, rows, 6, cols, device="cuda").to(dtype).transpose(1, 2)
    else:
        lead = (4, 1) if shared == "outer" else (1, 6)
        x = torch.randn(*lead, rows, cols, device="cuda").to(dtype).expand(4, 6, rows, cols)
    return x if letter == "n" else x.mT


def run(config: KernelConfig, a, b, out) -> str | None:
    """Multiplies with this config; the operands with two strides, or None where it is illegal."""
    form = form_of(*(StridedShape(x.shape, x.stride()) for x in (a, b, out)))
    names = tuple(NAMES[x.dtype] for x in (a, b, out))
    problem, geometry = problem_of_form(
        form, (a.data_ptr(), b.data_ptr(), out.data_ptr(), 0), names, "none", "ieee")
    if violation(problem, config, current_device()) is not None:
        return None
    plan = make_plan(problem, config, current_device(), geometry, a.device)
    plan.at((a.data_ptr(), b.data_ptr(), out.data_ptr(), 0, 1.0, 0.0))
    return problem.two_strides


def prove(config, m, n, k, layout, dtype, shared=("heads", "heads")) -> str | None:
    torch.manual_seed(m + n + k)
    a, b = (operand(letter, rows, cols, dtype, kind) for letter, rows, cols, kind in (
        (layout[0], m, k, shared[0]), (layout[1], k, n, shared[1])))
    out = torch.full((4, 6, m, n), float("nan"), device="cuda", dtype=dtype)
    word = run(config, a, b, out)
    if word is not None:
        one, other, found = (x.reshape(24, *x.shape[2:]) for x in (a, b, out))
        report = check(found, one, other, reference(one, other))
        assert report.ok, f"{config} {layout} {word}: {report.message}"
    return word


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_heads_and_broadcasts_in_every_layout(config, layout):
    ran = [prove(config, m, n, k, layout, dtype, shared)
           for m, n, k in ((264, 328, 264), (1000, 136, 512))
           for dtype in (torch.bfloat16, torch.float16)
           for shared in (("heads", "heads"), ("outer", "inner"), ("heads", "inner"))]
    assert "ab" in ran


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
def test_heads_and_broadcasts_of_float32(layout):
    ran = [prove(FP32, 264, 328, 264, layout, torch.float32, shared)
           for shared in (("heads", "heads"), ("outer", "inner"), ("heads", "inner"))]
    assert "ab" in ran


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("config", NARROW, ids=str)
def test_few_rows(config, layout):
    rows = 3 if config.kernel == "gemv" else 16
    config = replace(config, block_n=64, block_k=32) if (
        config.kernel == "gemv" and layout[1] == "n") else config
    assert prove(config, rows, 512, 264, layout, torch.bfloat16) in ("ab", None)
    assert prove(config, rows, 512, 264, "nt", torch.bfloat16) is not None or layout != "nt"


def test_rows_that_tma_cannot_read_are_read_in_place():
    config = KernelConfig("tiled", 64, 64, 64, num_warps=4, num_stages=3)
    assert prove(config, 129, 131, 67, "nt", torch.bfloat16) == "ab"


def test_a_result_of_heads():
    a, b = (torch.randn(4, 6, x, y, device="cuda").bfloat16() for x, y in ((200, 64), (64, 128)))
    out = torch.full((4, 200, 6, 128), float("nan"), device="cuda").bfloat16().transpose(1, 2)
    assert tg.matmul(a, b, out=out, strict=True) is out
    report = check(out.reshape(24, 200, 128), a.reshape(24, 200, 64), b.reshape(24, 64, 128),
                   reference(a.reshape(24, 200, 64), b.reshape(24, 64, 128)))
    assert report.ok, report.message


@pytest.mark.parametrize("case", ("broadcast", "heads", "decode"))
def test_no_operand_is_copied(case):
    def made(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    if case == "broadcast":
        a, b = made(24, 1, 512, 512), made(1, 24, 512, 512)
    else:
        rows = 2048 if case == "heads" else 2
        a, b = made(4, rows, 16, 128).transpose(1, 2), made(4, 2048, 16, 128).transpose(1, 2).mT
    result = tg.matmul(a, b, strict=True)  # compiles, and makes the plan
    size = result.numel() * result.element_size()
    del result
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = tg.matmul(a, b, strict=True)
    more = torch.cuda.max_memory_allocated() - before
    scratch = 4 * 16 * result.numel() if case == "decode" else 0  # parts of a split K
    assert size <= more <= size + scratch + 2**20
    torch.testing.assert_close(result.float(), (a.float() @ b.float()), rtol=2e-2, atol=2e-1)


def test_compiled_and_its_gradients_match():
    a = torch.randn(9, 1, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(1, 10, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for run_ in (tg.matmul, torch.compile(tg.matmul, backend="aot_eager")):
        found = run_(a, b)
        one, other = torch.autograd.grad(found.float().square().sum(), (a, b))
        wide = [x.detach().double().requires_grad_() for x in (a, b)]
        expected = torch.matmul(*wide)
        grads = torch.autograd.grad(expected.square().sum(), wide)
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-1)
        for x, y in zip((one, other), grads):
            torch.testing.assert_close(x.double(), y, rtol=5e-2, atol=0.02 * float(y.abs().max()))

"""float32 by split fp16 parts on a real device, against float64: error, flags, epilogues."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import spec_named, violation  # noqa: E402
from tritongemm.kernels.split_fp32 import FLAGGED, exponents_in, parts_of  # noqa: E402
from tritongemm.ops import plans  # noqa: E402
from tritongemm.ops.flags import flagged  # noqa: E402
from tritongemm.ops.plan import (  # noqa: E402
    bind_config,
    geometry_of,
    kept_scratch,
    make_plan,
)
from tritongemm.problem import LAYOUTS, GemmProblem  # noqa: E402
from tritongemm.selection import Choice  # noqa: E402

pytestmark = pytest.mark.gpu
WIDE = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)
NARROW = KernelConfig("split_product", 64, 64, 64, num_warps=4, num_stages=3)
#: One product of scaled copies: each way to share, to take turns and to split.
SCALED = KernelConfig("scaled_product", 128, 128, 64, num_warps=8, num_stages=4)
SCALED_CONFIGS = (
    replace(SCALED, block_n=256), replace(SCALED, cluster_m=2), replace(SCALED, cluster_n=2),
    replace(SCALED, block_n=144, cluster_m=2, cluster_n=2), replace(SCALED, pingpong=1),
    replace(SCALED, block_m=64, block_n=192, pingpong=1), replace(SCALED, block_m=256),
    replace(SCALED, block_m=256, block_n=160, num_stages=3),
    replace(SCALED, block_m=192, block_n=96, num_warps=12),
    replace(SCALED, block_m=64, block_n=72, num_warps=4), replace(SCALED, split_k=3),
    replace(SCALED, block_m=64, num_warps=4, split_k=2, cluster_m=2))
BF16X6 = KernelConfig("tiled_bf16x6", 64, 64, 32, num_warps=4, num_stages=3)
#: What an element of C may be off, of (|A| |B|): two parts of each operand, their product left out
#: and a float32 sum; half of TF32's spacing for each operand.
LIMITS = {"fp16x3": 2e-6, "tf32": 2.0**-10}


@pytest.fixture(autouse=True)
def _hopper():
    if spec_named("split_product").supports(
            GemmProblem.contiguous(64, 64, 64, dtype="fp32", precision="fp16x3"),
            current_device()) is not None:
        pytest.skip("needs sm_90")


def stored(rows: int, cols: int, letter: str, batch: int, gap: int) -> torch.Tensor:
    """Normal values [rows, cols], or [batch, rows, cols], stored by ``letter`` with gaps."""
    outer, inner = (rows, cols) if letter == "n" else (cols, rows)
    x = torch.randn(batch, outer, inner + gap, device="cuda")[:, :, :inner]
    x = x if letter == "n" else x.mT
    return x if batch > 1 else x[0]


def operands(problem: GemmProblem, gap: int = 0):
    a = stored(problem.m, problem.k, problem.layout[0], problem.batch, gap)
    b = stored(problem.k, problem.n, problem.layout[1], problem.batch, gap)
    shape = (*a.shape[:-1], problem.n)
    return a, b, torch.full(shape, float("nan"), device="cuda")


def assert_near(out, a, b, limit: float) -> None:
    """Elementwise to ``limit`` of |A| |B| and the spacing of subnormal numbers, and the same
    infinities and NaN."""
    reference, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert torch.equal(out.isnan(), reference.isnan())
    assert torch.equal(out.isinf(), reference.isinf())
    finite = reference.isfinite()
    error = ((out.double() - reference).abs() - 2.0**-149)[finite]
    assert (error <= limit * size[finite]).all(), (error / size[finite]).max().item()


def aligned(problem: GemmProblem, gap: int) -> GemmProblem:
    leads = [lead + gap for lead in problem.leading_dimensions()]
    a, b = (16 if lead % 4 == 0 else 4 for lead in leads)
    return replace(problem, align_a=a, align_b=b)


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "batch", "gap"), (
    ((128, 128, 64), 1, 0), ((300, 333, 417), 1, 0), ((1000, 520, 1000), 1, 4),
    ((257, 129, 4100), 1, 3), ((130, 200, 300), 3, 0), ((1, 5, 3), 1, 0), ((64, 48, 2000), 1, 0)))
def test_products_are_within_the_bound(shape, batch, gap, layout, precision):
    problem = aligned(GemmProblem.contiguous(*shape, batch=batch, dtype="fp32", layout=layout,
                                             precision=precision), gap)
    device, spec = current_device(), spec_named("split_product")
    configs = {spec.default(problem, device), WIDE, replace(WIDE, block_n=96),
               replace(NARROW, split_k=3)}
    ran = 0
    for config in configs:
        if spec.violation(problem, config, device) is None:
            a, b, out = operands(problem, gap)
            bind_config(problem, config, device)(a, b, out)
            assert_near(out, a, b, LIMITS[precision])
            ran += 1
    assert ran


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", SCALED_CONFIGS, ids=str)
def test_scaled_copies_are_multiplied_within_the_bound_of_tf32(config, layout):
    ran = 0
    for shape, batch, gap, epilogue in (
            ((256, 384, 512), 1, 0, "none"), ((300, 333, 417), 1, 0, "none"),
            ((1000, 520, 1000), 1, 4, "none"), ((257, 270, 4100), 1, 3, "none"),
            ((260, 300, 300), 3, 0, "none"), ((130, 200, 300), 3, 0, "bias"),
            ((260, 399, 640), 1, 0, "bias"), ((384, 512, 333), 2, 0, "add")):
        problem = aligned(GemmProblem.contiguous(
            *shape, batch=batch, dtype="fp32", layout=layout, precision="tf32",
            epilogue=epilogue), gap)
        if violation(problem, config, current_device()) is None:
            a, b, out = operands(problem, gap)
            d = {"none": None, "bias": torch.randn(problem.n, device="cuda"),
                 "add": torch.randn_like(out)}[epilogue]
            bind_config(problem, config, current_device())(a, b, out, d=d)
            # Adding D and taking it away rounds twice, to far below what TF32 may be off.
            assert_near(out if d is None else out.double() - d, a, b, LIMITS["tf32"])
            ran += 1
    assert ran >= 4


@pytest.mark.parametrize("shape", ((1, 1, 1), (1, 5, 3), (64, 48, 2000), (127, 2049, 65),
                                   (2048, 1536, 512), (1000, 3000, 128)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_default_of_scaled_copies_is_within_the_bound(layout, shape):
    problem = GemmProblem.contiguous(*shape, dtype="fp32", layout=layout, precision="tf32")
    config = spec_named("scaled_product").default(problem, current_device())
    a, b, out = operands(problem)
    bind_config(problem, config, current_device())(a, b, out)
    assert_near(out, a, b, LIMITS["tf32"])


#: Kernels of scaled operands, and the precisions that they serve.
SCALING = (*((NARROW, precision) for precision in LIMITS), (SCALED, "tf32"),
           (replace(SCALED, block_m=64, pingpong=1), "tf32"))


@pytest.mark.parametrize(("config", "precision"), SCALING, ids=str)
@pytest.mark.parametrize("shared", ("a", "b", "ab"))
@pytest.mark.parametrize("split_k", (1, 3))
def test_a_matrix_that_serves_all_batches_is_multiplied_for_each(config, precision, shared,
                                                                 split_k):
    problem = GemmProblem.contiguous(130, 200, 300, batch=3, dtype="fp32", layout="nn",
                                     precision=precision)
    a, b, out = operands(problem)
    a, b = (x[:1].expand_as(x) if name in shared else x for name, x in (("a", a), ("b", b)))
    make_plan(problem, replace(config, split_k=split_k), current_device(),
              geometry_of(a, b, out), out.device)(a, b, out)
    assert_near(out, a, b, LIMITS[precision])


#: TF32 by the warp-specialised kernel: one of each way to share, split, turn and store.
HOPPER = KernelConfig("warp_specialized", 128, 128, 32, num_warps=8, num_stages=4)
TF32_CONFIGS = (
    HOPPER, replace(HOPPER, block_n=144), replace(HOPPER, block_m=192, block_n=96, num_warps=12),
    replace(HOPPER, block_m=64, block_n=96, pingpong=1), replace(HOPPER, cluster_m=2),
    replace(HOPPER, block_n=112, swap_ab=2), replace(HOPPER, block_m=64, num_warps=4, split_k=3),
    replace(HOPPER, block_m=64, block_n=64, num_warps=4, cluster_k=2),
    replace(HOPPER, block_m=64, block_n=16, num_warps=4, swap_ab=1))


#: With A in registers: two consumers with 128 rows each, programs that share A, a cluster's K.
ACROSS_CONFIGS = (
    replace(HOPPER, block_m=256, block_n=96),
    replace(HOPPER, block_m=256, block_n=112, cluster_m=2), replace(HOPPER, cluster_n=2),
    replace(HOPPER, block_n=80, cluster_n=4),
    replace(HOPPER, block_m=64, block_n=32, num_warps=4, cluster_n=4),
    replace(HOPPER, pingpong=1), replace(HOPPER, block_m=192, block_n=160, num_warps=12))


@pytest.mark.parametrize("layout", ("nt", "nn", "tt"))
@pytest.mark.parametrize("config", TF32_CONFIGS + ACROSS_CONFIGS, ids=str)
def test_the_hopper_kernel_multiplies_tf32_within_its_bound(config, layout):
    ran = 0
    if layout == "nn":  # which stores tiles across C's rows
        config = replace(config, swap_ab=max(config.swap_ab, 1))
    elif layout == "tt":
        config = replace(config, swap_ab=0)
    for shape, batch, gap, epilogue in (
            ((256, 384, 512), 1, 0, "none"), ((300, 332, 416), 1, 4, "none"),
            ((300, 333, 1004), 1, 0, "none"), ((16, 520, 1000), 1, 0, "none"),
            ((130, 200, 300), 3, 0, "none"), ((260, 200, 640), 1, 0, "bias")):
        problem = aligned(GemmProblem.contiguous(
            *shape, batch=batch, dtype="fp32", layout=layout, precision="tf32", epilogue=epilogue),
            gap)
        if violation(problem, config, current_device()) is None:
            a, b, out = operands(problem, gap)
            d = torch.randn(problem.n, device="cuda") if epilogue == "bias" else None
            bind_config(problem, config, current_device())(a, b, out, d=d)
            assert_near(out if d is None else out - d, a, b, LIMITS["tf32"])
            ran += 1
    assert ran


@pytest.mark.parametrize("kernel", ("tiled", "persistent_tma", "warp_specialized", "split_product",
                                    "scaled_product"))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("draw", (torch.randn, torch.rand))
def test_tf32_is_as_accurate_as_torch(kernel, layout, draw, monkeypatch):
    # Tensor cores ignore the low bits of float32, so operands that are not rounded before make each
    # product smaller: 2.6 times cuBLAS's error with normal numbers, 40 times with positive ones.
    # With those the truncation of the sums shows too, of which cuBLAS may add several parts.
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    problem = GemmProblem.contiguous(384, 512, 1024, dtype="fp32", layout=layout, precision="tf32")
    device, spec = current_device(), spec_named(kernel)
    config = spec.default(problem, device)
    if spec.supports(problem, device) is not None:
        pytest.skip(f"{kernel} does not take tf32 in {layout}")
    a, b = draw(384, 1024, device="cuda"), draw(1024, 512, device="cuda")
    a, b = (x.mT.contiguous().mT if t == "t" else x for x, t in zip((a, b), layout, strict=True))
    out = torch.empty(384, 512, device="cuda")
    bind_config(problem, config, device)(a, b, out)
    reference = a.double() @ b.double()
    ours, torchs = ((x.double() - reference).norm() / reference.norm() for x in (out, a @ b))
    assert ours <= (1.1 if draw is torch.randn else 3.0) * torchs


PLANTED = ((NARROW, "fp16x3"), (SCALED, "tf32"), (replace(SCALED, cluster_m=2), "tf32"),
           (replace(SCALED, block_m=64, pingpong=1), "tf32"))


@pytest.mark.parametrize(("config", "precision"), PLANTED, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split_k", (1, 4))
def test_planted_values_give_what_float32_gives(config, precision, layout, split_k):
    rng = random.Random(f"{layout} {split_k}")
    config = replace(config, split_k=split_k)
    # Tiles of 128 and clusters of two of them have no less than this to do.
    least = 65 if config.block_m == 64 else 129
    for _ in range(15):
        problem = GemmProblem.contiguous(rng.randint(least, 400), rng.randint(least, 400),
                                         rng.randint(256, 700), dtype="fp32", layout=layout,
                                         precision=precision)
        a, b, out = operands(problem)
        for x in (a, b):
            for value in (float("inf"), float("nan"), 2.0**-140, 2.0**90):
                if rng.random() < 0.5:
                    x[rng.randrange(x.shape[0]), rng.randrange(x.shape[1])] = value
        bind_config(problem, config, current_device())(a, b, out)
        assert_near(out, a, b, LIMITS[precision])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("config", "precision"), (
    *SCALING, (replace(SCALED, block_m=256), "tf32")), ids=str)
def test_rows_and_columns_of_all_scales_are_undone_exactly(config, precision, layout):
    """From the smallest scale that the pass does not flag, 2^-100, to the largest number: the
    results of powers of two times small integers are exact, wherever float32 holds them. The
    largest of a row and of a column meet zeros, so that sums are as small as their parts allow."""
    problem = GemmProblem.contiguous(256, 384, 128, dtype="fp32", layout=layout,
                                     precision=precision)
    a, b, out = operands(problem)
    for x, largest, zero, shape in ((a, a[:, 0], a[:, 1], (256, 1)), (b, b[1], b[0], (1, 384))):
        x.copy_(torch.randint(-8, 9, x.shape, device="cuda"))
        x *= 2.0**-38  # after scaling, 2^-24: fp16's smallest number; a row's largest is 1
        largest.fill_(1.0), zero.fill_(0.0)
        exponents = torch.randint(127 - 100, 127 + 128, shape, device="cuda", dtype=torch.int32)
        x *= (exponents << 23).view(torch.float32)
    bind_config(problem, config, current_device())(a, b, out)
    exact = a.double() @ b.double()
    small = exact.abs() < 2.0**-126  # numbers below float32's normal ones may be rounded twice
    assert ((out.double() - exact)[small].abs() <= 2.0**-149).all()
    assert torch.equal(out[~small], exact[~small].float())


def test_a_small_row_meets_a_large_column():
    """2^-100 and 2^127 are the scales, and the sum is 2^-126 times 2^89."""
    for config, precision in SCALING:
        problem = GemmProblem.contiguous(64, 64, 64, dtype="fp32", layout="nt",
                                         precision=precision)
        a, b, out = operands(problem)
        a.zero_(), b.zero_()
        a[3, 0], a[3, 2], b[1, 5], b[2, 5] = 2.0**-100, 2.0**-126, 2.0**127, 2.0**89
        bind_config(problem, config, current_device())(a, b, out)
        assert out[3, 5].item() == 2.0**-37 and out.count_nonzero().item() == 1


@pytest.mark.parametrize(("config", "precision"), SCALING, ids=str)
@pytest.mark.parametrize("epilogue", ("bias", "add+relu", "scale", "add"))
@pytest.mark.parametrize("split_k", (1, 2))
def test_epilogues_and_c_in_place_beside_flagged_rows(config, precision, epilogue, split_k):
    problem = GemmProblem.contiguous(300, 260, 512, dtype="fp32", layout="nt", epilogue=epilogue,
                                     precision=precision)
    a, b, out = operands(problem)
    a[7, 3], a[100, 5], b[1, 200] = 2.0**-140, 2.0**-70, 2.0**-80
    d = torch.randn(260 if epilogue == "bias" else (300, 260), device="cuda")
    product = 1.5 * (a.double() @ b.double())
    if epilogue != "scale":
        product += 0.5 * d.double()
    reference = product.relu() if "relu" in epilogue else product
    given = None
    if epilogue == "bias":
        given = d
    elif epilogue != "scale":
        given = out.copy_(d)
    bind_config(problem, replace(config, split_k=split_k), current_device())(
        a, b, out, given, 1.5, 0.5)
    # Of sums of 512 products of normal numbers times 1.5, what TF32 may be off is below 0.1.
    rtol, atol = (1e-5, 1e-4) if precision == "fp16x3" else (1e-3, 0.1)
    assert torch.allclose(out.double(), reference, rtol=rtol, atol=atol)


@pytest.mark.parametrize("precision", LIMITS)
def test_explain_counts_the_rows_and_columns_that_the_guard_computes(precision, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision == "tf32")
    a, b = torch.randn(2048, 2048, device="cuda"), torch.randn(2048, 2048, device="cuda")
    a[[3, 5, 2047], 7], b[:, 9] = 1e-30, float("inf")
    a[100] *= torch.exp2(torch.linspace(-20, 20, 2048, device="cuda"))
    config = WIDE if precision == "fp16x3" else SCALED
    problem = GemmProblem.contiguous(2048, 2048, 2048, dtype="fp32", precision=precision)
    rows, columns = guarded(problem, config, a, b, torch.empty_like(a))
    assert (rows, columns) == (4, 1)
    assert [int(flagged(x, parts_of(problem)).sum()) for x in (a, b.mT)] == [4, 1]
    found = tg.explain(a, b)
    counted = "rows of A: 4, columns of B: 1" in str(found)
    assert counted == spec_named(found.config.kernel).guarded
    assert counted or precision == "tf32"  # which other kernels multiply too


def guarded(problem: GemmProblem, config: KernelConfig, a, b, out) -> tuple[int, int]:
    """How many rows and columns the exponents in scratch say that the guard computed."""
    with kept_scratch() as scratch:
        bind_config(problem, config, current_device())(a, b, out)
    of_a, of_b = (scratch[-1][x].view(torch.float32) >= FLAGGED
                  for x in exponents_in(problem, config, geometry_of(a, b, out)))
    return int(of_a.sum()), int(of_b.sum())


@pytest.mark.parametrize(("config", "precision", "n"), (
    (WIDE, "fp16x3", 16384), (SCALED, "tf32", 4096)), ids=str)
def test_normal_data_sets_no_flag(config, precision, n):
    torch.manual_seed(0)
    problem = GemmProblem.contiguous(n, n, n, dtype="fp32", layout="nt", precision=precision)
    a, b = torch.randn(n, n, device="cuda"), torch.randn(n, n, device="cuda").mT
    out = torch.empty(n, n, device="cuda")
    assert guarded(problem, config, a, b, out) == (0, 0)


@pytest.mark.parametrize(("config", "precision"), SCALING, ids=str)
def test_columns_that_are_zero_but_at_one_number_find_it(config, precision):
    """From 2^-16 to 2^-67 of what is large in its row, beside 8,191 other numbers: what parts keep
    of it, or the guard."""
    problem = GemmProblem.contiguous(256, 192, 8192, dtype="fp32", layout="nn",
                                     precision=precision)
    a, b, out = operands(problem)
    a[:, 7] *= torch.exp2(-16 - torch.arange(256, device="cuda") / 5)
    b.zero_()
    b.fill_diagonal_(1.0)
    rows, columns = guarded(problem, config, a, b, out)
    assert 0 < rows < 256 and columns == 0
    exact = a[:, :192].double()
    limit = 2.0**-10 if precision == "fp16x3" else 2.0**-3
    assert ((out.double() - exact).abs() <= limit * exact.abs()).all()


@pytest.mark.parametrize(("config", "precision"), SCALING, ids=str)
def test_results_repeat_bit_for_bit_in_a_graph(config, precision):
    problem = GemmProblem.contiguous(700, 500, 900, dtype="fp32", layout="nn", precision=precision)
    a, b, out = operands(problem)
    a[3, 5] = float("nan")
    launch = bind_config(problem, replace(config, split_k=2), current_device())
    launch(a, b, out)
    torch.cuda.synchronize()
    first, graph = out.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(a, b, out)
    for _ in range(100):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(first.nan_to_num(), out.nan_to_num())


@pytest.fixture(params=(*SCALING, (replace(NARROW, split_k=3), "fp16x3"), (BF16X6, "fp16x3")),
                ids=str)
def forced(request, monkeypatch):
    """Every float32 call runs one config, at its precision."""
    config, precision = request.param
    monkeypatch.setattr(plans, "choose", lambda *_: Choice(config, "exact"))
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision == "tf32")
    return LIMITS[precision]


def test_calls_on_several_streams_give_the_same_bits(forced):
    a, b = torch.randn(500, 900, device="cuda"), torch.randn(900, 300, device="cuda")
    a[3, 5], a[4, :7] = float("inf"), 1e-38  # for the guard
    first = tg.mm(a, b, strict=True)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for number in range(100):
        with torch.cuda.stream(streams[number % len(streams)]):
            results.append(tg.mm(a, b, strict=True))
    torch.cuda.synchronize()
    assert all(torch.equal(first.view(torch.int32), x.view(torch.int32)) for x in results)


@pytest.mark.parametrize("flags", (False, True))
def test_gradients_are_products_of_the_same_kernel(forced, flags):
    a, b = torch.randn(500, 900, device="cuda"), torch.randn(900, 300, device="cuda")
    if flags:  # rows that fp16 parts cannot hold, of A, B and the gradient
        a[7] *= torch.exp2(torch.linspace(-30, 30, 900, device="cuda"))
        b[::2, 9] *= 2.0**-40
    a, b = a.requires_grad_(), b.requires_grad_()
    c = tg.mm(a, b, strict=True)
    gradient = torch.randn_like(c)
    if flags:
        gradient[11, ::2] *= 2.0**-40
    c.backward(gradient)
    assert_near(c.detach(), a.detach(), b.detach(), forced)
    assert_near(a.grad, gradient, b.detach().mT, forced)
    assert_near(b.grad, a.detach().mT, gradient, forced)


def test_sgemm_is_not_more_accurate():
    torch.manual_seed(0)
    a, b = torch.randn(2048, 2048, device="cuda"), torch.randn(2048, 2048, device="cuda")
    out = torch.empty(2048, 2048, device="cuda")
    problem = GemmProblem.contiguous(2048, 2048, 2048, dtype="fp32", precision="fp16x3")
    bind_config(problem, WIDE, current_device())(a, b, out)
    reference = a.double() @ b.double()
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        theirs = torch.mm(a, b)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert (out.double() - reference).norm() <= (theirs.double() - reference).norm()

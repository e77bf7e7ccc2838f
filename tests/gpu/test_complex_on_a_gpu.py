"""complex64, and 16-bit by float32, on a real device, against complex128 and float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.formats import format_of_dtype  # noqa: E402
from tritongemm.kernels import spec_named  # noqa: E402
from tritongemm.kernels.launch import Geometry  # noqa: E402
from tritongemm.ops.plan import bind_config, make_plan  # noqa: E402
from tritongemm.problem import LAYOUTS, GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu
WIDE = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)
SPLIT_K = KernelConfig("split_product", 64, 64, 64, num_warps=4, num_stages=3, split_k=3)
TILED = KernelConfig("tiled", 64, 64, 32)
SCALED = KernelConfig("scaled_product", 128, 128, 64, num_warps=8, num_stages=4)
#: What either part of an element of C may be off, of |A| |B| of the arranged operands; under TF32
#: half its spacing for each operand.
LIMIT, LIMIT_OF_TF32 = 2e-6, 2.0**-10


@pytest.fixture(autouse=True)
def _hopper():
    if spec_named("split_product").supports(
            GemmProblem.contiguous(64, 64, 64, dtype="fp32", precision="fp16x3"),
            current_device()) is not None:
        pytest.skip("needs sm_90")


def stored(rows: int, cols: int, letter: str = "n", batch: tuple[int, ...] = (),
           gap: int = 0) -> torch.Tensor:
    outer, inner = (cols, rows) if letter == "t" else (rows, cols)
    x = torch.randn(*batch, outer, inner + gap, dtype=torch.complex64, device="cuda")[..., :inner]
    return x.mT if letter == "t" else x


def parts(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj())


def assert_near(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor,
                limit: float = LIMIT) -> None:
    """Either part, elementwise."""
    expected = a.to(torch.complex128) @ b.to(torch.complex128)
    ar, ai, br, bi = (x.double().abs() for y in (a, b) for x in (y.real, y.imag))
    size = torch.stack((ar @ br + ai @ bi, ar @ bi + ai @ br), -1)
    error = (parts(found).double() - parts(expected)).abs() / size.clamp_min(2.0**-149)
    assert error.max().item() <= limit


@pytest.mark.parametrize("config", (WIDE, SPLIT_K, TILED, SCALED), ids=lambda c: c.config_id)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("conj_a", "conj_b"), itertools.product((False, True), repeat=2))
def test_configs_layouts_and_conjugates(config, layout, conj_a, conj_b):
    for m, n, k, batch, gap in ((300, 210, 333, (), 0), (64, 129, 1001, (), 3),
                                (130, 66, 200, (3,), 0)):
        a, b = stored(m, k, layout[0], batch, gap), stored(k, n, layout[1], batch, gap)
        out = torch.full((*batch, m, n), float("nan"), dtype=torch.complex64, device="cuda")
        tf32 = config is SCALED
        problem = GemmProblem(m, n, k, batch[0] if batch else 1, "c64", "c64", "c64", layout, 8, 8,
                              8, precision="tf32" if tf32 else "fp16x3")
        a, b = a.conj() if conj_a else a, b.conj() if conj_b else b
        bind_config(problem, config, current_device())(a, b, out)
        assert_near(out, a, b, LIMIT_OF_TF32 if tf32 else LIMIT)


@pytest.mark.parametrize(("shape_a", "shape_b"), (
    ((512, 700), (700, 300)), ((3, 256, 300), (3, 300, 200)), ((2, 1, 90, 240), (3, 240, 170)),
    ((90, 240), (3, 240, 170)), ((2, 3, 90, 240), (240, 170)), ((1, 240), (240, 17)),
    ((64, 240), (240, 1)), ((64, 1), (1, 240))))
def test_public_calls_and_their_gradients(shape_a, shape_b):
    a, b = (torch.randn(x, dtype=torch.complex64, device="cuda") for x in (shape_a, shape_b))
    assert_near(tg.matmul(a, b.conj(), strict=True), a, b.conj())
    a.requires_grad_(), b.requires_grad_()
    twins = [x.detach().to(torch.complex128).requires_grad_() for x in (a, b)]
    found, expected = tg.matmul(a, b.conj(), strict=True), torch.matmul(twins[0], twins[1].conj())
    grad = torch.randn_like(found)
    found.backward(grad)
    expected.backward(grad.to(torch.complex128))
    for x, y in zip((a, b), twins):
        assert (x.grad - y.grad).norm() <= 2e-6 * y.grad.norm().clamp_min(1e-6)


def test_elements_that_are_strided_along_both_axes():
    a, b = stored(400, 600)[::2, ::3], stored(400, 300)[::2, ::2]
    assert_near(tg.mm(a, b.conj(), strict=True), a, b.conj())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_planted_values_give_the_patterns_of_float64(layout):
    generator = torch.Generator().manual_seed(3)
    for _ in range(8):
        a, b = stored(200, 300, layout[0]), stored(300, 130, layout[1])
        for x in (a, b):
            for value in (complex(float("inf"), 1.0), complex(0.0, float("nan")),
                          complex(2.0**-140, 0.0), complex(2.0**90, -2.0**90)):
                i, j = (int(torch.randint(n, (1,), generator=generator)) for n in x.shape)
                x[i, j] = value
        found = parts(tg.mm(a, b, strict=True))
        ar, ai, br, bi = (x.double() for y in (a, b) for x in (y.real, y.imag))
        expected = torch.stack((ar @ br - ai @ bi, ar @ bi + ai @ br), -1)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())
        finite = expected.isfinite()
        size = torch.stack((ar.abs() @ br.abs() + ai.abs() @ bi.abs(),
                            ar.abs() @ bi.abs() + ai.abs() @ br.abs()), -1).clamp_min(2.0**-149)
        error = (found.double() - expected).abs() / size
        assert error[finite].max().item() <= LIMIT


def test_no_nan_is_where_torch_has_none():
    """cuBLAS adds the same four real products, and has more NaN: it also multiplies by alpha, which
    is complex, so that an infinite part makes the other one NaN."""
    a, b = stored(256, 300), stored(300, 200)
    a[3, 5], a[100, 7], b[9, 11] = complex("inf"), complex(0, float("nan")), complex(0, -2e38)
    found, torchs = parts(tg.mm(a, b, strict=True)), parts(torch.mm(a, b))
    assert found.isnan().any() and not (found.isnan() & ~torchs.isnan()).any()


def test_a_graph_replays_and_runs_are_bit_identical():
    a, b = stored(700, 512), stored(512, 600)
    first = tg.mm(a, b, strict=True)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(first)
    tg.mm(a, b, out=out, strict=True)
    with torch.cuda.graph(graph):
        tg.mm(a, b, out=out, strict=True)
    for _ in range(5):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, first)


def test_large_products_are_ours_and_small_ones_torchs():
    a, b = stored(2048, 2048), stored(2048, 2048)
    with tg.override():
        tg.override_report(clear=True)
        large = a @ b.mH
        a[:64, :64] @ b[:64, :64]
        report = tg.override_report(clear=True)
    assert_near(large, a, b.mH)
    assert report.taken == 1 and report.declined == 1, str(report)
    with settings.override(policy="auto"), tg.override(), tg.fp32_compute("ieee"):
        torch.mm(a, b)
        report = tg.override_report(clear=True)
    assert report.taken == 0 and "precision ieee" in str(report)


def test_sums_and_a_bias():
    a, b, d = stored(300, 200), stored(200, 130), stored(300, 130)
    found = tg.addmm(d, a, b, beta=-0.5, alpha=2.0, strict=True)
    expected = torch.addmm(*(x.to(torch.complex128) for x in (d, a, b)), beta=-0.5, alpha=2.0)
    assert (found - expected).norm() <= 1e-6 * expected.norm()
    found = tg.linear(a, b.mT, d[0], strict=True)
    expected = a.to(torch.complex128) @ b.to(torch.complex128) + d[0]
    assert (found - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(("m", "n", "k"), ((1, 128, 4096), (64, 64, 2048), (2048, 160, 4096),
                                           (4096, 4096, 1024)))
def test_mixed_products(narrow, m, n, k):
    a, w = torch.randn(m, k, device="cuda").to(narrow), torch.randn(n, k, device="cuda")
    expected, size = a.double() @ w.double().mT, a.double().abs() @ w.double().abs().mT
    for strict in (False, True):
        for found in (tg.linear(a, w, mixed=True, strict=strict),
                      tg.mm(a, w.mT, mixed=True, strict=strict)):
            assert found.dtype is torch.float32
            assert ((found - expected).abs() / size).max().item() <= 4e-6


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", (
    KernelConfig("gemv", 8, 16, 32, num_warps=4),
    KernelConfig("gemv", 8, 32, 32, num_warps=4, num_stages=2, split_k=3),
    KernelConfig("simt", 32, 64, 32, num_warps=4, num_stages=3, thread_m=4, thread_n=4),
    KernelConfig("simt", 16, 32, 16, num_warps=1, num_stages=2, thread_m=4, thread_n=4, split_k=5),
    KernelConfig("tiled_bf16x6", 16, 64, 32, num_warps=2, num_stages=4),
    KernelConfig("tiled_bf16x6", 64, 64, 64, num_warps=4, num_stages=3, split_k=3)),
    ids=lambda x: x.config_id)
def test_kernels_for_few_rows_read_a_of_16_bits(config, layout, narrow):
    """By the bits of the widened A's result, where the order of additions is described: ``gemv``
    adds what threads hold, which depends on how wide they load."""
    m, n, k = 8, 136, 1032
    a, b = torch.randn(m, k, device="cuda").to(narrow), torch.randn(k, n, device="cuda")
    a[1, 7], b[5, 3] = float("inf"), 2.0**-140
    if layout[0] == "t":
        a = a.t().contiguous().t()
    if layout[1] == "t":
        b = b.t().contiguous().t()
    problem = GemmProblem.contiguous(m, n, k, dtype="fp32", layout=layout, precision="fp16x3")
    geometry = Geometry.contiguous(problem)
    results = []
    for x, stored_a in ((a, format_of_dtype(narrow).name), (a.float(), "")):
        if layout[0] == "t":
            assert x.stride() == (1, m)
        c = torch.full((m, n), 7.0, device="cuda")
        plan = make_plan(problem, config, current_device(), replace(geometry, stored_a=stored_a),
                         x.device)
        plan.at((x.data_ptr(), b.data_ptr(), c.data_ptr(), 0, 1.0, 0.0))
        results.append(c)
    found, expected = results
    if config.kernel != "gemv":
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    finite = exact.isfinite()
    assert torch.equal(found.isfinite(), finite) and not finite.all()
    assert ((found - exact).abs() / size)[finite].max().item() <= 4e-6


@pytest.mark.parametrize("m", (1, 64, 1024))
def test_mixed_and_complex_compile(m):
    a, w = torch.randn(m, 512, device="cuda").bfloat16(), torch.randn(96, 512, device="cuda")
    found = torch.compile(lambda x, y: tg.linear(x, y, mixed=True), fullgraph=True)(a, w)
    assert torch.allclose(found, a.float() @ w.mT, rtol=1e-4, atol=1e-3)
    x, y = stored(m, 512), stored(96, 512)
    found = torch.compile(lambda x, y: tg.matmul(x, y.mH), fullgraph=True)(x, y)
    assert (found - x.to(torch.complex128) @ y.mH.to(torch.complex128)).norm() <= 1e-3 * m

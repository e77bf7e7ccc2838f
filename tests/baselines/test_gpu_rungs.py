"""Every CUDA rung against float64 on a GPU, poisoned outputs, streams, graphs and launches."""

import random

import pytest

from tritongemm.baselines import CUDA_RUNGS, compile_cuda, cuda_gemm
from tritongemm.baselines.cuda.rungs import violation
from tritongemm.device import cuda_device
from tritongemm.errors import ConstraintError, LaunchError, ProblemError, UsageError
from tritongemm.problem import GemmProblem

torch = pytest.importorskip("torch")
numerics = pytest.importorskip("tritongemm.measure.numerics")
pytestmark = pytest.mark.gpu

SCALES = ((1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (-1.37, 0.61))
VARIANTS = [pytest.param(rung, config, id=str(config)) for rung in CUDA_RUNGS.values()
            for config in rung.variants]
_draw = random.Random(20)
SMALL = [tuple(_draw.randint(1, 300) for _ in range(3)) for _ in range(15)]
EDGES = [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1), (1, 300, 300), (300, 1, 300), (300, 300, 1),
         (128, 256, 16), (129, 257, 17), (64, 64, 1024)]
LARGE = [512, 1000, 1022, 3135]


@pytest.fixture(autouse=True)
def ieee():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def _fits(rung, config, m, n, k):
    return violation(GemmProblem.contiguous(m, n, k, dtype="fp32"), config,
                     cuda_device(torch.cuda.current_device())) is None


def _assert_right(rung, config, m, n, k, alpha=1.0, beta=0.0, offset=0):
    generator = torch.Generator("cuda").manual_seed(m * 1000003 + n * 1009 + k)

    def tensor(rows, cols):
        flat = torch.randn(rows * cols + offset, device="cuda", generator=generator)
        return flat[offset:].view(rows, cols)

    a, b, c = tensor(m, k), tensor(k, n), tensor(m, n)
    out = c.clone() if not offset else c
    start = out.clone()
    if beta == 0:
        out.fill_(float("nan"))
    cuda_gemm(rung.name, a, b, out=out, alpha=alpha, beta=beta, config=config)
    addend = beta * start.double() if beta else None
    want = alpha * numerics.reference(a, b)
    theirs = torch.addmm(start, a, b, alpha=alpha, beta=beta)
    report = numerics.check(out, a, b, want if addend is None else want + addend, theirs,
                            alpha=alpha, addend=addend)
    assert report.ok, f"{m}x{n}x{k} alpha={alpha} beta={beta}: {report.message}"


@pytest.mark.parametrize("rung, config", VARIANTS)
def test_rung_is_right_for_any_size(rung, config):
    for i, (m, n, k) in enumerate(SMALL + EDGES):
        if _fits(rung, config, m, n, k):
            _assert_right(rung, config, m, n, k, *SCALES[i % len(SCALES)])


@pytest.mark.parametrize("rung, config", VARIANTS)
@pytest.mark.parametrize("size", LARGE)
def test_rung_is_right_at_the_sources_sizes(rung, config, size):
    if not _fits(rung, config, size, size, size):
        with pytest.raises(ConstraintError, match="k <= "):
            _assert_right(rung, config, size, size, size)
        return
    _assert_right(rung, config, size, size, size)


@pytest.mark.parametrize("rung, config", VARIANTS)
@pytest.mark.parametrize("alpha, beta", SCALES)
def test_rung_scales_product_and_result(rung, config, alpha, beta):
    _assert_right(rung, config, 101, 132, 68, alpha, beta)
    _assert_right(rung, config, 64, 7, 0, alpha, beta)


@pytest.mark.parametrize("rung, config", VARIANTS)
def test_rung_takes_addresses_that_are_not_aligned(rung, config):
    _assert_right(rung, config, 132, 136, 64, offset=1)
    _assert_right(rung, config, 132, 136, 64, 1.5, 0.5, offset=3)


@pytest.mark.parametrize("rung", CUDA_RUNGS.values(), ids=lambda r: r.name)
def test_rung_writes_nothing_outside_its_result(rung):
    m, n, k = 131, 77, 45
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    band = torch.full((m * n + 4096,), 7.0, device="cuda")
    cuda_gemm(rung.name, a, b, out=band[2048:2048 + m * n].view(m, n))
    assert bool((band[:2048] == 7).all()) and bool((band[2048 + m * n:] == 7).all())


@pytest.mark.parametrize("rung", CUDA_RUNGS.values(), ids=lambda r: r.name)
def test_rung_gives_the_same_bits_every_time(rung):
    a, b = torch.randn(257, 301, device="cuda"), torch.randn(301, 130, device="cuda")
    first = cuda_gemm(rung.name, a, b)
    assert all(torch.equal(cuda_gemm(rung.name, a, b), first) for _ in range(5))


@pytest.mark.parametrize("name", ["naive", "padded", "warp_tiled_async"])
def test_launch_goes_to_the_current_stream_and_into_a_graph(name):
    a, b = torch.randn(300, 300, device="cuda"), torch.randn(300, 300, device="cuda")
    want, out = cuda_gemm(name, a, b), torch.empty(300, 300, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        cuda_gemm(name, a, b, out=out)
        done = stream.record_event()
    assert not done.query()  # behind the sleep, hence on its stream
    stream.synchronize()
    assert torch.equal(out, want)

    graph = torch.cuda.CUDAGraph()
    out.fill_(float("nan"))
    with torch.cuda.graph(graph):
        cuda_gemm(name, a, b, out=out)
    a.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want * 2)


def test_users_kernel_gets_scalars_of_its_width():
    import numpy as np

    kernel = compile_cuda("""extern "C" __global__ void
        fill(double *out, short a, float b, long long c, double d)
        { out[0] = a; out[1] = b; out[2] = c; out[3] = d; }""", "fill")
    out = torch.zeros(4, dtype=torch.float64, device="cuda")
    kernel.launch(1, 1, [out, np.int16(-3), np.float32(0.5), np.int64(2**40), np.float64(1e-300)])
    assert out.tolist() == [-3.0, 0.5, 2.0**40, 1e-300]
    with pytest.raises(UsageError, match=r"bytes; it was given"):
        compile_cuda('extern "C" __global__ void one(int a) {}', "one").launch(
            1, 1, [np.int64(1)])


def test_users_kernel_may_use_more_than_48_kib():
    kernel = compile_cuda("""extern "C" __global__ void last(float *out) {
        extern __shared__ float s[]; s[16383] = 5; out[0] = s[16383]; }""", "last")
    out = torch.zeros(1, device="cuda")
    kernel.launch(1, 1, [out], shared_bytes=65536)
    assert out.item() == 5
    with pytest.raises(ConstraintError, match="allows"):
        kernel.launch(1, 1, [out], shared_bytes=1 << 20)
    with pytest.raises(ConstraintError, match="2048 threads"):
        kernel.launch(1, 2048, [out])
    with pytest.raises(UsageError, match="positive"):
        kernel.launch(0, 1, [out])


def test_kernel_of_another_architecture_is_refused():
    arch = 80 if torch.cuda.get_device_capability()[0] != 8 else 90
    kernel = compile_cuda('extern "C" __global__ void none() {}', "none", arch=arch)
    with pytest.raises(LaunchError, match="cannot run"):
        kernel.launch(1, 1, [], device=0)


def test_half_precision_is_refused():
    a = torch.ones(8, 8, device="cuda", dtype=torch.float16)
    with pytest.raises(ProblemError, match="a is fp16"):
        cuda_gemm("naive", a, a)


def test_operands_on_cpu_and_gpu_are_refused():
    with pytest.raises(UsageError, match="cuda:0 and cpu"):
        cuda_gemm("naive", torch.ones(8, 8, device="cuda:0"), torch.ones(8, 8))


def test_second_device_runs_and_mixed_devices_are_refused():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    a = torch.randn(70, 80, device="cuda:1")
    b = torch.randn(80, 90, device="cuda:1")
    assert torch.allclose(cuda_gemm("warp_tiled_async", a, b), a @ b, atol=1e-3)
    with pytest.raises(UsageError, match="cuda:1 and cuda:0"):
        cuda_gemm("naive", a, b.to("cuda:0"))

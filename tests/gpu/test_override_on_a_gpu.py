"""``tritongemm.override`` on a device: backward threads, graphs, streams, compiled code, chains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm import inductor  # noqa: E402

pytestmark = pytest.mark.gpu


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda")


def near(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Against float64, within four roundings of the largest element."""
    limit = 4 * torch.finfo(found.dtype).eps * exact.abs().max().item()
    assert (found.double() - exact).abs().max().item() <= limit


def taken() -> dict[str, int]:
    return {calls.name: calls.taken for calls in tg.override_report().calls if calls.taken}


@pytest.fixture(autouse=True)
def counted():
    tg.override_report(clear=True)
    yield
    assert tg.override_report().active == ()


def test_backward_runs_in_another_thread_and_is_taken():
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(),
                                torch.nn.Linear(512, 128)).cuda()
    x = draw(384, 256, dtype=torch.float32)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = gradients()
    with tg.override(min_flops=0):
        found = gradients()
    assert taken() == {"addmm": 2, "mm": 3} and tg.override_report().declined == 0
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02 * theirs.abs().max().item())


@pytest.mark.parametrize("op", ("mm", "bmm"))
def test_a_float32_result_of_half_operands(op):
    shape = (4,) if op == "bmm" else ()
    a, b = draw(*shape, 200, 136), draw(*shape, 136, 264)
    with tg.override(min_flops=0):
        found = getattr(torch, op)(a, b, out_dtype=torch.float32)
    assert taken() == {f"{op}.dtype": 1} and found.dtype == torch.float32
    torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("warm", (True, False), ids=("warm", "cold"))
def test_capture_takes_warm_plans_and_leaves_cold_ones_to_torch(warm):
    from tritongemm.ops.execute import clear_plans

    a, b = draw(264, 520), draw(520, 392)
    clear_plans()
    with tg.override(min_flops=0):
        if warm:
            torch.mm(a, b)
        else:
            with tg.override(min_flops=1e15):  # torch is warm, this package is not
                torch.mm(a, b)
        tg.override_report(clear=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = torch.mm(a, b)
    a.copy_(draw(264, 520))
    graph.replay()
    torch.cuda.synchronize()
    assert tg.override_report().taken == int(warm)
    near(c, a.double() @ b.double())


def test_small_products_are_taken_within_the_runs_that_warm_a_graph_up():
    from tritongemm.ops.execute import clear_plans

    clear_plans()  # and starts the counts of small products again
    a, b = draw(72, 136), draw(136, 264)
    with tg.override():
        for _ in range(3):
            torch.mm(a, b)
        tg.override_report(clear=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = torch.mm(a, b)
        assert tg.override_report().taken == 1
    graph.replay()
    near(c, a.double() @ b.double())


def test_a_side_stream():
    a, b, stream = draw(512, 512), draw(512, 512), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with tg.override(min_flops=0), torch.cuda.stream(stream):
        c = torch.mm(a, b)
    torch.cuda.current_stream().wait_stream(stream)
    near(c, a.double() @ b.double())
    assert taken() == {"mm": 1}


def test_torchs_own_override_of_outer_products_is_chained():
    a, b = draw(4, 64, 1), draw(4, 1, 64)
    for _ in range(2):
        with tg.override(min_flops=1e15):
            found = torch.bmm(a, b)
        near(found, a.double() @ b.double())
    assert tg.override_report().declined == 2
    near(torch.bmm(a, b), a.double() @ b.double())


def test_code_made_by_inductor_is_overridden():
    torch._dynamo.reset()
    w, x = draw(512, 256).requires_grad_(), draw(384, 256)
    compiled = torch.compile(lambda x: torch.nn.functional.gelu(x @ w.t()).sum(), fullgraph=True)
    with tg.override(min_flops=0):
        compiled(x).backward()
    assert tg.override_report().taken == 2


def test_compiled_batches_that_broadcast_are_not_copied():
    torch._dynamo.reset()
    a, b = draw(24, 1, 256, 512), draw(1, 24, 512, 256)
    run = torch.compile(torch.matmul, fullgraph=True, options=inductor.options(min_flops=0))
    expected = torch.matmul(a, b)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = run(a, b)
        taken_bytes = torch.cuda.max_memory_allocated() - before
        near(found, a.double() @ b.double())
    assert taken_bytes < found.nbytes + a.nbytes * 24 // 2  # a copy of A for each matrix of B
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.5)


def test_the_functions_compiled_run_kernels_and_match():
    torch._dynamo.reset()
    w, b = draw(512, 256).requires_grad_(), draw(512).requires_grad_()

    def network(x: torch.Tensor) -> torch.Tensor:
        return tg.linear(x, w, b, activation="gelu").float().square().mean()

    compiled = torch.compile(network, fullgraph=True)
    for rows in (128, 384, 200, 72):
        x = draw(rows, 256).requires_grad_()
        found = torch.autograd.grad(compiled(x), (x, w, b))
        expected = torch.autograd.grad(network(x), (x, w, b))
        for ours, theirs in zip(found, expected):
            torch.testing.assert_close(ours, theirs, rtol=0.05,
                                       atol=0.02 * theirs.abs().max().item())


#: Of D, A and B, which have a batch.
MIXED = (lambda d, a, b: torch.mm(a[0], b[0]), lambda d, a, b: torch.addmm(d[0], a[0], b[0]),
         lambda d, a, b: torch.bmm(a, b), lambda d, a, b: torch.matmul(a, b[0]),
         lambda d, a, b: torch.nn.functional.linear(a[0], b[0].mT, d[0, 0]))


def test_16_threads_of_1000_mixed_calls_are_right():
    operands = [(draw(2, m, n), draw(2, m, 256), draw(2, 256, n))
                for m, n in ((64, 64), (100, 72), (256, 512))]
    exact = [[call(*(x.double() for x in tensors)) for call in MIXED] for tensors in operands]

    def multiply(seed: int) -> None:
        factor = 2.0 ** seed  # every thread has results of its own
        own = [(factor * d, factor * a, b) for d, a, b in operands]
        for i in range(1000):
            kind, shape = (seed + i) % len(MIXED), i // len(MIXED) % len(own)
            found = MIXED[kind](*own[shape])
            if i % 19 == 0:  # to look at one waits for the GPU
                near(found, factor * exact[shape][kind])

    with tg.override(min_flops=0), ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(multiply, seed) for seed in range(16)]:
            done.result()
    assert taken() == {"mm": 6400, "bmm": 3200, "addmm": 6400}

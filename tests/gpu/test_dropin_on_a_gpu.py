"""The drop-in functions on a real device: values, gradients, threads, streams, graphs, memory."""

from __future__ import annotations

import multiprocessing
import random
import threading
import warnings
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.measure.memory import peak_bytes  # noqa: E402

pytestmark = pytest.mark.gpu
F = torch.nn.functional
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def drawn(*shapes: tuple[int, ...], dtype=torch.bfloat16, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed + sum(map(sum, shapes)))
    return [torch.randn(shape, device="cuda", generator=generator).to(dtype) for shape in shapes]


def relative_error(found: torch.Tensor, wide: torch.Tensor) -> float:
    assert found.shape == wide.shape
    return float((found.double() - wide).norm() / wide.norm().clamp_min(1e-30))


def limit(dtype: torch.dtype) -> float:
    """Of a relative error by norms: rounding the result alone makes about a quarter of eps, and
    summing thousands of terms in float32 about 1e-6."""
    return max(4 * torch.finfo(dtype).eps, 5e-6)


CALLS: dict[str, tuple[Callable, Callable, tuple]] = {
    "matmul": (tg.matmul, torch.matmul, ((300, 264), (264, 520))),
    "matmul-odd": (tg.matmul, torch.matmul, ((301, 263), (263, 519))),
    "matmul-fold": (tg.matmul, torch.matmul, ((4, 50, 264), (264, 520))),
    "matmul-batch": (tg.matmul, torch.matmul, ((6, 130, 72), (6, 72, 264))),
    "matmul-broadcast": (tg.matmul, torch.matmul, ((2, 1, 130, 72), (3, 72, 264))),
    "matmul-left-matrix": (tg.matmul, torch.matmul, ((130, 72), (5, 72, 264))),
    "matmul-sequence-first": (lambda a, b, **o: tg.matmul(a.transpose(0, 1), b, **o),
                              lambda a, b: torch.matmul(a.transpose(0, 1), b),
                              ((128, 4, 72), (72, 264))),
    "mm": (tg.mm, torch.mm, ((1, 4096), (4096, 512))),
    "bmm": (tg.bmm, torch.bmm, ((6, 130, 72), (6, 72, 264))),
    "mv": (tg.mv, torch.mv, ((512, 4096), (4096,))), "dot": (tg.dot, torch.dot, ((8192,),) * 2),
    "addmm-bias": (tg.addmm, torch.addmm, ((520,), (300, 264), (264, 520))),
    "addmm": (lambda d, a, b, **o: tg.addmm(d, a, b, beta=-0.5, alpha=1.5, **o),
              lambda d, a, b: torch.addmm(d, a, b, beta=-0.5, alpha=1.5),
              ((300, 520), (300, 264), (264, 520))),
    "addmm-split": (tg.addmm, torch.addmm, ((64,), (64, 16384), (16384, 64))),
    "baddbmm": (tg.baddbmm, torch.baddbmm, ((6, 130, 264), (6, 130, 72), (6, 72, 264))),
    "linear": (lambda d, x, w, **o: tg.linear(x, w, d, **o), lambda d, x, w: F.linear(x, w, d),
               ((520,), (4, 50, 264), (520, 264))),
    "linear-gelu": (lambda d, x, w, **o: tg.linear(x, w, d, activation="gelu", **o),
                    lambda d, x, w: F.gelu(F.linear(x, w, d)), ((520,), (300, 264), (520, 264))),
    "linear-silu": (lambda x, w, **o: tg.linear(x, w, activation="silu", **o),
                    lambda x, w: F.silu(F.linear(x, w)), ((300, 264), (520, 264))),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_values_and_gradients_are_those_of_float64(call, dtype):
    ours, theirs, shapes = call
    tensors = [x.requires_grad_() for x in drawn(*shapes, dtype=dtype)]
    wide = [x.detach().double().requires_grad_() for x in tensors]
    with torch.no_grad():
        assert relative_error(ours(*tensors, strict=True), theirs(*wide)) < limit(dtype)
    result, expected = ours(*tensors, strict=True), theirs(*wide)
    assert relative_error(result.detach(), expected.detach()) < limit(dtype)
    grad = torch.randn_like(expected).to(dtype)
    for one, other in zip(torch.autograd.grad(result, tensors, grad),
                          torch.autograd.grad(expected, wide, grad.double())):
        assert relative_error(one, other) < 2 * limit(dtype)


def mixed_call(rng: random.Random, seed: int) -> None:
    """One of the calls of a small program, checked against float64."""
    name = rng.choice(("matmul", "addmm", "linear-gelu", "bmm", "mm", "out", "grad"))
    if name == "out":
        a, b = drawn((64, 96), (96, 48), seed=seed)
        out = torch.full((64, 96), float("nan"), device="cuda", dtype=a.dtype)[:, ::2]
        tg.mm(a, b, out=out)
        assert relative_error(out, a.double() @ b.double()) < limit(a.dtype)
    elif name == "grad":
        a, b = (x.requires_grad_() for x in drawn((64, 96), (96, 48), seed=seed))
        tg.matmul(a, b).sum().backward()
        expected = b.detach().double().sum(1).expand(64, 96)
        assert relative_error(a.grad, expected) < limit(a.dtype)
    else:
        ours, theirs, shapes = CALLS[name]
        tensors = drawn(*shapes, seed=seed)
        wide = theirs(*(x.double() for x in tensors))
        assert relative_error(ours(*tensors), wide) < limit(tensors[0].dtype)


def test_16_threads_of_1000_mixed_calls_on_their_own_streams_are_right():
    failures: list[str] = []

    def work(index: int) -> None:
        rng = random.Random(index)
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(1000):
                    mixed_call(rng, seed=1000 * index + i)
        except BaseException as error:
            failures.append(f"thread {index}: {error!r}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]


def test_a_call_runs_on_the_current_stream():
    a, b = drawn((512, 512), (512, 512))
    expected = a.double() @ b.double()
    tg.matmul(a, b, strict=True)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    x = torch.zeros_like(a)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.copy_(a)
        found = tg.matmul(x, b, strict=True)
    side.synchronize()
    assert relative_error(found, expected) < limit(a.dtype)


def test_a_thread_new_to_cuda_launches_while_another_captures():
    a, b = drawn((256, 264), (264, 520))
    out = torch.empty(256, 520, device="cuda", dtype=a.dtype)
    tg.mm(a, b, strict=True), tg.mm(a, b, out=out, strict=True)
    out.zero_()
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            tg.mm(a, b, out=out, strict=True)  # this thread has no context yet
        except BaseException as error:
            failures.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = tg.mm(a, b, strict=True)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert not failures, failures
    graph.replay()
    for result in (found, out):
        assert relative_error(result, a.double() @ b.double()) < limit(a.dtype)


def test_every_function_with_a_warm_plan_is_captured():
    bias, a, b = drawn((264,), (128, 72), (72, 264))
    out = torch.empty(128, 264, device="cuda", dtype=a.dtype)

    def calls() -> list[torch.Tensor]:
        return [tg.matmul(a, b, strict=True), tg.addmm(bias, a, b, alpha=0.5, strict=True),
                tg.linear(a, b.mT, bias, activation="gelu", strict=True),
                tg.mm(a, b, out=out, strict=True)]

    calls()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = calls()
    a.normal_()
    bias.normal_()
    graph.replay()
    wide, offset = a.double() @ b.double(), bias.double()
    for found, expected in zip(results, (wide, 0.5 * wide + offset, F.gelu(wide + offset), wide)):
        assert relative_error(found, expected) < limit(a.dtype)


def test_a_training_step_is_captured():
    weight, x = drawn((264, 72), (128, 72))
    weight.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            weight.grad = None
            tg.linear(x, weight, strict=True).square().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    weight.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tg.linear(x, weight, strict=True).square().sum().backward()
    x.normal_()
    graph.replay()
    wide = (x.double() @ weight.detach().double().mT) * 2
    assert relative_error(weight.grad, wide.mT @ x.double()) < 4 * limit(x.dtype)


def test_a_cold_problem_under_capture_is_torchs_with_one_warning(monkeypatch):
    from tritongemm.ops import plans

    plans._say_capturing.cache_clear()
    pairs = [drawn((200 + i, 136), (136, 328), dtype=torch.float16) for i in range(3)]
    torch.mm(*pairs[0])
    said: list[str] = []
    monkeypatch.setattr(plans.log, "warning", lambda text, *values: said.append(text % values))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [tg.matmul(*pair) for pair in pairs]
    graph.replay()
    assert len(said) == 1 and "captures a problem that has no warm plan" in said[0]
    for found, (a, b) in zip(results, pairs):
        assert relative_error(found, a.double() @ b.double()) < limit(a.dtype)
    for pair in pairs:
        tg.matmul(*pair, strict=True)  # after the capture they are this package's


OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fresh": lambda store: store[:156_000].view(300, 520),
    "transposed": lambda store: store[:156_000].view(520, 300).mT,
    "gapped": lambda store: store[:312_000].view(300, 1040)[:, ::2],
    "odd-rows": lambda store: store[:158_700].view(300, 529)[:, 3:523],
    "odd-base": lambda store: store[1:156_001].view(300, 520),
}


@pytest.mark.parametrize("arrange", OUTS.values(), ids=OUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_is_written_in_place_and_nothing_beside_it(arrange, dtype):
    bias, a, b = drawn((520,), (300, 264), (264, 520), dtype=dtype)
    wide = a.double() @ b.double()
    store = torch.full((320_000,), 7.0, device="cuda", dtype=dtype)
    out = arrange(store)
    assert tg.mm(a, b, out=out, strict=True) is out
    assert relative_error(out, wide) < limit(dtype)
    tg.addmm(bias, a, b, beta=2, out=out, strict=True)
    assert relative_error(out, wide + 2 * bias.double()) < limit(dtype)
    out.fill_(7.0)
    assert bool((store == 7.0).all())


def test_out_may_share_memory_with_operands():
    a, b, c = drawn((256, 256), (256, 256), (256, 256))
    expected = a.double() @ b.double()
    x = a.clone()
    assert relative_error(tg.mm(x, b, out=x, strict=True), expected) < limit(a.dtype)
    x = c.clone()
    found = tg.addmm(x, a, b, beta=0.5, out=x, strict=True)
    assert relative_error(found, expected + 0.5 * c.double()) < limit(a.dtype)


def test_a_change_in_place_between_two_calls_is_seen():
    bias, a, b = drawn((264,), (130, 71), (71, 264))
    for _ in range(3):
        a.normal_()
        bias.normal_()
        wide = a.double() @ b.double() + bias.double()
        assert relative_error(tg.addmm(bias, a, b, strict=True), wide) < limit(a.dtype)


def test_a_broadcast_batch_takes_less_memory_than_torchs():
    # every matrix of y meets eight of x: no stride steps through such a batch, so torch clones y
    x, y = drawn((8, 8, 512, 512), (8, 1, 512, 512))
    ours = peak_bytes(lambda: tg.matmul(x, y, strict=True))
    assert ours < peak_bytes(lambda: torch.matmul(x, y))


def test_float32_obeys_the_precision_setting_at_the_time_of_the_call():
    a, b = drawn((512, 512), (512, 512), dtype=torch.float32)
    wide = a.double() @ b.double()
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        errors = []
        for setting in ("ieee", "tf32", "ieee"):
            torch.backends.cuda.matmul.fp32_precision = setting
            errors.append(relative_error(tg.matmul(a, b, strict=True), wide))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert errors[0] == errors[2] < 1e-6 < 1e-5 < errors[1] < 1e-2


def test_autocast_is_torchs():
    bias, x, w = drawn((520,), (300, 264), (520, 264), dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype=dtype):
            found = tg.linear(x, w, bias, strict=True)
            assert found.dtype is dtype and tg.matmul(x, w.mT, strict=True).dtype is dtype
            assert relative_error(found, F.linear(x, w, bias).double()) < 2 * limit(dtype)
        x.requires_grad_()
        with torch.autocast("cuda", dtype=dtype):
            tg.linear(x, w, bias, strict=True).sum().backward()
        assert x.grad.dtype is torch.float32
        x = x.detach()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second CUDA device")
def test_operands_of_another_device_run_there():
    a, b = (x.to("cuda:1") for x in drawn((300, 264), (264, 520)))
    assert torch.cuda.current_device() == 0
    for _ in range(2):
        found = tg.matmul(a, b, strict=True)
        assert found.device == torch.device("cuda", 1) and torch.cuda.current_device() == 0
        assert relative_error(found, a.double() @ b.double()) < limit(a.dtype)
    with pytest.raises(RuntimeError) as ours:
        tg.matmul(a, b.to("cuda:0"))
    with pytest.raises(RuntimeError) as torchs:
        torch.matmul(a, b.to("cuda:0"))
    assert str(ours.value) == str(torchs.value)


def _in_a_child(a, b, out, pipe) -> None:
    """Sends the first line of what each call raises."""
    def outcome(call) -> str:
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return "no error"

    pipe.send([outcome(lambda home=home: home.matmul(a, b)) for home in (tg, torch)]
              + [outcome(lambda home=home: home.mm(a, b, out=out)) for home in (tg, torch)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_torchs_error():
    a, b = drawn((64, 64), (64, 64))
    out = tg.matmul(a, b, strict=True)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_a_child,
                                                        args=(a, b, out, theirs))
    child.start()
    assert ours.poll(60), "the child hangs"
    first, expected, second, expected_out = ours.recv()
    child.join(60)
    assert child.exitcode == 0
    assert (first, second) == (expected, expected_out) and "CUDA" in first and "CUDA" in second


WRONG = {
    "inner-extents": lambda f: f(torch.ones(5, 7, device="cuda"), torch.ones(6, 3, device="cuda")),
    "batches": lambda f: f(torch.ones(2, 5, 7, device="cuda"), torch.ones(3, 7, 4, device="cuda")),
    "dtypes": lambda f: f(*drawn((5, 7)), *drawn((7, 3), dtype=torch.float16)),
    "integers": lambda f: f(torch.ones(5, 7, device="cuda", dtype=torch.int32),
                            torch.ones(7, 3, device="cuda", dtype=torch.int32)),
    "devices": lambda f: f(torch.ones(5, 7, device="cuda"), torch.ones(7, 3)),
    "out-dtype": lambda f: f(*drawn((5, 7), (7, 3)), out=torch.ones(5, 3, device="cuda")),
    "out-device": lambda f: f(*drawn((5, 7), (7, 3)), out=torch.ones(5, 3).bfloat16()),
    "out-overlapping": lambda f: f(*drawn((5, 7), (7, 3)),
                                   out=drawn((1, 1))[0].expand(5, 3)),
    "out-of-gradients": lambda f: f(drawn((5, 7))[0].requires_grad_(), drawn((7, 3))[0],
                                    out=drawn((5, 3))[0]),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("function", ["matmul", "mm"])
def test_a_wrong_call_raises_what_torch_raises(function, call):
    def outcome(home):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                call(getattr(home, function))
            except Exception as error:
                return type(error), str(error)
            return None

    assert outcome(tg) == outcome(torch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor", [1e39, -1e39, 2**64, float("inf"), 1e-46], ids=str)
def test_a_factor_outside_of_float32_goes_to_torch(factor, dtype):
    a, b = drawn((64, 72), (72, 40), dtype=dtype)
    nan = torch.full((64, 40), float("nan"), device="cuda", dtype=dtype)
    tg.addmm(nan, a, b, alpha=0.5, beta=0.5)  # a known call of this kind

    def outcome(home, **options):
        try:
            return home.addmm(nan, a, b, **options).tolist()
        except (RuntimeError, OverflowError) as error:
            return type(error), str(error)

    for options in ({"alpha": factor}, {"beta": factor}):
        assert str(outcome(tg, **options)) == str(outcome(torch, **options))


def test_complex_and_double_products_are_torchs_result():
    for dtype in (torch.float64, torch.complex128):
        a, b = drawn((64, 64), (64, 64), dtype=dtype)
        assert torch.equal(tg.matmul(a, b), torch.matmul(a, b))
        with pytest.raises(UnsupportedError, match="dtypes are"):
            tg.matmul(a, b, strict=True)


def test_results_repeat_bit_for_bit_and_obey_the_deterministic_mode():
    bias, a, b = drawn((64,), (64, 16384), (16384, 64))
    torch.use_deterministic_algorithms(True)
    try:
        first = tg.addmm(bias, a, b, strict=True)
        assert all(torch.equal(first, tg.addmm(bias, a, b, strict=True)) for _ in range(20))
    finally:
        torch.use_deterministic_algorithms(False)

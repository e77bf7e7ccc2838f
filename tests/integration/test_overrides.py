"""What ``tritongemm.override`` takes, counts, leaves to torch, and puts back."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from replaced import declined, taken  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm.errors import UnsupportedError, UsageError  # noqa: E402
from tritongemm.integration import entries  # noqa: E402
from tritongemm.integration import override as in_force  # noqa: E402

A, B = torch.randn(6, 5), torch.randn(5, 7)
BATCH_A, BATCH_B = torch.randn(3, 6, 5), torch.randn(3, 5, 7)
D, BATCH_D = torch.randn(6, 7), torch.randn(3, 6, 7)


CALLS = {
    "mm": lambda: A @ B,
    "mm.out": lambda: torch.mm(A, B, out=torch.empty(6, 7)),
    "bmm": lambda: torch.bmm(BATCH_A, BATCH_B),
    "bmm.out": lambda: torch.bmm(BATCH_A, BATCH_B, out=torch.empty(3, 6, 7)),
    "addmm": lambda: torch.addmm(D, A, B, beta=0.5, alpha=2),
    "addmm.out": lambda: torch.addmm(D, A, B, beta=0.5, out=torch.empty(6, 7)),
    "addmm_": lambda: D.clone().addmm_(A, B, alpha=-1),
    "baddbmm": lambda: torch.baddbmm(BATCH_D, BATCH_A, BATCH_B, alpha=0.25),
    "baddbmm.out": lambda: torch.baddbmm(BATCH_D, BATCH_A, BATCH_B, beta=2,
                                         out=torch.empty(3, 6, 7)),
    "baddbmm_": lambda: BATCH_D.clone().baddbmm_(BATCH_A, BATCH_B, beta=0),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_overload_is_taken_and_its_result_is_torchs(name, products):
    expected = CALLS[name]()
    with tg.override(min_flops=0):
        result = CALLS[name]()
    assert taken() == {name: 1}
    torch.testing.assert_close(result, expected)


WHOLE = {
    "matmul": (lambda: torch.matmul(BATCH_A, B), {"mm"}),
    "linear": (lambda: torch.nn.functional.linear(A, B.t().contiguous(), D[0]), {"addmm"}),
    "linear of a batch": (lambda: torch.nn.functional.linear(BATCH_A, B.t(), D[0]), {"addmm"}),
    "linear, then gelu": (lambda: torch.nn.functional.gelu(
        torch.nn.functional.linear(A, B.t(), D[0])), {"addmm"}),
    "einsum": (lambda: torch.einsum("bij,bjk->bik", BATCH_A, BATCH_B), {"bmm"}),
    "tensordot": (lambda: torch.tensordot(A, B, 1), {"mm"}),
    "multi_dot": (lambda: torch.linalg.multi_dot((A, B, B.t())), {"mm"}),
    "mv and dot": (lambda: torch.mv(A, B[:, 0]) + torch.dot(A[0], A[0]), set()),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_torchs_functions_come_down_to_is_taken(name, products):
    call, ops = WHOLE[name]
    expected = call()
    with tg.override(min_flops=0):
        result = call()
    assert set(taken()) == ops and not declined()
    torch.testing.assert_close(result, expected)


def test_a_model_is_trained_as_without_it(products):
    def gradients():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.GELU(), torch.nn.Linear(9, 2))
        model(A).square().sum().backward()
        return [p.grad for p in model.parameters()]

    expected = gradients()
    with tg.override(min_flops=0):
        result = gradients()
    # Two products forward; backward two gradients of weights and one of the activation.
    assert taken() == {"addmm": 2, "mm": 3} and not declined()
    torch.testing.assert_close(result, expected)


def test_out_is_written_and_returned_itself(products):
    out = torch.empty(6, 7)
    with tg.override(min_flops=0):
        assert torch.mm(A, B, out=out) is out
    torch.testing.assert_close(out, A @ B)


REJECTED = {
    "shapes": lambda: torch.mm(A, A), "ranks": lambda: torch.mm(A, B[0]),
    "a scalar": lambda: torch.mm(A, torch.tensor(1.0)), "dtypes": lambda: torch.mm(A, B.double()),
    "batches": lambda: torch.bmm(BATCH_A, BATCH_B[:2]),
    "the input": lambda: torch.addmm(torch.randn(4, 4), A, B),
    "out of another dtype": lambda: torch.mm(A, B, out=torch.empty(6, 7, dtype=torch.half)),
    "out that overlaps": lambda: torch.mm(A, B, out=torch.empty(1, 7).expand(6, 7)),
    "a complex alpha": lambda: torch.addmm(D, A, B, alpha=1j),
    "an alpha beyond float32": lambda: torch.addmm(D, A, B, alpha=1e39),
    "a beta beyond float32": lambda: D.clone().addmm_(A, B, beta=1e39),
    "in place, broadcast": lambda: D[0].clone().addmm_(A, B),
    "a gradient of out": lambda: torch.mm(A, B.clone().requires_grad_(), out=torch.empty(6, 7)),
}


@pytest.mark.parametrize("min_flops", (0, None))
@pytest.mark.parametrize("name", REJECTED)
def test_what_torch_rejects_is_rejected_alike(name, min_flops, products):
    with pytest.raises(Exception) as expected:
        REJECTED[name]()
    with tg.override(min_flops=min_flops), pytest.raises(type(expected.value)) as found:
        REJECTED[name]()
    assert str(found.value) == str(expected.value) and not taken()


def test_an_out_of_another_shape_is_resized_with_torchs_warning(products):
    out = torch.empty(2, 2)
    with tg.override(min_flops=0), pytest.warns(UserWarning, match="was resized"):
        torch.mm(A, B, out=out)
    torch.testing.assert_close(out, A @ B)
    assert not taken()


def test_dtypes_of_torchs_are_left_to_torch_and_counted(products):
    with tg.override(min_flops=0):
        for dtype in (torch.float64, torch.int64, torch.complex128):
            (A * 10).to(dtype) @ (B * 10).to(dtype)
            torch.addmm(A[:, :1].to(dtype), A.to(dtype), B.to(dtype))
    assert declined() == {f"dtypes are {d} and {d}": 1
                          for d in (torch.float64, torch.int64, torch.complex128)}


def test_min_flops_is_inclusive_and_counts_the_batch(products):
    flops = 2 * 6 * 5 * 7
    with tg.override(min_flops=3 * flops):
        torch.mm(A, B)
        torch.bmm(BATCH_A, BATCH_B)
    assert taken() == {"bmm": 1} and declined() == {"fewer flops than min_flops": 1}


def test_what_torch_is_expected_to_run_faster_is_reported(products, monkeypatch):
    monkeypatch.setattr("tritongemm.ops.plans.torch_wins", lambda *_: "torch's call takes 3 us")
    with tg.override(min_flops=0):
        for _ in range(3):
            torch.mm(A, B)
    assert not taken() and declined() == {"torch's call takes 3 us": 3}


def test_only_the_named_operations_are_taken(products):
    with tg.override("bmm", min_flops=0):
        torch.mm(A, B)
        torch.bmm(BATCH_A, BATCH_B)
        assert tg.override_report().active == ("bmm",)
    assert taken() == {"bmm": 1} and not declined()


def test_the_inner_override_rules_and_the_outer_one_returns(products):
    with tg.override(min_flops=0):
        with tg.override("mm", min_flops=1e12):
            torch.mm(A, B)
            torch.bmm(BATCH_A, BATCH_B)
        torch.mm(A, B)
    torch.mm(A, B)
    assert taken() == {"mm": 1, "bmm": 1} and declined() == {"fewer flops than min_flops": 1}


def test_overrides_may_leave_in_any_order(products):
    first, second = tg.override("mm", min_flops=0), tg.override("mm", min_flops=1e12)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    torch.mm(A, B)
    assert not taken()
    second.__exit__()
    assert tg.override_report().active == ()


def test_one_override_is_entered_again_and_used_again(products):
    both = tg.override(min_flops=0)
    for _ in range(2):
        with both, both:
            torch.mm(A, B)
        assert tg.override_report().active == ()
    assert taken() == {"mm": 2}


def test_an_exception_inside_puts_torch_back(products):
    with pytest.raises(ZeroDivisionError), tg.override(min_flops=0):
        raise ZeroDivisionError
    torch.mm(A, B)
    assert not taken() and tg.override_report().active == ()


def test_a_function_is_decorated(products):
    @tg.override(min_flops=0)
    def double(n: int) -> torch.Tensor:
        return torch.mm(A, B) if n == 0 else double(n - 1)

    torch.testing.assert_close(double(2), A @ B)
    torch.mm(A, B)
    assert taken() == {"mm": 1} and double.__name__ == "double"


def test_enable_lasts_until_disable(products):
    tg.enable(min_flops=0)
    tg.enable("mm", min_flops=1e12)
    torch.mm(A, B)
    tg.disable()
    torch.mm(A, B)
    tg.disable()
    torch.mm(A, B)
    assert taken() == {"mm": 1} and declined() == {"fewer flops than min_flops": 1}
    with pytest.raises(UsageError, match="no tritongemm.enable"):
        tg.disable()


def test_other_threads_are_overridden(products):
    with tg.override(min_flops=0), ThreadPoolExecutor(1) as pool:
        pool.submit(torch.mm, A, B).result()
    assert taken() == {"mm": 1}


def test_entering_and_leaving_while_others_multiply(products):
    expected, stop = A @ B, threading.Event()

    def multiply() -> int:
        count = 0
        while not stop.is_set():
            torch.testing.assert_close(torch.mm(A, B), expected)
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(multiply) for _ in range(4)]
        for _ in range(60):
            with tg.override(min_flops=0):
                pass
        stop.set()
        assert all(done.result() for done in running)
    assert tg.override_report().active == ()


def test_counts_of_many_threads_are_whole(products):
    def multiply() -> None:
        for _ in range(200):
            torch.mm(A, B)

    with tg.override(min_flops=0), ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(multiply) for _ in range(8)]:
            done.result()
    assert taken() == {"mm": 1600}


def test_what_torch_refuses_to_install_leaves_nothing(products, monkeypatch):
    library = torch.library.Library
    real, count = library.impl, []

    def refuse(self, *args, **kwargs):
        count.append(1)
        if len(count) == 5:
            raise RuntimeError("no more")
        return real(self, *args, **kwargs)

    with tg.override("bmm", min_flops=0):
        monkeypatch.setattr(library, "impl", refuse)
        with pytest.raises(RuntimeError, match="no more"):
            tg.override(min_flops=1).__enter__()
        monkeypatch.undo()
        assert tg.override_report().active == ("bmm",)
    assert tg.override_report().active == ()


@contextlib.contextmanager
def another_override():
    """Of aten::mm on the CPU; yields the dtypes of the calls that reach it."""
    seen = []
    original = torch.library.get_kernel("aten::mm", "CPU")

    def theirs(keyset, a, b):
        seen.append(a.dtype)
        return original.call_boxed(keyset, a, b)

    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("mm", theirs, "CPU", with_keyset=True, allow_override=True)
    try:
        yield seen
    finally:
        library._destroy()


def test_another_override_below_is_chained_and_stays(products):
    with another_override() as seen:
        with tg.override(min_flops=0):
            torch.mm(A, B)
            torch.mm(A.double(), B.double())
        assert seen == [torch.float64]
        torch.mm(A, B)
        assert seen == [torch.float64, torch.float32]


def test_an_override_that_is_entered_again_is_chained_to_what_stands_then(products):
    ours = tg.override(min_flops=0)
    with ours:
        torch.mm(A.double(), B.double())
    with another_override() as seen, ours:
        torch.mm(A.double(), B.double())
    assert seen == [torch.float64]
    with ours:
        torch.mm(A.double(), B.double())
    assert seen == [torch.float64]


def test_an_override_that_is_entered_again_makes_no_kernel(products, monkeypatch):
    with tg.override(min_flops=3):
        pass
    monkeypatch.setattr(entries, "_product_entry", None)
    monkeypatch.setattr(entries, "_sum_entry", None)
    with tg.override(min_flops=3):
        torch.mm(A, B)
    assert taken() == {"mm": 1}
    with pytest.raises(TypeError), tg.override(min_flops=4):
        pass


def test_entries_of_a_watch_are_not_kept(products):
    class Seen(entries.Watch):
        def __call__(self, name, taken, run, args, kwargs):
            return run(*args, **kwargs)

    made = entries._kept_kernel.cache_info().currsize
    request = in_force._request(None, 0.0, False, Seen())
    in_force.enter(request)
    torch.mm(A, B)
    in_force.leave(request)
    assert taken() == {"mm": 1} and entries._kept_kernel.cache_info().currsize == made


def test_strict_raises_naming_operation_and_reason(products):
    with tg.override(strict=True):
        torch.mm(A, B)
        with pytest.raises(UnsupportedError, match="aten::mm would go to torch: dtypes are"):
            torch.mm(A.double(), B.double())
    with tg.override(strict=True, min_flops=1e9), pytest.raises(UnsupportedError, match="flops"):
        torch.mm(A, B)
    assert taken() == {"mm": 1}


WRONG = {
    "an unknown operation": (dict(ops=("mm", "mv")), "'mv'"),
    "no operation": (dict(ops=()), "nothing"),
    "a negative min_flops": (dict(min_flops=-1), "-1"),
    "min_flops that is no number": (dict(min_flops=float("nan")), "nan"),
    "min_flops of words": (dict(min_flops="many"), "many"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    arguments, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        tg.override(**arguments)


def test_the_report_reads_as_a_table(products):
    with tg.override(min_flops=0):
        torch.mm(A, B)
        torch.mm(A.double(), B.double())
        text = str(tg.override_report(clear=True))
    assert "mm, bmm, addmm, baddbmm overridden now; 1 calls taken, 1 left to torch" in text
    assert "1 x dtypes are torch.float64 and torch.float64" in text
    assert tg.override_report().calls == () and "nothing" in str(tg.override_report())
    assert "no product of CUDA tensors was seen" in str(tg.override_report())
    assert "was seen" not in text


def test_reasons_are_bounded(products):
    with tg.override(min_flops=0):
        for n in range(entries._REASONS + 20):
            with pytest.raises(RuntimeError):
                torch.mm(A, torch.empty(n + 6, 1))
    assert declined()["other reasons"] == 20


def test_without_the_interpreter_the_cpu_is_torchs():
    tg.override_report(clear=True)
    with tg.override(min_flops=0):
        torch.mm(A, B)
    assert tg.override_report().calls == () and tg.override_report().active == ()


def test_a_forked_child_has_the_override_and_its_own_lock(products):
    def child(pipe) -> None:
        with tg.override(min_flops=0):
            torch.mm(A, B)
        pipe.send(taken())

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with in_force._lock:
        process = context.Process(target=child, args=(theirs,))
        process.start()
    assert ours.poll(60) and ours.recv() == {"mm": 1}
    process.join(60)


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_names_of_axes_are_kept(products):
    """By matmul and @, which drop names before the product and set them afterwards. (torch.mm of
    named tensors raises: torch hands none to a Python kernel.)"""
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    if hasattr(torch.Tensor, "has_names"):  # torch up to 2.12
        a, b = a.rename("N", "C"), b.rename("C", "D")
    expected = getattr(a @ b, "names", None)
    with tg.override(min_flops=0):
        assert getattr(a @ b, "names", None) == expected
        assert torch.matmul(a, b).shape == (5, 3)

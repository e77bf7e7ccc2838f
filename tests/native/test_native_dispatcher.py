"""Repeated calls are answered in C++ as the Python path answered them the first time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.fx.experimental.proxy_tensor

import tritongemm as tg
from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.integration import entries
from tritongemm.integration import override as overriding
from tritongemm.ops import (  # noqa: F401  (torch.ops.tritongemm)
    calls,
    execute,
    native,
    plans,
    registered,
)
from tritongemm.ops.sights import SEEN_TOO_LITTLE, Patience, Sights
from tritongemm.selection import Choice
from tritongemm.selection.hosttime import EARLY_SIGHTS

pytestmark = pytest.mark.thorough


def drawn(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def twice(driver, call):
    """The results of a call by the Python path and by the native one."""
    first = call()
    assert (driver.by_python, driver.by_native) == (1, 0)
    second = call()
    assert (driver.by_python, driver.by_native) == (1, 1)
    return first, second


CALLS = {
    "mm": lambda: (tg.mm, drawn(33, 17), drawn(17, 40)),
    "transposed": lambda: (tg.mm, drawn(17, 33).T, drawn(40, 17).T),
    "strided": lambda: (tg.mm, drawn(33, 64)[:, 3:20], drawn(17, 40)),
    "bmm": lambda: (tg.bmm, drawn(3, 33, 17), drawn(3, 17, 40)),
    "folded": lambda: (tg.matmul, drawn(2, 5, 17), drawn(17, 40)),
    "bf16": lambda: (tg.mm, drawn(33, 17, dtype=torch.bfloat16),
                     drawn(17, 40, dtype=torch.bfloat16)),
    "linear": lambda: (tg.linear, drawn(5, 33, 17), drawn(40, 17)),
    "biased": lambda: (tg.linear, drawn(33, 17), drawn(40, 17), drawn(40)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_is_launched_natively_with_the_same_result(driver, name):
    function, *operands = CALLS[name]()
    first, second = twice(driver, lambda: function(*operands))
    assert torch.equal(first, second)
    assert first.stride() == second.stride() and first.dtype == second.dtype
    assert not second.requires_grad
    other = [2 * x for x in operands]  # other addresses, and perhaps another alignment
    expected = 4 * first if len(operands) == 2 else 4 * (first - operands[2]) + other[2]
    torch.testing.assert_close(function(*other), expected, rtol=2e-2, atol=2e-2)


def test_an_activation_runs_natively(driver):
    x, w, bias = drawn(33, 17), drawn(40, 17), drawn(40)
    first, second = twice(driver, lambda: tg.linear(x, w, bias, activation="gelu"))
    assert torch.equal(first, second)
    torch.testing.assert_close(second, torch.nn.functional.gelu(x @ w.T + bias))


@pytest.fixture
def mixed_driver(driver, monkeypatch):
    """Products of a 16-bit A and a float32 B have a plan, as on a GPU."""
    choice = Choice(KernelConfig("tiled_bf16x6", 64, 64, 32), "exact")
    monkeypatch.setattr(plans, "choose", lambda *_: choice)
    monkeypatch.setattr(plans, "torch_wins_converting", lambda *_: None)
    monkeypatch.setattr(calls, "_precision_of", lambda x: (
        "tf32" if calls.precision_setting("cuda", "matmul") == "tf32" else "fp16x3"))
    return driver


MIXED = {
    "mm": lambda a, w, bias: tg.mm(a, w.T, mixed=True),
    "matmul": lambda a, w, bias: tg.matmul(pair(a), w.T, mixed=True),
    "bmm": lambda a, w, bias: tg.bmm(pair(a), pair(w.T), mixed=True),
    "linear": lambda a, w, bias: tg.linear(a, w, mixed=True),
    "biased": lambda a, w, bias: tg.linear(a, w, bias, mixed=True),
    "gelu": lambda a, w, bias: tg.linear(a, w, bias, activation="gelu", mixed=True),
    "out": lambda a, w, bias: tg.mm(a, w.T, out=torch.empty(33, 40), mixed=True),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
def test_mixed_products_are_launched_natively(mixed_driver, name, narrow):
    a, w, bias = drawn(33, 17, dtype=narrow), drawn(40, 17), drawn(40)
    first, second = twice(mixed_driver, lambda: MIXED[name](a, w, bias))
    assert torch.equal(first, second) and second.dtype is torch.float32
    assert {plan.geometry.stored_a for plan in mixed_driver.plans} == {
        {torch.bfloat16: "bf16", torch.float16: "fp16"}[narrow]}
    expected = a.float() @ w.T
    if name in ("biased", "gelu"):
        expected += bias
    if name == "gelu":
        expected = torch.nn.functional.gelu(expected)
    if name == "bmm":
        expected = torch.stack((expected, 4 * expected))
    torch.testing.assert_close(second, pair(expected) if name == "matmul" else expected)
    with torch.autocast("cpu", dtype=narrow):  # Python looks at such a call
        assert MIXED[name](a, w, bias).dtype is torch.float32
    with pytest.raises(UsageError, match="mixed=True multiplies"):
        MIXED[name](a.float(), w.detach(), bias)
    assert mixed_driver.by_native == 1


def test_a_mixed_product_is_not_answered_under_another_precision(mixed_driver):
    a, w = drawn(33, 17, dtype=torch.bfloat16), drawn(40, 17)
    twice(mixed_driver, lambda: tg.linear(a, w, mixed=True))
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        tg.linear(a, w, mixed=True)
        assert mixed_driver.by_native == 1
        assert {plan.geometry.stored_a for plan in mixed_driver.plans[1:]} <= {""}
    finally:
        matmul.fp32_precision = before
    tg.linear(a, w, mixed=True)
    assert mixed_driver.by_native == 2


def test_an_out_that_shares_memory_with_a_16_bit_a_is_seen(mixed_driver):
    buffer, w = torch.zeros(4096), drawn(32, 32)
    a = buffer.view(torch.bfloat16)[:33 * 32].view(33, 32)

    def multiplied(first: int) -> None:
        """Into 33 x 32 floats from number ``first`` on."""
        a.copy_(drawn(33, 32, dtype=torch.bfloat16))
        expected = a.float() @ w.T
        out = buffer[first:first + 33 * 32].view(33, 32)
        torch.testing.assert_close(tg.mm(a, w.T, out=out, mixed=True), expected)

    multiplied(33 * 16)  # behind A, by Python
    multiplied(33 * 16)
    assert mixed_driver.by_native == 1
    multiplied(0)
    multiplied(33 * 16 - 4)  # the last 16 bytes of A
    assert mixed_driver.by_native == 1


def pair(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x, 2 * x))


#: By the functions of ``f``, tritongemm or torch; in place only by torch under override.
PRODUCTS = {
    "mm": lambda f, a, b, d: f.mm(a, b),
    "mm.out": lambda f, a, b, d: f.mm(a, b, out=torch.empty_like(d)),
    "addmm": lambda f, a, b, d: f.addmm(d, a, b, beta=0.5, alpha=-2),
    "addmm of a bias": lambda f, a, b, d: f.addmm(d[0], a, b),
    "addmm.out": lambda f, a, b, d: f.addmm(d, a, b, out=torch.empty_like(d)),
    "addmm_": lambda f, a, b, d: d.clone().addmm_(a, b),
    "bmm": lambda f, a, b, d: f.bmm(pair(a), b.expand(2, *b.shape)),
    "bmm.out": lambda f, a, b, d: f.bmm(pair(a), pair(b), out=torch.empty_like(pair(d))),
    "baddbmm": lambda f, a, b, d: f.baddbmm(d[None], pair(a), pair(b), beta=3),
    "baddbmm_": lambda f, a, b, d: pair(d).baddbmm_(pair(a), pair(b)),
    "matmul": lambda f, a, b, d: f.matmul(pair(a), b),
    "linear": lambda f, a, b, d: (torch.nn.functional if f is torch else f).linear(a, b.T, d[0]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_torchs_own_calls_are_launched_natively_under_override(driver, name):
    a, b, d = drawn(33, 17), drawn(17, 40), drawn(33, 40)
    expected = PRODUCTS[name](torch, a, b, d)
    tg.override_report(clear=True)
    with tg.override(min_flops=0):
        first, second = twice(driver, lambda: PRODUCTS[name](torch, a, b, d))
        assert tg.override_report().taken == 2
    torch.testing.assert_close(first, expected)
    assert torch.equal(first, second)
    assert torch.equal(PRODUCTS[name](torch, a, b, d), expected)  # torch's own again
    assert (driver.by_python, driver.by_native) == (1, 1)


def test_gradients_under_override_are_those_of_torch(driver):
    a, b = drawn(33, 17).requires_grad_(), drawn(17, 40).requires_grad_()
    with tg.override(min_flops=0):
        for _ in range(3):
            a.grad = b.grad = None
            torch.mm(a, b).square().sum().backward()
    assert driver.by_native == 6 and driver.by_python == 3
    c, d = (x.detach().double().requires_grad_() for x in (a, b))
    torch.mm(c, d).square().sum().backward()
    # A sum of 40 products, each of a sum of 17, of magnitudes to 300.
    torch.testing.assert_close(a.grad.double(), c.grad, rtol=0, atol=2e-4)
    torch.testing.assert_close(b.grad.double(), d.grad, rtol=0, atol=2e-4)


def test_a_gradient_a_mode_or_autocast_is_seen_to_in_python(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    twice(driver, lambda: tg.mm(a, b))
    wanting = a.clone().requires_grad_()
    assert tg.mm(wanting, b).requires_grad
    with torch.no_grad():
        assert not tg.mm(wanting, b).requires_grad
    assert driver.by_native == 3
    with torch.autocast("cpu", torch.bfloat16):
        assert tg.mm(a, b).dtype is torch.bfloat16
    assert torch.func.vmap(lambda x: tg.mm(x, b))(a[None]).shape == (1, 33, 40)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, torch.ones_like(a))
        tangent = torch.autograd.forward_ad.unpack_dual(tg.mm(dual, b)).tangent
        torch.testing.assert_close(tangent, torch.ones_like(a) @ b)
    with torch.inference_mode():
        assert tg.mm(a, b).is_inference()


def test_a_trace_records_torchs_own_calls(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    twice(driver, lambda: tg.mm(a, b))
    traced = torch.jit.trace(lambda x: tg.mm(x, b), (a,), check_trace=False)
    assert "aten::mm" in str(traced.graph) and driver.by_native == 1


def test_a_captured_graph_has_the_operation(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    twice(driver, lambda: tg.mm(a, b))
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: tg.mm(x, b))(a)
    assert any("mm" in str(node.target) for node in graph.graph.nodes)
    assert driver.by_native == 1


class Sub(torch.Tensor):
    """A sub-class, whose calls are torch's."""


def test_a_call_of_a_sub_class_returns_the_sub_class(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    twice(driver, lambda: tg.mm(a, b))
    assert isinstance(tg.mm(a.as_subclass(Sub), b), Sub)
    assert driver.by_native == 1


@pytest.mark.parametrize("change", ("shape", "stride", "dtype", "alignment"))
def test_a_call_that_differs_in_its_key_has_its_own_entry(driver, change):
    a, b = drawn(32, 16), drawn(16, 40)
    twice(driver, lambda: tg.mm(a, b))
    other = {"shape": lambda: a[:31], "stride": lambda: a.T.contiguous().T,
             "dtype": lambda: a.to(torch.bfloat16),
             "alignment": lambda: torch.empty(32 * 16 + 1)[1:].view(32, 16).copy_(a)}[change]()
    tg.mm(other, b.to(other.dtype))
    assert (driver.by_python, driver.by_native) == (2, 1)


def test_results_that_share_memory_with_an_operand_are_as_if_they_did_not(driver):
    memory = drawn(64, 64)
    b = drawn(32, 32)
    with tg.override(min_flops=0):
        for _ in range(2):
            torch.mm(memory[:32, :32].clone(), b, out=memory[32:, 32:])
        before = memory.clone()
        out = memory[:32, :32]
        torch.mm(out, b, out=out)
    torch.testing.assert_close(memory[:32, :32], before[:32, :32] @ b)


def test_a_changed_setting_empties_the_table(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    twice(driver, lambda: tg.mm(a, b))
    assert native.table().size() == 1
    with settings.override(policy="own"):
        assert native.table().size() == 0
        tg.mm(a, b)
    assert (driver.by_python, driver.by_native) == (2, 1)


def test_an_answer_from_before_a_change_is_not_kept(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    generation = native.generation()
    execute.clear_plans()
    native.table().refuse(generation, 0, a, b, None, None, 1.0, 0.0, None, None, "late")
    assert native.table().size() == 0


def test_a_launch_that_fails_goes_through_the_python_path(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    first, _ = twice(driver, lambda: tg.mm(a, b))
    driver.status = 700
    assert torch.equal(tg.mm(a, b), first)
    assert (driver.by_python, driver.by_native) == (2, 1)


def test_scratch_and_several_launches(driver):
    driver.scratch_bytes, driver.launches = 1000, 2
    a, b = drawn(33, 17), drawn(17, 40)
    first = tg.mm(a, b)
    assert torch.equal(tg.mm(a, b), first)
    assert driver.by_native == 2 and driver.scratch[0] == driver.scratch[1] != 0


def test_a_later_launch_that_fails_is_an_error_where_the_result_may_be_half_written(driver):
    driver.launches = 2
    a, b, d = drawn(33, 17), drawn(17, 40), drawn(33, 40)
    tg.mm(a, b)
    with tg.override(min_flops=0):
        d.clone().addmm_(a, b)
        driver.fails_from = 2
        with pytest.raises(RuntimeError, match="refused launch 2 of 2"):
            d.clone().addmm_(a, b)
    driver.by_native, python = 0, driver.by_python
    assert torch.allclose(tg.mm(a, b), (a.double() @ b.double()).float(), atol=1e-5)
    assert driver.by_python == python + 1


def test_without_memory_for_scratch_the_python_path_answers(driver):
    driver.scratch_bytes = 2**60
    a, b = drawn(33, 17), drawn(17, 40)
    first = tg.mm(a, b)
    assert torch.equal(tg.mm(a, b), first)
    assert (driver.by_python, driver.by_native) == (2, 0)


def test_a_lazy_copy_gets_memory_of_its_own_before_it_is_written(driver):
    a, b, original = drawn(33, 17), drawn(17, 40), drawn(33, 40)
    before = original.clone()
    with tg.override(min_flops=0):
        for _ in range(2):
            torch.mm(a, b, out=torch._lazy_clone(original))
    assert torch.equal(original, before) and driver.by_native == 1


def test_a_view_of_a_freed_storage_is_not_launched(driver):
    b = drawn(17, 40)
    freed = torch.empty(33 * 17 + 8)[8:].view(33, 17)
    with tg.override(min_flops=0):
        twice(driver, lambda: torch.mm(freed, b))
        freed.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError):
            torch.mm(freed, b)
    assert driver.by_native == 1


def test_nested_tensors_are_torchs(driver):
    x = torch.nested.nested_tensor([drawn(3, 17), drawn(5, 17)], layout=torch.strided)
    weight, bias = drawn(40, 17), drawn(40)
    result = tg.linear(x, weight, bias)
    assert result.is_nested and driver.by_native == driver.by_python == 0


def test_a_refusal_for_overlapping_memory_is_of_that_call_alone(driver, monkeypatch):
    memory, b = drawn(64, 32), drawn(32, 32)
    a, out = memory[:32], memory[16:48]
    from tritongemm.ops import calls
    from tritongemm.ops.declined import Declined

    bind = calls.bind

    def only_into(rule, operands):
        if operands.out is None:
            raise Declined("fresh results are torch's here")
        return bind(rule, operands)

    with tg.override(min_flops=0):
        monkeypatch.setattr(calls, "bind", only_into)
        torch.mm(a, b, out=out)
        monkeypatch.undo()
        assert driver.by_python == 0
        torch.mm(a.clone(), b, out=out)
    assert driver.by_python == 1


def test_the_first_call_of_a_process_is_in_the_table_too(driver, monkeypatch):
    a, b = drawn(33, 17), drawn(17, 40)
    monkeypatch.setattr(native, "_looked", False)
    twice(driver, lambda: tg.mm(a, b))


@pytest.mark.parametrize(("beta", "alpha"), ((1, 1), (0.5, 2), (0, 1), (2, 3)))
def test_a_sum_with_factors_runs_natively(driver, beta, alpha):
    d, a, b = drawn(33, 40), drawn(33, 17), drawn(17, 40)
    first, second = twice(driver, lambda: tg.addmm(d, a, b, beta=beta, alpha=alpha))
    assert torch.equal(first, second)
    torch.testing.assert_close(second, torch.addmm(d, a, b, beta=beta, alpha=alpha))


def test_a_factor_that_no_kernel_takes_is_judged_in_python(driver):
    d, a, b = drawn(33, 40), drawn(33, 17), drawn(17, 40)
    twice(driver, lambda: tg.addmm(d, a, b, beta=2, alpha=2))
    assert torch.equal(tg.addmm(d, a, b, beta=2, alpha=0), torch.addmm(d, a, b, beta=2, alpha=0))
    for alpha in (1e300, 2**2000):  # torch refuses them
        with pytest.raises((RuntimeError, OverflowError, TypeError)):
            tg.addmm(d, a, b, beta=2, alpha=alpha)
    assert driver.by_native == 1


@pytest.mark.parametrize("call", (
    lambda a, b, d: tg.mm(a, b), lambda a, b, d: tg.linear(a, b.T, d),
    lambda a, b, d: tg.addmm(d, a, b, beta=2)))
def test_what_is_known_to_be_torchs_goes_there_at_once(driver, call, monkeypatch):
    a, b, d = (drawn(*shape, dtype=torch.float64) for shape in ((33, 17), (17, 40), (40,)))
    first = call(a, b, d)
    with monkeypatch.context() as patched:
        patched.setattr("tritongemm.ops.dispatch.fast_path", None)  # not asked
        assert torch.equal(call(a, b, d), first)
    with settings.override(strict=True), pytest.raises(UnsupportedError):
        call(a, b, d)


def test_a_product_with_a_gradient_and_its_gradients_are_launched_natively(driver):
    a, b = drawn(33, 17).requires_grad_(), drawn(40, 17).requires_grad_()

    def step():
        result = tg.linear(a, b)
        result.backward(torch.ones_like(result))
        return result
    first = step()
    assert (driver.by_python, driver.by_native) == (3, 0)
    second = step()
    assert (driver.by_python, driver.by_native) == (3, 3)
    assert torch.equal(first, second) and second.requires_grad
    torch.testing.assert_close(b.grad, 2 * torch.ones(40, 33) @ a.detach())


def test_who_follows_late_hears_of_the_module_that_is_in_use(driver, monkeypatch):
    heard = []
    monkeypatch.setattr(native, "_followers", list(native._followers))
    native.follow(heard.append)
    assert heard == [native.table()]
    with settings.override(native="off"):
        assert native.table() is None
    assert native.table() is not None and heard == [heard[0], None, heard[0]]


def test_switching_it_off_empties_the_table_of_a_standing_override(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    with tg.override(min_flops=0):
        twice(driver, lambda: torch.mm(a, b))
        with settings.override(native="off", disable=True):
            assert torch.equal(torch.mm(a, b), a.mm(b))
        assert (driver.by_python, driver.by_native) == (1, 1)


def test_an_override_that_stands_at_the_end_of_the_process_is_left_in_order(library):
    code = """
import atexit, torch, tritongemm as tg
def late():
    print(float(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).sum()))
atexit.register(late)
tg.enable(min_flops=0)
torch.mm(torch.ones(2, 2), torch.ones(2, 2))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=settings.child_environment(TRITONGEMM_NATIVE="1", TRITON_INTERPRET="1"))
    assert done.returncode == 0 and done.stdout.strip() == "8.0", done.stderr
    assert "invalidated" not in done.stderr


def test_settings_are_read_at_the_first_call():
    code = """
import os, tritongemm
from tritongemm import matmul
os.environ["TRITONGEMM_FP32"] = "neither"
from tritongemm import settings
from tritongemm.errors import UsageError
try:
    settings.current()
except UsageError:
    print("told")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=False)
    assert done.stdout.strip() == "told", done.stderr


def test_what_is_torchs_is_counted_with_its_reason(driver):
    a, b = drawn(33, 17).double(), drawn(17, 40).double()
    tg.override_report(clear=True)
    with tg.override(min_flops=1e5):
        for _ in range(3):
            torch.mm(a, b)
        torch.mm(drawn(2, 2), drawn(2, 2))
        torch.mm(drawn(0, 2), drawn(2, 200))
        report = tg.override_report()
    mm, = (x for x in report.calls if x.name == "mm")
    assert mm.taken == 0 and driver.by_python == 0
    assert mm.declined == {"fewer flops than min_flops": 5}


def test_a_dtype_that_no_kernel_takes_is_torchs_without_the_python_path(driver, monkeypatch):
    a, b = drawn(33, 17).double(), drawn(17, 40).double()
    tg.override_report(clear=True)
    refused = []
    monkeypatch.setattr(native, "refuse", lambda *x, refuse=native.refuse, **y: (
        refused.append(x), refuse(*x, **y)))
    with tg.override(min_flops=0):
        for _ in range(3):
            assert torch.equal(torch.mm(a, b), a.mm(b))
        report = tg.override_report()
    assert len(refused) == 1  # the Python path was asked once
    mm, = (x for x in report.calls if x.name == "mm")
    assert mm.declined == {"dtypes are torch.float64 and torch.float64": 6}


def test_small_products_run_natively_once_they_are_repeated(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    expected = torch.mm(a, b)
    tg.override_report(clear=True)
    with tg.override():
        for _ in range(EARLY_SIGHTS - 1):
            assert torch.equal(torch.mm(a, b), expected)
        assert (driver.by_python, driver.by_native) == (0, 0)
        torch.mm(a, b)
        torch.mm(a, b)
        assert (driver.by_python, driver.by_native) == (1, 1)
        torch.mm(a[:32], b)
        report = tg.override_report()
    mm, = (x for x in report.calls if x.name == "mm")
    assert mm.taken == 2 and mm.declined == {SEEN_TOO_LITTLE: EARLY_SIGHTS}
    with tg.override(min_flops=1e6):  # given: it holds
        torch.mm(a, b)
    assert driver.by_native == 1


@pytest.mark.parametrize("patience", [
    Patience(7, 3, 2, 1000, 1e9), Patience(4, 9, 5, 1e9, 2000), Patience(1), Patience(5, 1, 1)],
    ids=str)
def test_small_products_are_due_as_in_the_python_path(patience, driver, monkeypatch):
    """The same calls in the same order go to torch by either implementation."""
    monkeypatch.setattr(native.table(), "clear", lambda limit: 0)  # would start the counts again
    asked: list[int] = []
    monkeypatch.setattr(entries, "_kept_kernel", entries._kernel)  # of another `product`
    monkeypatch.setattr("tritongemm.integration.entries.product", lambda op, a, b, **_: (
        asked.append(a.shape[0]), execute._SEEN_TOO_LITTLE)[1])
    operands = [(drawn(m, k), drawn(k, 4)) for m in (1, 2, 3) for k in (8, 200)]
    torch.manual_seed(7)
    order = torch.randint(len(operands), (120,)).tolist()
    counted = Sights(patience)
    native.table().set_patience(*patience)
    try:
        with tg.override("mm"):
            for i in order:
                a, b = operands[i]
                before = len(asked)
                torch.mm(a, b)
                assert (len(asked) > before) is counted.due(
                    i, a.numel() * 4, a.nbytes + b.nbytes), i
    finally:
        monkeypatch.undo()
        native.forget()


def test_a_call_that_is_not_known_is_looked_up_once(driver, monkeypatch):
    """Under override and by the package's functions: the Python path does not ask again."""
    asked = []
    monkeypatch.setattr(native, "run_below", lambda *x: asked.append(x))
    a, b, d = drawn(33, 17), drawn(17, 40), drawn(40)
    with tg.override(min_flops=0):
        torch.mm(a, b)
        torch.addmm(d, a, b)
    tg.matmul(a, b)
    tg.linear(a, b.T, d)
    torch.ops.tritongemm.bmm(a[None], b[None])
    assert not asked and driver.by_python == 5


def test_an_error_is_torchs(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    with tg.override(min_flops=0):
        torch.mm(a, b)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(a, a)
        with pytest.raises(RuntimeError):
            torch.mm(a, b[0])


def test_overrides_nest_and_leave_in_any_order(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    expected = torch.mm(a, b)
    one, two = tg.override(min_flops=0), tg.override("mm", min_flops=1e9)
    one.__enter__()
    torch.mm(a, b)
    two.__enter__()
    assert torch.equal(torch.mm(a, b), expected) and driver.by_native == 0
    one.__exit__()
    torch.mm(a, b)
    two.__exit__()
    assert driver.by_native == 0 and driver.by_python == 1
    assert overriding.override_report().active == ()
    with tg.override(min_flops=0):
        torch.mm(a, b)
    assert driver.by_native == 1


def test_an_exception_inside_an_override_puts_torch_back(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    with pytest.raises(ZeroDivisionError), tg.override(min_flops=0):
        twice(driver, lambda: torch.mm(a, b))
        raise ZeroDivisionError
    before = driver.by_native, driver.by_python
    torch.mm(a, b)
    assert (driver.by_native, driver.by_python) == before
    assert overriding.override_report().active == ()
    with tg.override(min_flops=0):
        torch.mm(a, b)
    assert driver.by_native == before[0] + 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_right_results_and_leaves_the_parents_table(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    with tg.override(min_flops=0):
        expected, _ = twice(driver, lambda: torch.mm(a, b))
        child = os.fork()
        if not child:
            right = all(torch.equal(torch.mm(a, b), expected) for _ in range(10))
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        before = driver.by_native
        assert torch.equal(torch.mm(a, b), expected) and driver.by_native == before + 1


def test_the_entries_of_a_strict_override_are_pythons(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    with tg.override(strict=True):
        twice(driver, lambda: torch.mm(a, b))
        with pytest.raises(UnsupportedError):
            torch.mm(a.double(), b.double())

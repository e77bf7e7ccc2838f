"""Repeated calls are answered in C++ as the Python path answered them the first time."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.fx.experimental.proxy_tensor
from answers import drawn, twice

import tritongemm as tg
from tritongemm import settings
from tritongemm.errors import UnsupportedError
from tritongemm.ops import execute, native

pytestmark = pytest.mark.thorough

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

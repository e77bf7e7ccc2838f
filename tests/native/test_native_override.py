"""Torch's own products under ``override`` are answered in C++."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from answers import PRODUCTS, drawn, twice

import tritongemm as tg
from tritongemm import settings
from tritongemm.errors import UnsupportedError
from tritongemm.integration import entries
from tritongemm.integration import override as overriding
from tritongemm.ops import execute, native, registered  # noqa: F401  (torch.ops.tritongemm)
from tritongemm.ops.sights import ONE_OF_MANY, PATIENCE, SEEN_TOO_LITTLE, Patience, Sights
from tritongemm.selection.hosttime import EARLY_SIGHTS, NATIVE

pytestmark = pytest.mark.thorough


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
    Patience(7, 3, 2, 1000, 1e9), Patience(4, 9, 5, 1e9, 2000), Patience(1), Patience(5, 1, 1),
    Patience(100, 3, 1, 1e9, 1e9, 1000)],
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
                    i, a.numel() * 4, a.nbytes + b.nbytes, True), i
    finally:
        monkeypatch.undo()
        native.forget()


def test_one_of_many_large_products_runs_natively_once_it_was_repeated(driver, monkeypatch):
    for name, value in {"LARGE_PRODUCTS": 0, "FIRST_SELECTIONS": 1,
                        "calls_first": lambda *_: 3}.items():
        monkeypatch.setattr(f"tritongemm.ops.sights.{name}", value)
    a, b = drawn(33, 17), drawn(17, 40)
    expected = torch.mm(a[:32], b)
    native.table().set_patience(*PATIENCE[NATIVE]._replace(products=0))
    try:
        tg.override_report(clear=True)
        with tg.override():
            torch.mm(a, b)
            for _ in range(5):
                torch.testing.assert_close(torch.mm(a[:32], b), expected)
            report = tg.override_report()
    finally:
        native.forget(sights=True)
    mm, = (x for x in report.calls if x.name == "mm")
    assert mm.declined == {ONE_OF_MANY: 3}
    assert (driver.by_python, driver.by_native) == (2, 1)


def test_under_batch_invariance_no_product_waits(driver):
    def declined():
        return {reason for call in tg.override_report(clear=True).calls for reason in call.declined}

    a, b = drawn(33, 17), drawn(17, 40)
    declined()
    with tg.override():
        with tg.batch_invariant():
            torch.mm(a, b)
            torch.mm(a, b)
            assert SEEN_TOO_LITTLE not in declined()
        torch.mm(a, b)
        assert SEEN_TOO_LITTLE in declined()


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

"""``out=`` of our own functions: repeated calls are answered in C++ as the Python path does."""

from __future__ import annotations

import pytest
import torch
from answers import drawn

import tritongemm as tg

pytestmark = pytest.mark.thorough


CALLS = {
    "mm": lambda out: tg.mm(A, B, out=out),
    "matmul": lambda out: tg.matmul(A, B, out=out),
    "addmm": lambda out: tg.addmm(D, A, B, beta=0.5, alpha=-2, out=out),
    "addmm of a bias": lambda out: tg.addmm(D[0], A, B, out=out),
    "baddbmm": lambda out: tg.baddbmm(D[None], A[None], B[None], out=out[None])[0],
    "bmm": lambda out: tg.bmm(A[None], B[None], out=out[None])[0],
}
A, B, D = drawn(33, 17), drawn(17, 40), drawn(33, 40)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_writes_out_natively(driver, name, transposed):
    def place():
        return torch.empty(40, 33).T if transposed else torch.empty(33, 40)

    first = CALLS[name](place())
    assert (driver.by_python, driver.by_native) == (1, 0)
    out = place()
    second = CALLS[name](out)
    assert (driver.by_python, driver.by_native) == (1, 1)
    assert second.data_ptr() == out.data_ptr() and torch.equal(second, first)


def test_the_result_is_the_tensor_that_was_given(driver):
    out = torch.empty(33, 40)
    for _ in range(3):
        assert tg.mm(A, B, out=out) is out
    assert driver.by_native == 2


def test_autograd_notices_that_out_was_written(driver):
    out = torch.ones(33, 40)
    tg.mm(A, B, out=out)
    x = drawn(33, 40).requires_grad_()
    product = (x * out).sum()  # saves out
    tg.mm(A, B, out=out)
    assert driver.by_native == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_inference_tensors_are_written_in_inference_mode_only(driver):
    with torch.inference_mode():
        out = torch.empty(33, 40)
        for _ in range(2):
            tg.mm(A, B, out=out)
        assert driver.by_native == 1
    with pytest.raises(RuntimeError, match="nference"):
        tg.mm(A, B, out=out)


@pytest.mark.parametrize("unfit", [
    lambda: torch.empty(33, 40, requires_grad=True), lambda: torch.empty(33, 40).double(),
    lambda: torch._neg_view(torch.empty(33, 40))], ids=["requires grad", "another dtype", "lazy"])
def test_another_kind_of_out_is_judged_as_without_the_dispatcher(driver, unfit):
    for _ in range(2):
        tg.mm(A, B, out=torch.empty(33, 40))
    before, found = driver.by_native, []
    for function in (tg.mm, torch.mm):
        try:
            found.append(function(A, B, out=unfit()))
        except RuntimeError as error:
            found.append(str(error))
    assert driver.by_native == before
    if isinstance(found[1], str):
        assert found[0] == found[1]
    else:
        torch.testing.assert_close(*found)


def test_an_out_of_another_shape_is_resized_as_torch_does(driver):
    tg.mm(A, B, out=torch.empty(33, 40))
    for _ in range(2):
        out = torch.empty(0)
        torch.testing.assert_close(tg.mm(A, B, out=out), A @ B)
        assert out.shape == (33, 40)


def test_an_out_in_the_memory_of_an_operand_is_left_to_the_python_path(driver):
    memory = drawn(64, 64)
    a, b, out = memory[:32, :32], drawn(32, 32), memory[32:, 32:]
    expected = a @ b
    for _ in range(2):
        torch.testing.assert_close(tg.mm(a, b, out=out), expected)
    a = memory[:32, :32].clone()
    before = driver.by_native
    torch.testing.assert_close(tg.mm(memory[:32, :32], b, out=memory[:32, :32]),
                               torch.mm(a, b))
    assert driver.by_native == before


def test_a_call_with_out_that_would_record_a_gradient_is_refused_as_by_torch(driver):
    out = torch.empty(33, 40)
    for _ in range(2):
        tg.mm(A, B, out=out)
    before = driver.by_native
    a = A.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="out="):
        tg.mm(a, B, out=out)
    with torch.no_grad():  # nothing is recorded
        tg.mm(a, B, out=out)
    assert driver.by_native == before + 1
    torch.testing.assert_close(out, A @ B)

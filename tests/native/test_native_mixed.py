"""Products of a 16-bit A and a float32 B (``mixed=True``) are answered in C++."""

from __future__ import annotations

import pytest
import torch
from answers import drawn, pair, twice

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.errors import UsageError
from tritongemm.ops import calls, plans
from tritongemm.selection import Choice

pytestmark = pytest.mark.thorough


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

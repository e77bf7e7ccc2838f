"""Ops that a compiler records (``torch.ops.tritongemm``) are answered in C++, below autograd."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.fx.experimental.proxy_tensor
from answers import drawn, twice

from tritongemm import settings
from tritongemm.activations import BY_NAME
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.ops import fused_linear
from tritongemm.ops.autograd import ACTIVATE
from tritongemm.ops.declined import Declined

pytestmark = pytest.mark.thorough

REGISTERED = {
    "mm": lambda: (drawn(33, 17), drawn(17, 40)),
    "bmm": lambda: (drawn(3, 33, 17), drawn(3, 17, 40)),
    "addmm": lambda: (drawn(40), drawn(33, 17), drawn(17, 40)),
    "baddbmm": lambda: (drawn(3, 33, 40), drawn(3, 33, 17), drawn(3, 17, 40)),
}


@pytest.mark.parametrize("mode", ("plain", "no_grad", "inference"))
@pytest.mark.parametrize("name", REGISTERED)
def test_an_op_that_a_compiler_records_is_launched_natively(driver, name, mode):
    op, operands = getattr(torch.ops.tritongemm, name), REGISTERED[name]()
    if mode == "no_grad":
        operands[-1].requires_grad_()
    around = {"plain": torch.enable_grad, "no_grad": torch.no_grad,
              "inference": torch.inference_mode}[mode]
    with around():
        first, second = twice(driver, lambda: op(*operands))
    assert torch.equal(first, second) and not second.requires_grad


@pytest.mark.parametrize("name", REGISTERED)
def test_gradients_survive_a_compilation_before_it_is_switched_off(driver, name):
    op = getattr(torch.ops.tritongemm, name)

    def gradients(*operands):
        found = [x.requires_grad_() for x in operands]
        torch.compile(lambda *x: op(*x), backend="aot_eager", dynamic=True)(*found).sum().backward()
        return [x.grad for x in found]

    torch.compile(lambda *x: op(*x), backend="aot_eager")(*REGISTERED[name]())
    with settings.override(native="off"):
        torch._dynamo.reset()
        found = gradients(*REGISTERED[name]())
    assert not any(grad is None for grad in found)


def layer():
    return drawn(33, 17), drawn(40, 17), drawn(40), "relu"


@pytest.mark.parametrize("name", [*REGISTERED, "matmul", "linear_aux"])
def test_a_call_that_nothing_records_does_not_reach_autograd(driver, name):
    operands = {**REGISTERED, "matmul": REGISTERED["bmm"], "linear_aux": layer}[name]()
    op = getattr(torch.ops.tritongemm, name).default
    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code))
    try:
        op(*operands)
    finally:
        sys.setprofile(None)
    assert frames[0].co_name == "__call__"  # OpOverload's
    assert "autograd_impl" not in {code.co_name for code in frames}
    operands[0].requires_grad_()
    results = op(*operands)
    assert (results[0] if name == "linear_aux" else results).requires_grad


def test_an_activation_of_a_recorded_op_is_part_of_what_is_looked_up(driver):
    d, a, b = REGISTERED["addmm"]()
    op = torch.ops.tritongemm.addmm
    relu, total = twice(driver, lambda: op(d, a, b, activation="relu"))[1], op(d, a, b)
    assert driver.by_python == 2
    assert torch.equal(op(d, a, b), total) and torch.equal(relu, total.relu())
    torch.testing.assert_close(op(d, a, b, beta=2, alpha=0.5), 0.5 * (a @ b) + 2 * d)
    with pytest.raises(UsageError, match="swish"):
        op(d, a, b, activation="swish")


@pytest.mark.parametrize("shape", ((33, 40), (40,), (33, 1)), ids=str)
@pytest.mark.parametrize("how", ({}, {"alpha": 0.5}, {"gradient_of": "silu"}), ids=str)
def test_a_factor_is_launched_natively(driver, shape, how):
    d, a, b = drawn(*shape), drawn(33, 17), drawn(17, 40)
    op = torch.ops.tritongemm.mulmm
    first, second = twice(driver, lambda: op(d, a, b, **how))
    factor = BY_NAME["silu"].derivative(d.double()) if "gradient_of" in how else d.double()
    torch.testing.assert_close(
        first.double(), how.get("alpha", 1) * (a.double() @ b.double()) * factor, rtol=1e-5,
        atol=1e-5)
    assert torch.equal(first, second)
    with pytest.raises(UsageError, match="swish"):
        op(d, a, b, gradient_of="swish")


def test_a_recorded_op_keeps_its_gradient(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    op = torch.ops.tritongemm.mm
    twice(driver, lambda: op(a, b))
    a.requires_grad_()
    result = op(a, b)
    assert result.requires_grad
    result.sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(33, 40) @ b.T)


def test_a_compiled_call_without_gradients_leaves_those_of_later_ones(driver):
    def compiled(*x):
        return torch.compile(lambda a, b: torch.ops.tritongemm.mm(a, b), backend="aot_eager",
                             fullgraph=True, dynamic=True)(*x)
    a, b = drawn(33, 17), drawn(17, 40)
    twice(driver, lambda: torch.ops.tritongemm.mm(a, b))
    compiled(a, b)
    x, y = drawn(3, 4).requires_grad_(), drawn(4, 5).requires_grad_()
    torch.library.opcheck(torch.ops.tritongemm.mm.default, (x, y))


@pytest.mark.parametrize("name", REGISTERED)
def test_a_compiler_traces_a_recorded_op_that_is_known(driver, name):
    op, operands = getattr(torch.ops.tritongemm, name), REGISTERED[name]()
    twice(driver, lambda: op(*operands))
    compiled = torch.compile(lambda *x: op(*x), backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.equal(compiled(*operands), op(*operands))
    graph = torch.fx.experimental.proxy_tensor.make_fx(op)(*operands)
    assert any(f"tritongemm.{name}" in str(node.target) for node in graph.graph.nodes)


def test_what_is_torchs_by_a_recorded_op_stays_so(driver):
    a, b = drawn(33, 17, dtype=torch.float64), drawn(17, 40, dtype=torch.float64)
    op = torch.ops.tritongemm.mm
    assert torch.equal(op(a, b), a @ b) and torch.equal(op(a, b), a @ b)
    with settings.override(strict=True), pytest.raises(UnsupportedError):
        op(a, b)
    assert (driver.by_python, driver.by_native) == (0, 0)


def test_recorded_ops_stay_when_it_is_switched_off(driver):
    a, b = drawn(33, 17), drawn(17, 40)
    op = torch.ops.tritongemm.mm
    twice(driver, lambda: op(a, b))
    with settings.override(native="off"):
        assert torch.equal(op(a, b), op(a, b))
    assert driver.by_native == 1 and driver.by_python == 3


@pytest.fixture
def read_in_place(monkeypatch):
    """Two weights are read where they are, as on a GPU."""
    monkeypatch.setattr(fused_linear, "_reads_one_tensor", lambda: False)
    monkeypatch.setattr(fused_linear, "faster_apart", lambda *a, **k: None)


def gated64(x, gate, up, bias, activation):
    first, second = (0, 0) if bias is None else bias.double().chunk(2)
    return ACTIVATE[activation](x.double() @ gate.double().T + first) * (
        x.double() @ up.double().T + second)


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("activation, interleaved", (
    ("silu", False), ("silu", True), ("gelu", False), ("relu", True)))
def test_a_gated_layer_is_launched_natively(driver, read_in_place, activation, interleaved, bias):
    x, w, b = drawn(9, 16), drawn(40, 16), drawn(40) if bias else None
    first, second = twice(driver, lambda: torch.ops.tritongemm.gated_linear(
        x, w, b, activation, interleaved))
    gate, up = (w[::2], w[1::2]) if interleaved else w.chunk(2)
    if interleaved and bias:
        b = torch.cat((b[::2], b[1::2]))
    torch.testing.assert_close(first.double(), gated64(x, gate, up, b, activation), rtol=1e-5,
                               atol=1e-5)
    assert torch.equal(first, second) and second.is_contiguous()


@pytest.mark.parametrize("bias", (False, True))
def test_two_weights_are_looked_up_by_how_far_apart_they_are(driver, read_in_place, bias):
    memory = drawn(5, 20, 16)
    x, b, op = drawn(9, 16), drawn(40) if bias else None, torch.ops.tritongemm.gated_pair
    for number, (i, j) in enumerate(((1, 2), (1, 3), (2, 1), (4, 0), (0, 1)), 1):
        gate, up = memory[i], memory[j]
        found = op(x, gate, up, b, "silu")
        torch.testing.assert_close(found.double(), gated64(x, gate, up, b, "silu"), rtol=1e-5,
                                   atol=1e-5)
        # The last are as far apart as the first: known already.
        assert driver.by_python == min(number, 4)
        assert torch.equal(op(x, gate, up, b, "silu"), found) and driver.by_python == min(number, 4)
    assert driver.by_native == 6


def test_weights_that_the_kernel_cannot_read_in_place_are_composed(driver, read_in_place):
    x, gate = drawn(9, 16), drawn(20, 16)
    for number, up in enumerate((drawn(16, 20).T, drawn(20, 17)[:, :16]), 1):
        found = torch.ops.tritongemm.gated_pair(x, gate, up, None, "silu")
        torch.testing.assert_close(found.double(), gated64(x, gate, up, None, "silu"), rtol=1e-5,
                                   atol=1e-5)
        assert not any(plan.problem.gated for plan in driver.plans)  # two products instead
        assert len(driver.plans) == number + 1  # that of the gate serves both calls


@pytest.mark.parametrize("columns, bias", ((1, 1), (4, 4), (4, 12)))
def test_a_bias_of_another_shape_reaches_no_kernel(driver, read_in_place, columns, bias):
    x, gate, up = drawn(9, 16), drawn(columns, 16), drawn(columns, 16)
    with pytest.raises(UsageError, match=r"the bias \(\d+,\); they are \[N, K\] and \[2 N\]"):
        torch.ops.tritongemm.gated_pair(x, gate, up, drawn(bias), "silu")
    layer = fused_linear.LinearLayer("silu", True)
    assert isinstance(fused_linear.run(layer, x, gate, drawn(bias), None, up), Declined)
    assert not any(plan.problem.gated for plan in driver.plans)


@pytest.mark.parametrize("up", (
    torch.ones(1, 16), torch.ones(20, 8), torch.ones(20, 16, dtype=torch.bfloat16)),
    ids=("one row", "another K", "bf16"))
def test_another_half_than_the_gates_is_an_error(driver, up):
    x, gate = drawn(9, 16), drawn(20, 16)
    for call in (torch.ops.tritongemm.gated_pair,
                 torch.compile(torch.ops.tritongemm.gated_pair, backend="eager")):
        with pytest.raises((UsageError, torch._dynamo.exc.TorchRuntimeError),
                           match="up is .*the other half"):
            call(x, gate, up, None, "silu")

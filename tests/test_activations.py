"""The one table of activations: gradients, in-place forms, and that a new row is enough for all
that is not device code."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tritongemm.activations import BY_NAME  # noqa: E402
from tritongemm.ops.formulas import grad_activation  # noqa: E402


@pytest.mark.parametrize("name", BY_NAME)
def test_each_form_of_an_activation_is_the_same_function(name):
    one = BY_NAME[name]
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = one.functional()(x)
    assert torch.equal(one.op()(x), expected)
    written = x.clone()
    assert one.in_place()(written) is written and torch.equal(written, expected)
    assert (name == "none") == torch.equal(expected, x)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_gradient_is_that_of_torchs_function_twice(name):
    def ours(x, grad):
        return grad_activation(name, grad, BY_NAME[name].functional()(x), lambda: x)

    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    grad = torch.linspace(1, 2, 5, dtype=torch.float64, requires_grad=True)
    theirs, = torch.autograd.grad(BY_NAME[name].functional()(x), x, grad, create_graph=True)
    assert torch.allclose(ours(x, grad), theirs)
    if name != "none":
        assert torch.autograd.gradcheck(ours, (x, grad))


ADDED = """
from tritongemm import activations
activations.BY_NAME["logistic"] = activations.Activation(
    "logistic", "sigmoid", lambda grad, y: grad * y * (1 - y), of_result=True)
import torch, tritongemm as tg
from tritongemm.problem import EPILOGUES, GemmProblem
from tritongemm.measure.operands import draw
from tritongemm.measure.problem_bench import ProblemBench

assert str(GemmProblem(8, 8, 8, epilogue="bias+logistic")) == "8x8x8 bf16 nn bias+logistic"
x, w, d = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
expected = torch.sigmoid(x @ w.T + d[0])
assert torch.allclose(tg.linear(x, w, d[0], activation="logistic"), expected)
op = torch.ops.tritongemm.addmm(d, x, w, activation="logistic")
assert torch.allclose(op, torch.sigmoid(d + x @ w))
ours, = torch.autograd.grad(op.sum(), x)
theirs, = torch.autograd.grad(torch.sigmoid(d + x @ w).sum(), x)
assert torch.allclose(ours, theirs)
y = torch.rand(4, 4, dtype=torch.float64)
assert torch.allclose(tg.mulmm(y, x, w, gradient_of="logistic"), (x @ w) * y * (1 - y))
for epilogue in ("bias+logistic", "dlogistic"):
    problem = GemmProblem.contiguous(8, 8, 8, dtype="fp32", epilogue=epilogue)
    with ProblemBench(problem, "cpu") as bench:
        assert bench.torch_coarse().ok
"""


def test_a_new_row_is_enough_for_all_but_the_kernels():
    done = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr

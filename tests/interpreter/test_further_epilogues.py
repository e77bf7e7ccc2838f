"""Gated products, residuals and auxiliary outputs of the tiled kernel, and the functions that
launch them, in Triton's interpreter against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.kernels import violation
from tritongemm.measure.contender import Contender
from tritongemm.measure.operands import draw
from tritongemm.measure.problem_bench import ProblemBench
from tritongemm.measure.proof import Proof
from tritongemm.measure.torch_epilogue import ACTIVATIONS
from tritongemm.ops.plan import bind_config
from tritongemm.problem import EPILOGUES, LAYOUTS, GemmProblem, epilogue_of

pytestmark = pytest.mark.interpreter
DEVICE = interpreter_device()
TILED = KernelConfig("tiled", 32, 32, 32, num_warps=4, num_stages=2, group_m=2)
#: One of each kind; the others are tested by `make test-all`.
FEW = ("bias+gated_silu+aux", "gated_gelu", "bias+gelu+residual", "bias+silu+aux")


def prove(problem: GemmProblem, config: KernelConfig) -> None:
    assert violation(problem, config, DEVICE) is None
    operands = draw(problem)
    proof = Proof(problem, operands, 0)
    bound, one = bind_config(problem, config, DEVICE), operands[0]
    bound(*one.arguments, **one.others)
    report = proof.check("tiled", everywhere=True)
    assert report.ok, report.message


def test_the_bench_proves_them_again_with_other_values():
    problem = GemmProblem.contiguous(16, 32, 32, layout="nt", epilogue="bias+gated_silu+aux")
    config = replace(TILED, block_m=16)
    with ProblemBench(problem, "cpu") as bench:
        bound = bind_config(problem, config, DEVICE)
        report = bench.prove(Contender("tiled", lambda o: lambda: bound(*o.arguments, **o.others)))
        assert report.ok, report.message


@pytest.mark.parametrize("epilogue", [
    e if e in FEW else pytest.param(e, marks=pytest.mark.thorough)
    for e, kind in EPILOGUES.items() if not kind.plain])
def test_every_further_epilogue_matches_float64(epilogue):
    prove(GemmProblem.contiguous(24, 42, 40, layout="nt", epilogue=epilogue), TILED)


@pytest.mark.parametrize("layout", [
    "nn", *(pytest.param(x, marks=pytest.mark.thorough) for x in LAYOUTS[1:])])
@pytest.mark.parametrize("extents", [(1, 2, 16), (17, 34, 40)], ids=str)
def test_every_layout_and_edge_of_a_gated_product(layout, extents):
    prove(GemmProblem.contiguous(*extents, layout=layout, epilogue="bias+gated_silu+aux"),
          replace(TILED, block_m=16, block_n=16, num_warps=1))


def test_float32_operands_and_a_float32_result_of_others():
    for more in (dict(dtype="fp32"), dict(dtype_out="fp32")):
        prove(GemmProblem.contiguous(17, 36, 40, layout="nt", epilogue="bias+gated_gelu", **more),
              replace(TILED, block_k=16 if "dtype" in more else 32, block_m=16))


def test_a_batch_adds_its_own_residual():
    prove(GemmProblem.contiguous(20, 24, 32, batch=2, epilogue="bias+relu+residual"), TILED)
    prove(GemmProblem.contiguous(20, 24, 32, batch=2, epilogue="gelu+aux"), TILED)


def test_a_split_k_has_none_of_them():
    problem = GemmProblem.contiguous(40, 74, 72, epilogue="gated_silu")
    broken = violation(problem, replace(TILED, split_k=2), DEVICE)
    assert broken.rule == "epilogue" and "Use split_k=1" in broken.message


# --- the functions -------------------------------------------------------------------------------

def drawn(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def gated64(x, w, bias, activation, interleaved):
    total = F.linear(x, w, bias)
    gate, up = (total[..., ::2], total[..., 1::2]) if interleaved else total.chunk(2, -1)
    return ACTIVATIONS[activation](gate) * up


def linear64(x, w, bias, residual, activation):
    total = ACTIVATIONS[activation](F.linear(x, w, bias))
    return total if residual is None else total + residual


def compare(ours, theirs, *tensors) -> None:
    """Result and gradients within a few roundings of bf16 of the largest value."""
    def run(f, cast):
        leaves = [None if t is None else cast(t.detach().clone()).requires_grad_()
                  for t in tensors]
        out = f(*leaves)
        out.backward(cast(drawn(*out.shape)))
        return [out, *(t.grad for t in leaves if t is not None)]

    plain = ours(*tensors)
    found, truth = run(ours, lambda t: t), run(theirs, torch.Tensor.double)
    for one, other in zip([plain, *found], [truth[0], *truth], strict=True):
        assert one.shape == other.shape and one.dtype == torch.bfloat16
        assert (one.double() - other).abs().max() <= 0.02 * other.abs().max()


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("bias, activation", [
    (True, "silu"), pytest.param(False, "relu", marks=pytest.mark.thorough),
    pytest.param(True, "gelu", marks=pytest.mark.thorough)])
def test_gated_linear_and_its_gradients_match_float64(interleaved, bias, activation):
    x, w, b = drawn(2, 5, 24), drawn(38, 24), drawn(38) if bias else None
    compare(lambda *t: tg.gated_linear(*t, activation=activation, interleaved=interleaved,
                                       strict=True),
            lambda *t: gated64(*t, activation, interleaved), x, w, b)


@pytest.mark.parametrize("bias", (False, True))
def test_weights_of_two_tensors_and_their_gradients_match_float64(bias):
    x, w, up, b = drawn(2, 5, 24), drawn(19, 24), drawn(19, 25)[:, :24].clone(), drawn(38)
    compare(lambda x, w, up, *b: tg.gated_linear(x, w, *b, up=up, strict=True),
            lambda x, w, up, *b: gated64(x, torch.cat((w, up)), *(b or (None,)), "silu", False),
            x, w, up, *((b,) if bias else ()))


@pytest.mark.parametrize("activation, bias, residual", [
    ("none", True, True), ("gelu", True, False),
    *(pytest.param(*x, marks=pytest.mark.thorough) for x in (
        ("none", False, True), ("gelu", True, True), ("relu", True, True), ("silu", False, False),
        ("relu", False, False)))])
def test_linear_and_its_gradients_match_float64(activation, bias, residual):
    x, w, b = drawn(2, 5, 24), drawn(19, 24), drawn(19) if bias else None
    compare(lambda x, w, b, r: tg.linear(x, w, b, activation=activation, residual=r, strict=True),
            lambda x, w, b, r: linear64(x, w, b, r, activation), x, w, b,
            drawn(2, 5, 19) if residual else None)


def test_a_weight_stored_across_k_and_strided_operands_are_read_in_place():
    w, bias = drawn(24, 40).t(), drawn(80)[::2]
    x = drawn(9, 48)[:, ::2]
    truth = gated64(x.double(), w.double(), bias.double(), "silu", False)
    found = tg.gated_linear(x, w, bias, strict=True)
    assert (found.double() - truth).abs().max() <= 0.02 * truth.abs().max()


@pytest.mark.parametrize("interleaved", (False, True))
def test_the_gradient_can_be_differentiated_again(interleaved):
    def twice(f, cast):
        x, w = (cast(t).requires_grad_() for t in (drawn(4, 8, dtype=torch.float32),
                                                   drawn(12, 8, dtype=torch.float32)))
        grad, = torch.autograd.grad(f(x, w).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), w)[0]

    found = twice(lambda x, w: tg.gated_linear(x, w, interleaved=interleaved, strict=True),
                  lambda t: t)
    truth = twice(lambda x, w: gated64(x, w, None, "silu", interleaved), torch.Tensor.double)
    assert (found.double() - truth).abs().max() <= 1e-5 * truth.abs().max()


def test_autocast_casts_as_torch_does_for_linear():
    x, w = drawn(4, 8, dtype=torch.float32), drawn(12, 8, dtype=torch.float32)
    residual = drawn(4, 12, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert tg.gated_linear(x, w, strict=True).dtype == torch.bfloat16
        assert tg.linear(x, w, residual=residual, strict=True).dtype == torch.bfloat16


def test_the_second_result_is_written_only_for_a_gradient(monkeypatch):
    from tritongemm.ops import fused_linear

    asked = []
    run = fused_linear.run
    monkeypatch.setattr(fused_linear, "run", lambda layer, *t: asked.append(layer) or run(layer,
                                                                                         *t))
    x, w = drawn(4, 8), drawn(12, 8)
    tg.gated_linear(x, w)
    tg.gated_linear(x.requires_grad_(), w)
    with torch.no_grad():
        tg.gated_linear(x, w)
    tg.linear(x, w, activation="gelu")
    tg.linear(x, w, activation="relu")  # its gradient is of the result
    assert [layer.aux for layer in asked] == [False, True, False, True, False]


def test_words_of_further_epilogues_say_what_they_read():
    kind = epilogue_of("bias+gelu+residual")
    assert kind.reads_d and kind.d_is_matrix and kind.scales and not kind.plain

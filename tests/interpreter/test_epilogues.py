"""Fused epilogues in Triton's interpreter, against float64: every one, of every tl kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from activations_held import check_activation, check_derivative
from hypothesis import given, settings
from hypothesis import strategies as st

from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.errors import LaunchError
from tritongemm.kernels import violation
from tritongemm.measure.numerics import check, reference
from tritongemm.measure.operands import draw
from tritongemm.measure.torch_epilogue import ACTIVATIONS, factor_of
from tritongemm.ops.plan import bind_config
from tritongemm.problem import PLAIN_EPILOGUES, GemmProblem, epilogue_of

pytestmark = pytest.mark.interpreter
DEVICE = interpreter_device()
TILED = KernelConfig("tiled", 32, 32, 32, num_warps=4, num_stages=2, group_m=2)
TINY = KernelConfig("tiled", 16, 16, 32, num_warps=1, num_stages=2)
SPLIT = replace(TILED, split_k=3)
TMA = KernelConfig("persistent_tma", 64, 64, 32, num_warps=4, num_stages=3, group_m=2)
SUBTILED = replace(TMA, epilogue_subtile=2)
CONFIGS = (TILED, SPLIT, TMA, SUBTILED)


def expected(problem: GemmProblem, a, b, d=None, alpha: float = 1.0, beta: float = 1.0):
    """The truth in float64, and what was added before the activation."""
    kind, product = epilogue_of(problem.epilogue), reference(a, b)
    added = None
    if kind.scales:
        product = alpha * product
    if kind.multiplies:
        return product * factor_of(kind)(d.double()), None
    if kind.reads_d:
        added = beta * d.double()
        product = product + added
    return ACTIVATIONS[kind.activation](product), added


def prove(problem: GemmProblem, config: KernelConfig, a, b, out, d=None, alpha: float = 1.0,
          beta: float = 1.0) -> None:
    assert violation(problem, config, DEVICE) is None
    out.fill_(math.nan)
    bind_config(problem, config, DEVICE)(a, b, out, d, alpha, beta)
    truth, added = expected(problem, a, b, d, alpha, beta)
    kind = epilogue_of(problem.epilogue)
    size = alpha if kind.scales else 1.0
    if kind.multiplies:  # and with it each error
        size *= float(factor_of(kind)(d.double()).abs().max())
    report = check(out, a, b, truth, addend=added, alpha=size)
    assert report.ok, report.message


#: Each addend and each activation once; the others are tested by `make test-all`.
FEW = ("none", "scale+gelu_tanh", "bias+relu", "add+silu", "bias+gelu", "gain", "dgelu")


def marked(epilogues: Iterable[str]) -> list:
    return [e if e in FEW else pytest.param(e, marks=pytest.mark.thorough) for e in epilogues]


@pytest.mark.parametrize("epilogue", marked(PLAIN_EPILOGUES))
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_epilogue_matches_float64(config, epilogue):
    problem = GemmProblem.contiguous(72, 80, 104, layout="nt", epilogue=epilogue)
    one = draw(problem, seed=1)[0]
    prove(problem, config, one.a, one.b, one.out, one.d, -0.75, 3.0)


GEMV = KernelConfig("gemv", 4, 16, 64, num_warps=1, num_stages=1)
MV = KernelConfig("gemv", 2, 16, 64, num_warps=1, num_stages=2, swap_ab=1)


@pytest.mark.parametrize("epilogue", marked(PLAIN_EPILOGUES))
def test_every_epilogue_of_a_stream_matches_float64(epilogue):
    problem = GemmProblem.contiguous(3, 40, 72, layout="nt", epilogue=epilogue)
    one = draw(problem, seed=1)[0]
    prove(problem, GEMV, one.a, one.b, one.out, one.d, -0.75, 3.0)


CASES = [
    (MV, GemmProblem.contiguous(41, 2, 130, layout="nt", epilogue="bias+gelu")),
    (MV, GemmProblem.contiguous(33, 2, 65, batch=2, dtype="fp16", epilogue="add+relu")),
    (replace(MV, split_k=2), GemmProblem.contiguous(33, 2, 200, epilogue="bias+silu")),
    (replace(GEMV, split_k=4), GemmProblem.contiguous(4, 21, 300, layout="nt", dtype="fp32",
                                                      epilogue="add+gelu_tanh")),
    (TILED, GemmProblem.contiguous(33, 65, 47, dtype="fp16", epilogue="bias+silu")),
    (TILED, GemmProblem.contiguous(33, 30, 40, batch=3, dtype="fp32", epilogue="bias+gelu_tanh")),
    (TINY, GemmProblem.contiguous(1, 1, 1, epilogue="add+relu")),
    (TILED, GemmProblem.contiguous(40, 24, 32, dtype_out="fp32", epilogue="add")),
    (SPLIT, GemmProblem.contiguous(19, 33, 101, batch=2, dtype="fp32", epilogue="add+gelu")),
    (SPLIT, GemmProblem.contiguous(16, 40, 128, dtype="fp16", epilogue="scale+relu")),
    (TMA, GemmProblem.contiguous(40, 100, 64, layout="nt", epilogue="add+silu")),
    (TMA, GemmProblem.contiguous(64, 48, 40, batch=2, dtype="fp16", layout="tt",
                                 epilogue="bias+relu")),
    (SUBTILED, GemmProblem.contiguous(72, 136, 88, batch=2, dtype="fp16", layout="tn",
                                      epilogue="add+gelu_tanh")),
    (TILED, GemmProblem.contiguous(33, 65, 47, batch=2, dtype="fp16", epilogue="mul")),
    (SPLIT, GemmProblem.contiguous(19, 33, 101, dtype="fp32", epilogue="dsilu")),
    (SUBTILED, GemmProblem.contiguous(72, 136, 88, dtype="fp16", layout="nt", epilogue="gain")),
    (TMA, GemmProblem.contiguous(40, 100, 64, layout="nt", epilogue="drelu")),
    (replace(GEMV, split_k=4), GemmProblem.contiguous(4, 21, 300, layout="nt", dtype="fp32",
                                                      epilogue="dgelu_tanh")),
]


@pytest.mark.parametrize(("config", "problem"), CASES, ids=str)
def test_dtypes_batches_and_ragged_edges_match_float64(config, problem):
    one = draw(problem, seed=2)[0]
    prove(problem, config, one.a, one.b, one.out, one.d, 1.5, -0.5)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_alpha_and_beta_are_of_the_call(config):
    problem = GemmProblem.contiguous(64, 64, 96, epilogue="add")
    one = draw(problem)[0]
    bound = bind_config(problem, config, DEVICE)
    for alpha, beta in ((1.0, 1.0), (0.0, 1.0), (-2.5, 1e-3)):
        bound(one.a, one.b, one.out, one.d, alpha, beta)
        truth, added = expected(problem, one.a, one.b, one.d, alpha, beta)
        report = check(one.out, one.a, one.b, truth, alpha=alpha, addend=added)
        assert report.ok, (alpha, beta, report.message)


@pytest.mark.parametrize("epilogue", marked(
    e for e in PLAIN_EPILOGUES if not epilogue_of(e).reads_d))
@pytest.mark.parametrize("config", [TILED, SPLIT, TMA], ids=str)
def test_without_an_addend_d_and_beta_are_not_read(config, epilogue):
    problem = GemmProblem.contiguous(40, 48, 96, epilogue=epilogue)
    one = draw(problem)[0]
    prove(problem, config, one.a, one.b, one.out, torch.full((48,), math.nan), 0.5
          if epilogue_of(epilogue).scales else 1.0, math.nan)


@pytest.mark.parametrize("config", [TILED, SPLIT, TMA], ids=str)
def test_what_lies_around_d_is_not_read(config):
    problem = GemmProblem.contiguous(40, 48, 96, dtype="bf16", epilogue="bias")
    one = draw(problem)[0]  # NaN behind and before every operand
    prove(problem, config, one.a, one.b, one.out, one.d, 1.0, 1.0)
    whole = torch.full((50, 60), math.nan).bfloat16()
    whole[3:43, 5:53] = torch.randn(40, 48)
    prove(replace(problem, epilogue="add"), config, one.a, one.b, one.out, whole[3:43, 5:53], 1.0,
          2.0)


@pytest.mark.parametrize("config", [TILED, SPLIT, TMA], ids=str)
def test_a_call_without_its_d_is_refused(config):
    problem = GemmProblem.contiguous(40, 48, 96, epilogue="bias")
    one = draw(problem)[0]
    with pytest.raises(LaunchError, match="adds a D, and this call passes none"):
        bind_config(problem, config, DEVICE)(one.a, one.b, one.out)


@st.composite
def strided(draw_):
    """A matrix [batch, M, N] that torch may hand over: gaps, steps, transposed, expanded."""
    batch, m, n = draw_(st.sampled_from((1, 2))), draw_(st.integers(1, 40)), draw_(
        st.integers(1, 40))
    step, gap, offset = (draw_(st.integers(1, 3)), draw_(st.integers(0, 5)),
                         draw_(st.integers(0, 9)))
    turned = draw_(st.booleans())
    shape = (batch, n, m) if turned else (batch, m, n)
    torch.manual_seed(m * n)
    whole = torch.randn(offset + shape[0] * shape[1] * (shape[2] * step + gap) + 1).half()
    lead = shape[2] * step + gap
    d = whole.as_strided(shape, (shape[1] * lead, lead, step), offset)
    d = d.mT if turned else d
    for axis in draw_(st.sets(st.integers(0, 2))):
        d = d.narrow(axis, 0, 1).expand(batch, m, n)
    return d


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(d=strided(), which=st.sampled_from((1, 3)))
def test_any_strides_of_d_are_read_in_place(d, which):
    batch, m, n = d.shape
    problem = GemmProblem.contiguous(m, n, 96, batch=batch, dtype="fp16", epilogue="add+silu")
    config = replace(TINY, split_k=which)
    one = draw(problem)[0]
    prove(problem, config, one.a, one.b, one.out, d if batch > 1 else d[0], 0.25, 1.5)


@pytest.mark.parametrize("config", [TILED, SPLIT, TMA], ids=str)
@pytest.mark.parametrize("shape", [(1, 48), (40, 1), (1, 1)], ids=str)
def test_d_with_strides_of_zero_is_a_vector(config, shape):
    problem = GemmProblem.contiguous(40, 48, 96, dtype="fp16", epilogue="add")
    one = draw(problem)[0]
    prove(problem, config, one.a, one.b, one.out, torch.randn(shape).half().expand(40, 48))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_right_to_a_rounding_or_two_everywhere(activation):
    check_activation(activation, "cpu", 1.5e-7)


@pytest.mark.parametrize("activation", [x for x in ACTIVATIONS if x != "none"])
def test_derivatives_are_within_2_ulps_of_1_of_float64(activation):
    check_derivative(activation, "cpu", 3e-7)


def test_a_gradient_that_relu_stops_is_zero_whatever_it_is():
    problem = GemmProblem.contiguous(40, 48, 32, dtype="fp32", epilogue="drelu")
    one = draw(problem)[0]
    one.a[3, 5] = math.inf
    one.d[3], one.d[5, 0] = -1.0, math.nan
    bind_config(problem, TILED, DEVICE)(one.a, one.b, one.out, one.d)
    truth = (one.a.double() @ one.b.double())[5, 0].float()
    assert not one.out[3].any()
    torch.testing.assert_close(one.out[5, 0], truth)


@pytest.mark.parametrize("epilogue", [e for e in PLAIN_EPILOGUES if e != "none"])
def test_nan_and_inf_stay_where_they_belong(epilogue):
    problem = GemmProblem.contiguous(40, 48, 32, dtype="fp32", epilogue=epilogue)
    one = draw(problem)[0]
    one.a.fill_(1.0)
    one.b.fill_(1.0)
    one.a[3, 5], one.b[0, 7] = math.nan, math.inf
    d = None if one.d is None else torch.ones_like(one.d)
    bind_config(problem, TILED, DEVICE)(one.a, one.b, one.out, d)
    rows, columns = torch.arange(40) != 3, torch.arange(48) != 7
    assert one.out[3].isnan().all() and (one.out[rows, 7] == math.inf).all()
    assert one.out[rows][:, columns].isfinite().all()

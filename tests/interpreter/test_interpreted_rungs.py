"""The ladder's Triton rungs on CPU tensors in Triton's interpreter, against float64."""

from __future__ import annotations

import pytest
import torch

from tritongemm.device import interpreter_device
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.ladder.triton_rung import TritonRung
from tritongemm.measure.numerics import check, reference
from tritongemm.measure.operands import draw
from tritongemm.ops.plan import bind_config
from tritongemm.problem import GemmProblem

pytestmark = pytest.mark.interpreter

POINTER = [name for name in RUNG_SPECS if name not in ("triton_tma", "gluon_warp_specialized")]
SHAPES = [(1, 1, 1), (97, 130, 51), *(pytest.param(x, marks=pytest.mark.thorough)
                                      for x in ((64, 64, 64), (300, 40, 200)))]


def run(name, m, n, k, dtype, layout="nn", **changes):
    from dataclasses import replace

    problem = GemmProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
    device = interpreter_device()
    config = replace(RUNG_SPECS[name].default(problem, device), **changes)
    one = draw(problem, sets=1, seed=m, device=torch.device("cpu"))[0]
    one.out.fill_(float("nan"))
    bind_config(problem, config, device)(one.a, one.b, one.out)
    report = check(one.out, one.a, one.b, reference(one.a, one.b))
    assert report.ok, f"{config}: {report.message}"


@pytest.mark.parametrize("name", POINTER)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rung_matches_float64(name, shape):
    if name == "triton_naive" and max(shape) > 200:
        shape = (35, 40, 70)  # it runs 256 outputs a program
    run(name, *shape, "fp32")


@pytest.mark.parametrize("name", POINTER)
@pytest.mark.parametrize("dtype, layout", [("bf16", "nt"), ("fp16", "tn")])
def test_rung_takes_other_dtypes_and_layouts(name, dtype, layout):
    run(name, 70, 90, 40, dtype, layout)


@pytest.mark.parametrize("k", [32, 96, 160, 1000])
def test_stream_k_mends_tiles_cut_in_two_and_more(k):
    # 4 programs share the steps of 1, 2, 3 and 6 tiles.
    for m, n in ((16, 16), (32, 16), (48, 16), (48, 32)):
        run("triton_stream_k", m, n, k, "fp32", block_m=16, block_n=16, num_warps=1)


@pytest.mark.parametrize("split", [1, 2, 5])
def test_split_k_adds_its_parts(split):
    run("triton_split_k", 33, 65, 200, "fp16", block_m=32, block_n=32, block_k=32, num_warps=4,
        split_k=split)


SCALES = [(-1.37, 0.61), (2.5, 0.0), *(pytest.param(*x, marks=pytest.mark.thorough)
                                       for x in ((1.0, 1.0), (0.0, 0.0), (0.0, 1.0)))]


@pytest.mark.parametrize("name", [*POINTER, "triton_tma"])
@pytest.mark.parametrize("alpha, beta", SCALES)
def test_alpha_and_beta_scale_the_product_and_c(name, alpha, beta):
    problem = GemmProblem.contiguous(40, 72, 48, dtype="bf16", dtype_out="fp32")
    one = draw(problem, sets=1, seed=7, device=torch.device("cpu"))[0]
    start = torch.full_like(one.out, float("nan")) if beta == 0 else torch.randn_like(one.out)
    out = start.clone()
    device = interpreter_device()
    config = RUNG_SPECS[name].default(problem, device)
    TritonRung(problem, config, device)(one.a, one.b, out, alpha, beta)
    addend = beta * start.double() if beta else None
    want = alpha * reference(one.a, one.b)
    report = check(out, one.a, one.b, want if addend is None else want + addend, alpha=alpha,
                   addend=addend)
    assert report.ok, report.message


def test_scaling_keeps_to_the_strides_of_c_and_rounds_once():
    problem = GemmProblem.contiguous(33, 1030, 16, dtype="fp16")
    one = draw(problem, sets=1, seed=7, device=torch.device("cpu"))[0]
    wide = torch.full((33, 2100), 7.0, dtype=torch.float16)
    out = wide[:, 5:2065:2]
    out.copy_(torch.randn(33, 1030))
    start, device = out.double(), interpreter_device()
    config = RUNG_SPECS["triton_tiled"].default(problem, device)
    TritonRung(problem, config, device)(one.a, one.b, out, 0.5, -2.0)
    want = 0.5 * reference(one.a, one.b) - 2 * start
    report = check(out, one.a, one.b, want, alpha=0.5, addend=-2 * start)
    assert report.ok, report.message
    assert (wide[:, 6::2] == 7).all() and (wide[:, :5] == 7).all()


def test_tma_rung_loads_by_descriptors():
    run("triton_tma", 96, 136, 72, "bf16")

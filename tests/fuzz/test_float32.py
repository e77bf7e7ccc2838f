"""The fuzzer on float32 alone: its cases, and the limit on errors of float32 sums, with products as
kernels compute them and wrong ones."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch

from fuzz import campaign, judge, limits
from fuzz.__main__ import arguments
from fuzz.case import Case, View, read
from fuzz.functions import ACTIVATIONS
from fuzz.generate import FLOAT32, LARGE, LONG, SMALL, case_of
from fuzz.memory import DISTRIBUTIONS, World
from tritongemm.compute import PRECISIONS
from tritongemm.ops import calls

CPU = torch.device("cpu")
M, N = 36, 30  # more than 1,000 elements, so that their RMS counts too
#: Distributions that fp16 parts represent: of the others the guard multiplies rows.
_IN_PARTS = [name for name in DISTRIBUTIONS if name != "planted"]
#: Kept exactly by all formats here; and so small that the rounding of subnormal numbers hides all.
_ALWAYS_RIGHT = ("integers", "tiny")


# --- cases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [LONG, LARGE], ids=["interpreter", "gpu"])
@pytest.mark.parametrize("precision", FLOAT32)
def test_a_precision_gives_float32_of_all_layouts_batches_and_distributions(precision, sizes):
    cases = [case_of(seed, sizes, precision) for seed in range(1200)]
    assert {(c.dtype, c.precision, c.mixed) for c in cases} == {("fp32", precision, False)}
    assert {c.distribution for c in cases} == set(DISTRIBUTIONS)
    assert {c.function for c in cases} == {case_of(seed, SMALL).function for seed in range(1200)}
    matrices = [view for c in cases for view in c.operands if len(view.shape) == 2
                and min(view.shape) > 1]
    kinds = Counter("row" if v.stride[1] == 1 else "column" if v.stride[0] == 1 else
                    "repeated" if 0 in v.stride else "stepped" for v in matrices)
    assert min(kinds[kind] for kind in ("row", "column", "repeated", "stepped")) > 20
    assert sum(len(c.operands[-1].shape) > 2 for c in cases) > 50
    assert max(v.shape[-1] for v in matrices) > 0.6 * sizes.k
    assert repr(read(repr(cases[7]))) == repr(cases[7]) == repr(case_of(7, sizes, precision))


def test_without_a_precision_cases_are_of_all_dtypes():
    assert len({case_of(seed, SMALL).dtype for seed in range(200)}) == 6


def test_the_option_takes_the_precisions_of_float32():
    assert set(FLOAT32) == set(PRECISIONS)
    for precision in FLOAT32:
        words = arguments(["--precision", precision])
        plan = campaign.Plan(1, 1.0, False, precision=words.precision)
        assert plan.sizes is LONG and plan.case(3) == case_of(3, LONG, precision)
    assert campaign.Plan(1, 1.0, True, precision="tf32").sizes is LARGE
    assert campaign.Plan(1, 1.0, False, precision=arguments([]).precision).sizes is SMALL


@pytest.mark.parametrize("precision", FLOAT32)
def test_products_on_the_cpu_have_the_cases_precision(precision):
    case = Case("mm", (View((4, 8), (8, 1)), View((8, 4), (4, 1))), precision=precision)
    single, half = torch.ones(2, 2), torch.ones(2, 2).half()
    with judge._precision(case, CPU):
        assert calls._precision_of(single) == precision
        assert calls._precision_of(half) == "ieee"
    assert calls._precision_of(single) == "ieee"


# --- the limit ----------------------------------------------------------------------------------


def case(distribution: str, k: int, precision: str = "fp16x3") -> Case:
    return Case("mm", (View((M, k), (k, 1)), View((k, N), (N, 1))), values=k,
                distribution=distribution, precision=precision)


@functools.cache
def factors(distribution: str, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    one = case(distribution, k)
    return tuple(World(one.operands, "fp32", k, CPU, None, distribution).operands)


def accepted(one: Case, found: torch.Tensor) -> bool:
    """Whether the judge takes ``found`` for the result; torch's own is NaN, so that it does not
    count."""
    try:
        judge._values(one, CPU, (found,), (torch.full_like(found, torch.nan),))
    except limits.Wrong:
        return False
    return True


@functools.cache
def in_chains(distribution: str, k: int, chains: int) -> torch.Tensor:
    """Float32 multiply-adds in the order of K, in so many chains whose sums are added."""
    a, b = factors(distribution, k)
    sums = torch.zeros(chains, M, N)
    for i in range(k):
        part = sums[i * chains // k]
        part.copy_(part.double() + a[:, i:i + 1].double() * b[i:i + 1].double())
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return total


def truncated(sums: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``sums`` + x @ y over 16 of K as a tensor core adds: all terms are truncated to two bits
    below float32's last of the largest, and the sum to float32. (Of uniform numbers this gives the
    errors that are measured on an H200: 2.1e-7 at K = 4,096, accuracy.csv.)"""
    terms = torch.cat((sums.double()[None], x.mT[:, :, None] * y[:, None, :]))
    for keep in (25, 23):
        _, exponent = torch.frexp(terms.abs().amax(0))
        terms = torch.ldexp(torch.ldexp(terms, keep + 1 - exponent).trunc(), exponent - keep - 1)
        terms = terms.sum(0, keepdim=True)
    return terms[0].float()


def parts(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(hi, lo times 2,048, power of two) of rows that are scaled to 2^15, as float64."""
    _, exponent = torch.frexp(x.abs().amax(dim, keepdim=True))
    scaled = torch.ldexp(x.double(), 15 - exponent)
    hi = scaled.half().double()
    return hi, ((scaled - hi) * 2048).half().double(), exponent - 15


def in_fp16_parts(a: torch.Tensor, b: torch.Tensor, products: int = 3) -> torch.Tensor:
    """Products of fp16 parts as ``split_product`` adds them: the main one leaves the tensor core
    every 64 of K. With one product only the main one, with two without lo hi."""
    (a_hi, a_lo, a_power), (b_hi, b_lo, b_power) = parts(a, 1), parts(b, 0)
    main, small = torch.zeros(M, N), torch.zeros(M, N)
    for first in range(0, len(b), 64):
        step = torch.zeros(M, N)
        for k in range(first, min(first + 64, len(b)), 16):
            here = slice(k, k + 16)
            step = truncated(step, a_hi[:, here], b_hi[here])
            if products > 1:
                small = truncated(small, a_hi[:, here], b_lo[here])
            if products > 2:
                small = truncated(small, a_lo[:, here], b_hi[here])
        main = main + step
    total = (main.double() + small.double() / 2048).float()
    return torch.ldexp(total.double(), a_power + b_power).float()


def in_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """An exact product of operands rounded to 10 bits of mantissa."""
    def one(x: torch.Tensor) -> torch.Tensor:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()
    return (one(a) @ one(b)).float()


@pytest.mark.parametrize("k", [48, 1536])
@pytest.mark.parametrize("distribution", _IN_PARTS)
def test_three_fp16_products_have_the_errors_of_float32_sums(distribution, k):
    assert accepted(case(distribution, k), in_fp16_parts(*factors(distribution, k)))


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("chains", [1, 7])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_multiply_adds_have_the_errors_of_float32_sums(distribution, chains, precision):
    assert accepted(case(distribution, 6000, precision), in_chains(distribution, 6000, chains))


def test_a_chain_of_log_normal_numbers_is_allowed_what_a_chain_loses(monkeypatch):
    monkeypatch.setattr(limits, "chain_error", lambda *_: (0.0, 0.0))
    assert not accepted(case("log_normal", 6000), in_chains("log_normal", 6000, 1))


_WRONG = {"one fp16 product": lambda a, b: in_fp16_parts(a, b, 1),
          "a small product left out": lambda a, b: in_fp16_parts(a, b, 2),
          "operands rounded to TF32": in_tf32}


@pytest.mark.parametrize("wrong", _WRONG)
@pytest.mark.parametrize("k", [48, 1536])
@pytest.mark.parametrize("distribution", [d for d in _IN_PARTS if d not in _ALWAYS_RIGHT])
def test_less_than_three_fp16_products_are_wrong(distribution, k, wrong):
    assert not accepted(case(distribution, k), _WRONG[wrong](*factors(distribution, k)))


@pytest.mark.parametrize("distribution", ["uniform", "cancelling", "large"])
def test_the_bound_of_k_roundings_alone_would_let_tf32_pass(distribution, monkeypatch):
    found = in_tf32(*factors(distribution, 1536))
    assert not accepted(case(distribution, 1536), found)
    monkeypatch.setattr(limits, "_as_float32_sums", lambda *_: True)
    assert accepted(case(distribution, 1536), found)


def test_tf32_is_right_where_it_is_asked_for():
    assert accepted(case("uniform", 1536, "tf32"), in_tf32(*factors("uniform", 1536)))


def test_a_single_element_that_is_off_is_wrong():
    a, b = factors("uniform", 640)
    right = (a.double() @ b.double()).float()
    off = right.clone()
    off[3, 4] *= 1 + 2.0**-13
    assert accepted(case("uniform", 640), right) and not accepted(case("uniform", 640), off)


def test_equal_values_are_judged_by_the_bound_of_their_terms_alone():
    """Their errors are alike: 6,000 additions of one number may all be rounded down."""
    k = 6000
    one = Case("mm", (View((M, k), (0, 0)), View((k, N), (0, 0))), values=2, distribution="uniform")
    a, b = World(one.operands, "fp32", 2, CPU, None, "uniform").operands
    found = (a.double() @ b.double() * (1 + 0.4 * k * 2.0**-24)).float()
    assert accepted(one, found)


def test_nan_and_infinities_are_left_to_their_own_comparison():
    one = Case("mm", (View((M, 640), (640, 1), special=((5, float("inf")), (700, float("nan")))),
                      View((640, N), (N, 1))), values=3, distribution="log_normal")
    a, b = World(one.operands, "fp32", 3, CPU, None, "log_normal").operands
    found = (a.double() @ b.double()).float()
    assert not found.isfinite().all() and accepted(one, found)


@pytest.mark.parametrize("function, shapes", [
    ("linear", ((30, 640), (36, 640))), ("mv", ((36, 640), (640,))), ("dot", ((640,), (640,))),
    ("matmul", ((640,), (3, 640, 7))), ("bmm", ((3, 9, 640), (3, 640, 7))),
    ("matmul", ((2, 1, 5, 640), (3, 640, 4)))])
def test_a_chains_error_is_found_for_every_shape_of_operands(function, shapes):
    views = [View(shape, torch.empty(shape).stride()) for shape in shapes]
    operands = World(views, "fp32", 1, CPU, None, "log_normal").operands
    most, typical = limits.chain_error(*operands, function == "linear")
    assert 0 < typical <= most < 640 * 2.0**-24


@pytest.mark.parametrize("activation", ("gelu", "silu", "gelu_tanh"))
def test_the_gradient_of_an_activation_has_the_error_of_its_argument(activation):
    """Of a layer of one row, whose argument is summed in one chain; and in TF32, as none may."""
    k, n = 2048, 256
    one = Case("linear", (View((k,), (1,)), View((n, k), (k, 1))), values=11,
               activation=activation, gradients=(False, True), precision="fp16x3")
    x, w = World(one.operands, "fp32", 11, CPU).operands
    chain = torch.zeros(n)
    for i in range(k):
        chain = (chain.double() + w[:, i].double() * x[i].double()).float()

    def gradient(argument: torch.Tensor) -> torch.Tensor:
        z = argument.double().requires_grad_()
        result = ACTIVATIONS[activation](z)
        back, = torch.autograd.grad(result, z, limits.cotangent(one, result))
        return (back[:, None] * x.double()).float()

    rounded = [(t.view(torch.int32) + 0x1000 & -0x2000).view(torch.float32) for t in (x, w)]
    in_tf32 = (rounded[1].double() @ rounded[0].double()).float()
    result = torch.full((n,), torch.nan)  # torch's, which is not looked at where ours is equal
    torchs = (result, torch.full((n, k), torch.nan))
    judge._values(one, CPU, (result, gradient(chain)), torchs)
    with pytest.raises(limits.Wrong, match="the gradient of operand 1"):
        judge._values(one, CPU, (result, gradient(in_tf32)), torchs)

"""float32 products by bf16 parts in one launch, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_split_fp32 import problem_of, stored

from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.kernels import violation
from tritongemm.ops.plan import bind_config
from tritongemm.problem import LAYOUTS

pytestmark = pytest.mark.interpreter
CONFIG = KernelConfig("tiled_bf16x6", 32, 32, 32, num_warps=4, num_stages=2, group_m=2)
#: |C - exact| over |A| |B|: what the parts lack and leave out (2^-21 where the interpreter
#: truncates to bf16; a GPU rounds), and a float32 sum of 300 products.
LIMIT = 2.0**-21 + 300 * 2.0**-24


def product(a, b, layout: str = "nn", gap: int = 0, config=CONFIG):
    """A @ B by ``config``, in memory filled with NaN before."""
    a, b = stored(a, layout[0], gap), stored(b, layout[1], gap)
    c = torch.full((*a.shape[:-1], b.shape[-1]), float("nan"))
    problem = problem_of(a, b, layout, 16 if gap % 4 == 0 and not (
        a.shape[-1] | a.shape[-2] | b.shape[-1]) % 4 else 4)
    assert violation(problem, config, interpreter_device()) is None
    bind_config(problem, config, interpreter_device())(a, b, c)
    return c


def error(c, a, b) -> torch.Tensor:
    """Of each element, over |A| |B|, or over the smallest normal number where that is larger."""
    a, b = a.double(), b.double()
    return (c.double() - a @ b).abs() / (a.abs() @ b.abs()).clamp_min(2.0**-126)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "gap", "changes"), (
    ((40, 64, 96), 0, {}), ((33, 17, 101), 1, {}), ((17, 40, 300), 4, {"split_k": 3}),
    ((1, 1, 1), 0, {"block_m": 16, "block_n": 16, "num_warps": 1})))
def test_products_have_the_error_of_float32_sums(layout, shape, gap, changes):
    m, n, k = shape
    torch.manual_seed(m + n + k)
    a, b = torch.randn(m, k), torch.randn(k, n)
    c = product(a, b, layout, gap, replace(CONFIG, **changes))
    assert float(error(c, a, b).max()) <= LIMIT


def test_no_product_of_parts_is_missing():
    """In one product nothing cancels. Without one of the six it would be off by 2^-18; the
    interpreter, which converts to bf16 by truncation, leaves up to 2^-21."""
    torch.manual_seed(1)
    a, b = torch.randn(32, 1), torch.randn(1, 32)
    assert float(error(product(a, b), a, b).max()) <= 2.0**-21


def test_integers_are_exact():
    a, b = torch.randint(-999, 999, (32, 16)).float(), torch.randint(-999, 999, (16, 40)).float()
    assert torch.equal(product(a, b), (a.double() @ b.double()).float())


@pytest.mark.parametrize("split_k", (1, 2))
def test_infinities_and_nan_give_what_float32_gives(split_k):
    torch.manual_seed(2)
    a, b = torch.randn(40, 70), torch.randn(70, 50)
    a[3, 5], a[20, 64], b[7, 9], a[33, 0] = float("inf"), float("nan"), -float("inf"), float("inf")
    b[0, :20] = 0.0  # infinity times zero
    c, wanted = product(a, b, config=replace(CONFIG, split_k=split_k)), a @ b
    assert torch.equal(c.isnan(), wanted.isnan())
    finite = wanted.isfinite()
    assert torch.equal(c[~finite & ~wanted.isnan()], wanted[~finite & ~wanted.isnan()])
    assert float(error(c, a, b)[finite].max()) <= LIMIT


@pytest.mark.parametrize(("large", "small"), (
    (2.0**126, 2.0**-126), (2.0**10, 2.0**-120), (1.5e38, 2.0**-20), (2.0**100, 2.0**-140)))
def test_numbers_whose_parts_bf16_cannot_hold_lose_no_bits(large, small):
    torch.manual_seed(3)
    a, b = torch.rand(40, 48) * small, (1 + torch.rand(48, 33)) * large / 2
    a[5] = torch.rand(48) / 64  # beside rows that have nothing small
    b[:, 3] = torch.rand(48)
    c = product(a, b)
    assert float(error(c, a, b).max()) <= LIMIT


def test_a_number_that_rounds_to_infinity_in_bf16_stays_finite():
    a, b = torch.full((32, 32), 1e-3), torch.full((32, 32), 1e-3)
    a[4, 4] = torch.finfo(torch.float32).max
    c = product(a, b)
    assert bool(c.isfinite().all()) and float(error(c, a, b).max()) <= LIMIT


def test_other_rows_of_a_tile_keep_their_bits():
    torch.manual_seed(4)
    a, b = torch.randn(32, 64), torch.randn(64, 32)
    alone = product(a, b)
    a[7, 1], a[9, 2] = float("nan"), 2.0**-130
    beside = product(a, b)
    others = [row for row in range(32) if row not in (7, 9)]
    assert torch.equal(beside[others], alone[others]) and bool(beside[7].isnan().all())


@pytest.mark.parametrize("epilogue", ("bias+relu", "add"))
def test_epilogues_follow_the_corrected_sum(epilogue):
    torch.manual_seed(5)
    a, b = torch.randn(20, 40), torch.randn(40, 24)
    a[3] = 2.0**-125
    problem = problem_of(a, b, "nn", 16, epilogue=epilogue)
    d, c = torch.randn(24) if "bias" in epilogue else torch.randn(20, 24), torch.empty(20, 24)
    bind_config(problem, CONFIG, interpreter_device())(a, b, c, d=d)
    wanted = a.double() @ b.double() + d.double()
    assert torch.allclose(c.double(), wanted.relu() if "relu" in epilogue else wanted, atol=1e-5)

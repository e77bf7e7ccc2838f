"""2,000 problems drawn at random, by the kernels that ``tg.matmul`` chooses, against float64.

They need some 1,700 binaries: ``pytest -m "gpu and slow" -n 14``.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.measure.numerics import check, poison, reference  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.problem import LAYOUTS, GemmProblem, dtype_of  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SEED, TESTS, PROBLEMS = 20261121, 20, 100
#: Products of which a sum is not yet nearly normal.
FEW = 8


def extent(rng: random.Random, most: int) -> int:
    """Log-uniform; half of them multiples of 8 or 64."""
    unit = rng.choice((1, 1, 8, 64))
    return unit * max(1, round(most ** rng.random() / unit))


def problem_of(rng: random.Random) -> GemmProblem:
    """Any extents, layout, dtype and batch, and operands that may begin anywhere."""
    dtype = rng.choice(("bf16", "bf16", "fp16", "fp32"))
    batch = rng.choice((1, 1, 1, rng.randint(2, 7)))
    problem = GemmProblem.contiguous(extent(rng, 3000), extent(rng, 3000), extent(rng, 9000),
                                     batch=batch, dtype=dtype, layout=rng.choice(LAYOUTS))
    least = dtype_of(dtype).itemsize
    for name in ("align_a", "align_b", "align_c"):
        if rng.random() < 0.15:
            problem = replace(problem, **{name: min(getattr(problem, name), 2 * least)})
    return problem


@pytest.mark.parametrize("seed", range(SEED, SEED + TESTS))
def test_random_problems_are_right(seed):
    rng = random.Random(seed)
    for number in range(PROBLEMS):
        problem = problem_of(rng)
        one = draw(problem, sets=1, seed=rng.randrange(2**31), device=torch.device("cuda"))[0]
        poison(one.out)
        tg.matmul(one.a, one.b, out=one.out, strict=True)
        # At K = 1 an output is one product, of which the largest is beyond what sums of many can
        # be, and so is its rounding: there torch's own error has a say.
        theirs = torch.matmul(one.a, one.b) if problem.k < FEW else None
        report = check(one.out, one.a, one.b, reference(one.a, one.b), theirs)
        assert report.ok, f"seed {seed}, problem {number}: {problem}: {report.message}"

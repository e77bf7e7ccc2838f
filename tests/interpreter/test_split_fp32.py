"""The split of float32 operands into fp16 parts, and the guard, against torch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.kernels.device import bf16x6
from tritongemm.kernels.device.split_fp32 import parts_of as parts_of_element
from tritongemm.kernels.interpret import interpret
from tritongemm.kernels.launch import Geometry
from tritongemm.kernels.reduce import target_of
from tritongemm.kernels.split_fp32 import (
    FLAGGED,
    SplitOperand,
    _programs,
    guard_launch,
    split_launch,
    split_operands,
)
from tritongemm.ops.flags import flagged as flagged_rows
from tritongemm.ops.plan import geometry_of
from tritongemm.problem import LAYOUTS, GemmProblem

pytestmark = pytest.mark.interpreter
CONFIG = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)

#: Both ways that each operand may lie; the others, which mix them, are thorough.
FEW_LAYOUTS = [x if x[0] == x[1] else pytest.param(x, marks=pytest.mark.thorough) for x in LAYOUTS]


def stored(x: torch.Tensor, letter: str, gap: int = 0) -> torch.Tensor:
    """``x`` [..., rows, cols] stored by ``letter``, with ``gap`` elements behind each row as
    stored, from element ``gap`` of its memory on."""
    x = x if letter == "n" else x.mT
    *batch, outer, inner = x.shape
    memory = torch.full((gap + x.numel() + gap * (x.numel() // inner),), float("nan"))
    strides = [outer * (inner + gap)] * len(batch) + [inner + gap, 1]
    view = memory[gap:].as_strided(x.shape, strides)
    view.copy_(x)
    return view if letter == "n" else view.mT


def problem_of(a, b, layout: str, align: int, precision: str = "fp16x3", **more) -> GemmProblem:
    batch = a.shape[0] if a.dim() == 3 else 1
    return GemmProblem(a.shape[-2], b.shape[-1], a.shape[-1], batch, "fp32", "fp32", "fp32", layout,
                       align, align, 16, precision=precision, **more)


def run_split(a, b, layout: str, align: int, precision: str = "fp16x3", config=CONFIG):
    """(problem, geometry, operands of scratch, scratch) after the split pass."""
    c = torch.full((*a.shape[:-1], b.shape[-1]), float("nan"))
    problem, geometry = problem_of(a, b, layout, align, precision), geometry_of(a, b, c)
    split = split_operands(problem, config, geometry)
    scratch = torch.full((-(-split.scratch_bytes // 4) + 16,), float("nan"))
    launch = split_launch(problem, config, geometry, interpreter_device(), split)
    interpret(launch, {"a": a, "b": b, "c": c, "scratch": scratch})
    assert bool(scratch[-16:].isnan().all()), "written past the end"
    return problem, geometry, split, scratch


def parts_of(scratch, operand: SplitOperand, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What scratch holds: float64 [batches, rows, K] parts (hi, then lo), and the exponents
    [batches, rows]."""
    flat = scratch.view(torch.float16)[operand.offset // 2:]
    view = flat.as_strided((parts, operand.batches, *operand.stored),
                           (operand.batches * operand.matrix, operand.matrix, operand.lead, 1))
    view = view.mT if operand.across else view
    exponents = scratch[operand.exponents // 4:][:operand.batches * operand.rows]
    return view.double(), exponents.view(operand.batches, operand.rows).double()


def hard_rows(k: int) -> dict[str, torch.Tensor]:
    """Rows by name; those whose name ends in ``!`` must be flagged."""
    torch.manual_seed(k)
    normal = torch.randn(k)
    rows = {"normal": normal, "zeros": torch.zeros(k), "small": normal * 2.0**-90,
            "large": normal * 2.0**120, "uniform": torch.rand(k),
            "log-normal": torch.exp(3 * torch.randn(k))}
    rows["subnormal beside zeros!"] = torch.zeros(k)
    rows["subnormal beside zeros!"][k // 2] = 2.0**-140
    rows["tiny!"] = normal * 2.0**-120
    for name, value in (("inf!", float("inf")), ("-inf!", -float("inf")), ("nan!", float("nan"))):
        rows[name] = normal.clone()
        rows[name][k - 1] = value
    if k > 1:
        rows["one subnormal!"] = normal.clone()
        rows["one subnormal!"][0] = 2.0**-149
        rows["spans 2^60!"] = normal.sign() * torch.exp2(torch.linspace(-30, 30, k))
        rows["spans all!"] = torch.zeros(k)
        rows["spans all!"][:2] = torch.tensor([2.0**127, 2.0**-126])
    if k > 8:  # an element 2^-28 - d below the largest loses d bits
        rows["one loses bits"] = normal.clone()
        rows["one loses bits"][3] = normal.abs().max() * 2.0**-29 * 1.2345678
        rows["one loses too many!"] = normal.clone()
        rows["one loses too many!"][3] = normal.abs().max() * 2.0**-48 * 1.2345678
        rows["its last loses too many!"] = normal.clone()
        rows["its last loses too many!"][k - 1] = normal.abs().max() * 2.0**-48 * 1.2345678
        rows["one loses some beside many large"] = normal.clone()
        rows["one loses some beside many large"][3] = normal.abs().max() * 2.0**-33 * 1.2345678
        rows["many lose bits!"] = normal * 2.0**-33
        rows["many lose bits!"][k // 2] = 1.0
        rows["sparse!"] = torch.zeros(k)
        rows["sparse!"][:3] = torch.tensor([1.0, 2.0**-34 * 1.2345678, 2.0**-34 * 1.4567891])
    return rows


@pytest.mark.parametrize(("layout", "precision"), (
    ("nn", "fp16x3"), ("tt", "fp16x3"), ("nn", "tf32"),
    *(pytest.param(x, "fp16x3", marks=pytest.mark.thorough) for x in ("nt", "tn"))))
@pytest.mark.parametrize(("k", "gap"), ((300, 3), *(
    pytest.param(*x, marks=pytest.mark.thorough) for x in ((1, 0), (7, 1), (1100, 4)))))
def test_parts_represent_rows_that_are_not_flagged(k, gap, layout, precision):
    rows = hard_rows(k)
    matrix = torch.stack(list(rows.values()))
    a, b = stored(matrix, layout[0], gap), stored(matrix.flip(0).mT, layout[1], gap)
    align = 16 if gap % 4 == 0 and k % 4 == 0 and len(rows) % 4 == 0 else 4
    *_, split, scratch = run_split(a, b, layout, align, precision)
    for operand, x, names in ((split.a, matrix, list(rows)),
                              (split.b, matrix.flip(0), list(rows)[::-1])):
        parts, exponents = parts_of(scratch, operand, split.parts)
        flagged = exponents[0] >= FLAGGED
        assert torch.equal(flagged_rows(x, split.parts), flagged)
        wanted = [name.endswith("!") for name in names]
        if precision == "fp16x3":
            assert flagged.tolist() == wanted, dict(zip(names, flagged.tolist()))
        else:  # of one part more may be lost before it is more than TF32 loses
            assert not bool((flagged & ~torch.tensor(wanted)).any())
            assert bool(flagged[[i for i, n in enumerate(names)
                                 if n in ("inf!", "nan!", "spans 2^60!")]].all())
        kept = ~flagged
        scale = torch.exp2(exponents[0][kept])[:, None]
        value = parts[0, 0] + (parts[1, 0] / 2048 if split.parts == 2 else 0)
        error = (value[kept] / scale - x[kept].double()).abs()
        size = x[kept].double().abs()
        bits = 22 if split.parts == 2 else 11
        largest = size.amax(1, keepdim=True)
        floor = largest * 2.0**(-50 if split.parts == 2 else -39)
        assert bool((error <= torch.maximum(size * 2.0**-bits, floor)).all())
        assert bool((error <= size / 8).all())
        assert bool((parts[:, 0][:, kept].abs().amax((0, 2)) < 2.0**15 + 1).all())


@triton.jit
def losses_of(x, losses, COUNT: tl.constexpr, PARTS: tl.constexpr):
    at = tl.arange(0, COUNT)
    value = tl.load(x + at)
    loss = parts_of_element(value, tl.full((COUNT,), 1.0, tl.float32), PARTS)[2]
    tl.store(losses + at, loss)


@pytest.mark.parametrize("parts", (1, 2))
def test_losses_add_up_alike_in_any_order(parts):
    torch.manual_seed(parts)
    x = torch.randn(4096) * torch.exp2(torch.empty(4096).uniform_(-22, 1 if parts == 1 else -13))
    losses = torch.empty_like(x)
    losses_of[1,](x, losses, 4096, parts)
    x = x.double()
    value, lo = x.half().double(), 0.0
    if parts == 2:
        lo = (2048 * (x - value)).half().double() / 2048
    lost = (x - value - lo).abs() * 2.0**(11 * (parts - 1))
    size = torch.exp2(x.abs().log2().floor())
    counts = lost > x.abs() * 2.0**-11
    assert bool(counts.any()) and not bool(counts.all())
    assert bool((losses[~counts] == 0).all())
    exact = (lost / size)[counts]
    assert bool(((losses[counts] - exact).abs() <= exact / 32).all())
    for _ in range(8):  # the sum of all, one by one
        total = losses[torch.randperm(4096)].numpy().cumsum()[-1]
        assert total == losses.double().sum().item() < 512


@pytest.mark.parametrize(("share", "flagged"), ((0.93, False), (1.01, True)))
@pytest.mark.parametrize(("precision", "large", "limit", "power"), (
    ("fp16x3", 4095, 4095 * 2.0**-23, 2.0**-39), ("tf32", 255, 255 * 2.0**-12, 2.0**-36),
    ("tf32", 4095, 2.0**-3, 2.0**-37), ("tf32", 16383, 2.0**-3, 2.0**-37)))
def test_a_row_may_lose_a_part_of_each_large_element(precision, large, limit, power, share,
                                                     flagged):
    """2^-23 of each; with one part 2^-12, but an eighth at most. ``large`` elements
    are powers of two, which lose nothing; one more loses ``share`` of what is allowed: all beyond
    ``power``, the next smaller number that its parts can be."""
    a = torch.ones(1, large + 1)
    a[0, 0], a[0, large] = 1.5, power * (1 + share * limit)
    *_, split, scratch = run_split(a, torch.ones(large + 1, 1), "nn", 16, precision)
    _, exponents = parts_of(scratch, split.a, split.parts)
    assert (exponents[0, 0] >= FLAGGED) == flagged
    assert flagged_rows(a, split.parts).tolist() == [flagged]


@pytest.mark.parametrize("precision", ("fp16x3", "tf32"))
def test_no_number_is_lost_beside_many_large_ones(precision):
    """Of a row of 16,384: below 2^-39 of the largest one part holds nothing, below 2^-50 two."""
    torch.manual_seed(0)
    a = torch.randn(1, 16384)
    a[0, 7] = 1e-13 if precision == "tf32" else 1e-17
    *_, split, scratch = run_split(a, torch.ones(16384, 1), "nn", 16, precision)
    _, exponents = parts_of(scratch, split.a, split.parts)
    assert exponents[0, 0] >= FLAGGED and flagged_rows(a, split.parts).tolist() == [True]


@pytest.mark.parametrize("layout", FEW_LAYOUTS)
def test_rows_beyond_a_block_are_read_twice(layout, monkeypatch):
    from tritongemm.kernels import split_fp32

    for name, value in (("_PER_THREAD", 1), ("_ROW_WARPS", 2), ("_SHORT_ROW_WARPS", 2),
                        ("_PER_THREAD_OF_STRIP", 4), ("_NARROW_STRIP_WARPS", 4)):
        monkeypatch.setattr(split_fp32, name, value)
    rows = hard_rows(300)
    matrix = torch.stack(list(rows.values()))
    *_, split, scratch = run_split(stored(matrix, layout[0]), stored(matrix.mT, layout[1]), layout,
                                   4)
    for operand in (split.a, split.b):
        parts, exponents = parts_of(scratch, operand, 2)
        flagged = exponents[0] >= FLAGGED
        assert flagged.tolist() == [name.endswith("!") for name in rows]
        value = (parts[0, 0] + parts[1, 0] / 2048) / torch.exp2(exponents[0])[:, None]
        near = torch.isclose(value, matrix.double(), rtol=2.0**-20, atol=0)
        assert bool(near[[i for i, n in enumerate(rows) if n in ("normal", "uniform")]].all())


@pytest.mark.parametrize("layout", FEW_LAYOUTS)
def test_a_broadcast_batch_is_split_once(layout):
    torch.manual_seed(0)
    a, b = torch.randn(3, 5, 40), torch.randn(1, 40, 9)
    a, b = stored(a, layout[0], 4), stored(b, layout[1]).expand(3, 40, 9)
    problem, geometry, split, scratch = run_split(a, b, layout, 4)
    assert (split.a.batches, split.b.batches) == (3, 1)
    for operand, x in ((split.a, a), (split.b, b[:1].mT)):
        parts, exponents = parts_of(scratch, operand, 2)
        value = (parts[0] + parts[1] / 2048) / torch.exp2(exponents)[..., None]
        assert torch.allclose(value, x.double(), rtol=2.0**-20, atol=0)


def guarded(a, b, layout: str, epilogue: str = "none", d=None, split_k: int = 1,
            precision: str = "fp16x3"):
    """C after the guard, where the product has left ones."""
    config = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3,
                          split_k=split_k)
    problem, geometry, split, scratch = run_split(a, b, layout, 4, precision, config)
    problem = problem_of(a, b, layout, 4, precision, epilogue=epilogue)
    c = torch.ones((*a.shape[:-1], b.shape[-1]))
    geometry = geometry_of(a, b, c, d)
    if split_k > 1:
        scratch[:split_k * c.numel()] = 1.0
    launch = guard_launch(problem, config, geometry, interpreter_device(), split,
                          target_of(problem, config, geometry))
    operands = {"a": a, "b": b, "c": c, "scratch": scratch}
    if d is not None:
        operands["d"] = c.copy_(d) if d.shape == c.shape else d
    interpret(launch, operands, {"alpha": 2.0, "beta": 0.5})
    return c if split_k == 1 else scratch[:split_k * c.numel()].view(split_k, *c.shape)


def planted(m: int, n: int, k: int, batch: int = 1):
    """Operands with a NaN in row 3 of A, an infinity in column 70 of B and a tiny element in row 65
    of A; which elements of C they make special."""
    torch.manual_seed(m)
    a, b = torch.randn(batch, m, k), torch.randn(batch, k, n)
    a[-1, 3, 1] = float("nan")
    b[-1, 2, 70] = float("inf")
    a[-1, 65, 0] = 2.0**-80
    special = torch.zeros(batch, m, n, dtype=torch.bool)
    special[-1, 3] = special[-1, 65] = special[-1, :, 70] = True
    return (a, b, special) if batch > 1 else (a[0], b[0], special[0])


@pytest.mark.parametrize("batch", (1, pytest.param(2, marks=pytest.mark.thorough)))
@pytest.mark.parametrize("layout", FEW_LAYOUTS)
def test_the_guard_writes_flagged_rows_and_columns_alone(layout, batch):
    a, b, special = planted(100, 90, 33, batch)
    c = guarded(stored(a, layout[0], 1), stored(b, layout[1]), layout)
    wanted = a @ b
    assert torch.equal(c[~special], torch.ones_like(c[~special]))
    assert torch.allclose(c[special], wanted[special], rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("precision", ("fp16x3", "tf32"))
def test_the_guard_adds_c_in_place(precision):
    a, b, special = planted(100, 90, 33)
    d = torch.randn(100, 90)
    c = guarded(a, b, "nn", "add+relu", d, precision=precision)
    wanted = (2 * (a @ b) + 0.5 * d).relu()
    assert torch.equal(c[~special], d[~special])
    assert torch.allclose(c[special], wanted[special], rtol=1e-5, atol=1e-5, equal_nan=True)


@triton.jit
def counted(a_rows, b_columns, begin, end, stride_ak, stride_bk, BLOCK_M: tl.constexpr,
            BLOCK_N: tl.constexpr):
    tiles_by_multiply_adds.append(1)
    return multiply_adds(a_rows, b_columns, begin, end, stride_ak, stride_bk, BLOCK_M, BLOCK_N)


tiles_by_multiply_adds: list[int] = []
multiply_adds = bf16x6.multiply_adds_over_k


@pytest.mark.parametrize("precision", ("fp16x3", "tf32"))
@pytest.mark.parametrize(("rows", "columns", "element", "tiles"), (
    (1.0, 1.0, 1e-20, 0), (1.0, 1.0, 1e-42, 0), (2.0**60, 2.0**-60, 2.0**-90, 0),
    (1.0, 1.0, float("inf"), 1), (2.0**40, 1.0, 2.0**-130, 1), (1.0, 2.0**90, 1e-20, 1)))
def test_multiply_adds_compute_what_is_beyond_the_scaled_range(rows, columns, element, tiles,
                                                               precision, monkeypatch):
    monkeypatch.setattr(bf16x6, "multiply_adds_over_k", counted)
    tiles_by_multiply_adds.clear()
    torch.manual_seed(0)
    a, b = torch.randn(40, 70) * rows, torch.randn(70, 30) * columns
    a[5, 3] = element
    c = guarded(a, b, "nn", precision=precision)
    assert len(tiles_by_multiply_adds) == tiles
    exact, size = (x @ y for x, y in ((a.double(), b.double()),
                                      (a.abs().double(), b.abs().double())))
    near = (c[5].double() - exact[5]).abs() <= 1e-6 * size[5]
    assert bool((near | (c[5].double() == exact[5])).all())


def test_the_guard_reaches_far_below_a_row_s_largest_element():
    """Columns that are 0 where rows are large leave elements from 2^-149 on to count."""
    a = torch.randn(70, 64)
    a[:, 32:] *= torch.exp2(torch.randint(-140, -100, (70, 32)).float())
    b = torch.randn(64, 40)
    b[:32] = 0
    b[32:] *= 2.0**60
    c = guarded(a, b, "nn", "add", torch.zeros(70, 40))
    exact, size = 2 * (a.double() @ b.double()), 2 * (a.abs().double() @ b.abs().double())
    # The interpreter truncates where it rounds to bf16.
    assert bool(((c.double() - exact).abs() <= 2.0**-20 * size).all())


@pytest.mark.parametrize(("precision", "tf32"), (("fp16x3", False), ("tf32", True)))
def test_the_guard_rounds_to_tf32_where_that_is_allowed(precision, tf32):
    a, b, c = torch.randn(8, 64), torch.randn(64, 8), torch.empty(8, 8)
    problem, geometry = problem_of(a, b, "nn", 16, precision), geometry_of(a, b, c)
    launch = guard_launch(problem, CONFIG, geometry, interpreter_device(),
                          split_operands(problem, CONFIG, geometry),
                          target_of(problem, CONFIG, geometry))
    assert dict(launch.constants)["TF32"] is tf32


@pytest.mark.parametrize(("m", "n", "sms", "tile", "programs"), (
    (64, 64, 132, 64, 1), (1024, 1024, 132, 128, 128), (4096, 4096, 132, 128, 131),
    (8192, 64, 132, 64, 128), (8448, 64, 132, 64, 132), (8449, 64, 132, 128, 67),
    (32768, 70, 132, 128, 131), (20000, 66 * 64, 132, 128, 131), (4096, 4096, 1, 128, 1)))
def test_tiles_of_a_column_fall_to_different_programs(m, n, sms, tile, programs):
    """Where there are more tiles than programs. Tiles are small where an SM has one at most."""
    problem = GemmProblem.contiguous(m, n, 64, dtype="fp32", precision="fp16x3")
    geometry, device = Geometry.contiguous(problem), replace(interpreter_device(), num_sms=sms)
    launch = guard_launch(problem, CONFIG, geometry, device,
                          split_operands(problem, CONFIG, geometry),
                          target_of(problem, CONFIG, geometry))
    assert dict(launch.constants)["BLOCK_M"] == tile
    assert launch.grid == (programs, 1, 1)
    assert programs == -(-m // tile) * -(-n // 64) or math.gcd(programs, -(-n // 64)) == 1


def test_where_no_number_near_fits_tiles_of_a_column_share_programs():
    assert _programs(100, 6, 2) == 2 and _programs(100, 210, 8) == 8


@pytest.mark.thorough
def test_the_guard_fills_the_parts_of_a_split_k():
    a, b, special = planted(100, 90, 260)
    parts = guarded(a, b, "nn", "relu", split_k=3)
    assert bool((parts[:, ~special] == 1).all())
    assert bool((parts[1:][:, special] == 0).all())
    assert torch.allclose(parts[0][special], (a @ b)[special], rtol=1e-4, atol=1e-4,
                          equal_nan=True)


def test_the_guard_leaves_a_product_without_flags_alone():
    torch.manual_seed(1)
    a, b = torch.randn(70, 50), torch.randn(50, 80)
    assert bool((guarded(a, b, "nn") == 1).all())

"""Reads a call as one batched product: from extents and strides alone, without a tensor or a copy.

A broadcast batch has stride 0, leading axes of A that continue its rows become rows, and a
transposed operand has swapped strides. A batch of two axes, such as attention's batch and heads, is
an outer and an inner extent with two strides an operand. So folding, broadcasting and the
transposed products of gradients cost nothing, and a kernel needs only the operand's address.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tritongemm.formats import format_of
from tritongemm.kernels.launch import Geometry
from tritongemm.ops.declined import Declined
from tritongemm.problem import MAX_EXTENT, NOTHING_TO_MULTIPLY, GemmProblem, divisor_of

#: Limit on the launches of one call whose batch has too many strides for one.
MAX_PARTS = 8

VECTORS_ARE_TORCHS = "products with a vector are torch's"

Strides = tuple[int, int, int]


class StridedShape(NamedTuple):
    """Extents of a tensor, and its strides in elements."""

    shape: Sequence[int]
    stride: Sequence[int]


class CallForm(NamedTuple):
    """A call as C[batch, M, N] = A[batch, M, K] @ B[batch, K, N] (and D as C).

    Attributes:
        shape: shape of the result in torch.
        a, b, c, d: (batch, row, column) strides in elements.
        parts: for each launch, the element offsets of A, B, C and D.
        inner: the inner extent of a batch with two strides, whose strides are those of a, b, c and
            d; 0: the batch has one stride.
        outer: strides of A, B, C and D along the outer extent.
    """

    m: int
    n: int
    k: int
    batch: int
    shape: tuple[int, ...]
    a: Strides
    b: Strides
    c: Strides
    d: Strides | None
    parts: tuple[tuple[int, int, int, int], ...]
    inner: int = 0
    outer: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def two_strides(self) -> str:
        """The operands, of ``abc``, whose batch no single stride walks; ``none``."""
        each = zip("abc", self.outer, (self.a, self.b, self.c))
        return "".join(name for name, outer, (stride, *_) in each
                       if outer != self.inner * stride) or "none"

    @property
    def addend(self) -> str:
        """The epilogue's operand: ``none``, ``bias`` (the same for every row) or ``add`` (a
        matrix)."""
        if self.d is None:
            return "none"
        return "bias" if self.d[:2] == (0, 0) and self.d[2] else "add"


class _Axis(NamedTuple):
    """An axis of the batch: its extent, and its stride in A, B, C and D."""

    size: int
    a: int
    b: int
    c: int
    d: int


def form_of(a: StridedShape, b: StridedShape, out: StridedShape | None = None,
            d: StridedShape | None = None, two_strides: bool = True) -> CallForm:
    """The :class:`CallForm` of ``matmul(a, b)`` by torch's rules of rank and broadcasting.

    Args:
        a: [K], [M, K] or [..., M, K].
        b: [K], [K, N] or [..., K, N].
        out: has the result's shape; None: the result is contiguous.
        d: broadcasts to the result.
        two_strides: whether a batch of two axes is one launch. False: as many as the shorter axis
            has elements.

    Raises:
        Declined: shapes that torch refuses, an extent of 0, or a batch that would take more than
            :data:`MAX_PARTS` launches.
    """
    if not a.shape or not b.shape:
        raise Declined("an operand is a scalar")
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if row:
        a = StridedShape((1, *a.shape), (0, *a.stride))
    if column:
        b = StridedShape((*b.shape, 1), (*b.stride, 0))
    (m, k), (inner, n) = a.shape[-2:], b.shape[-2:]
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    if k != inner or batch is None:
        raise Declined(f"shapes are {tuple(a.shape)} and {tuple(b.shape)}")
    whole = (*batch, m, n)
    if 0 in whole or k == 0:
        raise Declined(NOTHING_TO_MULTIPLY)
    shape = (*batch, *(() if row else (m,)), *(() if column else (n,)))
    c = gapless(whole) if out is None else _with_vectors(out, shape, row, column)
    added = expanded(d, whole) if d is not None else None
    if d is not None and added is None:
        raise Declined(f"the input of shape {tuple(d.shape)} does not broadcast to {shape}")
    ranks = len(batch)
    axes = [_Axis(*axis) for axis in zip(
        batch, expanded(a, (*batch, m, k)) or (), expanded(b, (*batch, k, n)) or (), c,
        added or (0,) * len(whole)) if axis[0] > 1]
    rows = _Axis(m, a.stride[-2], 0, c[ranks], added[ranks] if added else 0)
    rows, axes = _fold_rows(rows, axes)
    axes = _merge(axes)
    pair = _outer_and_inner(axes) if two_strides else None
    outer, axis = pair or (_Axis(1, 0, 0, 0, 0), None)
    parts: tuple[tuple[int, int, int, int], ...] = ((0, 0, 0, 0),)
    if axis is None:
        axis, parts = _cut(axes)
    m = rows.size
    ak, bk, bn, cn, dn = a.stride[-1], b.stride[-2], b.stride[-1], c[-1], added[-1] if added else 0
    if max(m, n, k, outer.size * axis.size) > MAX_EXTENT:
        raise Declined("an extent does not fit 32 bits")
    many = axis.size > 1
    return CallForm(
        m, n, k, outer.size * axis.size, shape,
        (axis.a if many else 0, *_settled(m, k, rows.a, ak)),
        (axis.b if many else 0, *_settled(k, n, bk, bn)),
        (axis.c if many else 0, *_settled(m, n, rows.c, cn)),
        (axis.d if many else 0, rows.d if m > 1 else 0, dn if n > 1 else 1)
        if added else None, parts, axis.size if pair else 0, outer[1:])


def _broadcast(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    """The batch of two batches, or None where they do not broadcast."""
    rank = max(len(one), len(other))
    wide = []
    for x, y in zip((1,) * (rank - len(one)) + tuple(one), (1,) * (rank - len(other))
                    + tuple(other)):
        if x != y and 1 not in (x, y):
            return None
        wide.append(y if x == 1 else x)
    return tuple(wide)


def expanded(x: StridedShape, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of ``x`` expanded to ``shape``, 0 along broadcast axes; None if it does not
    broadcast."""
    missing = len(shape) - len(x.shape)
    if missing < 0:
        return None
    strides = [0] * missing
    for have, want, stride in zip(x.shape, shape[missing:], x.stride):
        if have != want and have != 1:
            return None
        strides.append(stride if have == want else 0)
    return tuple(strides)


def gapless(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a freshly allocated tensor."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def _with_vectors(out: StridedShape, shape: tuple[int, ...], row: bool, column: bool,
                  ) -> tuple[int, ...]:
    """Strides of ``out`` with the axes of length 1 that a vector operand drops."""
    if tuple(out.shape) != shape:
        raise Declined(f"out= is of shape {tuple(out.shape)}, the result of shape {shape}")
    strides = list(out.stride)
    if column:
        strides.append(1)
    if row:
        strides.insert(len(strides) - 1, 1)
    return tuple(strides)


def _fold_rows(rows: _Axis, axes: list[_Axis]) -> tuple[_Axis, list[_Axis]]:
    """Batch axes along which B broadcasts become rows: those that continue the rows, and the
    longest one if it is longer than the rows (rows share a tile's load of B; a batch loads B
    again)."""
    left: list[_Axis] = []
    for axis in reversed(axes):
        if axis.b == 0 and rows.size == 1:
            rows = axis
        elif axis.b == 0 and axis[1:] == tuple(rows.size * s for s in rows[1:]):
            rows = rows._replace(size=rows.size * axis.size)
        else:
            left.insert(0, axis)
    free = [axis for axis in left if axis.b == 0 and axis.size > rows.size]
    if free:
        longest = max(free, key=lambda axis: axis.size)
        left[left.index(longest)], rows = rows, longest
    return rows, left


def _merge(axes: list[_Axis]) -> list[_Axis]:
    """Merges neighbouring axes that every operand traverses with a single stride."""
    merged: list[_Axis] = []
    for axis in axes:
        if merged and merged[-1][1:] == tuple(axis.size * s for s in axis[1:]):
            axis = axis._replace(size=axis.size * merged.pop().size)
        merged.append(axis)
    return merged


def _outer_and_inner(axes: list[_Axis]) -> tuple[_Axis, _Axis] | None:
    """Two axes as the outer and the inner extent of the batch, so that a result of one stride
    stays one; None for more or fewer, and where D would have two strides."""
    if len(axes) != 2:
        return None
    orders = [(x, y) for x, y in (axes, reversed(axes)) if x.d == y.size * y.d]
    return min(orders, key=lambda order: order[0].c != order[1].size * order[1].c, default=None)


def _cut(axes: list[_Axis]) -> tuple[_Axis, tuple[tuple[int, int, int, int], ...]]:
    """The longest axis, which becomes the kernel's batch; the others become separate launches."""
    if not axes:
        return _Axis(1, 0, 0, 0, 0), ((0, 0, 0, 0),)
    chosen = max(axes, key=lambda axis: axis.size)
    others = [axis for axis in axes if axis is not chosen]
    count = math.prod(axis.size for axis in others)
    if count > MAX_PARTS:
        raise Declined(f"the batch would take {count} launches, more than {MAX_PARTS}")
    parts: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
    for axis in others:
        parts = [(pa + i * axis.a, pb + i * axis.b, pc + i * axis.c, pd + i * axis.d)
                 for pa, pb, pc, pd in parts for i in range(axis.size)]
    return chosen, tuple(parts)


def _settled(rows: int, cols: int, row: int, col: int) -> tuple[int, int]:
    """(row, column) strides, where an axis of one element gets the stride that suits kernels best
    (no address depends on it): 1 if the other stride is not 1, else a multiple of 16 bytes."""
    if rows > 1 and cols > 1:
        return row, col
    if rows == 1 and cols == 1:
        return 16, 1
    if rows == 1:
        return (-(-cols // 16) * 16, 1) if col == 1 else (1, col)
    return (1, -(-rows // 16) * 16) if row == 1 else (row, 1)


def span_bytes(x: StridedShape, size: int) -> int:
    """Bytes from the first element to the end of the last."""
    return (1 + sum((extent - 1) * stride for extent, stride in zip(x.shape, x.stride))) * size


def repeats(x: StridedShape) -> bool:
    """Whether several elements share memory (torch refuses such an ``out``)."""
    return any(stride == 0 and extent > 1 for extent, stride in zip(x.shape, x.stride))


def problem_of_form(form: CallForm, bases: Sequence[int], dtypes: tuple[str, str, str],
                    epilogue: str, precision: str) -> tuple[GemmProblem, Geometry]:
    """The problem of a form, and the geometry of its operands.

    Args:
        bases: addresses of A, B, C and D; only their alignment matters.
        dtypes: names of the formats of A, B and C; D has C's.
    """
    size_a, size_b, size_out = (format_of(name).itemsize for name in dtypes)
    a, b, c, d = bases
    letter_a, align_a = _stored(form, 0, form.a, form.m, form.k, a, size_a)
    letter_b, align_b = _stored(form, 1, form.b, form.k, form.n, b, size_b)
    gaps = form.c[2] != 1 and form.n > 1  # align 1 tells kernels that C's rows are not contiguous
    align_c = 1 if gaps else _rows(form, 2, form.c, form.m, form.n, c, size_out)
    problem = GemmProblem(form.m, form.n, form.k, form.batch, *dtypes, letter_a + letter_b,
                          align_a, align_b, align_c, epilogue, precision,
                          two_strides=form.two_strides)
    geometry = Geometry(*form.a, *form.b, *form.c)
    if form.d is not None:
        align_d = _rows(form, 3, form.d, form.m, form.n, d, size_out)
        geometry = Geometry(*form.a, *form.b, *form.c, *form.d, align_d)
    if form.inner:
        outer_a, outer_b, outer_c, _ = form.outer
        geometry = replace(geometry, inner=form.inner, outer_a=outer_a, outer_b=outer_b,
                           outer_c=outer_c)
    return problem, geometry


def _stored(form: CallForm, index: int, strides: Strides, rows: int, cols: int, base: int,
            size: int) -> tuple[str, int]:
    """How an operand is stored, ``n`` or ``t``, and its alignment in bytes."""
    batch, row, col = strides
    if col == 1:
        return "n", _rows(form, index, strides, rows, cols, base, size)
    if row == 1:
        return "t", _rows(form, index, (batch, col, row), cols, rows, base, size)
    return "n", size


def _rows(form: CallForm, index: int, strides: Strides, rows: int, cols: int, base: int,
          size: int) -> int:
    """The alignment of every row's first element, in bytes; the size of an element if rows have
    gaps."""
    batch, row, col = strides
    if col != 1 and cols > 1:
        return size
    found = divisor_of(base)
    if rows > 1:
        found = min(found, divisor_of(row * size))
    if form.batch > 1:
        found = min(found, divisor_of(batch * size), divisor_of(form.outer[index] * size))
    return min(found, *(divisor_of(part[index] * size) for part in form.parts))

"""Operands as TMA sees them: tensor maps of A, B and C."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.formats import format_of
from tritongemm.kernels.launch import Descriptor, Geometry
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem


def tma_store(problem: GemmProblem) -> bool:
    """Whether C may be stored by TMA.

    A descriptor store can write past the inner extent up to the next 16 bytes, so rows of C
    must be whole multiples of 16 bytes (Triton issue 11583).
    """
    row_bytes = problem.c.format.bytes_of(problem.columns)
    return problem.align_c == FULL_ALIGNMENT and row_bytes % FULL_ALIGNMENT == 0


def stored_operand(problem: GemmProblem, operand: str, box_rows: int, box_k: int,
                   geometry: Geometry, gluon: bool = False) -> Descriptor:
    """The tensor map of ``a`` or ``b`` as stored; a batch is its outermost axis, and so are the two
    halves of a gated product's B; a batch with two strides is its two outermost ones.

    Under ``tf32`` the copy rounds: the tensor core would ignore the low bits, and so make each
    product smaller by 7e-4 on average (cuBLAS's TF32 rounds too).
    """
    g = geometry
    if operand == "a":
        transposed = not problem.a.k_major
        rows, outer, batch_stride = problem.m, (g.ak if transposed else g.am), g.ab
        outermost = g.outer_a
    else:
        transposed = not problem.b.k_major
        rows, outer, batch_stride = problem.columns, (g.bk if transposed else g.bn), g.bb
        outermost = g.outer_b
    dtype = getattr(problem, f"dtype_{operand}")
    shape, box = ((problem.k, rows), (box_k, box_rows)) if transposed else (
        (rows, problem.k), (box_rows, box_k))
    halves = 2 if problem.gated and operand == "b" else None
    map_ = batched(problem, f"{operand}_desc", operand, dtype, shape, outer, box,
                   abs(batch_stride), gluon, halves)
    map_ = replace(map_, rounds=problem.precision == "tf32")
    if batch_stride < 0:  # a gate behind the other half: a map's strides are not negative
        map_ = replace(map_, offset=format_of(dtype).bytes_of(1) * batch_stride)
    if problem.two_strides == "none":
        return map_
    inner = g.inner or problem.batch
    return replace(map_, shape=(problem.batch // inner, inner, *map_.shape[1:]),
                   strides=(outermost, *map_.strides), box=(1, *map_.box))


def loaded_in(map_: Descriptor, rows: int, columns: int | None = None) -> Descriptor:
    """The map with boxes of ``rows`` rows, and columns (None: as many as the type's), of whatever
    size, for instructions written out: the type's box, which Gluon's own instructions take, has
    powers of two for sides."""
    return replace(map_, loaded=(*map_.box[:-2], rows, columns or map_.box[-1]))


def batched(problem, name, operand, dtype, shape, outer, box, batch_stride,
            gluon=False, matrices=None) -> Descriptor:
    """A 2-D tensor map, or a 3-D one where there are several ``matrices`` (None: the problem's
    batch).

    An axis of one element has any stride in torch; TMA wants multiples of 16 bytes.
    """
    batch = matrices or problem.batch
    per_16_bytes = format_of(dtype).elements_of(FULL_ALIGNMENT)
    outer = -(-max(outer, 1) // per_16_bytes) * per_16_bytes if shape[0] == 1 else outer
    if batch == 1:
        return Descriptor(name, operand, dtype, shape, (outer, 1), box, gluon)
    return Descriptor(name, operand, dtype, (batch, *shape), (batch_stride, outer, 1),
                      (1, *box), gluon)

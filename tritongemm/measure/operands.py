"""Operand sets: random inputs and poisoned outputs that a timer rotates over.

All sets of one operand lie in one allocation, each at a 256-byte boundary like an allocation of
its own, and everything between them (guards, gaps between rows) is poison: NaN, or of a format
without NaN a value that no result has. Drawing a thousand sets takes two random kernels and
poisoning one. A kernel that reads outside its operands usually returns poison, and a write outside
the output is detected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tritongemm.errors import ProblemError
from tritongemm.formats import Format, torch_dtype
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem, divisor_of, epilogue_of

#: Base addresses of sets are multiples of this, like those of separate allocations, bytes.
_BASE_BYTES = 256
#: Least number of poisoned bytes after each set.
_GUARD_BYTES = 256
MOST_SETS = 1000
#: Total size of the sets over the L2 size, if memory and the number of sets allow it. A strict LRU
#: cache would keep nothing of sets three times its size, but the L2 of an H200 keeps up to 14 % for
#: some access patterns. From this size on times no longer change (perf/log/2026-11.md).
CACHE_MULTIPLE = 24
#: Up to this total size over the L2 size the L2 counts as warm.
WARM_MULTIPLE = 3
#: Elements counted in one step; bounds the scratch memory (2 GiB).
_COUNTED = 2**28
#: Alpha of a product that is only scaled.
_SCALE = 0.5


@dataclass(frozen=True)
class OperandSet:
    """One draw: ``a`` [M, K], ``b`` [K, N], ``out`` [M, N], with a leading batch where > 1.

    A ``t`` operand is stored transposed and passed as its ``.mT`` view. ``d`` is what the
    epilogue adds or multiplies by: a vector [N], a matrix of ``out``'s shape, or None. ``bias`` [N]
    is what it adds before the activation, where ``d`` is a residual; ``aux`` [M, N] its auxiliary
    output. ``b`` and a bias of a gated product hold both halves, the gate's first, and ``out`` is
    [M, N / 2].
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    d: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 1.0
    bias: torch.Tensor | None = None
    aux: torch.Tensor | None = None
    gated: bool = False

    @property
    def arguments(self) -> tuple:
        """Arguments of a bound config: A, B and the result, then D, alpha and beta, only where the
        epilogue has them. The two halves of a gated product are matrices of a batch of 2."""
        b, d = self.b, self.d
        if self.gated:
            b = _halves(b)
            d = None if d is None else _halves(d[None].expand(len(self.out), -1))
        if d is None and self.alpha == 1.0:
            return self.a, b, self.out
        return self.a, b, self.out, d, self.alpha, self.beta

    @property
    def others(self) -> dict[str, torch.Tensor]:
        """What else a bound config takes, by name."""
        found = {} if self.bias is None else {"bias": self.bias}
        if self.aux is not None:
            matrix = self.aux if self.aux.dim() == 3 else self.aux[None]
            found["aux"] = _halves(self.aux) if self.gated else matrix
        return found


def _halves(x: torch.Tensor) -> torch.Tensor:
    """[rows, 2 N] as [2, rows, N]."""
    return x.unflatten(-1, (2, -1)).movedim(-2, 0)


class Rotation(NamedTuple):
    """The number of sets to draw, and whether the L2 is cold with them."""

    sets: int
    cold: bool


def sets_for(problem: GemmProblem, l2_bytes: int, *, free_bytes: int | None = None,
             most: int = MOST_SETS) -> Rotation:
    """Sets of ``problem`` that total more than 24 times a cache of ``l2_bytes``.

    At least 2, at most ``most``, and within half of ``free_bytes`` (which may leave one). Cold if
    they total more than three times the cache.
    """
    each = max(problem.bytes(), 1)
    wanted = CACHE_MULTIPLE * l2_bytes // each + 1
    sets = min(max(wanted, 2), most)
    if free_bytes is not None:
        sets = max(1, min(sets, free_bytes // 2 // each))
    return Rotation(sets, sets * each > WARM_MULTIPLE * l2_bytes)


class _Pool:
    """One operand of every set, in one allocation."""

    def __init__(self, sets: int, batch: int, rows: int, cols: int, format: Format,
                 align: int, device: torch.device, what: str) -> None:
        if format.packed > 1:
            raise ProblemError(f"{format.name} packs {format.packed} elements into one of torch's; "
                               "such operands cannot be drawn")
        size = format.itemsize
        self.format = format
        if align < size:
            raise ProblemError(f"align_{what}={align} is less than one element ({size} bytes); "
                               "tensors are aligned to an element at least")
        # Pad the rows up to the stated alignment. If everything is then better aligned than stated,
        # offset the base address.
        lead = cols
        if align > divisor_of(cols * size):
            lead = -(-cols * size // align) * align // size
        offset = align // size if align < divisor_of(lead * size) else 0
        used = offset + batch * rows * lead
        stride = -(-(used * size + _GUARD_BYTES) // _BASE_BYTES) * _BASE_BYTES // size
        self.storage = torch.full((sets * stride,), format.poison,
                                  dtype=torch_dtype(format.name), device=device)
        self.every = self.storage.as_strided((sets, batch, rows, cols),
                                             (stride, rows * lead, lead, 1), offset)
        self.elements = self.every.numel()

    def poison(self) -> None:
        """Fills every set and its surroundings with poison."""
        self.storage.fill_(self.format.poison)

    def poisoned(self, x: torch.Tensor) -> torch.Tensor:
        """The number of poison elements in ``x``, a part of the pool. Counted piece by piece,
        because torch widens what it counts to eight bytes."""
        if x.numel() <= _COUNTED:
            poison = self.format.poison
            return (x.isnan() if math.isnan(poison) else x == poison).sum()
        step = max(1, _COUNTED * len(x) // x.numel())
        return torch.stack([self.poisoned(part) for part in
                            (x.unbind() if step == 1 else x.split(step))]).sum()

    def tensors(self, transposed: bool = False) -> Sequence[torch.Tensor]:
        """One tensor a set: [rows, cols], or [batch, rows, cols] where there are several."""
        every = self.every.mT if transposed else self.every
        return (every[:, 0] if every.shape[1] == 1 else every).unbind()


class OperandSets(Sequence[OperandSet]):
    """The drawn sets, a sequence of :class:`OperandSet`; see :func:`draw`."""

    def __init__(self, a: _Pool, b: _Pool, out: _Pool, d: _Pool | None, bias: _Pool | None,
                 aux: _Pool | None, problem: GemmProblem) -> None:
        self._outputs = [x for x in (out, aux) if x is not None]
        turn_a, turn_b = (letter == "t" for letter in problem.layout)
        epilogue = epilogue_of(problem.epilogue)
        addend = epilogue.addend

        def each(pool: _Pool | None, vectors: bool) -> Sequence[torch.Tensor | None]:
            if pool is None:
                return [None] * len(out.tensors())
            return [x[0] if vectors else x for x in pool.tensors()]

        # With an addend alpha = beta = 1: torch's defaults, for which it has its fastest
        # implementations.
        alpha = _SCALE if addend == "scale" else 1.0
        self._sets = [
            OperandSet(*four, alpha, 1.0, *further, problem.gated) for *four, further in
            zip(a.tensors(turn_a), b.tensors(turn_b), out.tensors(),
                each(d, not epilogue.d_is_matrix),
                zip(each(bias, True), each(aux, False), strict=True), strict=True)]

    def __len__(self) -> int:
        return len(self._sets)

    def __getitem__(self, index):
        return self._sets[index]

    def poison(self) -> None:
        """Poisons every output and its surroundings."""
        for pool in self._outputs:
            pool.poison()

    def unwritten(self, index: int) -> int:
        """Counts the output elements of one set that are still poison. Synchronizes."""
        one = self._sets[index]
        outputs = [x for x in (one.out, one.aux) if x is not None]
        return sum(int(pool.poisoned(x)) for pool, x in zip(self._outputs, outputs, strict=True))

    def blemishes(self) -> tuple[int, int]:
        """Counts, since :meth:`poison`, output elements that are still poison and elements that
        were written outside an output.

        Synchronizes.
        """
        inside = outside = 0
        for out in self._outputs:
            everywhere, here = torch.stack((out.poisoned(out.storage),
                                            out.poisoned(out.every))).tolist()
            inside += here
            outside += out.storage.numel() - out.elements - (everywhere - here)
        return inside, outside


def draw(problem: GemmProblem, *, sets: int = 1, seed: int = 0,
         device: torch.device | str = "cpu") -> OperandSets:
    """Draws ``sets`` operand sets of ``problem``: inputs as their formats draw them (standard
    normal values, of floating-point formats), poisoned outputs.

    Every set is drawn anew. The problem's alignments hold exactly: for less than an operand's
    natural alignment its base address is offset, for more its rows are padded.

    Raises:
        ProblemError: an alignment smaller than an element, fewer than one set, operands with
            factors, groups, two strides along the batch, or a packed format.
    """
    if sets < 1:
        raise ProblemError(f"sets={sets} is not at least 1")
    if not problem.plain:
        raise ProblemError(f"{problem}: operands with scales and grouped problems cannot be drawn")
    if problem.two_strides != "none":
        raise ProblemError(f"{problem}: operands are drawn with one stride along the batch; use "
                           "two_strides=none")
    device = torch.device(device)
    generator = torch.Generator(device).manual_seed(seed)
    a, b = (_Pool(sets, problem.batch, *problem.stored(name), operand.format, operand.align,
                  device, name) for name, operand in (("a", problem.a), ("b", problem.b)))
    epilogue, d, bias, aux = epilogue_of(problem.epilogue), None, None, None

    def result(columns: int) -> _Pool:
        return _Pool(sets, problem.batch, problem.m, columns, problem.c.format, problem.align_c,
                     device, "c")

    out = result(problem.columns)
    drawn = [a, b]
    if epilogue.d_is_matrix:
        d = result(problem.columns)
        drawn.append(d)
    if epilogue.has_vector:
        vector = _Pool(sets, 1, 1, problem.n, problem.c.format, FULL_ALIGNMENT, device, "c")
        drawn.append(vector)
        d, bias = (d, vector) if epilogue.residual else (vector, None)
    if epilogue.aux:
        aux = result(problem.n)
    for pool in drawn:
        pool.format.draw(pool.every, generator)
    return OperandSets(a, b, out, d, bias, aux, problem)

"""The problems of a command: suites, files of shapes or ranges, for each dtype and layout.

Every verb that takes problems has the same arguments:

    square llm_decode                   suites by name (perf/suites) or by path
    --shapes mine.csv                   a file of the same format
    --m 1024:4096:512 --n 4096 --k 64,128   the product of ranges and lists
    --dtype bf16,fp16 --layout nn,nt --epilogue bias+gelu
                                        for columns that the suite does not have

A range is START:STOP:STEP and includes STOP if the steps reach it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from tritongemm.cli.options import add_count
from tritongemm.errors import UsageError
from tritongemm.formats import FORMATS
from tritongemm.problem import (
    ACTIVATIONS,
    ADDENDS,
    DTYPES,
    EPILOGUES,
    FACTORS,
    LAYOUTS,
    MAX_EXTENT,
    PRECISIONS,
    GemmProblem,
    scale_of,
)

if TYPE_CHECKING:
    from tritongemm.records.suites import Shape

#: Limit against typing errors in a range, such as a step of 1.
MAX_PROBLEMS = 100_000


def integers(text: str, name: str = "range") -> tuple[int, ...]:
    """``"64,128"`` or ``"1024:4096:512"``, or both mixed, in the order given, without repeats.

    Raises:
        UsageError: not an integer, an empty or backward range, a step below 1, a negative
            extent, or more than ``MAX_PROBLEMS`` values.
    """
    values: dict[int, None] = {}
    for part in text.split(","):
        for value in _part(part.strip(), text, name):
            values[value] = None
    return tuple(values)


def _part(part: str, text: str, name: str) -> Iterable[int]:
    try:
        numbers = [int(number) for number in part.split(":")]
    except ValueError:
        raise UsageError(f"--{name} {text!r}: {part!r} is not an integer or START:STOP:STEP, "
                         "e.g. 1024:4096:512") from None
    for number in numbers:
        if not 0 <= number <= MAX_EXTENT:
            raise UsageError(f"--{name} {text!r}: {number} is outside 0 to {MAX_EXTENT}")
    if len(numbers) == 1:
        return numbers
    if len(numbers) != 3:
        raise UsageError(f"--{name} {text!r}: {part!r} is not START:STOP:STEP; "
                         "a range needs its step, e.g. 1024:4096:512")
    start, stop, step = numbers
    if step < 1 or stop < start:
        raise UsageError(f"--{name} {text!r}: {part!r} is empty; START must not exceed STOP "
                         "and STEP must be at least 1")
    if (stop - start) // step >= MAX_PROBLEMS:
        raise UsageError(f"--{name} {text!r}: {part!r} is more than {MAX_PROBLEMS} values; "
                         "use a larger step")
    return range(start, stop + 1, step)


def listed(text: str) -> tuple[str, ...]:
    """The names of a comma list, without repeats."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def names(text: str, known: Sequence[str], what: str, useful: Sequence[str] = ()
          ) -> tuple[str, ...]:
    """A comma list of ``known`` names, without repeats. Raises :class:`UsageError`, which offers
    the ``useful`` ones (default: all)."""
    chosen = listed(text)
    for name in chosen:
        if name not in known:
            raise UsageError(f"{what} {name!r} is not known; use one of "
                             f"{', '.join(useful or known)}")
    return chosen


def add_shape_arguments(parser: argparse.ArgumentParser, *, dtype: str | None = "bf16",
                        dtype_default: str = "bf16", layout: str = "nn") -> None:
    """Adds the arguments that :func:`problems_from` reads. The command chooses the precision where
    none is given, as calls do.

    ``dtype`` is the default; None if the command chooses it too. ``dtype_default`` is its text in
    the help.
    """
    group = parser.add_argument_group("problems")
    group.add_argument("suites", nargs="*", metavar="SUITE",
                       help="a suite by name (perf/suites) or a CSV by path")
    group.add_argument("--shapes", action="append", default=[], metavar="FILE.csv",
                       help="a CSV with columns m,n,k (optional: batch, layout, dtype, "
                            "precision, epilogue, count, note, suite); may be repeated")
    for axis in ("m", "n", "k"):
        group.add_argument(f"--{axis}", metavar="LIST", help="e.g. 4096 or 64,128 or "
                           "1024:4096:512 (with --m, --n, --k: their product)")
    group.add_argument("--batch", metavar="LIST", help="batch sizes for --m --n --k (default 1)")
    group.add_argument("--dtype", default=dtype, metavar="LIST",
                       help=f"of {', '.join(_taken_dtypes())}, where the suite has none "
                            f"(default {dtype_default})")
    group.add_argument("--layout", default=layout, metavar="LIST",
                       help=f"of {', '.join(LAYOUTS)}, where the suite has none; nt is what "
                            "nn.Linear does (default %(default)s)")
    group.add_argument("--epilogue", default="none", metavar="LIST",
                       help="what is fused after the product: one of "
                            f"{', '.join(ADDENDS[1:])} and one of {', '.join(ACTIVATIONS[1:])}, "
                            "either alone or joined by + (bias+gelu); an activation gated "
                            "(gated_silu), or followed by +residual or +aux; or a factor, one of "
                            f"{', '.join(FACTORS)}; where the suite has none (default %(default)s)")
    group.add_argument("--precision", choices=PRECISIONS,
                       help="precision of fp32 products, where the suite has none (default "
                            f"{PRECISION_OF_CALLS})")
    add_operand_arguments(group)
    add_count(group, "--max-extent", help="leave out shapes with m, n or k above N")
    add_count(group, "--spread", help="take N shapes only, evenly spread over all that were named")


#: Default of a ``--precision`` that follows calls.
PRECISION_OF_CALLS = "that of calls: fp16x3, or ieee under TRITONGEMM_FP32=ieee"


def add_operand_arguments(group: argparse._ActionsContainer) -> None:
    """Adds what :func:`operand_words` reads: how B, the result and scales differ from A."""
    group.add_argument("--dtype-b", choices=tuple(DTYPES), help="dtype of B (default: A's)")
    group.add_argument("--dtype-out", choices=tuple(DTYPES),
                       help="dtype of the result (default: A's)")
    for name in ("a", "b"):
        group.add_argument(f"--scale-{name}", default="none", metavar="WORD",
                           help=f"factors of {name.upper()}: tensor, row or a block such as 1x128, "
                                "for kernels of plugins (TRITONGEMM_PLUGINS); this package's take "
                                "none (default %(default)s)")


def operand_words(args: argparse.Namespace) -> dict[str, str]:
    """The arguments of :func:`add_operand_arguments` as keywords of :meth:`GemmProblem.contiguous`,
    without those at their default."""
    found = {name: getattr(args, name) for name in ("dtype_b", "dtype_out", "scale_a", "scale_b")}
    return {name: word for name, word in found.items() if word not in (None, "none")}


def shapes_from(args: argparse.Namespace) -> list[Shape]:
    """The shapes that ``args`` names, in order; those of ranges have the suite ``range``.

    Raises:
        UsageError: nothing named, an unknown suite, an incomplete or malformed range.
        DataFileError: a suite that cannot be used.
    """
    from tritongemm.records.suites import Shape, read_suite, suite_path

    shapes: list[Shape] = []
    for name in [*args.suites, *args.shapes]:
        path = suite_path(name)
        shapes.extend(s if s.suite else replace(s, suite=path.stem) for s in read_suite(path))
    ranges = {axis: getattr(args, axis) for axis in ("m", "n", "k")}
    if any(ranges.values()) or args.batch:
        absent = [f"--{axis}" for axis, text in ranges.items() if not text]
        if absent:
            raise UsageError(f"--m, --n and --k go together; {', '.join(absent)} is missing")
        axes = [integers(args.batch or "1", "batch")]
        axes += [integers(text, axis) for axis, text in ranges.items()]
        total = 1
        for axis in axes:
            total *= len(axis)
        _bound(total)
        shapes.extend(Shape(m=m, n=n, k=k, batch=batch, suite="range")
                      for batch, m, n, k in product(*axes))
    elif not shapes and not (args.suites or args.shapes):
        from tritongemm.records.suites import known_suites

        raise UsageError("no problems named; give a suite "
                         f"({', '.join(known_suites())}), --shapes FILE.csv, or --m --n --k")
    return shapes


def problems_of(shapes: Sequence[Shape], args: argparse.Namespace, limit: str = "",
                mixed: bool = False) -> list[tuple[Shape, GemmProblem]]:
    """``shapes`` x dtypes x layouts x epilogues of ``args``, thinned by ``--max-extent`` and
    ``--spread``. ``limit``: where the command's own ``--max-extent`` comes from, if it set one.
    ``mixed``: products that only calls with ``mixed=True`` multiply are taken too.

    A value that the shape sets itself is kept. Duplicates within a suite are left out.
    """
    taken = _taken_dtypes()
    dtypes = names(args.dtype, tuple(DTYPES), "dtype", [name for name in DTYPES if name in taken])
    _check_taken(args, dtypes, taken, mixed)
    layouts = names(args.layout, LAYOUTS, "layout")
    epilogues = names(args.epilogue, tuple(EPILOGUES), "epilogue")
    if args.max_extent is not None:
        shapes = _up_to(args.max_extent, shapes, limit)
    if args.spread is not None:
        shapes = _spread(shapes, args.spread)
    _bound(len(shapes) * len(dtypes) * len(layouts) * len(epilogues))
    found: dict[tuple[str, GemmProblem], Shape] = {}
    for dtype, layout, epilogue in product(dtypes, layouts, epilogues):
        for shape in shapes:
            problem = shape.problem(dtype=dtype, layout=layout, epilogue=epilogue,
                                    precision=args.precision or "ieee", **operand_words(args))
            found.setdefault((shape.suite, problem), shape)
    return [(shape, problem) for (_, problem), shape in found.items()]


def _taken_dtypes() -> tuple[str, ...]:
    """The dtypes of operands that registered kernels take, those of A and B joined by ``x`` where
    they differ. A complex product runs as one of its parts."""
    from tritongemm.kernels import SPECS

    taken = dict.fromkeys(word for spec in SPECS.values() for word in spec.takes.formats)
    return *taken, *(name for name, one in FORMATS.items() if one.real in taken)


def is_mixed(dtype: str, words: Mapping[str, str]) -> bool:
    """Whether ``mixed=True`` multiplies operands of :func:`operand_words`, with an A of ``dtype``:
    of 16 bits, where B and the result are float32."""
    return (dtype in ("bf16", "fp16") and words.get("dtype_b") == "fp32"
            and words.get("dtype_out", "fp32") == "fp32")


def _check_taken(args: argparse.Namespace, dtypes: Sequence[str], taken: Sequence[str],
                 mixed: bool) -> None:
    """Raises :class:`UsageError` for dtypes and scales of ``args`` that no registered kernel takes
    (``taken``: :func:`_taken_dtypes`): every call of them goes to torch, and there is nothing to
    compile or to measure."""
    from tritongemm.kernels import SPECS

    for dtype in dtypes:
        of_mixed = is_mixed(dtype, operand_words(args))
        if args.dtype_b not in (None, dtype):
            if f"{dtype}x{args.dtype_b}" not in taken and not (of_mixed and mixed):
                but = " but with mixed=True, which only bench measures" if of_mixed else ""
                raise UsageError(f"--dtype {dtype} --dtype-b {args.dtype_b}: no kernel takes such "
                                 f"operands{but}; use one dtype for both, of {', '.join(taken)}")
        elif dtype not in taken:
            raise UsageError(f"--dtype {dtype}: no kernel takes it, and calls go to torch; use "
                             f"{', '.join(taken)}")
    scales = dict.fromkeys(word for spec in SPECS.values() for word in spec.takes.scales)
    for option, word in (("--scale-a", args.scale_a), ("--scale-b", args.scale_b)):
        scale = scale_of(word)
        if scale is not None and scale.granularity not in scales:
            raise UsageError(f"{option} {word}: kernels take {', '.join(scales) or 'no'} scales; "
                             "TRITONGEMM_PLUGINS names modules that register other kernels")


def problems_from(args: argparse.Namespace) -> list[tuple[Shape, GemmProblem]]:
    """The problems that the arguments of :func:`add_shape_arguments` name, each with its shape.

    Raises:
        UsageError, DataFileError: see :func:`shapes_from`; an unknown dtype, layout or epilogue.
    """
    return problems_of(shapes_from(args), args)


def _up_to(extent: int, shapes: Sequence[Shape], limit: str) -> list[Shape]:
    """Raises :class:`UsageError` where no shape is left."""
    largest = [max(s.m, s.n, s.k) for s in shapes]
    kept = [shape for shape, size in zip(shapes, largest, strict=True) if size <= extent]
    if not kept:
        raise UsageError(f"no shape is left: --max-extent is {extent}"
                         f"{f' ({limit})' if limit else ''}, and each of the {len(shapes)} shapes "
                         f"has an extent of {min(largest)} or more. Give --max-extent "
                         f"{min(largest)} or more, or name smaller shapes")
    return kept


def _spread(shapes: Sequence[Shape], count: int) -> list[Shape]:
    if count >= len(shapes):
        return list(shapes)
    # The middle of each of `count` equal parts: no suite's first or last row is favoured.
    return [shapes[int((i + 0.5) * len(shapes) / count)] for i in range(count)]


def _bound(total: int) -> None:
    if total > MAX_PROBLEMS:
        raise UsageError(f"{total} problems were named; at most {MAX_PROBLEMS} are taken at once. "
                         "Use larger steps, or --spread N")

"""Drawings of the ladder, made from the rungs' own parameters: who loads what, who computes what.

A CUDA rung: its tiles of A, B and C, each element the colour of the warp that moves or computes
it. A Triton rung: tiles of C in the order in which programs take them. Plain SVG, no dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tritongemm.baselines.cuda.rungs import CUDA_RUNGS, CudaRung
from tritongemm.config import KernelConfig
from tritongemm.ladder import catalog
from tritongemm.records.atomic import write_atomic

Owner = Callable[[int, int], int]

#: Warp 0 is dark, the others take turns, so that edges between warps show.
_FIRST, _OTHERS = "#0072B2", ("#cfe3f1", "#f3d9c4")
_THREADS = ("#111111", "#D55E00")
_FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"
_SIDE = 320  # of the longer side of C's tile, in pixels


def owner_of(rung: CudaRung, c: KernelConfig) -> Owner:
    """(row, column) of the block's tile of C -> the thread that computes it."""
    bm, bn, tm, tn = c.block_m, c.block_n, max(c.thread_m, 1), max(c.thread_n, 1)
    tx, ty = bn // tn, bm // tm
    half, rows = max(bm // 2, 1), max(bm // 8, 1)
    maps: dict[str, Owner] = {
        "naive": lambda y, x: x * bm + y,
        "thread_tile_1d": lambda y, x: y // tm * bn + x,
        "strided_2x2": lambda y, x: y % half * half + x % half,
        "padded": lambda y, x: y % half * half + x % half,
        "column_8": lambda y, x: y % rows * bn + x,
        "float4": lambda y, x: y * (bn // 4) + x // 4,
        "outer_product_float4": lambda y, x: y % ty * tx + x // tn,
        **dict.fromkeys(("outer_product", "thread_tile_2d", "ldg_vectorized"),
                        lambda y, x: y % ty * tx + x % tx),
        **dict.fromkeys(("transposed_a", "double_buffered_smem", "double_buffered"),
                        lambda y, x: y % (4 * ty) // 4 * tx + x % (4 * tx) // 4),
    }
    if rung.warps:
        return _warp_tile(c)
    return maps.get(rung.name, lambda y, x: y * bn + x)


def _warp_tile(c: KernelConfig) -> Owner:
    lanes_m, lanes_n = c.warp_m // c.thread_m, c.warp_n // c.thread_n
    lane_at = {}
    for lane in range(32):
        if lanes_m == 8:
            lane_at[lane // 2 % 8, lane % 2 + lane // 16 * 2] = lane
        else:
            lane_at[lane // 2 % 2 + lane // 16 * 2, lane % 2 + lane // 4 % 4 * 2] = lane

    def owner(y: int, x: int) -> int:
        warp = y // c.warp_m * (c.block_n // c.warp_n) + x // c.warp_n
        return 32 * warp + lane_at[y % c.warp_m % (4 * lanes_m) // 4,
                                   x % c.warp_n % (4 * lanes_n) // 4]
    return owner


def loaders_of(rung: CudaRung, c: KernelConfig) -> tuple[Owner, Owner] | None:
    """The threads that load each element of the tiles of A [BM, BK] and B [BK, BN] into shared
    memory. None for the rungs that use none. A strip is drawn as far as the tile is wide."""
    bm, bn, bk, threads = c.block_m, c.block_n, c.block_k, rung.threads(c)
    name = rung.name
    if name in ("naive", "coalesced"):
        return None
    if name == "smem_strip":
        return (lambda y, x: y * bn + x % bn), (lambda y, x: y % bm * bn + x)
    if name in ("strided_2x2", "padded"):
        half = bm // 2
        return ((lambda y, x: y % half * half + x % half),) * 2
    if name == "column_8":
        rows = bm // 8
        return ((lambda y, x: y % rows * bm + x),) * 2
    if name == "warp_tiled_async":
        rows_a, rows_b = threads // 8, threads * 4 // bn
        return ((lambda y, x: y % rows_a * 8 + x % 8),
                (lambda y, x: y % rows_b * (bn // 4) + x // 4))
    vector = 4 if rung.vector or name == "ldg_vectorized" else 1
    return ((lambda y, x: (y * bk + x) // vector % threads),
            (lambda y, x: (y * bn + x) // vector % threads))


@dataclass(frozen=True)
class _Panel:
    """A tile to draw: its place in pixels, size in elements, pixels an element, and owners."""

    left: float
    top: float
    rows: int
    columns: int
    scale: float
    owner: Owner
    label: str

    def svg(self) -> Iterator[str]:
        for y, x, height, width, warp in rectangles(self.rows, self.columns,
                                                    lambda i, j: self.owner(i, j) // 32):
            colour = _FIRST if warp == 0 else _OTHERS[warp % 2]
            yield self._rect(y, x, height, width, colour)
        for thread, colour in enumerate(_THREADS):
            for y, x, height, width, hit in rectangles(
                    self.rows, self.columns, lambda i, j, t=thread: int(self.owner(i, j) == t)):
                if hit:
                    yield self._rect(y, x, height, width, colour)
        yield (f"<rect x='{self.left:g}' y='{self.top:g}' width='{self.columns * self.scale:g}' "
               f"height='{self.rows * self.scale:g}' fill='none' stroke='#555' "
               "stroke-width='1'/>")
        yield _text(self.left, self.top - 6, self.label)

    def _rect(self, y: int, x: int, height: int, width: int, colour: str) -> str:
        s = self.scale
        return (f"<rect x='{self.left + x * s:g}' y='{self.top + y * s:g}' width='{width * s:g}' "
                f"height='{height * s:g}' fill='{colour}'/>")


def rectangles(rows: int, columns: int, value: Owner
               ) -> Iterator[tuple[int, int, int, int, int]]:
    """A field of values as few rectangles: (row, column, height, width, value)."""
    open_runs: dict[tuple[int, int, int], int] = {}  # (column, width, value) -> first row
    for y in range(rows + 1):
        runs = set(_runs(columns, lambda x, row=y: value(row, x))) if y < rows else set()
        for run in sorted(r for r in open_runs if r not in runs):
            first = open_runs.pop(run)
            yield first, run[0], y - first, run[1], run[2]
        for run in sorted(runs):
            open_runs.setdefault(run, y)


def _runs(columns: int, value: Callable[[int], int]) -> Iterator[tuple[int, int, int]]:
    start, current = 0, value(0)
    for x in range(1, columns + 1):
        here = value(x) if x < columns else None
        if here != current:
            yield start, x - start, current
            start, current = x, here  # type: ignore[assignment]


def cuda_svg(rung: CudaRung, config: KernelConfig | None = None) -> str:
    """The tiles of one block of a CUDA rung."""
    c = config or rung.variants[0]
    scale = _SIDE / max(c.block_m, c.block_n)
    loaders = loaders_of(rung, c)
    depth = max(c.block_k, 16) if rung.name == "smem_strip" else c.block_k
    left = 20 + (depth * scale + 40 if loaders else 0)
    top = 66 + (depth * scale + 34 if loaders else 0)
    panels = [_Panel(left, top, c.block_m, c.block_n, scale, owner_of(rung, c),
                     f"C: {c.block_m} x {c.block_n} results")]
    if loaders:
        panels += [_Panel(20, top, c.block_m, depth, scale, loaders[0], f"A: {depth} of K"),
                   _Panel(left, 66, depth, c.block_n, scale, loaders[1], f"B: {depth} of K")]
    macros = " ".join(f"{k}={v}" for k, v in rung.macros(c).items() if k != "ALIGNED")
    words = f"{macros}   {rung.threads(c)} threads, {rung.threads(c) // 32} warps"
    width = max(left + c.block_n * scale + 20, 470, 40 + 7 * len(words))
    height = top + c.block_m * scale + 66
    body = [_text(20, 24, rung.name, 15, bold=True), _text(20, 42, words)]
    for panel in panels:
        body.extend(panel.svg())
    body.extend(_legend(20, height - 40))
    return _document(width, height, body)


def _legend(left: float, top: float) -> Iterator[str]:
    entries = ((_THREADS[0], "thread 0"), (_THREADS[1], "thread 1"), (_FIRST, "warp 0"),
               (_OTHERS[0], ""), (_OTHERS[1], "other warps, in turn"))
    for colour, label in entries:
        yield (f"<rect x='{left}' y='{top}' width='12' height='12' fill='{colour}' "
               "stroke='#777' stroke-width='0.5'/>")
        if label:
            yield _text(left + 17, top + 10, label)
        left += 26 + 7 * len(label) if label else 16


# -- Triton rungs: the order of tiles --------------------------------------------------------------

#: The picture's problem: tiles along M and N, steps along K, programs that run at once.
_GRID, _STEPS, _PROGRAMS, _GROUP = (8, 8), 4, 12, 4


def shares_of(name: str) -> list[tuple[int, int, int, int]]:
    """(program, tile row, tile column, step) of every step of every tile of the picture's grid,
    in the order of the programs."""
    rows, columns = _GRID
    group = 1 if name in ("triton_naive", "triton_tiled") else _GROUP
    found = []
    tiles = rows * columns
    total = tiles * _STEPS
    share = -(-total // _PROGRAMS)
    for tile in range(tiles):
        width = group * columns
        first = tile // width * group
        size = min(rows - first, group)
        y, x = first + tile % width % size, tile % width // size
        for step in range(_STEPS):
            program = tile
            if name == "triton_split_k":
                program = tile * 2 + step // (_STEPS // 2)
            elif name == "triton_stream_k":
                program = (tile * _STEPS + step) // share
            elif name in ("triton_persistent", "triton_tma", "gluon_warp_specialized"):
                program = tile % _PROGRAMS
            found.append((program, y, x, step))
    return found


def triton_svg(name: str) -> str:
    """The tiles of C, each cut into its steps along K, in the colour of its program."""
    side, (rows, columns) = 40, _GRID
    body = [_text(20, 24, name, 15, bold=True),
            _text(20, 42, f"{rows} x {columns} tiles of C, {_STEPS} steps of K each, "
                          f"{_PROGRAMS} programs at a time")]
    top = 56
    numbers = []  # drawn last, so that no later tile covers them
    for program, y, x, step in shares_of(name):
        width = side / _STEPS
        wave = program // _PROGRAMS
        colour = f"hsl({program % _PROGRAMS * 360 // _PROGRAMS},55%,{(72, 84)[wave % 2]}%)"
        body.append(f"<rect x='{20 + x * side + step * width:g}' y='{top + y * side}' "
                    f"width='{width:g}' height='{side}' fill='{colour}'/>")
        if step in (0, _STEPS // 2) and (step == 0 or name == "triton_split_k"):
            numbers.append(_text(22 + x * side + step * width, top + y * side + 14,
                                 str(program), 9))
    body.extend(numbers)
    for i in range(rows + 1):
        body.append(_line(20, top + i * side, 20 + columns * side, top + i * side))
        body.append(_line(20 + i * side, top, 20 + i * side, top + rows * side))
    body.append(_text(20, top + rows * side + 20, "number: the program; one colour: one program; "
                                                  "paler: a later wave"))
    return _document(470, top + rows * side + 34, body)


# -- SVG ------------------------------------------------------------------------------------------

def _text(x: float, y: float, text: str, size: int = 11, bold: bool = False) -> str:
    weight = " font-weight='bold'" if bold else ""
    return (f"<text x='{x:g}' y='{y:g}' font-size='{size}' {_FONT}{weight} fill='#222'>"
            f"{escape(text)}</text>")


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='#555' "
            "stroke-width='0.8'/>")


def _document(width: float, height: float, body: list[str]) -> str:
    return (f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' "
            f"viewBox='0 0 {width:g} {height:g}' shape-rendering='crispEdges'>\n"
            f"<rect width='{width:g}' height='{height:g}' fill='white'/>\n"
            + "\n".join(body) + "\n</svg>\n")


def svg_of(name: str) -> str:
    """A rung's drawing; empty for a host rung."""
    one = catalog.rung(name)
    if one.kind == catalog.HOST:
        return ""
    return cuda_svg(CUDA_RUNGS[name]) if one.kind == catalog.CUDA else triton_svg(name)


def write_drawings(folder: Path) -> list[Path]:
    """One ``<rung>.svg`` each. Raises :class:`DataFileError` where it cannot be written."""
    written = []
    for one in catalog.RUNGS:
        text = svg_of(one.name)
        if text:
            path = folder / f"{one.name}.svg"
            write_atomic(path, text)
            written.append(path)
    return written


# -- the arithmetic behind the pictures ---------------------------------------------------------

REUSE_HEADS = ("rung", "threads", "results a thread", "global floats a product",
               "shared floats a product", "shared memory")


def reuse_rows() -> list[list[str]]:
    """What each CUDA rung reads for a product, by its parameters alone.

    A block fetches BM + BN floats for BM BN products of one k; a thread reads TM + TN for TM TN.
    """
    lines = []
    for rung in CUDA_RUNGS.values():
        c = rung.variants[0]
        results = c.block_m * c.block_n // rung.threads(c)
        rows, columns = _results(rung, c)
        tiles = loaders_of(rung, c) is not None
        in_global = 1 / c.block_m + 1 / c.block_n if tiles else 2.0
        in_shared = f"{1 / rows + 1 / columns:.3g}" if tiles else "none"
        size = rung.shared(c) + (0 if rung.name == "smem_strip" else rung.dynamic(c, 1))
        memory = "4 (BM + BN) K" if rung.name == "smem_strip" else f"{size:,} B"
        lines.append([rung.name, str(rung.threads(c)), f"{rows} x {columns} = {results}",
                      f"{in_global:.3g}", in_shared, memory])
    return lines


def _results(rung: CudaRung, c: KernelConfig) -> tuple[int, int]:
    """Rows and columns of the results of one thread."""
    owner = owner_of(rung, c)
    mine = [(y, x) for y in range(c.block_m) for x in range(c.block_n) if owner(y, x) == 0]
    return len({y for y, _ in mine}), len({x for _, x in mine})

"""The drawings of the concept pages and of the kernel guide, one function each.

    python docs/_tools/drawings.py      # writes docs/images/NAME.svg, the ladder's charts too
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))

import ladder_page
from svg import BLUE, GREEN, GREY, INK, ORANGE, PALE, arrow, box, document, line, rect, text

_PEACH, _MINT = "#f9e4d6", "#dff2ea"


def problem() -> str:
    """Extents, layout and alignment of one product."""
    parts = [rect(40, 110, 120, 150, fill=PALE, stroke=BLUE), text(100, 190, "A", size=22,
                                                                    anchor="middle"),
             rect(190, 30, 210, 60, fill=_PEACH, stroke=ORANGE), text(295, 67, "B", size=22,
                                                                      anchor="middle"),
             rect(190, 110, 210, 150, fill=_MINT, stroke=GREEN), text(295, 190, "C", size=22,
                                                                      anchor="middle"),
             text(30, 190, "M", anchor="end"), text(100, 280, "K", anchor="middle"),
             text(295, 280, "N", anchor="middle"), text(180, 65, "K", anchor="end")]
    for i, words in enumerate((
            "m, n, k, batch: the extents", "dtype of A, B and C", "layout nt: A row-major [M, K],",
            "  B stored as [N, K] and passed as .t()", "alignment of A, B, C in bytes:",
            "  address and row length modulo 16", "epilogue: scale, bias, add, activation",
            "precision of float32: ieee or tf32")):
        parts.append(text(430, 50 + 26 * i, words))
    return document(720, 300, parts, title="A problem: C[M, N] = A[M, K] B[K, N]")


def config() -> str:
    """A tile of C, its steps along K, and the values that are derived from them."""
    parts = []
    for row in range(3):
        for col in range(4):
            chosen = (row, col) == (1, 1)
            parts.append(rect(170 + 60 * col, 100 + 50 * row, 60, 50,
                              fill=GREEN if chosen else _MINT, stroke="#ffffff"))
    for i in range(4):
        parts += [rect(30 + 30 * i, 150, 30, 50, fill=BLUE if i == 1 else PALE, stroke="#ffffff"),
                  rect(230, 20 + 17 * i, 60, 17, fill=ORANGE if i == 1 else _PEACH,
                       stroke="#ffffff")]
    parts += [text(90, 218, "steps of block_k", anchor="middle", size=12),
              text(260, 268, "block_n", anchor="middle", size=12),
              text(420, 180, "block_m", size=12),
              text(500, 60, "Chosen by selection", bold=True),
              text(500, 82, "tile, warps, stages, split_k, clusters"),
              text(500, 130, "Derived from the config", bold=True),
              text(500, 152, "shared memory, swizzle, registers,"),
              text(500, 174, "boxes of the copy engine, grid")]
    return document(780, 290, parts, title="A config: the tile of C and the steps along K")


def space() -> str:
    """Axes, the constraints, and what is left to measure."""
    parts = []
    steps = (("Space", "configs/spaces/KERNEL.json", "product of the axes", PALE, BLUE),
             ("Constraints", "kernels/constraints.py", "shared memory, registers, ...", PALE, BLUE),
             ("Candidates", "legal for this problem", "some thousands", _MINT, GREEN),
             ("Most promising", "the model's first --top N", "measured quickly", _MINT, GREEN),
             ("Finalists", "measured with torch,", "interleaved; the winner", _PEACH, ORANGE))
    for i, (title, one, two, fill, stroke) in enumerate(steps):
        x, trim = 10 + 190 * i, 8 * i
        parts.append(box(x, 30 + trim, 166, 130 - 2 * trim, (title, one, two), fill=fill,
                         stroke=stroke, size=11))
        if i < len(steps) - 1:
            parts.append(arrow(x + 166, 95, x + 190, 95))
    return document(956, 190, parts, title="From a space to one config")


def selection() -> str:
    """The order in which selection asks its sources."""
    names = (("exact", "tuned row of this problem"), ("twin", "row in the other 16-bit type"),
             ("sibling", "row of a GPU of this architecture"), ("model", "calibrated time model"),
             ("nearest", "tuned row of a near shape"), ("rule", "the kernel's default"))
    parts = [box(20, 20, 150, 44, ("problem",), fill="#ffffff", stroke=INK)]
    for i, (name, meaning) in enumerate(names):
        y = 20 + 56 * i
        parts += [box(220, y, 120, 44, (name,), fill=PALE), text(356, y + 27, meaning),
                  arrow(640, y + 22, 690, y + 22, stroke=GREEN)]
        if i:
            parts += [arrow(280, y - 12, 280, y), text(290, y - 2, "none", size=10, fill=GREY)]
    parts += [arrow(170, 42, 220, 42), rect(690, 20, 110, 324, fill=_MINT, stroke=GREEN),
              text(745, 175, "config and", anchor="middle"), text(745, 195, "its source",
                                                                  anchor="middle")]
    return document(820, 370, parts, title="Selection asks one source after the other")


def plan() -> str:
    """A hit and a miss of the plan cache."""
    parts = [box(20, 80, 130, 50, ("tg.matmul(a, b)",), fill="#ffffff", stroke=INK, size=12),
             arrow(150, 105, 190, 105),
             box(190, 80, 150, 50, ("key of the call", "dtypes, extents, strides"), size=11),
             arrow(340, 105, 390, 105), text(365, 97, "hit", anchor="middle", size=11, fill=GREEN),
             box(390, 80, 150, 50, ("plan", "kernel, grid, arguments"), fill=_MINT, stroke=GREEN,
                 size=11),
             arrow(540, 105, 590, 105),
             box(590, 80, 130, 50, ("launch", "on torch's stream"), fill=_PEACH, stroke=ORANGE,
                 size=11),
             arrow(265, 130, 265, 190), text(273, 165, "miss", size=11, fill=ORANGE),
             box(190, 190, 150, 46, ("selection", "problem -> config"), size=11),
             arrow(340, 213, 390, 213),
             box(390, 190, 150, 46, ("binary", "store, or compile once"), size=11),
             arrow(465, 190, 465, 130)]
    return document(740, 260, parts, title="A plan: what a repeated call needs and nothing else")


def layers() -> str:
    """The three uses of the package and the files between them."""
    parts = []
    rows = (("tg.matmul, tg.override", ("problem", "selection", "plan", "kernel"), PALE, BLUE),
            ("tritongemm sweep, publish", ("space", "compile", "measure", "journal"), _MINT, GREEN),
            ("tritongemm bench, report", ("providers", "measure", "CSV", "report"), _PEACH, ORANGE))
    for r, (name, boxes, fill, stroke) in enumerate(rows):
        y = 20 + 90 * r
        parts.append(text(20, y + 28, name, bold=True))
        for i, word in enumerate(boxes):
            parts.append(box(250 + 140 * i, y, 110, 46, (word,), fill=fill, stroke=stroke))
            if i:
                parts.append(arrow(220 + 140 * i, y + 23, 250 + 140 * i, y + 23))
    parts += [arrow(445, 110, 445, 66, stroke=GREEN),
              text(455, 93, "publish: tuned tables", size=11, fill=GREEN)]
    return document(810, 270, parts, title="Three uses: call, tune, measure")


def pipeline() -> str:
    """The producer warp fills stages; consumers multiply from them."""
    parts = [box(20, 90, 130, 90, ("producer warp", "TMA loads", "runs ahead"), size=12)]
    for i in range(4):
        full = i in (1, 2)
        parts.append(box(210 + 80 * i, 100, 70, 70, (f"stage {i}", "full" if full else "empty"),
                         fill="#a9cfe8" if full else "#ffffff", stroke=BLUE, size=11))
    parts += [arrow(150, 120, 210, 120), arrow(530, 120, 590, 120),
              text(560, 110, "ready", anchor="middle", size=11),
              arrow(590, 150, 530, 150), text(560, 167, "empty", anchor="middle", size=11),
              text(180, 110, "load", anchor="middle", size=11),
              box(590, 60, 150, 60, ("consumer group 0", "wgmma, rows 0 to 63"), fill=_MINT,
                  stroke=GREEN, size=11),
              box(590, 150, 150, 60, ("consumer group 1", "wgmma, rows 64 to 127"), fill=_MINT,
                  stroke=GREEN, size=11),
              text(370, 60, "shared memory: a ring of stages, each a tile of A and a tile of B",
                   anchor="middle", size=12), arrow(740, 90, 790, 90), arrow(740, 180, 790, 180),
              text(795, 140, "store", size=12)]
    return document(850, 240, parts, title="The pipeline of the warp-specialised kernel")


def pingpong() -> str:
    """Two schedules: both groups on one tile, and ping-pong."""
    parts = [text(20, 30, "Cooperative: both groups share a tile and store together", bold=True),
             text(20, 150, "Ping-pong: each group has a tile of its own", bold=True)]

    def lane(y: float, label: str, spans: tuple[tuple[float, float, str, str], ...]) -> None:
        parts.append(text(20, y + 18, label, size=12))
        for start, width, word, fill in spans:
            parts.append(box(120 + start, y, width, 26, (word,), fill=fill,
                             stroke=GREEN if fill == _MINT else ORANGE if fill == _PEACH else GREY,
                             size=11))

    for group in (0, 1):
        lane(42 + 32 * group, f"group {group}", (
            (0, 150, "multiply", _MINT), (150, 70, "store", _PEACH), (220, 150, "multiply", _MINT),
            (370, 70, "store", _PEACH)))
    lane(162, "group 0", ((0, 110, "multiply", _MINT), (110, 70, "store", _PEACH),
                          (220, 110, "multiply", _MINT), (330, 70, "store", _PEACH)))
    lane(194, "group 1", ((0, 110, "waits", "#f2f2f2"), (110, 110, "multiply", _MINT),
                          (220, 70, "store", _PEACH), (330, 110, "multiply", _MINT)))
    parts += [arrow(120, 240, 570, 240), text(575, 244, "time", size=12),
              text(120, 262, "The tensor cores are idle while both groups store; with ping-pong "
                             "one of them multiplies.", size=12)]
    return document(740, 280, parts, title="Cooperative and ping-pong schedules")


def cluster() -> str:
    """A cluster of two programs that shares B, and one that shares K."""
    parts = [text(20, 30, "cluster_m = 2: one load of B serves two tiles", bold=True),
             text(400, 30, "cluster_k = 2: one tile, half of K each", bold=True),
             box(150, 50, 120, 36, ("tile of B",), fill=_PEACH, stroke=ORANGE, size=12),
             box(30, 110, 90, 50, ("A 0",), size=12), box(30, 175, 90, 50, ("A 1",), size=12),
             box(150, 110, 120, 50, ("C 0", "program 0"), fill=_MINT, stroke=GREEN, size=11),
             box(150, 175, 120, 50, ("C 1", "program 1"), fill=_MINT, stroke=GREEN, size=11),
             arrow(210, 86, 210, 110), line(285, 68, 285, 200, dashed=True),
             line(270, 68, 285, 68, dashed=True), arrow(285, 200, 270, 200),
             text(291, 140, "multicast", size=11), arrow(120, 135, 150, 135),
             arrow(120, 200, 150, 200),
             box(410, 60, 150, 56, ("program 0", "K = 0 to K/2"), size=11),
             box(590, 60, 150, 56, ("program 1", "K = K/2 to K"), size=11),
             arrow(590, 88, 560, 88), text(575, 80, "", size=11), arrow(485, 116, 485, 165),
             text(495, 145, "partial sums through distributed shared memory", size=11),
             box(410, 165, 150, 56, ("C", "sum, epilogue, store"), fill=_MINT, stroke=GREEN,
                 size=11)]
    return document(800, 245, parts, title="Clusters that share operands or K")


def order() -> str:
    """Row-major and grouped order of tiles for the first twelve programs."""
    parts = []
    for left, title, group in ((0, "group_m = 1", 1), (370, "group_m = 4", 4)):
        parts.append(text(left + 30, 24, title, bold=True))
        numbers = {}
        for tile in range(32):
            width = group * 8
            first = tile // width * group
            size = min(4 - first, group)
            numbers[first + tile % width % size, tile % width // size] = tile
        for row in range(4):
            for col in range(8):
                tile = numbers[row, col]
                early = tile < 12
                parts += [rect(left + 30 + 30 * col, 60 + 30 * row, 28, 28,
                               fill=BLUE if early else PALE),
                          text(left + 44 + 30 * col, 79 + 30 * row, str(tile), size=11,
                               anchor="middle", fill="#ffffff" if early else INK)]
        rows = len({r for (r, c), n in numbers.items() if n < 12})
        cols = len({c for (r, c), n in numbers.items() if n < 12})
        parts.append(text(left + 30, 48, f"12 programs read {rows} rows of A and {cols} columns "
                                         f"of B: {rows + cols} strips", size=11))
    return document(720, 195, parts, title="Grouped order of tiles")


_ALL: tuple[Callable[[], str], ...] = (problem, config, space, selection, plan, layers, pipeline,
                                       pingpong, cluster, order)


FOLDER = Path(__file__).resolve().parent.parent / "images"


def drawings() -> dict[str, str]:
    """Name -> SVG of every drawing in :data:`FOLDER`, but for the README's chart
    (``headline.py``)."""
    return {**{draw.__name__: draw() for draw in _ALL}, **ladder_page.charts()}


if __name__ == "__main__":
    for name, drawing in drawings().items():
        (FOLDER / f"{name}.svg").write_text(drawing, encoding="utf-8")

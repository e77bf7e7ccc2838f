"""The ladder's page, perf/LADDER.md with each rung's inner loop; its bar charts.

The inner loop of a CUDA rung is the lines of its source between two comments, ``inner loop:
begin`` and ``inner loop: end``. Of a Triton or host rung it is the innermost loop of a function.
Nothing is copied by hand.
"""

from __future__ import annotations

import ast
import csv
import re
import textwrap
from pathlib import Path

import svg

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = ROOT / "perf" / "results" / "nvidia-h200" / "ladder" / "ladder.csv"
SIZE = 4096
_BEGIN, _END = "inner loop: begin", "inner loop: end"
_CUDA, _HOST = ROOT / "tritongemm/baselines/cuda", ROOT / "tritongemm/baselines/host"
_DEVICE = ROOT / "tritongemm/kernels/device"
#: Triton rung -> where its loop is, FILE:FUNCTION; the first that exists.
_TRITON = {
    "triton_naive": ("ladder_naive.py:naive",),
    "triton_tiled": ("dot.py:dot_over_k", "tiled.py:tiled"),
    "triton_grouped": ("order.py:tile_of",),
    "triton_split_k": ("reduce.py:reduce_splits",),
    "triton_stream_k": ("ladder_stream_k.py:stream_k",),
    "triton_persistent": ("ladder_persistent.py:persistent",),
    "triton_tma": ("persistent_tma.py:persistent_tma",),
    "gluon_warp_specialized": ("consumer_gluon.py:consumer", "warp_specialized.py:consumer"),
}
#: Rungs that run the loop of ``triton_tiled`` with other launch parameters.
_SHARED = ("triton_vectorized", "triton_pipelined", "triton_warp_tiled")
_HOST_HEADING = "## First, a CPU: the order of three loops"
_HEADING = re.compile(r"^### (?:\d+ )?`(\w+)`$", re.MULTILINE)


def source_of(rung: str) -> tuple[Path, str]:
    """The file of a rung's inner loop, and the function in it ("" for a CUDA rung).

    Raises:
        KeyError: an unknown rung. LookupError: none of the places named for it exists.
    """
    if (cuda := _CUDA / f"{rung}.cu").exists():
        return cuda, ""
    if (host := _HOST / f"{rung}.py").exists():
        return host, "gemm"
    for place in _TRITON[rung]:
        name, function = place.split(":")
        path = _DEVICE / name
        if path.exists() and f"def {function}(" in path.read_text(encoding="utf-8"):
            return path, function
    raise LookupError(f"rung {rung}: none of {', '.join(_TRITON[rung])} exists")


def inner_loop(rung: str) -> str:
    """The lines of the rung's inner loop, without common indentation.

    Raises:
        ValueError: a CUDA source without one such pair of comments.
    """
    path, function = source_of(rung)
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if function:
        first, last = _lines_of(text, function)
        return textwrap.dedent("\n".join(lines[first - 1:last]))
    begins = [i for i, line in enumerate(lines) if _BEGIN in line]
    ends = [i for i, line in enumerate(lines) if _END in line]
    if len(begins) != 1 or len(ends) != 1 or ends[0] < begins[0]:
        raise ValueError(f"{path} must hold one comment '{_BEGIN}' and one '{_END}' after it")
    return textwrap.dedent("\n".join(lines[begins[0] + 1:ends[0]])).strip("\n")


def _lines_of(text: str, name: str) -> tuple[int, int]:
    """First and last line of the function's innermost loop that does most, else of the function."""
    function = next(node for node in ast.walk(ast.parse(text))
                    if isinstance(node, ast.FunctionDef) and node.name == name)
    loops = [node for node in ast.walk(function) if isinstance(node, (ast.For, ast.While))]
    inner = [loop for loop in loops if not any(isinstance(node, (ast.For, ast.While))
                                               for node in ast.walk(loop) if node is not loop)]
    if not inner:
        return function.lineno, function.end_lineno or function.lineno
    # A triple loop of a host rung is shown whole: its order is the lesson.
    nest = max(loops if name == "gemm" else inner,
               key=lambda loop: (loop.end_lineno or 0) - loop.lineno)
    return nest.lineno, nest.end_lineno or nest.lineno


def rungs_of(text: str) -> list[str]:
    """The rungs that have a section, in order."""
    return _HEADING.findall(text)


def page(text: str) -> str:
    """``text`` (perf/LADDER.md) with the inner loops after the headings of their rungs."""
    def section(match: re.Match[str]) -> str:
        if match[1] in _SHARED:
            return (f"{match[0]}\n\nThe loop is that of [`triton_tiled`](#triton_tiled); "
                    "[ladder.py](../tritongemm/kernels/ladder.py) holds the launch.")
        return f"{match[0]}\n\n{_shown('Inner loop', match[1])}"

    hosts = "\n".join(_shown(f"`{path.stem}`", path.stem)
                      for path in sorted(_HOST.glob("cpu_*.py")))
    text = text.replace(_HOST_HEADING, f"{_HOST_HEADING}\n\n{hosts}", 1)
    return _HEADING.sub(section, text)


def _shown(title: str, rung: str) -> str:
    """A block, closed at first, with the rung's loop and a link to its file."""
    path, _ = source_of(rung)
    language = "cuda" if path.suffix == ".cu" else "python"
    where = path.relative_to(ROOT).as_posix()
    body = f"```{language}\n{inner_loop(rung)}\n```\n\nFrom [{where}](../{where})."
    return f'??? example "{title}"\n\n{textwrap.indent(body, "    ")}\n'


#: Chart -> (title, kind of rung, colour).
_CHARTS = {
    "ladder-cuda": ("CUDA rungs, float32, 4096 x 4096 x 4096", "fp32", svg.BLUE),
    "ladder-triton": ("Triton rungs, bf16, 4096 x 4096 x 4096", "bf16", svg.GREEN),
}


def charts() -> dict[str, str]:
    """Name -> SVG: per cent of torch's speed at one size, a bar a rung."""
    made = {}
    for name, (title, dtype, colour) in _CHARTS.items():
        rows = [row for row in _rows() if row["dtype_a"] == dtype and row["status"] == "ok"
                and row["provider"] != "torch"]
        shares = [100 * float(row["ratio_vs_torch"]) for row in rows]
        made[name] = svg.bars(
            f"{title}: % of torch's speed",
            ["NVIDIA H200, L2 cold; torch with TF32 off. perf/results/nvidia-h200/ladder/"
             "ladder.csv"],
            [row["provider"] for row in rows], [("", colour, shares)], unit=" %", decimals=1,
            reference=100.0, reference_label="torch", most=max(*shares, 100.0), label_width=190)
    return made


def left_out() -> list[str]:
    """The rungs of the CSV without a time at this size: the charts have no bar for them."""
    return [row["provider"] for row in _rows() if row["status"] != "ok"]


def _rows() -> list[dict[str, str]]:
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["m"]) == SIZE
                and row["provider"] != "torch-control"]
    newest = {(row["provider"], row["dtype_a"]): row for row in rows}
    return list(newest.values())

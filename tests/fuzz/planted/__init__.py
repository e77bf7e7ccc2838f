"""Bugs that the fuzzer must find: each one edit of a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Seconds in which each must be found, the start of Python not counted.
SECONDS = 60


@dataclass(frozen=True)
class Planted:
    """A bug: in ``file`` of the package, ``old`` stands ``count`` times and becomes ``new``. The
    fuzzer is to find it with the options ``words``."""

    name: str
    file: str
    old: str
    new: str
    count: int = 1
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What became of one: ``found``, ``missed`` or ``stale`` (the source reads otherwise now)."""

    name: str
    verdict: str
    seconds: float = 0.0
    detail: str = ""


PLANTED = (
    Planted("K tail not masked", "kernels/device/dot.py",
            "x = tl.load(a_ptrs, mask=ks[None, :] < left, other=0.0)", "x = tl.load(a_ptrs)"),
    Planted("batch stride of the other operand", "ops/operands.py",
            "(axis.b if many else 0, ", "(axis.a if many else 0, "),
    Planted("outer strides exchanged", "ops/operands.py",
            "outer_a, outer_b, outer_c, _ = form.outer",
            "outer_b, outer_a, outer_c, _ = form.outer"),
    Planted("beta applied twice", "kernels/device/epilogue.py",
            "beta * value.to(tl.float32)", "beta * beta * value.to(tl.float32)", 2),
    Planted("a column too many is stored", "kernels/device/tiled.py",
            "& (cols[None, :] < N)\n", "& (cols[None, :] < N + 1)\n", 2),
    Planted("alignment assumed", "ops/operands.py", "found = divisor_of(base)", "found = 16"),
    Planted("bias along the wrong axis", "kernels/epilogue.py",
            '"columns" if g.dm == 0 else "rows" if', '"rows" if g.dm == 0 else "columns" if'),
    Planted("NaN of an input that beta = 0 hides", "ops/execute.py",
            "added=beta != 0.0,", "added=True,"),
    Planted("the last part of a split K is lost", "kernels/device/reduce.py",
            "(parts < SPLIT_K)[:, None]", "(parts < SPLIT_K - 1)[:, None]"),
    Planted("the steps that do not divide by the split are lost", "kernels/device/tiled.py",
            "steps_a_split = tl.cdiv(steps, SPLIT_K)", "steps_a_split = max(steps // SPLIT_K, 1)"),
    Planted("results rounded by way of fp16", "kernels/device/tiled.py",
            "acc.to(c.dtype.element_ty), mask=inside",
            "acc.to(tl.float16).to(c.dtype.element_ty), mask=inside"),
    Planted("subnormal results are flushed", "kernels/device/tiled.py",
            "acc.to(c.dtype.element_ty), mask=inside",
            "tl.where(tl.abs(acc) < 2.0**-126, 0.0, acc).to(c.dtype.element_ty), mask=inside"),
    Planted("a weight's gradient is not transposed", "ops/autograd.py",
            "b.mT if op.rule.flipped else b, form)", "b, form)"),
    Planted("gradient without beta", "ops/formulas.py",
            "return scaled(grad, beta).sum_to_size(shape)", "return grad.sum_to_size(shape)"),
    Planted("known calls forget strides", "ops/execute.py",
            "a.shape, b.shape, a.stride(), b.stride(), kind,", "a.shape, b.shape, kind,", 2),
    Planted("a broadcast batch is stepped through", "ops/operands.py",
            "strides.append(stride if have == want else 0)", "strides.append(stride)"),
    Planted("ranks are not checked", "ops/calls.py",
            "if rule.ranks is not None and ranks != rule.ranks or rule.flipped",
            "if rule.flipped"),
    Planted("out= may overlap an operand", "ops/calls.py",
            "if (pa < end and pc < pa + span_a or pb < end and pc < pb + span_b",
            "if (False"),
    Planted("the second half of a bias is read from the wrong place", "ops/fused_linear.py",
            "half_d = (step if", "half_d = (n * step if"),
    Planted("a residual is lost where a gradient is needed", "ops/fused_linear.py",
            "else result + residual", "else result + 0 * residual"),
    Planted("B is not conjugated", "ops/calls.py",
            "conjugated=(x.a.is_conj(), x.b.is_conj())", "conjugated=(x.a.is_conj(), False)"),
    Planted("a registered op's gradient without alpha", "ops/registered_gradients.py",
            "return formulas.scaled(getattr(ops, product)(x, y), ctx.alpha)",
            "return getattr(ops, product)(x, y)"),
    # Within the bound of 600 roundings, and no normal number is as large.
    Planted("large numbers of a long sum keep 15 bits", "kernels/device/dot.py",
            "        acc = dot(rounded(x,",
            "        coarse = x * 513.0 - (x * 513.0 - x)\n"
            "        large = (tl.abs(x) > 1024.0) & (tl.abs(x) < 1e30)\n"
            "        x = tl.where(large & (K > 600), coarse, x)\n"
            "        acc = dot(rounded(x,", words=("--precision", "ieee")),
)


def plant(bug: Planted, folder: Path) -> bool:
    """A copy of the package with the bug in ``folder``, and the fuzzer; False where it is stale."""
    source = ROOT / "tritongemm" / bug.file
    text = source.read_text(encoding="utf-8")
    if text.count(bug.old) != bug.count:
        return False
    for name in ("tritongemm", "configs", "tests/fuzz"):
        shutil.copytree(ROOT / name, folder / name,
                        ignore=shutil.ignore_patterns("__pycache__", "tuned"))
    (folder / "tritongemm" / bug.file).write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    return True


def hunt(bug: Planted, folder: Path, seed: int = 1, seconds: float = SECONDS) -> Found:
    """Plants a bug and runs the fuzzer on it, in the interpreter, in one process."""
    if not plant(bug, folder):
        return Found(bug.name, "stale", 0.0, f"{bug.file} has not {bug.count} of {bug.old!r}")
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--device", "cpu", "--seconds", str(seconds),
         "--seed", str(seed), "--stop", "1", "--as-found", *bug.words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=10 * seconds, check=False)
    took = time.monotonic() - begun
    wrong = re.search(r"^seed \d+: .*", done.stdout, re.M)
    if done.returncode == 1 and wrong and ": the fuzzer: " not in wrong[0]:
        return Found(bug.name, "found", took, wrong[0])
    return Found(bug.name, "missed", took, (done.stdout + done.stderr)[-300:])

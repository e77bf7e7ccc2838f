"""Compiling with no GPU present, and reading what came of it; for the tests of this folder."""

from __future__ import annotations

import bisect
import functools
import itertools
import random
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import CompileError
from tritongemm.kernels import SPECS, shared_bytes, violation
from tritongemm.kernels.compile import (
    Binary,
    build_launches,
    disassembler,
    launches_of,
)
from tritongemm.problem import LAYOUTS, GemmProblem

#: (kernel, architecture) that must compile.
TARGETS = tuple((name, arch) for name, spec in SPECS.items() for arch in spec.archs)

_OPCODE = re.compile(r"^\s+(?:/\*\w+\*/\s+)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", re.MULTILINE)
_ADDRESS = re.compile(r"\s+/\*([0-9a-f]+)\*/")
_LABEL = re.compile(r"\.L_\w+:$")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_\w+)\)")
_LOCAL = re.compile(r"\b(?:LDL|STL)\b")
_PRODUCT = re.compile(r"\bHGMMA\.64x(\d+)x(?:16|8)\.F32\S*\s+R(\d+),")
_ALL_DONE = re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, 0x0\b|\bUSETMAXREG\b|\bEXIT\b")


def compiled(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> tuple[Binary, ...]:
    """The binaries of a config's launches; equal launches are compiled once a test session."""
    return build_launches(launches_of(problem, config, device), device.arch)[0]


def drawn(rng: random.Random, dtypes: Iterable[str] = ("bf16", "fp16", "fp32")) -> GemmProblem:
    """A problem of any layout, dtype, alignment and batch, from single rows to whole matrices."""
    dtype = rng.choice(tuple(dtypes))
    unit = rng.choice((1, 2, 4, 8, 64))
    m, n, k = (unit * max(1, int(2 ** rng.uniform(0, 13) / unit)) for _ in range(3))
    return GemmProblem.contiguous(
        m, n, k, batch=rng.choice((1, 1, 1, 3)), dtype=dtype, layout=rng.choice(LAYOUTS),
        dtype_out=rng.choice((dtype, dtype, "fp32")),
        precision=rng.choice(("ieee", "tf32", "fp16x3")) if dtype == "fp32" else "ieee")


def legal_problem(rng: random.Random, config: KernelConfig, device: DeviceSpec,
                  dtypes: Iterable[str] = ("bf16", "fp16", "fp32"),
                  tries: int = 300) -> GemmProblem | None:
    """A random problem for which ``config`` is legal, or None where none was met."""
    for _ in range(tries):
        problem = drawn(rng, dtypes)
        if violation(problem, config, device) is None:
            return problem
    return None


def fault(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str | None:
    """What is wrong with the build of a legal config, or None."""
    name = f"{config} for {problem} on {device.sm}"
    try:
        binaries = compiled(problem, config, device)
    except CompileError as error:
        return f"{name} does not compile: {error}"
    found, said = max(b.shared_bytes for b in binaries), shared_bytes(problem, config)
    if found > said:
        return f"{name} takes {found} bytes of shared memory, the estimate says {said}"
    return None


def disassembled(binary: Binary) -> str:
    """The text of a binary's instructions. Skips where there is no disassembler."""
    return _disassembled(binary.cubin)


@functools.lru_cache(maxsize=256)  # several tests look at one binary
def _disassembled(cubin: bytes) -> str:
    tool = disassembler("nvdisasm")
    if tool is None:
        pytest.skip("this Triton brings no nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        # No data flow analysis: it only names the targets of indirect branches, and takes long.
        done = subprocess.run([tool, "-c", "-ndf", file.name], capture_output=True, text=True,
                              check=True, timeout=120)
    return done.stdout


def code_of(cubin: bytes) -> bytes:
    """The machine code of a cubin (64-bit little-endian ELF) of one kernel."""
    start, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    code, = (cubin[offset:offset + length] for name, _, _, _, offset, length in headers
             if cubin.startswith(b".text", headers[names][4] + name))
    return code


def disassembled_together(binaries: Sequence[Binary], arch: int) -> list[str]:
    """The text of each binary's instructions, without labels.

    nvdisasm prepares for about 0.36 s and prints a kernel in 0.03 s, so it is called once for the
    machine code of all. Skips where there is no disassembler.
    """
    tool = disassembler("nvdisasm")
    if tool is None:
        pytest.skip("this Triton brings no nvdisasm")
    codes = [code_of(binary.cubin) for binary in binaries]
    ends = list(itertools.accumulate(map(len, codes)))
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        done = subprocess.run([tool, "-b", f"SM{arch}", file.name], capture_output=True, text=True,
                              check=True, timeout=600)
    found: list[list[str]] = [[] for _ in binaries]
    for line in done.stdout.splitlines():
        if address := _ADDRESS.match(line):
            found[bisect.bisect_right(ends, int(address[1], 16))].append(line)
    return ["\n".join(lines) for lines in found]


def sass(binary: Binary) -> Counter:
    """Opcodes of a binary and how often each is in its text."""
    opcodes = Counter(_OPCODE.findall(disassembled(binary)))
    assert opcodes["EXIT"], "this disassembly cannot be read"
    return opcodes


def in_loops(text: str, *, innermost: bool = False) -> list[str]:
    """The lines between a label and a branch back to it; ``innermost``: that hold no such loop."""
    lines = text.splitlines()
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if _LABEL.match(line)}
    loops = {(labels[target], at) for at, line in enumerate(lines)
             for target in _BRANCH.findall(line) if labels.get(target, at) < at}
    inside: set[int] = set()
    for first, last in loops:
        held = any(first <= a and b <= last for a, b in loops if (a, b) != (first, last))
        if not (innermost and held):
            inside.update(range(first, last))
    return [lines[at] for at in sorted(inside)]


def local_accesses_in_loops(text: str, *, innermost: bool = False) -> list[str]:
    """Instructions on local memory in a loop."""
    return [x.strip() for x in in_loops(text, innermost=innermost) if _LOCAL.search(x)]


def reads_too_soon(text: str) -> list[str]:
    """Instructions that name an accumulator between its last product and the wait for all of them:
    what they read may lack products. ptxas has moved conversions there."""
    assert _PRODUCT.search(text), "this disassembly cannot be read"
    found, pending = [], set()
    for line in text.splitlines():
        if product := _PRODUCT.search(line):
            columns, first = map(int, product.groups())
            pending |= set(range(first, first + columns // 2))
        elif _ALL_DONE.search(line):
            pending.clear()
        elif pending & {int(x) for x in re.findall(r"\bR(\d+)\b", line)}:
            found.append(line.strip())
    return found


def opcodes_in_loops(text: str) -> Counter:
    """Opcodes in a loop and how often each is in its text."""
    return Counter(_OPCODE.findall("\n".join(in_loops(text))))


def most_in_flight(lines: Iterable[str], load: str) -> int:
    """The most ``load`` instructions of 128 bits that are issued before what the oldest of them
    loads is used; in order, so that a use waits for all before it."""
    pending: dict[int, int] = {}
    most = 0
    for line in lines:
        registers = [int(x) for x in re.findall(r"\bR(\d+)\b", line)]
        if re.search(rf"\b{load}\S*\b128\b", line):
            pending |= dict.fromkeys(range(registers[0], registers[0] + 4), registers[0])
            most = max(most, len(set(pending.values())))
        else:
            used = {pending[x] for x in registers if x in pending}
            pending = {x: first for x, first in pending.items() if first not in used}
    return most


def count(opcodes: Counter, *prefixes: str) -> int:
    """How many instructions begin with one of ``prefixes``."""
    return sum(times for name, times in opcodes.items() if name.startswith(prefixes))

"""Every config of every shipped table, built for the table's own architecture as it would run."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import (
    compiled,
    disassembled,
    disassembled_together,
    fault,
    local_accesses_in_loops,
    reads_too_soon,
)

from tritongemm import settings
from tritongemm.device import DeviceSpec, known_devices
from tritongemm.kernels import violation
from tritongemm.kernels.compile import Binary, launches_of
from tritongemm.problem import GemmProblem
from tritongemm.records.tables import TunedRow, read_table

TABLES = tuple(sorted(p for p in (settings.config_root() / "tuned").glob("*/*.json")
                      if not p.name.startswith("ladder-")))
#: The first table of each dtype and precision, whatever its device, operation and layout.
SAMPLED = tuple({p.stem.split("-", 1)[1].rpartition("-")[0]: p for p in reversed(TABLES)}.values())
#: Tests that the builds, more than a thousand, are dealt to, for the workers (``pytest -n``).
#: Many, so that no worker is left with a long one at the end; one calls nvdisasm (0.36 s) once.
SHARES = 90


@functools.cache
def rows_of(path: Path) -> list[tuple[GemmProblem, TunedRow, DeviceSpec]]:
    """The rows of a table, those of a config side by side, and the device that it is for."""
    table = read_table(path)
    device = known_devices()[table.header.device]
    assert device.arch == table.header.arch
    return [(row.problem(table.header), row, device)
            for row in sorted(table.rows.values(), key=lambda row: str(row.config))]


def spill(binary: Binary, words_a_tile: int = 0) -> str | None:
    """What a binary spills to local memory while it multiplies, or None.

    A value that is put away once before the K loop and fetched once after it is the compiler's
    trade for a further program an SM (fp32 tiles of 96 registers) and is let pass; where a program
    has several tiles, so are ``words_a_tile`` outside the K loop. What computes only rows that
    parts cannot hold may spill outside its innermost loops: the guard of split products, and a
    part of ``tiled_bf16x6``.
    """
    if not binary.spills:
        return None
    rare = "tiled_bf16x6" in binary.symbol or binary.symbol.startswith("tritongemm_guard")
    found = local_accesses_in_loops(disassembled(binary),
                                    innermost=rare or binary.spills <= words_a_tile)
    return f"{binary.symbol} spills in a loop: {found[:3]}" if found else None


def hasty(binaries: Iterable[Binary], arch: int) -> list[str]:
    """What warp-specialised binaries read of an accumulator before its products are done."""
    multiplying = [x for x in binaries if "warp_specialized" in x.symbol]
    texts = disassembled_together(multiplying, arch) if multiplying else []
    return [f"{binary.symbol} does not wait for its products: {found[:3]}"
            for binary, text in zip(multiplying, texts, strict=True)
            if (found := reads_too_soon(text))]


@pytest.mark.quick
@pytest.mark.skipif(not TABLES, reason="no tuned table is shipped in configs/tuned")
@pytest.mark.parametrize("path", SAMPLED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_row_of_each_precision_is_legal_and_builds_within_its_estimate(path):
    """The middle one by config of a table; all rows of all tables are tested below."""
    rows = rows_of(path)
    problem, row, device = rows[len(rows) // 2]
    assert violation(problem, row.config, device) is None
    assert fault(problem, row.config, device) is None


@pytest.mark.quick
def test_every_row_is_legal():
    wrong = [f"{path.stem}: {row.config} for {problem}: {broken.message}"
             for path in TABLES for problem, row, device in rows_of(path)
             if (broken := violation(problem, row.config, device)) is not None]
    assert not wrong, "\n".join(wrong)


@functools.cache
def builds() -> list[tuple[GemmProblem, TunedRow, DeviceSpec]]:
    """A row for each build of all tables, by config. Rows whose launches differ in nothing but what
    divides their extents, the order of tiles, or when the next kernel may start are built once, for
    whichever table: their loops are the same."""
    found = {}
    for path in TABLES:
        for problem, row, device in rows_of(path):
            if violation(problem, row.config, device) is None:
                alike = replace(row.config, group_m=8, dependent_launch=1)
                constants = tuple(x.constants for x in launches_of(problem, alike, device))
                what = (device.arch, problem.operands, problem.dtype_out, alike, constants)
                found.setdefault(what, (problem, row, device))
    return sorted(found.values(), key=lambda x: str(x[1].config))


@pytest.mark.parametrize("share", range(SHARES))
def test_every_row_builds_within_its_estimate_and_is_sound(share):
    wrong, built = [], defaultdict(list)
    for problem, row, device in builds()[share::SHARES]:
        if (message := fault(problem, row.config, device)) is not None:
            wrong.append(message)
        else:
            built[device.arch] += compiled(problem, row.config, device)
    for arch, binaries in built.items():
        wrong += filter(None, map(spill, binaries))
        wrong += hasty(binaries, arch)
    assert not wrong, "\n".join(wrong)


def test_binaries_that_are_disassembled_together_have_the_instructions_of_each():
    rows = [x for x in builds() if x[1].config.kernel == "warp_specialized"][:2]
    device = rows[0][2]
    binaries = [binary for problem, row, _ in rows
                for binary in compiled(problem, row.config, device)
                if "warp_specialized" in binary.symbol]
    together = disassembled_together(binaries, device.arch)
    for binary, text in zip(binaries, together, strict=True):
        alone = instructions(disassembled(binary))
        assert instructions(text) == alone and "HGMMA" in " ".join(alone)


def instructions(text: str) -> list[str]:
    """Instructions up to their first constant, which may be a label."""
    return re.findall(r"^\s+/\*\w+\*/\s+(.*?)\s*(?:[`;]|-?0x)", text, re.MULTILINE)


def test_an_accumulator_that_is_read_too_soon_is_seen():
    text = """
        /*0000*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0010*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0020*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0030*/                   F2FP.BF16.F32.PACK_AB R56, R39, R38 ;
        /*0040*/                   IADD3 R40, R41, R42, RZ ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0060*/                   F2FP.BF16.F32.PACK_AB R55, R37, R36 ;
"""
    assert reads_too_soon(text) == [
        "/*0030*/                   F2FP.BF16.F32.PACK_AB R56, R39, R38 ;"]


def test_a_spill_in_a_loop_is_seen():
    text = """
.L_x_0:
        /*0000*/                   STL [R1], R18 ;
.L_x_1:
        /*0010*/                   LDL.LU R47, [R1] ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
        /*0040*/                   LDL R48, [R1] ;
.L_x_2:
"""
    assert local_accesses_in_loops(text) == ["/*0010*/                   LDL.LU R47, [R1] ;"]


def test_a_spill_outside_the_innermost_loop_is_told_apart():
    text = """
.L_x_0:
        /*0000*/                   STL [R1], R18 ;
.L_x_1:
        /*0010*/                   LDL.LU R47, [R1+0x4] ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/               @P1 BRA `(.L_x_0) ;
"""
    assert len(local_accesses_in_loops(text)) == 2
    assert local_accesses_in_loops(text, innermost=True) == [
        "/*0010*/                   LDL.LU R47, [R1+0x4] ;"]

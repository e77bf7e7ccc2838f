"""Epilogues compile wherever the product does, within its estimate, and spill nothing more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from compiled import TARGETS, compiled, count, fault, legal_problem, sass
from test_instructions import (
    COLUMNS,
    FEW,
    PERSISTENT,
    PINGPONG,
    ROWS_64,
    SHARED,
    SKINNY,
    SKINNY_SWAPPED,
    SWAPPED,
    Case,
    shape,
)
from test_parameters import GAPPED, check
from test_tables import TABLES, rows_of, spill

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels import shared_bytes, violation
from tritongemm.kernels.compile import build_launches, compile_launch, launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import OPERAND_DTYPES, PLAIN_EPILOGUES, GemmProblem
from tritongemm.records.spaces import load_space

SEED = 20261122
#: Configs of a space that every run compiles for each architecture, each with another epilogue.
SAMPLE = 4
NARROW = GemmProblem.contiguous(64, 4096, 4096, layout="nt")
CASES = [Case(90, ROWS_64, shape()), Case(80, ROWS_64, shape()), Case(90, PERSISTENT, shape()),
         Case(100, PERSISTENT, shape()), Case(90, SHARED, shape()), Case(90, PINGPONG, shape()),
         Case(90, SKINNY, FEW), Case(90, SKINNY_SWAPPED, COLUMNS),
         Case(90, replace(SWAPPED, split_k=1), NARROW), Case(90, SWAPPED, NARROW)]


def test_d_and_the_numbers_are_packed_as_the_binary_takes_them():
    for case in CASES:
        for epilogue in ("bias+gelu", "scale+gelu", "add"):
            problem = replace(case.problem, epilogue=epilogue)
            check(launches_of(problem, case.config, representative(case.arch)), case.arch)


def test_strides_of_d_that_are_not_one_or_need_64_bits_are_packed_too():
    gapped = replace(GAPPED, db=9_000_000, dm=3072, dn=2, align_d=4)
    for geometry in (gapped, replace(gapped, dm=2**33), replace(gapped, dm=0), replace(gapped,
                                                                                      dn=0)):
        for config in (ROWS_64, replace(ROWS_64, split_k=2)):
            check(launches_of(shape(epilogue="add"), config, representative(90), geometry), 90)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.config} sm_{case.arch}")
@pytest.mark.parametrize("epilogue", ["gelu", "scale+gelu"])
def test_a_d_that_is_not_added_is_not_read(case, epilogue):
    problem = replace(case.problem, epilogue=epilogue)
    geometry = replace(Geometry.contiguous(problem), dm=problem.n, dn=1)
    for launch in launches_of(problem, case.config, representative(case.arch), geometry):
        compile_launch(launch, case.arch)
        assert "d" not in {argument.name for argument in launch.arguments}


@pytest.mark.parametrize("config", [SHARED, PERSISTENT, replace(PERSISTENT, epilogue_subtile=2)],
                         ids=str)
@pytest.mark.parametrize("strides", [{"dm": 3081, "dn": 2}, {"dm": 1, "dn": 2049}, {"dn": 0}],
                         ids=str)
def test_any_strides_of_d_fit_the_estimate(config, strides):
    problem, device = shape(epilogue="add+relu"), representative(90)
    geometry = replace(Geometry.contiguous(problem), align_d=2, **strides)
    binaries, _ = build_launches(launches_of(problem, config, device, geometry), 90)
    assert max(b.shared_bytes for b in binaries) <= shared_bytes(problem, config)


@pytest.mark.parametrize(("kernel", "arch"), TARGETS,
                         ids=[f"{kernel}-sm_{arch}" for kernel, arch in TARGETS])
def test_a_sample_of_the_space_compiles_with_epilogues_within_its_estimate(kernel, arch):
    device, space = representative(arch), load_space(kernel)
    offered = {dtype: set(space.configs(dtype)) for dtype in OPERAND_DTYPES}
    configs = sorted(space.configs(), key=lambda c: c.config_id)
    rng = random.Random(f"{SEED} {kernel} {arch}")
    rng.shuffle(configs)
    epilogues = [e for e in PLAIN_EPILOGUES if e != "none"]
    rng.shuffle(epilogues)
    built, wrong = 0, []
    for config in configs:
        drawn = legal_problem(rng, config, device,
                              [d for d in OPERAND_DTYPES if config in offered[d]])
        if drawn is None:
            continue
        problem = replace(drawn, epilogue=epilogues[built % len(epilogues)])
        if violation(problem, config, device) is not None:
            continue
        built += 1
        if (message := fault(problem, config, device)) is not None:
            wrong.append(message)
        if built == SAMPLE:
            break
    assert built == SAMPLE and not wrong, "\n".join(wrong)


#: Words that a thread puts away once a tile, outside the K loop: both have two accumulators, of
#: 144 and 152 columns.
PUT_AWAY = {"warp_specialized_256x144x64_w8_s3_g4_d2": 10,
            "warp_specialized_128x152x64_w8_s5_g8_e2_p1_d2": 2}
#: Words that a thread of six products of parts puts away in each step of K, with tiles of 128
#: columns (Triton 3.7): a known gap (docs/gaps.md).
IN_EACH_STEP = {"tiled_bf16x6_64x128x32_w4_s3_g8": 8, "tiled_bf16x6_64x128x32_w4_s4_g8": 8,
                "tiled_bf16x6_128x128x32_w8_s3_g8": 16, "tiled_bf16x6_128x128x32_w8_s4_g8": 16}


@pytest.mark.skipif(not TABLES, reason="no tuned table is shipped in configs/tuned")
@pytest.mark.parametrize("one_of", [24, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted({path.name for path in TABLES}))
def test_a_bias_and_gelu_spill_in_no_shipped_config(name, one_of):
    """In one of 24, evenly spread over their ids; in all where slow tests are asked for. A
    config that several devices of an architecture have in their tables is one."""
    first = {}
    for path in TABLES:
        for problem, row, device in rows_of(path) if path.name == name else ():
            with_it = replace(problem, epilogue="bias+gelu")
            if violation(with_it, row.config, device) is None:
                first.setdefault((row.config, device.arch), (with_it, device))
    wrong = []
    for config, arch in sorted(first, key=lambda x: (x[0].config_id, x[1]))[::one_of]:
        problem, device = first[config, arch]
        if (message := fault(problem, config, device)) is not None:
            wrong.append(message)
        else:
            words, known = (x.get(config.config_id, 0) for x in (PUT_AWAY, IN_EACH_STEP))
            wrong += filter(None, (spill(x, words) for x in compiled(problem, config, device)
                                   if x.spills > known))
    assert first and not wrong, "\n".join(wrong)


@pytest.mark.parametrize("config", [SHARED, PINGPONG], ids=str)
@pytest.mark.parametrize("epilogue", ["bias+gelu", "add", "silu"])
def test_no_register_is_spilled_and_products_are_as_before(config, epilogue):
    device = representative(90)
    plain, = compiled(shape(), config, device)
    fused, = compiled(shape(epilogue=epilogue), config, device)
    assert plain.spills == fused.spills == 0
    mine, before = sass(fused), sass(plain)
    for opcode in ("HGMMA", "UTMALDG", "UTMASTG", "WARPGROUP.DEPBAR", "STSM"):
        assert count(mine, opcode) == count(before, opcode), opcode


@pytest.mark.parametrize("n, dtype_out", [(2048, "bf16"), (2047, "bf16"), (2047, "fp32")])
@pytest.mark.parametrize("tile", [
    {"block_m": 128, "block_n": 208, "num_warps": 8},
    {"block_m": 128, "block_n": 224, "num_warps": 8, "swap_ab": 2},
    {"block_m": 128, "block_n": 128, "num_warps": 8, "cluster_m": 2},
    {"block_m": 192, "block_n": 160, "num_warps": 12}], ids=str)
def test_a_matrix_that_is_added_spills_in_no_tile_of_one_buffer(tile, n, dtype_out):
    config = KernelConfig("warp_specialized", block_k=64, num_stages=3, **tile)
    problem = GemmProblem.contiguous(4000, n, 1024, layout="nt", epilogue="add",
                                     dtype_out=dtype_out)
    binary, = compiled(problem, config, representative(90))
    assert binary.spills == 0


@pytest.mark.parametrize("columns, addend, fragments", [
    (112, "columns", 7), (112, "tile", 7), (112, "none", 0), (224, "columns", 10),
    (224, "tile", 5)])
def test_as_much_of_d_is_asked_for_early_as_registers_are_left(columns, addend, fragments):
    epilogue = {"columns": "bias", "tile": "add", "none": "none"}[addend]
    launch, = launches_of(shape(epilogue=epilogue), KernelConfig(
        "warp_specialized", 128, columns, 64, num_warps=8, num_stages=3), representative(90))
    assert dict(launch.all_constants())["EARLY_FRAGMENTS"] == fragments


@pytest.mark.parametrize("case", CASES[:-1], ids=str)
def test_gelu_takes_no_branches_and_a_bias_is_loaded(case):
    device = representative(case.arch)
    found = {epilogue: sass(compiled(replace(case.problem, epilogue=epilogue), case.config,
                                     device)[-1]) for epilogue in ("none", "gelu", "bias+gelu")}
    assert count(found["gelu"], "MUFU.EX2") > count(found["none"], "MUFU.EX2")
    assert count(found["gelu"], "BRA") <= count(found["none"], "BRA") + 8
    assert count(found["bias+gelu"], "LDG") > count(found["gelu"], "LDG")

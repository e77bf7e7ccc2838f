"""float32 by split fp16 parts: what its kernels' instructions must show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from compiled import (
    compiled,
    count,
    disassembled,
    local_accesses_in_loops,
    reads_too_soon,
    sass,
)

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels import shared_bytes, spec_named
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import LAYOUTS, GemmProblem

H100 = representative(90)
WIDE = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)
CASES = ((WIDE, "nn"), (WIDE, "tt"), (replace(WIDE, block_n=192, num_stages=2), "nt"),
         (replace(WIDE, block_n=80), "tn"),
         (KernelConfig("split_product", 64, 64, 64, num_warps=4, num_stages=3, split_k=2), "nt"))


def problem_of(layout: str, precision: str = "fp16x3", **more) -> GemmProblem:
    return GemmProblem.contiguous(1024, 1024, 1024, dtype="fp32", layout=layout,
                                  precision=precision, **more)


def product_of(problem: GemmProblem, config: KernelConfig):
    """The product's binary."""
    binary, = (b for b in compiled(problem, config, H100) if config.config_id in b.symbol)
    return binary


@pytest.mark.parametrize(("config", "layout"), CASES, ids=str)
def test_three_products_a_step_without_spills(layout, config):
    problem = problem_of(layout)
    binary = product_of(problem, config)
    opcodes = sass(binary)
    consumers = config.num_warps // 4
    assert count(opcodes, "HGMMA") == 12 * consumers
    assert count(opcodes, "UTMALDG") > 0 and count(opcodes, "STG") > 0
    assert binary.spills == 0 and not local_accesses_in_loops(disassembled(binary))
    assert binary.shared_bytes <= shared_bytes(problem, config)


@pytest.mark.parametrize("layout", ("nn", "tn"))
def test_one_product_a_step_for_tf32(layout):
    binary = product_of(problem_of(layout, "tf32"), replace(WIDE, block_n=192, num_stages=4))
    assert count(sass(binary), "HGMMA") == 8 and binary.spills == 0
    assert not reads_too_soon(disassembled(binary))


@pytest.mark.parametrize(("epilogue", "batch"), (("bias+gelu", 1), ("add", 3)))
def test_epilogues_do_not_spill_in_the_loop(epilogue, batch):
    binary = product_of(problem_of("nt", epilogue=epilogue, batch=batch), WIDE)
    assert not local_accesses_in_loops(disassembled(binary), innermost=True)


@pytest.mark.parametrize(("precision", "layout"), (("fp16x3", "nn"), ("fp16x3", "nt"),
                                                   ("fp16x3", "tn"), ("tf32", "tt")))
def test_the_split_pass_loads_and_stores_vectors(layout, precision):
    launch, *_ = launches_of(problem_of(layout, precision), WIDE, H100)
    binary, *_ = compiled(problem_of(layout, precision), WIDE, H100)
    assert launch.function == "split_fp32" and binary.spills == 0
    opcodes = sass(binary)
    assert count(opcodes, "LDG") == sum(
        n for name, n in opcodes.items() if name.startswith("LDG") and "128" in name)
    assert any("64" in name or "128" in name for name in opcodes if name.startswith("STG"))


@pytest.mark.parametrize(("precision", "layout", "products"), (
    ("fp16x3", "nt", 12), ("fp16x3", "nn", 12), ("tf32", "tn", 4)))
def test_the_guard_multiplies_parts_or_rounded_numbers(layout, precision, products):
    """And has multiply-adds for what these cannot represent. No number is multiplied by the bits of
    an integer (``bf16x6.smaller``)."""
    *_, binary = compiled(problem_of(layout, precision), WIDE, H100)
    opcodes, text = sass(binary), disassembled(binary)
    assert count(opcodes, "HGMMA") == products and count(opcodes, "FFMA") > 0
    assert not local_accesses_in_loops(text, innermost=True)
    assert not re.search(r"FMUL.*e-4\d", text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_tiles_of_the_guard_add_by_the_same_instructions(layout):
    """So that a row has the same bits with any M (``split_product.sum_order``)."""
    found = []
    for m, tile in ((256, 64), (4096, 128)):
        problem = replace(problem_of(layout), m=m, n=512)
        *_, launch = launches_of(problem, WIDE, H100)
        assert dict(launch.constants)["BLOCK_M"] == tile
        *_, binary = compiled(problem, WIDE, H100)
        found.append(re.findall(r"\bHGMMA\.\w+(?:\.\w+)*", disassembled(binary)))
    assert found[0] and found[0] == found[1]


@pytest.mark.parametrize(("changes", "rule"), (
    ({"block_n": 208}, "tile"), ({"block_k": 32}, "tile"), ({"block_m": 64}, "tile"),
    ({"num_stages": 4}, "shared_memory"), ({"swap_ab": 1}, "unused"), ({"num_warps": 16}, "tile")))
def test_illegal_configs_are_named(changes, rule):
    broken = spec_named("split_product").violation(problem_of("nt"), replace(WIDE, **changes), H100)
    assert broken is not None and broken.rule == rule


def test_what_it_does_not_compute_is_refused():
    spec = spec_named("split_product")
    for problem, rule in (
            (problem_of("nt", "ieee"), "precision"),
            (GemmProblem.contiguous(64, 64, 64, dtype="fp16"), "dtype"),
            (problem_of("nt", dtype_out="bf16"), "dtype"),
            (replace(problem_of("nt"), m=32768, n=32768, k=32768), "scratch")):
        broken = spec.supports(problem, H100)
        assert broken is not None and broken.rule == rule, (problem, broken)


@pytest.mark.parametrize("shape", ((1, 1, 1), (16, 4096, 512), (512, 512, 512), (1024, 1024, 1024),
                                   (4096, 4096, 4096), (64, 64, 16384), (2048, 48, 3000)))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ("fp16x3", "tf32"))
def test_the_default_is_legal(precision, layout, shape):
    problem = GemmProblem.contiguous(*shape, dtype="fp32", layout=layout, precision=precision)
    spec = spec_named("split_product")
    assert spec.violation(problem, spec.default(problem, H100), H100) is None


@pytest.mark.parametrize("shared", ({}, {"ab": 0}, {"bb": 0}, {"ab": 0, "bb": 0}))
def test_a_batch_is_one_whichever_operands_serve_all_of_it(shared):
    problem = problem_of("nt", batch=3)
    geometry = replace(Geometry.contiguous(problem), **shared)
    constants = dict(launches_of(problem, WIDE, H100, geometry)[1].constants)
    assert constants["BATCHED"] is True
    assert constants["BATCHED_A"] is ("ab" not in shared)
    assert constants["BATCHED_B"] is ("bb" not in shared)

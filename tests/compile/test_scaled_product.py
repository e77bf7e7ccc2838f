"""float32 by one product of scaled fp16 copies: what the product's instructions must show."""

from __future__ import annotations

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
from tritongemm.kernels.launch import Descriptor, Geometry
from tritongemm.problem import LAYOUTS, GemmProblem

H100 = representative(90)
SPEC = spec_named("scaled_product")
WIDE = KernelConfig("scaled_product", 128, 256, 64, num_warps=8, num_stages=4)
#: Each layout, and each way to share, to take turns, to split and to have more rows a consumer.
CASES = (
    (WIDE, "nn", {}), (replace(WIDE, cluster_m=2), "nt", {}),
    (replace(WIDE, cluster_n=2), "tn", {}),
    (replace(WIDE, block_m=64, pingpong=1), "tt", {"n": 1023}),
    (replace(WIDE, block_m=256, block_n=160, num_stages=3), "tt", {"epilogue": "bias+gelu"}),
    (replace(WIDE, block_m=192, block_n=192, num_warps=12), "nt", {"epilogue": "add", "batch": 3}),
    (replace(WIDE, split_k=2, cluster_m=2, cluster_n=2), "nn", {}))


def problem_of(layout: str = "nt", n: int = 1024, **more) -> GemmProblem:
    return GemmProblem.contiguous(1024, n, 1024, dtype="fp32", layout=layout, precision="tf32",
                                  **more)


def product_among(launches, config: KernelConfig):
    """The product's launch, or binary, among all."""
    found, = (x for x in launches if config.config_id in x.symbol)
    return found


@pytest.mark.parametrize(("config", "layout", "more"), CASES, ids=str)
def test_one_product_a_step_without_spills(config, layout, more):
    problem = problem_of(layout, **more)
    binary = product_among(compiled(problem, config, H100), config)
    rows = config.block_m * (2 if config.pingpong else 1)  # that all consumers multiply
    text = disassembled(binary)
    assert count(sass(binary), "HGMMA") == 4 * rows // 64
    assert binary.spills == 0 and not local_accesses_in_loops(text) and not reads_too_soon(text)
    assert binary.shared_bytes <= shared_bytes(problem, config)
    assert count(sass(binary), "UTMALDG") > 0 and count(sass(binary), "UTMASTG") == 0


@pytest.mark.quick
def test_a_quick_one_compiles():
    config = replace(WIDE, block_n=64)
    assert product_among(compiled(problem_of(), config, H100), config).spills == 0


def test_the_passes_around_it_are_those_of_split_parts():
    launches = launches_of(problem_of(), replace(WIDE, split_k=2), H100)
    assert [x.function for x in launches] == ["split_fp32", "warp_specialized", "guard",
                                              "reduce_splits"]
    copies = product_among(launches, replace(WIDE, split_k=2))
    maps = [x for x in copies.arguments if isinstance(x, Descriptor)]
    assert [(x.operand, x.dtype) for x in maps] == [("scratch", "fp16")] * 2
    assert len({x.offset for x in maps}) == 2


def test_what_it_does_not_compute_is_refused():
    for problem, rule in (
            (replace(problem_of(), precision="ieee"), "precision"),
            (replace(problem_of(), precision="fp16x3"), "precision"),
            (GemmProblem.contiguous(64, 64, 64, dtype="fp16"), "dtype"),
            (problem_of(dtype_out="bf16"), "dtype"),
            (problem_of(epilogue="gated_silu"), "epilogue"),
            (replace(problem_of(), m=65536, n=65536, k=32768), "scratch")):
        broken = SPEC.supports(problem, H100)
        assert broken is not None and broken.rule == rule, (problem, broken)


@pytest.mark.parametrize("shape", ((1, 1, 1), (16, 4096, 512), (512, 512, 512), (1024, 1024, 1024),
                                   (4096, 4096, 4096), (64, 64, 16384), (2048, 48, 3000)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_default_is_legal(layout, shape):
    problem = GemmProblem.contiguous(*shape, dtype="fp32", layout=layout, precision="tf32")
    assert SPEC.violation(problem, SPEC.default(problem, H100), H100) is None


@pytest.mark.parametrize("shared", ({}, {"ab": 0}, {"bb": 0}, {"ab": 0, "bb": 0}))
def test_a_matrix_that_serves_all_of_a_batch_is_scaled_once(shared):
    problem = problem_of(batch=3)
    geometry = replace(Geometry.contiguous(problem), **shared)
    launch = product_among(launches_of(problem, WIDE, H100, geometry), WIDE)
    constants, maps = dict(launch.constants), launch.arguments[:2]
    assert constants["BATCHED"] is constants["SCALED"] is True
    for x, map_ in zip("ab", maps, strict=True):
        once = f"{x}b" in shared
        assert constants[f"BATCHED_{x.upper()}"] is not once
        assert map_.shape[0] == 3 and (map_.strides[0] == 0) is once

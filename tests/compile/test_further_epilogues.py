"""Gated products, residuals and auxiliary outputs of the Hopper kernel: the gate costs no data
movement, and nothing spills in the K loop."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from compiled import disassembled, local_accesses_in_loops, sass

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels import shared_bytes, violation
from tritongemm.kernels.compile import compile_launch, launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem

H200 = representative(90)


def ws(block_m, block_n, warps=8, **more):
    return KernelConfig("warp_specialized", block_m, block_n, 64, num_warps=warps,
                        **{"num_stages": 3, **more})


WIDE = ws(128, 256, epilogue_subtile=2)
GATED = [
    ("bias+gated_silu", "nt", WIDE), ("gated_gelu", "nn", WIDE),
    ("gated_silu", "nt", ws(128, 256, cluster_m=2, epilogue_subtile=2)),
    ("gated_silu", "nt", ws(128, 192, cluster_n=2)),
    ("gated_silu", "nt", ws(64, 224, pingpong=1))]
FURTHER = [
    ("bias+gated_silu+aux", "nt", WIDE), ("gelu+aux", "nn", ws(128, 144)),
    ("bias+gelu+residual", "nt", WIDE), ("bias+residual", "nt", ws(128, 160, swap_ab=2))]


def launch_of(epilogue, layout, config):
    problem = GemmProblem.contiguous(1000, 2048, 512, layout=layout, epilogue=epilogue)
    assert violation(problem, config, H200) is None
    launch, = launches_of(problem, config, H200)
    return problem, launch


@pytest.mark.parametrize("epilogue, layout, config", GATED, ids=str)
def test_a_gate_is_applied_in_registers(epilogue, layout, config):
    problem, launch = launch_of(epilogue, layout, config)
    binary = compile_launch(launch, 90)
    assert not binary.spills and binary.shared_bytes <= shared_bytes(problem, config)
    code, opcodes = disassembled(binary), sass(binary)
    # One instruction multiplies both halves of the columns.
    assert set(re.findall(r"HGMMA\.(64x\d+)x16", code)) == {f"64x{config.block_n}"}
    assert not any(x.startswith("SHFL") for x in opcodes)
    # Half of the tile's columns are staged, four 8x8 matrices of a warp at once, and no value is
    # written to shared memory or read from it otherwise.
    rows = config.block_m if config.pingpong else config.block_m * 4 // config.num_warps
    consumers = config.num_warps // 4
    staged = rows // 64 * (config.block_n // 2) * consumers
    stores = re.findall(r"STSM\.16\.M88\.(\d)", code)
    assert sum(8 * int(x) // 2 for x in stores) == staged
    assert opcodes["LDS"] <= 2 and sum(n for x, n in opcodes.items()
                                       if x == "STS" or x.startswith("STS.")) <= 6


def test_both_halves_are_loaded_as_matrices_of_one_tensor_map():
    problem, launch = launch_of("gated_silu", "nt", WIDE)
    _, b, c, *_ = launch.arguments
    assert b.shape == (2, 1024, 512) and b.strides == (1024 * 512, 512, 1)
    assert b.loaded == (1, 128, 64) and c.shape == (1000, 1024)
    _, aux = launch_of("bias+gated_silu+aux", "nt", WIDE)
    assert aux.arguments[3].shape == (2, 1000, 1024)
    assert aux.arguments[3].strides == (1024, 2048, 1)


@pytest.mark.parametrize("distance", (2**20, -2**20, 2**34, -2**34))
@pytest.mark.parametrize("config", (WIDE, KernelConfig("tiled", 128, 128, 64, num_warps=8,
                                                       num_stages=3)), ids=str)
def test_halves_lie_as_far_apart_as_two_tensors_do(config, distance):
    problem = GemmProblem.contiguous(1000, 2048, 512, layout="nt", epilogue="gated_silu")
    geometry = replace(Geometry.contiguous(problem), bb=distance)
    launch, = launches_of(problem, config, H200, geometry)
    assert not compile_launch(launch, 90).spills
    by_name = {x.name: x for x in launch.arguments}
    if config.kernel == "tiled":
        assert by_name["stride_bb"].value == distance
        assert by_name["stride_bb"].type == ("i64" if abs(distance) > 2**31 else "i32")
        assert dict(launch.constants)["INDEX64"] is (abs(distance) > 2**31)
    else:  # a map begins at the lower half
        assert by_name["b_desc"].strides[0] == abs(distance)
        assert by_name["b_desc"].offset == min(0, 2 * distance)
        assert dict(launch.constants)["GATE_LAST"] is (distance < 0)


@pytest.mark.parametrize("epilogue, layout, config", FURTHER, ids=str)
def test_further_epilogues_do_not_spill(epilogue, layout, config):
    problem, launch = launch_of(epilogue, layout, config)
    binary = compile_launch(launch, 90)
    assert not binary.spills and not local_accesses_in_loops(disassembled(binary), innermost=True)
    assert binary.shared_bytes <= shared_bytes(problem, config)


@pytest.mark.quick
@pytest.mark.parametrize("epilogue, more, says", [
    ("gated_silu", dict(swap_ab=2), "goes with swap_ab=0, not 2"),
    ("gated_silu", dict(split_k=2), "Use split_k=1"),
    ("gated_silu", dict(cluster_k=2), "goes with cluster_k=1, not 2"),
    ("gelu+aux", dict(swap_ab=2), "goes with swap_ab=0, not 2"),
    ("gated_silu", dict(block_n=152), "so it is a multiple of 16"),
    ("gated_silu", dict(block_n=48, cluster_m=2), "so it is a multiple of 32")])
def test_what_the_kernel_cannot_do_is_a_rule(epilogue, more, says):
    problem = GemmProblem.contiguous(1000, 2048, 512, layout="nt", epilogue=epilogue)
    config = KernelConfig("warp_specialized", **{"block_m": 128, "block_n": 128, "block_k": 64,
                                                 "num_warps": 8, "num_stages": 3, **more})
    broken = violation(problem, config, H200)
    assert broken.rule == "epilogue" and says in broken.message


@pytest.mark.quick
def test_an_auxiliary_output_needs_rows_that_tma_stores():
    problem = GemmProblem.contiguous(1000, 2044, 512, layout="nt", epilogue="gelu+aux")
    broken = violation(problem, ws(128, 128), H200)
    assert broken.rule == "epilogue" and "16 bytes" in broken.message


@pytest.mark.quick
@pytest.mark.parametrize("kernel", ("persistent_tma", "skinny", "gemv", "split_product",
                                    "scaled_product"))
def test_other_kernels_refuse_them(kernel):
    from tritongemm.kernels import SPECS

    dtype = SPECS[kernel].takes.formats[0]
    for epilogue in ("gated_silu", "bias+residual", "gelu+aux"):
        problem = GemmProblem.contiguous(64, 256, 64, dtype=dtype, layout="nt", epilogue=epilogue,
                                         precision=SPECS[kernel].takes.computes[0].replace(
                                             "native", "ieee"))
        broken = SPECS[kernel].supports(problem, H200)
        assert broken.rule == "epilogue" and repr(epilogue) in broken.message

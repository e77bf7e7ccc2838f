"""The order in which configs add the products of an element."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.kernels import SPECS
from tritongemm.kernels.sum_order import TENSOR_CORE_16, SumOrder
from tritongemm.problem import GemmProblem
from tritongemm.records.spaces import usable_spaces

H100 = device_named("nvidia-h100-80gb-hbm3")
PROBLEM = GemmProblem.contiguous(256, 512, 1000, layout="nt")
WGMMA = TENSOR_CORE_16


def order(config: KernelConfig, problem: GemmProblem = PROBLEM, device=H100) -> SumOrder | None:
    return SPECS[config.kernel].sum_order(problem, config, device)


def hopper(*tile: int, **more: int) -> KernelConfig:
    return KernelConfig("warp_specialized", *(tile or (128, 128, 64)), **{"num_warps": 8, **more})


@pytest.mark.parametrize("config", [
    hopper(), hopper(64, 56, 64, num_warps=4), hopper(192, 176, 64, num_warps=12),
    hopper(pingpong=1), hopper(swap_ab=1), hopper(swap_ab=2), hopper(pad_operands=1),
    hopper(cluster_m=2, cluster_n=2), hopper(num_stages=7, group_m=4, epilogue_subtile=2),
    hopper(dependent_launch=2),
    KernelConfig("persistent_tma", 128, 256, 64, num_warps=8),
    KernelConfig("persistent_tma", 64, 64, 128, num_warps=4),
    KernelConfig("tiled", 64, 32, 128, num_warps=4),
    KernelConfig("tiled", 128, 64, 32, num_warps=8)], ids=str)
def test_tile_stages_clusters_and_swap_do_not_change_the_order(config):
    assert order(config) == SumOrder(WGMMA)


@pytest.mark.parametrize("config", [
    KernelConfig("tiled", 32, 64, 64, num_warps=4), KernelConfig("tiled", 16, 16, 512, num_warps=4),
    KernelConfig("tiled", 128, 64, 64, num_warps=2)], ids=str)
def test_tiles_that_no_warpgroup_fills_sum_alike_in_16_bits_alone(config):
    assert order(config) == SumOrder(WGMMA)
    tf32 = GemmProblem.contiguous(256, 512, 1000, layout="nt", dtype="fp32", precision="tf32")
    assert order(config, tf32) == SumOrder("mma.sync tf32 k8")


def test_ranges_of_k_are_whole_steps():
    assert order(hopper(split_k=2)) == SumOrder(WGMMA, 512)  # 16 steps of 64
    assert order(hopper(split_k=3)) == SumOrder(WGMMA, 384, "reduce4")  # 6, 6 and 4 steps
    assert order(KernelConfig("tiled", 64, 64, 256, num_warps=4, split_k=3)) == SumOrder(
        WGMMA, 512)  # 4 steps of 256: 2, 2 and none


def test_two_ranges_give_the_same_sum_by_a_cluster_and_by_a_split():
    assert order(hopper(split_k=2)) == order(hopper(cluster_k=2))
    assert order(hopper(split_k=4)) != order(hopper(cluster_k=4))
    assert order(hopper(cluster_k=4)) == SumOrder(WGMMA, 256, "by rank")


def test_ranges_within_ranges_have_no_order():
    assert order(hopper(split_k=2, cluster_k=2)) is None


def test_a_k_of_one_step_is_never_cut():
    short = replace(PROBLEM, k=64)
    assert order(hopper(cluster_k=4), short) == SumOrder(WGMMA)


def test_a_long_split_has_no_order():
    """What its threads add depends on how they are laid out, and that on the number of elements."""
    deep = replace(PROBLEM, k=65536)
    assert order(hopper(split_k=8), deep) == SumOrder(WGMMA, 8192, "reduce8")
    assert order(hopper(split_k=16), deep) is None


def test_float32_on_cuda_cores_adds_one_product_at_a_time():
    for precision in ("ieee", "fp16x3"):  # it serves the second as if it were the first
        problem = GemmProblem.contiguous(256, 256, 256, dtype="fp32", precision=precision)
        assert order(KernelConfig("tiled", 32, 32, 16, num_warps=4), problem) == SumOrder("fma")


def test_small_products_with_sums_of_their_own_are_another_order():
    problem = GemmProblem.contiguous(256, 256, 256, dtype="fp32", precision="fp16x3")
    narrow, wide = (order(KernelConfig("split_product", 128, n, 64, num_warps=8), problem)
                    for n in (128, 192))
    assert narrow is not None and wide is not None and narrow != wide
    assert narrow.range_k == wide.range_k == 0


def test_scaled_copies_are_summed_in_one_order_of_their_own():
    problem = GemmProblem.contiguous(256, 256, 256, dtype="fp32", precision="tf32")
    found = {order(KernelConfig("scaled_product", *tile, 64, num_warps=8, **more), problem)
             for tile, more in (((128, 256), {}), ((128, 96), {"cluster_m": 2}),
                                ((64, 128), {"pingpong": 1}))}
    assert len(found) == 1 and None not in found
    assert order(KernelConfig("split_product", 128, 128, 64, num_warps=8), problem) not in found


def test_other_architectures_and_other_kernels_state_no_order():
    assert order(KernelConfig("tiled", 64, 64, 64), device=device_named("nvidia-b200")) is None
    assert order(KernelConfig("tiled", 64, 64, 64), device=device_named("nvidia-a100-sxm4-80gb")
                 ) == SumOrder(WGMMA)
    few = replace(PROBLEM, m=8)
    assert order(KernelConfig("skinny", 8, 16, 256, num_warps=4), few) is None
    assert order(KernelConfig("gemv", 8, 16, 256, num_warps=4), few) is None


def test_the_order_does_not_depend_on_the_rows():
    """Every described config of a sample of the spaces, at every M, batch and alignment."""
    rng = random.Random(0)
    for dtype, precision in (("bf16", "ieee"), ("fp32", "ieee"), ("fp32", "fp16x3"),
                             ("fp32", "tf32")):
        problem = replace(PROBLEM, dtype_a=dtype, dtype_b=dtype, dtype_out=dtype,
                          precision=precision)
        described = set()
        for space in usable_spaces().values():
            found = list(space.configs(dtype=dtype))
            for config in rng.sample(found, min(40, len(found))):
                whole = order(config, problem)
                described |= {config.kernel} if whole else set()
                for m, batch in ((1, 1), (77, 3), (4096, 1)):
                    assert order(config, replace(problem, m=m, batch=batch, align_a=2)) == whole
        assert precision != "tf32" or {"scaled_product", "split_product"} <= described

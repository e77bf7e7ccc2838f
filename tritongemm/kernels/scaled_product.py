"""float32 products at TF32's accuracy as one fp16 product of scaled copies: its launches and its
rules.

A pass scales each row of A and column of B by a power of two and rounds them to fp16, as for
``split_product``, whose guard computes what fp16 cannot represent. The copies are multiplied by the
kernel of 16-bit operands (``warp_specialized``), with its ping-pong and its clusters that share
operands; its consumers undo the scales as they store. The tensor core adds up all of K, so where K
is long and all numbers have one sign, truncation makes sums less accurate than those of
``split_product``.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import warp_specialized
from tritongemm.kernels import warp_tile as tile
from tritongemm.kernels.footprint import Footprint
from tritongemm.kernels.launch import SCRATCH, Descriptor, Geometry, Launch
from tritongemm.kernels.reduce import reduce_launch, split_to_fill, target_of
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.split_fp32 import (
    SplitOperand,
    SplitOperands,
    guard_launch,
    scratch,
    split_launch,
    split_operands,
)
from tritongemm.kernels.sum_order import SumOrder, order_of
from tritongemm.kernels.symbol import symbol_of
from tritongemm.kernels.takes import Takes
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem

#: Elements of fp16 in a swizzled row of shared memory: a step along K.
_STEP = 64


@functools.lru_cache(maxsize=1024)  # rules ask once a config, of thousands of one problem
def product_of(problem: GemmProblem) -> GemmProblem:
    """The product of the fp16 copies."""
    return replace(problem, dtype_a="fp16", dtype_b="fp16", precision="ieee",
                   align_a=FULL_ALIGNMENT, align_b=FULL_ALIGNMENT)


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes that the product takes."""
    return tile.shared_bytes(product_of(problem), config)


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The pass that scales the operands, the product, the guard, and for split_k > 1 the pass that
    adds the parts of K."""
    split, g = split_operands(problem, config, geometry), geometry
    copies, of_copies = product_of(problem), _of_copies(g, split)
    a, b = warp_specialized.maps_of(copies, copies, config, of_copies)
    product = warp_specialized.product_launch(
        copies, copies, config, device, of_copies, of_copies,
        (_moved(a, split.a), _moved(b, split.b)), symbol_of(problem, config), split.scratch_bytes,
        split)
    after = (reduce_launch(problem, config, g, device),) if config.split_k > 1 else ()
    return (split_launch(problem, config, g, device, split), product, guard_launch(
        problem, config, g, device, split, target_of(problem, config, g)), *after)


def _of_copies(g: Geometry, split: SplitOperands) -> Geometry:
    """The geometry with the copies' strides in place of the operands'."""
    (ab, am, ak), (bb, bn, bk) = split.a.strides, split.b.strides
    return replace(g, ab=ab, am=am, ak=ak, bb=bb, bk=bk, bn=bn, stored_a="")


def _moved(map_: Descriptor, operand: SplitOperand) -> Descriptor:
    """An operand's tensor map over its copy."""
    return replace(map_, operand=SCRATCH, offset=operand.offset)


def sum_order(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> SumOrder | None:
    """As 16-bit products are added, in an order of its own: the products are those of the copies.
    Rows that these cannot represent are as for ``split_product``."""
    return order_of("wgmma k16 of scaled fp16", problem, config)


def footprint(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Footprint:
    """That of the product, of copies that a pass before it has written."""
    return warp_specialized.footprint(product_of(problem), config, device)


def _of_product(rule: rules.Constraint) -> rules.Constraint:
    """A rule of the kernel, asked of the product of the copies."""
    def check(problem, config, device):
        return rule.check(product_of(problem), config, device)
    return replace(rule, check=check)


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """128x256 shared by two groups where that fills the SMs; 128x128 else; 64 rows where there are
    no more. K is split where it leaves SMs idle."""
    few = problem.m <= 64
    block_m, warps = (64, 4) if few else (128, 8)
    tiles = -(-problem.m // 128) * -(-problem.n // 256) * problem.batch
    wide = not few and tiles >= device.num_sms // 2
    block_n = warp_specialized.narrowed(256 if wide else 128, problem.n)
    units = -(-problem.m // block_m) * -(-problem.n // block_n) * problem.batch
    config = KernelConfig("scaled_product", block_m, block_n, _STEP, num_warps=warps, num_stages=6,
                          group_m=8, split_k=split_to_fill(units, device.num_sms,
                                                           -(-problem.k // _STEP)))
    while (config.num_stages > 2
           and shared_bytes(problem, config) > device.shared_bytes_per_block):
        config = replace(config, num_stages=config.num_stages - 1)
    return config


SCALED_PRODUCT = KernelSpec(
    name="scaled_product",
    idea="float32 operands scaled and rounded to fp16, multiplied as 16-bit operands are",
    archs=(90,),
    constraints=(
        rules.archs(90), rules.not_interpreted, rules.gluon, rules.tma_extents,
        rules.unused("epilogue_subtile", "swap_ab", "pad_operands", "cluster_k",
                     *rules.CUDA_TILES),
        rules.flags, _of_product(warp_specialized.POWERS),
        _of_product(warp_specialized.CONSUMERS), _of_product(warp_specialized.TILE),
        _of_product(warp_specialized.SHARING), _of_product(warp_specialized.OVERSIZED),
        # The bound of scratch keeps grids and extents below what 32 bits hold.
        scratch, rules.split_k, rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    widens_a=True, guarded=True, device_code=("warp_specialized", "split_fp32"), by_rule=False,
    takes=Takes(("fp32",), ("tf32",), outputs=("fp32",)),
    sum_order=sum_order)

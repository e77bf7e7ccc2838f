"""The order in which a config adds the products of an element of C: :class:`SumOrder`.

Floating-point addition is not associative, so two configs give the same bits only if they add the
same products in the same order. Most of a config does not change that order. Every kernel here
keeps the sum of an element in one place while it walks along K from the first element to the last.
The tile (along M, N and K), warps, stages, clusters along M and N, ping-pong, the order of tiles,
the way to the store and the batch decide *where* and *when* an element is summed, and not in which
order. What changes the order is

- the instruction: how many products it adds to the sum at a time, and how it rounds. A tensor-core
  instruction adds 16 products of 16-bit operands (8 of TF32) in one step, whose rounding is the
  hardware's, without regard to the order of the 16. A step always begins at a multiple of 16 from
  the start of its range, because tiles are multiples of 16 along K. Zeros behind the end of K add
  nothing.
- the ranges that K is cut into (``split_k``, ``cluster_k``): each has a sum of its own. A range is
  whole steps of ``block_k``, so its length depends on both parameters and on K.
- how the sums of the ranges are added. Two give the same sum in either order.

``swap_ab`` computes the transposed product: each product has its factors exchanged, which changes
nothing. Copies of operands (``pad_operands``) append zeros to K, fewer than complete its last step.

M and the batch have no part in any of this, so configs of one order give a row of C the same bits
whatever rows are computed with it. ``perf/prove_sum_orders.py`` proves on a GPU, by random
problems, that configs with equal orders give equal bits.
"""

from __future__ import annotations

from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels.constraints import on_cuda_cores
from tritongemm.problem import GemmProblem

#: wgmma and mma.sync of 16-bit operands on sm_90 give the same sums: 5,854 comparisons of random
#: problems on an H100, every bit equal (perf/results/nvidia-h100-80gb-hbm3/sum-orders.csv). Not
#: known of TF32, nor of other architectures, which have one of the two.
TENSOR_CORE_16 = "tensor core k16"
WGMMA_TF32 = "wgmma tf32 k8"
#: Ranges that the pass over a split K adds within one thread, in a fixed order, however its threads
#: are laid over the elements of C. From 16 on the layout depends on what divides their number.
_MAX_REDUCED = 8


class SumOrder(NamedTuple):
    """How an element of C is summed over K. Equal orders give equal bits.

    Attributes:
        instruction: what adds products to the sum, and how many at a time.
        range_k: elements of K in each range that has a sum of its own; 0: all of K has one sum.
        added: how the sums of three ranges or more are added: ``by rank`` one after another, or
            ``reduce<n>`` by the pass over a split K, as n with zeros behind; else empty.
    """

    instruction: str
    range_k: int = 0
    added: str = ""

    def __str__(self) -> str:
        text = f"{self.instruction}, " + (
            f"K in ranges of {self.range_k}" if self.range_k else "K in one range")
        return f"{text}, added {self.added}" if self.added else text


def not_described(problem: GemmProblem, config: KernelConfig,
                  device: DeviceSpec) -> SumOrder | None:
    """The order of a kernel that states none: None."""
    return None


def order_of(instruction: str, problem: GemmProblem, config: KernelConfig) -> SumOrder | None:
    """The order of a kernel whose ``split_k`` and ``cluster_k`` cut K into ranges of whole steps of
    ``block_k``. None where the pass over a split K has no fixed order, and for both cuts at once,
    whose ranges lie within ranges."""
    if config.split_k > 1 < config.cluster_k:
        return None
    steps = -(-problem.k // config.block_k)
    range_k = -(-steps // (config.split_k * config.cluster_k)) * config.block_k
    ranges = -(-problem.k // range_k) if range_k else 1
    if ranges == 1:  # further programs have none of K, and add 0
        return SumOrder(instruction)
    if ranges == 2:
        return SumOrder(instruction, range_k)
    if config.split_k == 1:
        return SumOrder(instruction, range_k, "by rank")
    padded = 1 << (config.split_k - 1).bit_length()
    return SumOrder(instruction, range_k, f"reduce{padded}") if padded <= _MAX_REDUCED else None


def dot_instruction(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str | None:
    """The instruction that Triton compiles ``tl.dot`` to; None: not known for the architecture.

    On Hopper it is wgmma where the warps form whole warpgroups and each has 64 rows of the tile to
    share (``supportMMA`` in Triton's ``lib/Analysis/Utility.cpp``), else mma.sync; of 16-bit
    operands these sum alike (:data:`TENSOR_CORE_16`). On CUDA cores each product is one
    multiply-add.
    """
    if on_cuda_cores(problem):
        return "fma"
    if device.arch >= 100:
        return None
    if problem.a.format.bits == 16:
        return TENSOR_CORE_16
    if problem.dtype_a != "fp32":
        return None
    whole = device.arch >= 90 and config.num_warps % 4 == 0 and config.block_m % 64 == 0
    return WGMMA_TF32 if whole else "mma.sync tf32 k8"

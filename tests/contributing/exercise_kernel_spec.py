"""A kernel that was added as CONTRIBUTING says."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import footprint as footprints
from tritongemm.kernels.epilogue import epilogue_of_launch
from tritongemm.kernels.launch import Launch, Pointer, Scalar, as_dot_multiplies, stage_bytes
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.symbol import symbol_of
from tritongemm.kernels.takes import Takes


def shared_bytes(problem, config):
    """Bytes: the pipeline's buffers, or the tile in float32 on its way to the store."""
    return max(config.num_stages * stage_bytes(problem, config),
               4 * config.block_m * (config.block_n + 4)) + 128


def footprint(problem, config, device):
    """A program for each tile."""
    return footprints.of_threads(
        problem, config, device, shared_bytes=shared_bytes(problem, config),
        registers=40 + footprints.accumulators(config),
        tensor_cores=not rules.on_cuda_cores(problem))


def launches(problem, config, device, g):
    """One launch."""
    problem = as_dot_multiplies(problem)
    arguments = [
        Pointer("a", "a", problem.dtype_a, problem.align_a),
        Pointer("b", "b", problem.dtype_b, problem.align_b),
        Pointer("c", "c", problem.dtype_out, problem.align_c),
        Scalar("M", problem.m), Scalar("N", problem.n), Scalar("K", problem.k),
        Scalar("stride_am", g.am), Scalar("stride_ak", g.ak), Scalar("stride_bk", g.bk),
        Scalar("stride_bn", g.bn), Scalar("stride_cm", g.cm), Scalar("stride_cn", g.cn)]
    constants = []
    extra, epilogue = epilogue_of_launch(problem, g)
    tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    return (Launch(
        "tritongemm.kernels.device.exercise", "exercise", (*arguments, *extra),
        (("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n), ("BLOCK_K", config.block_k),
         ("GROUP_M", config.group_m), ("PRECISION", problem.precision), ("INTERPRETED", False),
         *constants, *epilogue),
        (tiles, 1, 1), config.num_warps, config.num_stages, symbol_of(problem, config)),)


def default(problem, device):
    """One config for all."""
    return KernelConfig("exercise", 64, 64, 32, num_warps=4, num_stages=2)


EXERCISE = KernelSpec(
    name="exercise", idea="a program a tile", archs=(90,),
    takes=Takes(("bf16", "fp16", "fp32"), ("native", "ieee", "tf32", "fp16x3")),
    constraints=(
        rules.min_arch(80), rules.not_batched,
        rules.unused("epilogue_subtile", "pingpong", "swap_ab", "pad_operands", "split_k",
                     *rules.CLUSTERS, *rules.CUDA_TILES),
        rules.powers_of_two, rules.dot_shape, rules.accumulator, rules.grid,
        rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    by_rule=False)

"""The kernel for few rows on tensor cores: one side of at most 32 beside streamed weights."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import footprint as footprints
from tritongemm.kernels.epilogue import NO_EPILOGUE, epilogue_of_launch
from tritongemm.kernels.launch import (
    Geometry,
    Launch,
    Pointer,
    Scalar,
    dependence,
)
from tritongemm.kernels.reduce import (
    REDUCE_BYTES,
    partials_bytes,
    reduce_launch,
    split_to_fill,
    target_of,
)
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.swap import computed, swapped_geometry
from tritongemm.kernels.symbol import symbol_of
from tritongemm.kernels.takes import Takes
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem, divisor_of

#: Rows of A at most: more are for tiles that share what they load.
MAX_ROWS = 32
#: Programs per SM that ask the L2 for weights before they wait, the first ones: as measured on an
#: H200 with weights of which nothing is left in the cache (perf/log/2026-11.md).
_PREFETCHERS = 4
#: Elements along K that a warp's threads load at once, 16 bytes each, of one column.
_LOAD = 32
#: Registers of addresses and counts, and the most that :func:`registers_needed` may come to: as
#: compiled for sm_90.
_BASE_REGISTERS, _MAX_REGISTERS = 20, 250


def registers_needed(problem: GemmProblem, config: KernelConfig) -> float:
    """Registers that a thread wants: its sums, and the words of all stages."""
    words = config.block_k // config.num_warps // _LOAD * 4
    rows_a, rows_b = config.block_m / 8, config.block_n / 8
    return (_BASE_REGISTERS + config.block_m * config.block_n / 32
            + words * (rows_a + rows_b) * config.num_stages + 2 * (rows_a + rows_b))


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the sums of all warps, which are added there, or the pass that adds the parts."""
    sums = 4 * config.num_warps * config.block_m * config.block_n
    return max(sums, REDUCE_BYTES if config.split_k > 1 else 0) + 128


def footprint(problem: GemmProblem, config: KernelConfig,
              device: DeviceSpec) -> footprints.Footprint:
    """Tensor cores multiply what the threads load; the warps divide K among them."""
    return footprints.of_threads(
        problem, config, device, shared_bytes=shared_bytes(problem, config),
        registers=registers_needed(problem, config), tensor_cores=True, k_over_threads=True)


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The product, and for split_k > 1 the pass that adds the parts in a fixed order."""
    outer, outer_geometry, names = problem, geometry, ("a", "b")
    problem, split = computed(problem, config), config.split_k
    if config.swap_ab:
        geometry, names = swapped_geometry(geometry), ("b", "a")
    g, c = geometry, target_of(outer, config, geometry)
    arguments = (
        Pointer("a", names[0], problem.dtype_a, FULL_ALIGNMENT),
        Pointer("b", names[1], problem.dtype_b, FULL_ALIGNMENT), c.pointer,
        Scalar("M", problem.m), Scalar("N", problem.n), Scalar("K", problem.k, 8),
        Scalar("stride_ab", g.ab, 8), Scalar("stride_am", g.am, 8),
        Scalar("stride_bb", g.bb, 8), Scalar("stride_bn", g.bn, 8),
        Scalar("stride_cb", c.batch, divisor_of(c.batch, c.align)),
        Scalar("stride_cm", c.row, divisor_of(c.row, c.align), fold=True),
        Scalar("stride_cn", c.column, divisor_of(c.column, c.align), fold=True),
        Scalar("stride_cs", c.part, divisor_of(c.part, 4)))
    extra, epilogue = epilogue_of_launch(problem, g) if split == 1 else ((), NO_EPILOGUE)
    steps = -(-problem.k // config.block_k)
    constants = (
        ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n), ("WARPS", config.num_warps),
        ("WARP_K", config.block_k // config.num_warps), ("SPLIT_K", split),
        ("STAGES", config.num_stages),
        ("EVEN_K", problem.k % config.block_k == 0 and steps % split == 0),
        ("PREFETCHERS", _PREFETCHERS * device.num_sms), *epilogue)
    product = Launch(
        "tritongemm.kernels.device.skinny", "skinny", (*arguments, *extra), constants,
        (-(-problem.n // config.block_n) * problem.batch, split, 1), config.num_warps, 1,
        symbol_of(outer, config), gluon=True, **dependence(config, device),
        scratch_bytes=partials_bytes(outer, split))
    if split == 1:
        return (product,)
    return (product, reduce_launch(outer, config, outer_geometry, device))


def _skinny(problem, config, device):
    if min(problem.m, problem.n) > MAX_ROWS:
        return f"is for M or N of at most {MAX_ROWS}, not {problem.m} and {problem.n}"
    if problem.layout != "nt":
        return f"loads both operands along K: nt, not {problem.layout}"
    if any(x.format.bytes_of(problem.k) % FULL_ALIGNMENT for x in (problem.a, problem.b)):
        return (f"loads {FULL_ALIGNMENT} bytes at a time; rows of k={problem.k} end within "
                "them")  # rows kept apart may begin aligned all the same
    if min(problem.align_a, problem.align_b) < FULL_ALIGNMENT:
        return (f"loads {FULL_ALIGNMENT} bytes at a time; A's rows are aligned to "
                f"{problem.align_a}, B's to {problem.align_b}")
    return None


def _padded(rows: int) -> int:
    """The rows of A with those that only fill a tile."""
    return min(max(8, 1 << max(rows - 1, 0).bit_length()), MAX_ROWS)


def _rows(problem, config, device):
    """The rows of A are one tile, no larger than it must be."""
    side, name = computed(problem, config).m, "n" if config.swap_ab else "m"
    if side > MAX_ROWS:
        return (f"swap_ab={config.swap_ab} makes {name}={side} the rows of A; at most {MAX_ROWS}. "
                f"Use swap_ab={1 - config.swap_ab}")
    if config.block_m != _padded(side):
        return f"block_m={config.block_m} for {name}={side}; use {_padded(side)}"
    return None


def _tile(problem, config, device):
    if config.num_warps not in (1, 2, 4, 8, 16):
        return f"num_warps={config.num_warps} is not 1, 2, 4, 8 or 16"
    if config.block_n not in (16, 32, 64):
        return f"block_n={config.block_n} is not 16, 32 or 64 columns of fragments"
    if config.block_k % (_LOAD * config.num_warps):
        return (f"block_k={config.block_k} on {config.num_warps} warps; each loads a multiple of "
                f"{_LOAD} elements along K")
    if not 1 <= config.num_stages <= 8:
        return f"num_stages={config.num_stages} is outside 1 to 8"
    return None


def _registers(problem, config, device):
    need = registers_needed(problem, config)
    most = min(_MAX_REGISTERS, device.registers_per_sm // (32 * config.num_warps) - 8)
    if need <= most:
        return None
    return (f"{config.block_m}x{config.block_n}x{config.block_k} on {config.num_warps} warps in "
            f"{config.num_stages} stages wants about {need:.0f} registers a thread; at most "
            f"{most}. Use fewer stages, more warps or a smaller tile")


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """Four warps on 64 elements each; K is cut until each SM has two programs."""
    config = KernelConfig("skinny", 8, 16, 256, num_warps=4, swap_ab=int(problem.m > MAX_ROWS))
    one = computed(problem, config)
    rows = _padded(one.m)
    config = replace(config, block_m=rows, num_stages=2 if rows == MAX_ROWS else 3)
    programs = -(-one.n // config.block_n) * max(problem.batch, 1)
    steps = -(-problem.k // config.block_k)
    return replace(config, split_k=split_to_fill(programs, 2 * device.num_sms, steps))


SKINNY = KernelSpec(
    name="skinny",
    idea="at most 32 rows: weights from memory straight into tensor fragments",
    archs=(90,),
    takes=Takes(("bf16", "fp16")),
    constraints=(
        rules.archs(90), rules.not_interpreted, rules.gluon,
        rules.Constraint("skinny", _skinny, of_problem=True),
        rules.unused("epilogue_subtile", "pingpong", "pad_operands", *rules.CLUSTERS,
                     *rules.CUDA_TILES),
        rules.flags, rules.Constraint("rows", _rows), rules.Constraint("tile", _tile),
        rules.Constraint("registers", _registers), rules.split_k, rules.grid,
        rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    by_rule=False)

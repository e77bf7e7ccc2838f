"""float32 on CUDA cores with register tiles of their own, for any strides and alignment."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import footprint as footprints
from tritongemm.kernels.epilogue import NO_EPILOGUE, epilogue_of_launch
from tritongemm.kernels.launch import (
    Geometry,
    Launch,
    as_dot_multiplies,
    stage_bytes,
    two_batch_strides,
)
from tritongemm.kernels.pointer_tile import tile_arguments, tile_constants, tile_launches
from tritongemm.kernels.reduce import split_to_fill, target_of
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.sum_order import SumOrder, order_of
from tritongemm.kernels.takes import Takes
from tritongemm.problem import GemmProblem, divisor_of

_WARP = 32
#: Numbers that a thread reads from shared memory at once.
_VECTOR = 4
#: Registers of a thread beside its sums; those for each of its rows (or columns), of an operand
#: stored across K, and of one stored along K, of which four steps are read at once; and those for
#: each copy of a step that it starts. As compiled for sm_90.
_BASE_REGISTERS, _ACROSS_REGISTERS, _ALONG_REGISTERS, _COPY_REGISTERS = 8, 2.5, 7.0, 1.7
#: Conversions of elements of a 16-bit A, each by every thread that multiplies it. On an H200,
#: 16x4096x4096 with 2^26 takes about as long as with a float32 A, 32x4096x4096 with 2^27 20 us
#: more; a launch that converts A takes 3 us (perf/log/2026-11.md, float32 weights).
_MOST_WIDENED = 2**26
#: Products that the loop's body may unroll to: more compile for tens of seconds.
_MAX_PRODUCTS = 4096


def _stored_across(problem: GemmProblem) -> tuple[bool, bool]:
    """Whether A and B are stored across K."""
    return problem.layout[0] == "t", problem.layout[1] == "n"


def registers_needed(problem: GemmProblem, config: KernelConfig) -> float:
    """Registers that a thread needs; more than it may have are spilled."""
    a, b = (_ACROSS_REGISTERS if across else _ALONG_REGISTERS
            for across in _stored_across(problem))
    copies = (config.block_m / problem.a.elements + config.block_n / problem.b.elements
              ) * config.block_k / (_WARP * config.num_warps)
    return (_BASE_REGISTERS + config.thread_m * config.thread_n + a * config.thread_m
            + b * config.thread_n + _COPY_REGISTERS * copies)


def footprint(problem: GemmProblem, config: KernelConfig,
              device: DeviceSpec) -> footprints.Footprint:
    """A program for each tile; operands pass through shared memory."""
    return footprints.of_threads(
        problem, config, device, shared_bytes=shared_bytes(problem, config),
        registers=registers_needed(problem, config), tensor_cores=False)


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the stages, or the tile on its way to the store, padded."""
    out = 0 if problem.layout[1] == "n" else 4 * config.block_m * (config.block_n + 4)
    return max(config.num_stages * stage_bytes(problem, config), out) + 128


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The product, and for split_k > 1 the pass that adds the parts in a fixed order."""
    problem = as_dot_multiplies(problem)
    if geometry.stored_a:
        _require_worth_widening(problem, config, geometry.stored_a)
    g, c = geometry, target_of(problem, config, geometry)
    batch, one_stride = two_batch_strides(
        problem, g, problem.a.elements, problem.b.elements, c.align)
    extra, epilogue = epilogue_of_launch(problem, g) if config.split_k == 1 else ((), NO_EPILOGUE)
    a_across, b_across = g.ak != 1 and g.am == 1, g.bk != 1 and g.bn == 1
    constants = (
        *tile_constants(problem, config, g), ("THREAD_M", config.thread_m),
        ("THREAD_N", config.thread_n), ("WARPS", config.num_warps), ("STAGES", config.num_stages),
        ("A_ACROSS", a_across), ("B_ACROSS", b_across), ("COPY_A", problem.a.elements),
        ("COPY_B", problem.b.elements), ("WAITS", device.arch >= 90), *one_stride, *epilogue)
    arguments = (*tile_arguments(problem, config, g, c), *batch, *extra)
    return tile_launches("simt", problem, config, device, g, arguments, constants, gluon=True)


def _require_worth_widening(problem: GemmProblem, config: KernelConfig, stored: str) -> None:
    """Raises :class:`UnsupportedError` where a 16-bit A is better converted first, or must be: an
    asynchronous copy moves at least 4 bytes, within the alignment of A and of its edge."""
    m, k = problem.m, problem.k
    edge = m if problem.layout[0] == "t" else 0 if k % config.block_k == 0 else k
    if divisor_of(edge, problem.a.elements) == 1:
        raise UnsupportedError(f"simt copies 4 bytes and more of A at a time; {m}x{k} of {stored}, "
                               f"aligned to {problem.a.elements}, allow 2. Convert A first")
    widened = problem.batch * problem.m * problem.n * problem.k // config.thread_n
    if widened > _MOST_WIDENED:
        raise UnsupportedError(f"threads of {config.config_id} would convert {widened:,} elements "
                               f"of A, more than {_MOST_WIDENED:,}. Convert A first")


def sum_order(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> SumOrder | None:
    """A multiply-add for each product, in the order of K."""
    return order_of("fma", problem, config)


def _enough_results(problem, config, device):
    """A warp has 16 results a thread or more, 16x32 of a tile."""
    if max(problem.m, problem.n) > 8 or not min(problem.m, problem.n):
        return None
    return (f"m={problem.m} and n={problem.n}: a tile has at least 16x32 results. Use gemv or "
            "tiled")


def _register_tile(problem, config, device):
    for name in ("thread_m", "thread_n"):
        value = getattr(config, name)
        if value not in (4, 8, 16):
            return f"{name}={value} is not 4, 8 or 16"
        if value > getattr(config, "block" + name[-2:]):
            return f"{name}={value} is more than the tile's block{name[-2:]}"
    threads = config.block_m // config.thread_m * (config.block_n // config.thread_n)
    if threads != _WARP * config.num_warps:
        return (f"{config.block_m}x{config.block_n} in register tiles of "
                f"{config.thread_m}x{config.thread_n} is {threads} threads; num_warps="
                f"{config.num_warps} is {_WARP * config.num_warps}. Use num_warps="
                f"{max(1, threads // _WARP)}")
    if config.block_k not in (16, 32):
        return f"block_k={config.block_k} is not 16 or 32"
    products = config.thread_m * config.thread_n * config.block_k
    if products > _MAX_PRODUCTS:
        return (f"{config.thread_m}x{config.thread_n}x{config.block_k} unrolls {products} "
                f"multiply-adds; at most {_MAX_PRODUCTS}. Use a smaller block_k")
    if config.thread_m * config.thread_n > 128:
        return (f"{config.thread_m}x{config.thread_n} results a thread are more than 128. Use "
                "thread_m=8 or thread_n=8")
    for name, across, operand in zip(("thread_m", "thread_n"), _stored_across(problem),
                                     (problem.a, problem.b), strict=True):
        if getattr(config, name) > 8 and not (across and operand.elements == _VECTOR):
            return (f"{name}={getattr(config, name)} takes too many registers of an operand that "
                    f"{problem.layout} stores along K, or whose rows are not aligned to 16 bytes. "
                    f"Use {name}=8")
    most = min(footprints.MAX_REGISTERS, device.registers_per_sm // (_WARP * config.num_warps))
    if config.num_warps > 8 and (needed := registers_needed(problem, config)) > most:
        return (f"a thread needs about {needed:.0f} registers; {config.num_warps} warps leave each "
                f"{most}. Use fewer warps or a smaller thread_m or thread_n")
    if config.num_stages < 2:
        return f"num_stages={config.num_stages} is below 2: one step is copied under another"
    return None


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """The largest tile that still gives most SMs work, K split where that leaves them idle."""
    m, n = max(problem.m, 1), max(problem.n, 1)
    for block_m, block_n in ((64, 128), (64, 64), (32, 64), (32, 32), (16, 32)):
        tiles = -(-m // block_m) * -(-n // block_n) * max(problem.batch, 1)
        if tiles >= device.num_sms // 2 and block_m < 2 * m and block_n < 2 * n:
            break
    if block_m < block_n and n <= 16 < m:
        block_m, block_n = 32, 16
        tiles = -(-m // block_m) * -(-n // block_n) * max(problem.batch, 1)
    thread = 8 if block_m * block_n >= 4096 else 4
    block_k = 32
    while block_k > 16 and block_k >= 4 * max(problem.k, 1):
        block_k //= 2
    split = 1
    if "c" not in problem.two_strides:
        split = split_to_fill(tiles, device.num_sms, -(-problem.k // block_k))
    return KernelConfig(
        "simt", block_m, block_n, block_k, num_stages=2 if thread == 8 else 3, group_m=8,
        num_warps=block_m * block_n // (thread * thread * _WARP), split_k=split,
        thread_m=thread, thread_n=thread)


SIMT = KernelSpec(
    name="simt",
    idea="float32 on CUDA cores, register tiles of 8x8 and asynchronous copies; any strides",
    archs=(80, 89, 90, 100),
    takes=Takes(("fp32",), ("ieee", "fp16x3"), outputs=("fp32",), two_strides="abc"),
    constraints=(
        rules.min_arch(80), rules.not_interpreted, rules.gluon,
        rules.unused("epilogue_subtile", "pingpong", "swap_ab", "pad_operands", *rules.CLUSTERS,
                     "warp_m", "warp_n"),
        rules.Constraint("extents", _enough_results, of_problem=True),
        rules.flags, rules.powers_of_two, rules.Constraint("register_tile", _register_tile),
        rules.not_oversized, rules.split_k, rules.split_of_one_stride, rules.grid,
        rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    by_rule=False, widens_a=True, sum_order=sum_order)

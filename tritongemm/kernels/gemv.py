"""The bandwidth kernel: a product with a side of at most eight streams the other operand once."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import LINE_BYTES, DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import footprint as footprints
from tritongemm.kernels.epilogue import NO_EPILOGUE, epilogue_of_launch
from tritongemm.kernels.launch import (
    Geometry,
    Launch,
    Scalar,
    as_dot_multiplies,
    dependence,
    edge_mask,
    in_memory,
    operand_strides,
    two_batch_strides,
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
from tritongemm.problem import GemmProblem, divisor_of

#: Rows of A that a thread multiplies what it loads of B with: more are for tensor cores.
MAX_ROWS = 8
#: Registers of addresses and counts, and the most that :func:`registers_needed` may come to: as
#: compiled for sm_80, sm_90 and sm_100.
_BASE_REGISTERS, _MAX_REGISTERS = 32, 228
#: Registers that a thread may have.
_REGISTERS_A_THREAD = 255
#: Loads of a step, in a pipelined loop once for each of its buffers: 72 compile in 2 seconds, 144
#: took up to 150; 40 into 5 buffers took 34.
_MAX_LOADS = 72


class Tiling(NamedTuple):
    """How threads lie over a tile of B [BLOCK_K, BLOCK_N], as Triton lays them.

    Each holds ``vec_n`` neighbours along N, or ``vec_k`` along K; ``lanes`` of them lie along K
    and ``rows`` groups of those along N (1 where N is the contiguous side). A step of BLOCK_K is
    ``parts`` such loads.
    """

    vec_n: int
    vec_k: int
    rows: int
    lanes: int
    parts: int


def tiling(problem: GemmProblem, config: KernelConfig) -> Tiling:
    """The tiling of the operand that is streamed: B, or A of a swapped problem."""
    one = computed(problem, config)
    vec = one.b.elements
    threads = 32 * config.num_warps
    if one.layout[1] == "t":
        vec = min(vec, config.block_k)
        lanes = min(config.block_k // vec, threads)
        return Tiling(1, vec, min(threads // lanes, config.block_n), lanes,
                      config.block_k // (lanes * vec))
    vec = min(vec, config.block_n)
    lanes = min(config.block_k, max(1, threads // (config.block_n // vec)))
    return Tiling(vec, 1, 1, lanes, config.block_k // lanes)


def registers_needed(problem: GemmProblem, config: KernelConfig) -> float:
    """Registers that a thread wants: its sums, what it loads in a step, and a part of that as
    float32. What ptxas gives may be more, where more are free; less than this it spills. Two
    stages hold two steps."""
    shape, one = tiling(problem, config), computed(problem, config)
    size_a, size_b = one.a.format.bits / 8, one.b.format.bits / 8
    threads = 32 * config.num_warps
    columns = config.block_n * shape.lanes / threads
    word = 4 if shape.vec_n * shape.vec_k * size_b < 4 else size_b  # a half word takes a whole
    loaded = config.block_n * config.block_k / threads * word / 4
    if config.num_stages == 2:
        loaded *= 2
    # Of each row of A what a step needs, packed; from one layout into another it is there twice.
    vector = 2 * shape.vec_k if _narrower(problem, config) else max(1, shape.vec_k * size_a / 4)
    return (_BASE_REGISTERS + columns * (config.block_m + shape.vec_k) + loaded
            + config.block_m * shape.parts * vector)


def _narrower(problem: GemmProblem, config: KernelConfig) -> bool:
    """Whether rows of A cannot be loaded in vectors as long as B's, along K."""
    one = computed(problem, config)
    return (tiling(problem, config).vec_k > 1
            and (one.layout[0] == "t" or one.align_a < one.align_b))


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the buffers of a pipelined loop, or what the threads' sums are added through.

    From 3 stages on ``num_stages - 1`` buffers of each load of a step, B's and those of the rows
    of A; each begins at a multiple of 16 bytes. Rows of A that cannot be loaded as wide as B change
    places among the threads through two more. With a split the pass that adds the parts may be
    what takes most.
    """
    shape, one = tiling(problem, config), computed(problem, config)
    along_k = shape.lanes * shape.vec_k
    wide = _buffers(config) * along_k
    buffers = shape.parts * (
        _up(one.b.format.bytes_of(config.block_n * wide))
        + config.block_m * _up(one.a.format.bytes_of(shape.rows * wide)))
    moved = 2 * _narrower(problem, config) * one.a.format.bytes_of(shape.rows * along_k)
    adding = REDUCE_BYTES if config.split_k > 1 else 0
    return max(buffers + moved, config.block_n * config.num_warps * 4, adding) + 128


def _buffers(config: KernelConfig) -> int:
    """Buffers of each load of a step in a pipelined loop; 0: the loop is not pipelined."""
    return config.num_stages - 1 if config.num_stages > 2 else 0


def _up(size: int) -> int:
    return -(-size // 16) * 16


def footprint(problem: GemmProblem, config: KernelConfig,
              device: DeviceSpec) -> footprints.Footprint:
    """CUDA cores multiply, whatever the dtype; the threads divide K among them."""
    return footprints.of_threads(
        problem, config, device, shared_bytes=shared_bytes(problem, config),
        registers=registers_needed(problem, config), tensor_cores=False, k_over_threads=True)


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The product, and for split_k > 1 the pass that adds the parts in a fixed order."""
    problem = as_dot_multiplies(problem)  # it sums on CUDA cores, in float32, whatever is asked
    outer, outer_geometry, names = problem, geometry, ("a", "b")
    shape, split = tiling(problem, config), config.split_k
    problem = computed(problem, config)
    if config.swap_ab:
        geometry, names = swapped_geometry(geometry), ("b", "a")
    m, n, k, g = problem.m, problem.n, problem.k, geometry
    c = target_of(outer, config, g)
    # A's threads lie as B's do, so that a load of more elements of A would only be taken apart.
    align_b = problem.b.elements
    align_a = min(problem.a.elements, align_b)
    as_b = problem.align_b * problem.a.format.bits // problem.b.format.bits
    arguments = (
        in_memory("a", names[0], problem.dtype_a, min(problem.align_a, as_b), outer_geometry),
        in_memory("b", names[1], problem.dtype_b, problem.align_b, outer_geometry),
        c.pointer,
        Scalar("M", m),
        Scalar("N", n, divisor_of(n, max(align_b if g.bn == 1 else 1, c.align))),
        Scalar("K", k, divisor_of(k, align_b)), Scalar("mask_n", edge_mask(n)),
        *operand_strides(g, config.block_k, align_a, align_b),
        Scalar("stride_cb", c.batch, divisor_of(c.batch, c.align)),
        Scalar("stride_cm", c.row, divisor_of(c.row, c.align), fold=True),
        Scalar("stride_cn", c.column, divisor_of(c.column, c.align), fold=True),
        Scalar("stride_cs", c.part, divisor_of(c.part, 4)),
    )
    batch, one_stride = two_batch_strides(problem, g, align_a, align_b, c.align)
    extra, epilogue = epilogue_of_launch(problem, g) if split == 1 else ((), NO_EPILOGUE)
    steps = -(-k // config.block_k)
    constants = (
        ("VEC_N", divisor_of(n, shape.vec_n) if g.bn == 1 else 1), ("VEC_K", shape.vec_k),
        ("ROWS", shape.rows), ("LANES", shape.lanes), ("BLOCK_M", config.block_m),
        ("BLOCK_N", config.block_n), ("BLOCK_K", config.block_k), ("SPLIT_K", split),
        ("STAGES", config.num_stages),
        ("EVEN_K", k % config.block_k == 0 and steps % split == 0),
        ("INDEX64", g.max_offset(problem) >= 2**31 or m * n >= 2**31),
        *one_stride, *epilogue)
    programs = -(-m // config.block_m) * -(-n // config.block_n) * problem.batch
    product = Launch(
        "tritongemm.kernels.device.gemv", "gemv", (*arguments, *batch, *extra), constants,
        (programs, split, 1), config.num_warps, config.num_stages, symbol_of(outer, config),
        **dependence(config, device), scratch_bytes=partials_bytes(outer, split))
    if split == 1:
        return (product,)
    return (product, reduce_launch(outer, config, outer_geometry, device))


def _skinny(problem, config, device):
    if min(problem.m, problem.n) <= MAX_ROWS:
        return None
    return (f"is for M or N of at most {MAX_ROWS}, not {problem.m} and {problem.n}: more is for "
            "tensor cores")


def _block_m(problem, config, device):
    """The rows of A are one tile, no larger than it must be."""
    side, name = computed(problem, config).m, "n" if config.swap_ab else "m"
    if config.block_m == _padded(side) and side <= MAX_ROWS:
        return None
    if side > MAX_ROWS:
        return (f"swap_ab={config.swap_ab} makes {name}={side} the rows of A; at most {MAX_ROWS}. "
                f"Use swap_ab={1 - config.swap_ab}")
    return f"block_m={config.block_m} for {name}={side}; use the next power of two, {_padded(side)}"


def _padded(rows: int) -> int:
    """The rows of A with those that only fill a tile: the next power of two, at most 8."""
    return min(1 << max(rows - 1, 0).bit_length(), MAX_ROWS)


def _threads(problem, config, device):
    """Each thread has 16 bytes of a tile to load, or what its alignment allows."""
    shape, threads = tiling(problem, config), 32 * config.num_warps
    elements = config.block_n * config.block_k
    if elements < threads * shape.vec_n * shape.vec_k:
        return (f"{config.block_n}x{config.block_k} is less than a load of "
                f"{shape.vec_n * shape.vec_k} elements for each of {threads} threads. Use a "
                "larger tile or fewer warps")
    return None


def _copies(problem, config, device):
    """Three stages and more are asynchronous copies, which move at least 4 bytes."""
    shape = tiling(problem, config)
    narrow = min(problem.a.format, problem.b.format, key=lambda x: x.bits)
    got = narrow.bytes_of(shape.vec_n * shape.vec_k)
    if config.num_stages <= 2 or got >= 4:
        return None
    return (f"num_stages={config.num_stages} with loads of {got} bytes; an asynchronous copy moves "
            "at least 4. Use num_stages=2")


def _registers(problem, config, device):
    """What does not fit the registers goes to memory and back in every step."""
    if config.num_stages > 2 and _narrower(problem, config):
        return (f"num_stages={config.num_stages} with rows of A that are not contiguous along K, "
                "or less aligned than B, spills registers; at most 2")
    need = registers_needed(problem, config)
    given = min(_REGISTERS_A_THREAD, device.registers_per_sm // (32 * config.num_warps))
    most = _MAX_REGISTERS * given // _REGISTERS_A_THREAD
    if need <= most:
        return None
    way = "more warps or a smaller tile" if given == _REGISTERS_A_THREAD else "a smaller tile"
    return (f"{config.block_m}x{config.block_n}x{config.block_k} on {config.num_warps} warps wants "
            f"about {need:.0f} registers a thread; at most {most}. Use {way}")


def _unrolled(problem, config, device):
    """A step's loads are unrolled: hundreds of them compile for minutes."""
    parts, buffers = tiling(problem, config).parts, max(1, _buffers(config))
    if parts * (1 + config.block_m) * buffers <= _MAX_LOADS:
        return None
    into, way = (f", into {buffers} buffers", " or fewer stages") if buffers > 1 else ("", "")
    return (f"block_k={config.block_k} unrolls {parts} loads of B and {parts * config.block_m} of "
            f"A{into}; at most {_MAX_LOADS}. Use a smaller block_k{way}")


def _lines(problem, config, device):
    """Along the contiguous side of B a tile has whole lines, or all there is: less wastes the rest
    of each line."""
    one = computed(problem, config)
    name, extent = ("block_k", one.k) if one.layout[1] == "t" else ("block_n", one.n)
    got = one.b.format.bytes_of(getattr(config, name))
    if got >= LINE_BYTES or getattr(config, name) >= extent:
        return None
    return (f"{name}={getattr(config, name)} is {got} bytes of the contiguous side; a line has "
            f"{LINE_BYTES}")


def _of_computed(rule: rules.Constraint) -> rules.Constraint:
    """``rule`` about the tile, asked of the product that is computed."""
    return rules.Constraint(rule.rule, lambda problem, config, device: rule.check(
        computed(problem, config), config, device))


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """Four 16-byte loads a thread, a step ahead; K is cut until each SM has eight programs."""
    swap = int(problem.m > MAX_ROWS)
    config = KernelConfig("gemv", 1, 16, 256, num_warps=4, num_stages=2, swap_ab=swap)
    one = computed(problem, config)
    config = replace(config, block_m=_padded(one.m))
    if one.layout[1] == "n":
        config = replace(config, block_n=64, block_k=64)
    while config.block_n > 16 and config.block_n >= 4 * max(one.n, 1):
        config = replace(config, block_n=config.block_n // 2)
    while config.block_k > 32 and config.block_k >= 4 * max(problem.k, 1):
        config = replace(config, block_k=config.block_k // 2)
    while config.block_k > 1 and _unrolled(problem, config, device) is not None:
        config = replace(config, block_k=config.block_k // 2)
    while config.block_n > 1 and _registers(problem, config, device) is not None:
        config = replace(config, block_n=config.block_n // 2)
    while config.num_warps > 1 and _threads(problem, config, device) is not None:
        config = replace(config, num_warps=config.num_warps // 2)
    programs = -(-one.n // config.block_n) * max(problem.batch, 1)
    steps = -(-problem.k // config.block_k)
    if "c" in problem.two_strides:
        return config
    return replace(config, split_k=split_to_fill(programs, 8 * device.num_sms, steps))


GEMV = KernelSpec(
    name="gemv",
    idea="at most eight rows: B streams through registers once, sums on CUDA cores, split-K",
    archs=(80, 90, 100),
    takes=Takes(("bf16", "fp16", "fp32"), ("native", "ieee", "tf32", "fp16x3"),
                two_strides="abc"),
    constraints=(
        rules.min_arch(80),
        rules.Constraint("skinny", _skinny, of_problem=True),
        rules.unused("epilogue_subtile", "pingpong", "pad_operands", *rules.CLUSTERS,
                     *rules.CUDA_TILES),
        rules.flags, rules.powers_of_two, rules.Constraint("rows", _block_m),
        _of_computed(rules.not_oversized), rules.Constraint("threads", _threads),
        rules.Constraint(rules.WASTE, _lines), rules.Constraint("unrolled", _unrolled),
        rules.Constraint("copies", _copies),
        rules.Constraint("registers", _registers),
        rules.split_k, rules.split_of_one_stride, rules.grid, rules.shared_memory(shared_bytes)),
    by_rule=False, widens_a=True, shared_bytes=shared_bytes, launches=launches, default=default,
    footprint=footprint)

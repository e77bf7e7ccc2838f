"""The warp-specialised Hopper kernel in Gluon: fp16 and bf16 in any layout, TF32 in all but tn,
split-K, swapped: its launches and its rules. What a tile takes is ``warp_tile``."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import warp_tile as tile
from tritongemm.kernels.epilogue import NONE_OF_ALL, any_epilogue_of_launch
from tritongemm.kernels.footprint import Footprint, accumulators, bits_of, resident
from tritongemm.kernels.launch import (
    Descriptor,
    Geometry,
    Launch,
    Scalar,
    dependence,
    elements_of_line,
)
from tritongemm.kernels.padding import copied, pad_operands, padded_bytes
from tritongemm.kernels.reduce import partials_bytes, reduce_launch, split_to_fill, target_of
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.split_fp32 import SplitOperands
from tritongemm.kernels.sum_order import TENSOR_CORE_16, WGMMA_TF32, SumOrder, order_of
from tritongemm.kernels.swap import swapped, swapped_geometry
from tritongemm.kernels.symbol import symbol_of
from tritongemm.kernels.takes import Takes
from tritongemm.kernels.tensor_map import batched, loaded_in, stored_operand
from tritongemm.kernels.warpgroups import MAX_STAGES, START_REGISTERS, consumers_of
from tritongemm.problem import EPILOGUES, FULL_ALIGNMENT, GemmProblem, divisor_of, dtype_of

#: Registers of a thread, by consumers, for its accumulators, and twice A's elements of a step where
#: they are read from registers (TF32 stored across K): more spill (Triton 3.6 and 3.7).
_MOST_WITH_A = {1: 160, 2: 192, 3: 112}
#: The same of the accumulators of TF32 beside a matrix D, and where tiles are swapped (Triton 3.7):
#: more spill by more than 16 bytes.
_MOST_WITH_D = {1: (128, 96), 2: (112, 80), 3: (48, 48)}


def _along_rows(geometry: Geometry) -> bool:
    """Whether C lies along rows, of which a tile's offsets (256 rows at most) fit 32 bits."""
    return geometry.cn == 1 and geometry.cm < 2**31 // 256


def footprint(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Footprint:
    """Programs compute tile after tile, but for clusters that share K; ping-pong consumers work on
    a tile each."""
    tiles = 2 if config.pingpong else 1
    return Footprint(
        sms=tile.sms_of(config, device),
        programs_per_sm=tile.programs_an_sm(problem, config, device),
        tiles_per_program=tiles, persistent=config.cluster_k == 1, copy_engine=True,
        producer_warps=True, tensor_cores=True, k_over_threads=False, products=1,
        registers=tiles * accumulators(config), columns_b=tile.columns_of_b(problem, config),
        bits_a=bits_of(problem.dtype_a), bits_b=bits_of(problem.dtype_b))


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The product, and for split_k > 1 the pass that adds the parts in a fixed order."""
    outer, outer_geometry = problem, geometry
    padding = None
    if config.pad_operands:
        padding = pad_operands(problem, config, geometry, device,
                               partials_bytes(problem, config.split_k))
        problem, geometry = padding.problem, padding.geometry
    if config.swap_ab:
        problem, geometry = swapped(problem), swapped_geometry(geometry)
    a, b = maps_of(problem, outer, config, geometry)
    if padding is not None:
        a, b = padding.moved(a), padding.moved(b)
    stored = outer_geometry if tile.transposed(config) else geometry
    product = product_launch(problem, outer, config, device, geometry, stored, (a, b), symbol_of(
        outer, config), padding.scratch_bytes if padding else partials_bytes(outer, config.split_k))
    before = (padding.launch,) if padding else ()
    after = (reduce_launch(outer, config, outer_geometry, device),) if config.split_k > 1 else ()
    return (*before, product, *after)


def product_launch(problem: GemmProblem, outer: GemmProblem, config: KernelConfig,
                   device: DeviceSpec, geometry: Geometry, stored: Geometry,
                   maps: tuple[Descriptor, Descriptor], symbol: str, scratch_bytes: int,
                   scales: SplitOperands | None = None) -> Launch:
    """The launch of the product alone.

    Args:
        problem, geometry: what the kernel computes. outer: what was asked for.
        stored: of what it stores.
        maps: of A and B as the kernel sees them (:func:`maps_of`).
        scales: of operands that are scaled copies, whose scales the kernel undoes.
    """
    assert (scales is not None) == tile.scaled(config)
    store, split = tile.stores_by_tma(outer, config), config.split_k
    consumers = consumers_of(config)
    for_consumers, for_producer = tile.registers_of(outer, config)
    across_a, across_b = tile.across(outer, config)
    c = target_of(outer, config, stored)
    if store:
        c_desc = _map_of_c(outer, config, stored)
    else:
        c_desc = replace(c.pointer, name="c_desc")
    extra, epilogue = any_epilogue_of_launch(
        outer, stored, config.swap_ab == 1, aux_by_map=True) if split == 1 else ((), NONE_OF_ALL)
    aux = (_map_of_aux(outer, config, stored),) if EPILOGUES[outer.epilogue].aux else ()
    units = (-(-problem.m // (config.block_m * config.cluster_m))
             * -(-problem.n // (config.block_n * config.cluster_n)) * problem.batch * split)
    inner = () if problem.two_strides == "none" else (
        Scalar("inner", geometry.inner or problem.batch),)
    exponents = (scales.a.exponents_at(), scales.b.exponents_at()) if scales else ()
    arguments = (
        *maps, c_desc, *aux, c.pointer, *exponents, Scalar("M", problem.m),
        Scalar("N", problem.columns, divisor_of(problem.columns, 8)), Scalar("K", problem.k),
        Scalar("batches", problem.batch, fold=True), *inner,
        Scalar("stride_cb", c.batch, divisor_of(c.batch, 4)),
        Scalar("stride_cm", c.row, divisor_of(c.row, 8), fold=True),
        Scalar("stride_cn", c.column, divisor_of(c.column, 8), fold=True),
        Scalar("stride_cs", c.part, divisor_of(c.part, 4)), *extra)
    constants = (
        ("A_T", across_a), ("B_T", not across_b), ("BATCHED", problem.batch > 1),
        ("TWO_STRIDES", bool(inner)), *(() if inner else (("inner", None),)),
        ("TRANSPOSED", tile.transposed(config)), ("TMA_STORE", store),
        ("EVICT_FIRST", tile.evict_first(outer, config, device)),
        ("VECTOR", tile.vector_of(outer, config) if _along_rows(stored) else 0),
        ("ROW_COLUMNS", tile.row_columns(config)), ("SUBTILE", config.epilogue_subtile),
        ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n), ("BLOCK_K", config.block_k),
        ("ROWS", tile.rows_of(config)), ("FRAGMENT_N", tile.fragment_columns(outer, config)),
        ("EPILOGUE_N", tile.epilogue_columns(outer, config)),
        ("STORE_BUFFERS", tile.store_buffers(outer, config)),
        ("GROUP_M", config.group_m), ("SPLIT_K", split), ("SCALED", scales is not None),
        ("BATCHED_A", scales is not None and scales.a.batches > 1),
        ("BATCHED_B", scales is not None and scales.b.batches > 1),
        *(() if scales else (("a_exponents", None), ("b_exponents", None))),
        ("STAGES", config.num_stages), ("CONSUMERS", consumers),
        ("PINGPONG", bool(config.pingpong)), ("CLUSTER_K", config.cluster_k),
        ("CLUSTER_M", config.cluster_m), ("CLUSTER_N", config.cluster_n),
        ("CHUNKS_PER_STAGE", tile.chunks_per_stage(config)),
        *tile.layout_constants(outer, config),
        ("EARLY_FRAGMENTS", tile.early_fragments(outer, config, dict(epilogue)["ADDEND"])),
        ("PAIRED_C", c.pairs and not tile.transposed(config)),
        ("PAIRED_D",
         split == 1 and not tile.transposed(config) and _d_in_pairs(problem, geometry)),
        *(() if aux else (("aux_desc", None),)),
        ("GATE_LAST", problem.gated and geometry.bb < 0),
        ("CONSUMER_REGISTERS", for_consumers), ("PRODUCER_REGISTERS", for_producer), *epilogue)
    # Programs that share K compute one tile: its operands' buffers stage the sums that they send.
    clusters = units if config.cluster_k > 1 else resident(
        units, tile.sms_of(config, device) * tile.programs_an_sm(outer, config, device)
        // tile.programs_of(config), device)
    return Launch(
        "tritongemm.kernels.device.warp_specialized", "warp_specialized", arguments, constants,
        (clusters * tile.programs_of(config), 1, 1), 4, 1, symbol,
        cluster=tile.programs_of(config),
        maxnreg=START_REGISTERS[consumers], gluon=True,
        first_shared=tile.barriers_offset(outer, config) if tile.one_buffer(outer, config) else 0,
        **dependence(config, device), scratch_bytes=scratch_bytes)


def sum_order(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> SumOrder | None:
    """wgmma of 32 bytes along K, four to a step; consumers share rows of a tile and never K."""
    unit = {32: WGMMA_TF32, 16: TENSOR_CORE_16}.get(problem.a.format.bits)
    return None if unit is None else order_of(unit, problem, config)


def maps_of(problem: GemmProblem, outer: GemmProblem, config: KernelConfig,
            geometry: Geometry) -> tuple[Descriptor, Descriptor]:
    """The tensor maps of A and B as the kernel sees them: ``problem`` and ``geometry`` are those of
    what it computes, ``outer`` what was asked for."""
    one_buffer = tile.one_buffer(outer, config)
    rows, columns = tile.rows_of(config), config.block_n
    if one_buffer:
        rows = columns = config.block_k  # a swizzle atom, of an operand stored across K
    a = stored_operand(problem, "a", rows, config.block_k, geometry, gluon=True)
    b = stored_operand(problem, "b", columns, config.block_k, geometry, gluon=True)
    if one_buffer:
        a_box, b_box = tile.load_boxes(outer, config)
        a, b = loaded_in(a, a_box), loaded_in(b, b_box)
    if config.swap_ab:
        a, b = replace(a, operand="b"), replace(b, operand="a")
    return a, b


def _map_of_c(problem: GemmProblem, config: KernelConfig, geometry: Geometry) -> Descriptor:
    """The tensor map of C."""
    return _map_of_result(problem, config, "c", geometry.cb, geometry.cm)


def _map_of_aux(problem: GemmProblem, config: KernelConfig, geometry: Geometry) -> Descriptor:
    """The tensor map of the auxiliary output; the halves of a gated product's are its matrices."""
    first, row, _ = geometry.view("aux").strides
    return _map_of_result(problem, config, "aux", first, row, 2 if problem.gated else None)


def _map_of_result(problem: GemmProblem, config: KernelConfig, operand: str, first: int, row: int,
                   matrices: int | None = None) -> Descriptor:
    """The tensor map of a result of C's extents, with strides of ``first`` from one of several
    matrices to the next. Epilogue tiles in the one buffer have any width: the type's box says
    whether their rows are swizzled (128 bytes) or not (16 bytes)."""
    rows, columns = tile.rows_of(config), tile.epilogue_columns(problem, config)
    box = (rows, config.block_n // config.epilogue_subtile)
    if tile.one_buffer(problem, config):
        box = (8, 64) if tile.transposed(config) else (
            64, columns if columns == tile.SWIZZLE_ATOM else 8)
    c = batched(problem, f"{operand}_desc", operand, problem.dtype_out,
                (problem.m, problem.columns), row, box, first, gluon=True, matrices=matrices)
    if not tile.one_buffer(problem, config):
        return c
    if tile.transposed(config):
        return loaded_in(c, columns)
    return loaded_in(c, 16, columns)  # a warp's rows


def _d_in_pairs(problem: GemmProblem, geometry: Geometry) -> bool:
    """Whether D is read, and 16-bit values of a row of it may be loaded two at once."""
    g = geometry
    return (EPILOGUES[problem.epilogue].reads_d and dtype_of(problem.dtype_out).itemsize == 2
            and problem.columns % 2 == 0 and g.dn == 1 and (g.db | g.dm) % 2 == 0
            and g.align_d >= 4)


def _consumers(problem, config, device):
    if config.num_warps not in (4, 8, 12):
        return (f"num_warps={config.num_warps}; consumers are one to three groups of 4 warps: 4, "
                "8 or 12")
    if config.pingpong and config.num_warps != 8:
        return "pingpong=1 needs two consumer groups, num_warps=8"
    if config.num_stages < 2 or config.num_stages > MAX_STAGES:
        return f"num_stages={config.num_stages} is outside 2 to {MAX_STAGES}"
    return None


def _powers(problem, config, device):
    if config.block_k & (config.block_k - 1):
        return f"block_k={config.block_k} is not a power of two, which a box must be"
    if config.block_n % 8:
        return f"block_n={config.block_n} is not a multiple of 8, as the tensor instruction wants"
    if config.block_m > 256 and tile.one_buffer(problem, config):
        return f"block_m={config.block_m} is more than the 256 rows that one box of A may have"
    return None


def _sharing(problem, config, device):
    if tile.multicasters_of(config) == 1:
        return None
    what = f"cluster_m={config.cluster_m}, cluster_n={config.cluster_n}"
    if tile.multicasters_of(config) not in (2, 4, 8) or config.cluster_m & (config.cluster_m - 1):
        return f"{what}: a cluster has 2, 4 or 8 programs, each side a power of two"
    if config.pingpong or config.cluster_k > 1:
        return f"{what} goes with pingpong=0 and cluster_k=1"
    for operand, box, is_across in zip("AB", tile.load_boxes(problem, config),
                                       tile.across(problem, config), strict=True):
        if is_across and box < 8:  # rows of a swizzle atom that repeat its pattern
            return (f"{what}: a program would load {box} rows of K of {operand}; at least 8. Use a "
                    "larger tile or a smaller cluster")
    return None


def _cluster(problem, config, device):
    size = config.cluster_k
    if size == 1:
        return None
    if size not in (2, 4, 8):
        return f"cluster_k={size} is not 1, 2, 4 or 8"
    if config.pingpong or config.split_k > 1 or config.epilogue_subtile > 1:
        return (f"cluster_k={size} shares K by itself, each program of it stores its columns at "
                "once: it goes with pingpong=0, split_k=1, epilogue_subtile=1")
    if config.block_n % (8 * size):
        return (f"cluster_k={size} of block_n={config.block_n}: each program sums a multiple of 8 "
                "columns")
    if config.block_m != 64 * consumers_of(config):
        return (f"cluster_k={size}: a consumer must have 64 rows, not those of "
                f"block_m={config.block_m}")
    least = -(-4 * size // tile.chunks_per_stage(config))
    if config.num_stages < least:
        return (f"cluster_k={size} of block_n={config.block_n} sends what {least} stages have room "
                f"for, not num_stages={config.num_stages}")
    steps = -(-problem.k // config.block_k)
    if size > steps:
        return f"cluster_k={size} cuts {steps} steps of block_k={config.block_k}; one each at least"
    return None


def _tile(problem, config, device):
    rows = tile.rows_of(config)
    if rows not in (64, 128):
        return (f"block_m={config.block_m} gives a consumer {rows} rows; the tensor instruction "
                "wants 64, or twice that")
    if not 16 <= config.block_n <= 256:
        return f"block_n={config.block_n} is outside 16 to 256, the tensor instruction's width"
    for operand in (problem.dtype_a, problem.dtype_b):
        width = dtype_of(operand).itemsize * config.block_k
        if width != 128:
            return (f"block_k={config.block_k} is {width} bytes of {operand}; one swizzled row of "
                    "shared memory has 128")
    if rows * consumers_of(config) != config.block_m and not config.pingpong:
        return (f"block_m={config.block_m} does not divide among {consumers_of(config)} "
                "consumers")
    epilogue = EPILOGUES[problem.epilogue]
    most = 128
    if tile.one_buffer(problem, config) and consumers_of(config) == 2:
        # Above 160 all else spills (Triton 3.6 and 3.7).
        lean = (config.block_n % 16 == 0 and not config.pingpong and epilogue.plain
                and not epilogue.d_is_matrix and tile.stores_by_tma(problem, config))
        most = 176 if lean else 160
    if rows * config.block_n > 128 * most:
        return (f"{rows}x{config.block_n} a consumer is {rows * config.block_n // 128} "
                f"accumulator registers a thread; at most {most}")
    most = 256 if tile.is_power_of_two(config.block_n) else 224
    if consumers_of(config) != 2:
        most = 192
    if config.block_n > most:
        return (f"block_n={config.block_n} on {config.num_warps} warps: one tensor instruction "
                f"would want more registers than the kernel may start with; at most {most}")
    if consumers_of(config) == 3 and rows * config.block_n > 64 * 192:
        return f"{rows}x{config.block_n} a consumer is too much for three consumers' registers"
    return None


def _tf32_registers(problem, config, device):
    if problem.precision != "tf32":
        return None
    rows, epilogue = tile.rows_of(config), EPILOGUES[problem.epilogue]
    accumulators = rows * config.block_n // 128
    what = f"{rows}x{config.block_n} a consumer"
    if tile.across(problem, config)[0]:
        most, need = _MOST_WITH_A[consumers_of(config)], accumulators + rows // 2
        if need > most:
            return (f"{what} and A in registers are {need} registers a thread; at most {most}. Use "
                    "a smaller tile")
    if epilogue.d_is_matrix:
        most = _MOST_WITH_D[consumers_of(config)][config.swap_ab == 1]
        if accumulators > most:
            return (f"{what} under tf32 is {accumulators} accumulator registers a thread beside "
                    f"the matrix D of the epilogue {problem.epilogue!r}; at most {most}. Use a "
                    "smaller tile")
    if config.swap_ab == 1 and rows == 128:
        # Beside the addresses of both accumulators' C.
        most = 128 if config.pingpong and not epilogue.reads_d else 112
        if config.block_n > most:
            return (f"block_n={config.block_n} with swap_ab=1 and 128 rows a consumer; at most "
                    f"{most}. Use fewer rows")
    return None


def _subtile(problem, config, device):
    if not tile.stores_by_tma(problem, config):
        if config.epilogue_subtile != 1:
            return "epilogue_subtile is for tiles that TMA stores"
        return None
    if config.epilogue_subtile not in (1, 2, 4):
        return f"epilogue_subtile={config.epilogue_subtile} is not 1, 2 or 4"
    if tile.one_buffer(problem, config):
        if config.epilogue_subtile == 4:
            return ("epilogue_subtile=4: with one buffer it is 1, all epilogue tiles staged, or "
                    "2, one or two at a time")
        if (config.epilogue_subtile == 2 and tile.rows_of(config) == 64
                and tile.epilogue_columns(problem, config) == tile.columns_of_c(problem, config)):
            return (f"epilogue_subtile=2: a tile of block_n={config.block_n} is one epilogue tile; "
                    "use epilogue_subtile=1")
        return None
    piece = config.block_n // config.epilogue_subtile
    if config.epilogue_subtile > 1 and piece < 32:
        return f"epilogue_subtile={config.epilogue_subtile} leaves {piece} columns; at least 32"
    return None


def _oversized(problem, config, device):
    m, n = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    if config.block_m > 64 and config.block_m >= 2 * m:
        return f"block_m={config.block_m} is at least twice the extent {m}"
    if config.block_n > 16 and config.block_n >= 2 * n:
        return f"block_n={config.block_n} is at least twice the extent {n}"
    for side, block, extent in (("m", config.block_m, m), ("n", config.block_n, n)):
        programs = getattr(config, f"cluster_{side}")
        if programs > -(-extent // block):
            return (f"cluster_{side}={programs} programs of block_{side}={block} for the extent "
                    f"{extent}: one has nothing to do")
    return None


def _aligned_or_padded(problem, config, device):
    if not config.pad_operands:
        return rules.tma_operands.check(problem, config, device)
    if problem.dtype_a == "fp32":
        return f"pad_operands={config.pad_operands} copies operands of 16 bits, not fp32"
    if problem.two_strides != "none":
        return (f"pad_operands={config.pad_operands} copies operands with one stride along the "
                f"batch; two_strides is {problem.two_strides}")
    if len(copied(problem, config.pad_operands)) == len(copied(problem, config.pad_operands - 1)):
        return f"pad_operands={config.pad_operands}: the operands are aligned already"
    need = padded_bytes(problem, config.pad_operands) + partials_bytes(problem, config.split_k)
    if need > rules.MAX_SCRATCH_BYTES:
        return (f"pad_operands={config.pad_operands} needs {need} bytes of scratch; at most "
                f"{rules.MAX_SCRATCH_BYTES}")
    return None


def _further_epilogue(problem, config, device):
    """What the epilogues that are gated or have an auxiliary output do without."""
    epilogue = EPILOGUES[problem.epilogue]
    if not (epilogue.gated or epilogue.aux):
        return None
    what = f"the epilogue {problem.epilogue!r}"
    for name, value in (("swap_ab", 0), ("split_k", 1), ("cluster_k", 1)):
        if getattr(config, name) != value:
            return f"{what} goes with {name}={value}, not {getattr(config, name)}"
    if epilogue.aux and not tile.stores_by_tma(problem, config):
        return (f"{what}: TMA stores all results, so rows of 16-bit C are whole multiples of 16 "
                "bytes")
    if not epilogue.gated:
        return None
    if config.pad_operands:
        return f"{what} has no copies of operands: it goes with pad_operands=0"
    # Of a B stored across K, whole swizzle atoms; else whole groups of eight rows for each program.
    least = 2 * tile.SWIZZLE_ATOM if problem.layout[1] == "n" else 16 * config.cluster_m
    if config.block_n % least:
        return (f"block_n={config.block_n} of {what}: each half of its columns is loaded by "
                f"itself, so it is a multiple of {least}")
    return None


def _tf32_of_nn(problem):
    """Whether the product must be swapped: the tensor instruction reads TF32 across K of its first
    operand only, from registers."""
    return problem.precision == "tf32" and problem.layout == "nn"


def _tf32_of_problem(problem, config, device):
    if problem.precision != "tf32":
        return None
    if problem.layout == "tn":
        return ("tf32 in tn: the tensor instruction reads one operand along K, and neither is "
                "stored so")
    epilogue = EPILOGUES[problem.epilogue]
    if problem.layout == "nn" and (epilogue.gated or epilogue.aux):
        return (f"tf32 in nn is computed swapped, and the epilogue {problem.epilogue!r} is not. "
                "Store B transposed (nt)")
    return None


def _tf32_across(problem, config, device):
    if problem.precision != "tf32" or tile.across(problem, config) in ((False, False),
                                                                       (True, False)):
        return None
    return (f"tf32 in {problem.layout} with swap_ab={config.swap_ab}: the tensor instruction reads "
            "its second operand along K. In nn use swap_ab=1, in tt swap_ab=0; tn has none along K")


def _not_swapped_for_nothing(problem, config, device):
    if config.swap_ab == 1 and min(problem.m, problem.n) > 128 and problem.precision != "tf32":
        return (f"swap_ab=1 is for one narrow side; {problem.m} and {problem.n} are both above "
                "128; swap_ab=2 transposes its tiles before it stores them")
    return None


#: The rules of tiles and clusters, which hold for every product that the kernel computes.
POWERS, CONSUMERS, TILE, SHARING, OVERSIZED = (
    rules.Constraint("powers", _powers), rules.Constraint("consumers", _consumers),
    rules.Constraint("tile", _tile), rules.Constraint("sharing", _sharing),
    rules.Constraint(rules.WASTE, _oversized))


def narrowed(block_n: int, n: int) -> int:
    """The width halved until N columns fill more than half of it."""
    while block_n > 16 and block_n >= 2 * n:
        block_n //= 2
    return block_n


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """128x256 shared by two groups where that fills the SMs; 128x128 else; small M is swapped."""
    if _tf32_of_nn(problem):
        return replace(default(swapped(problem), device), swap_ab=1)
    block_k = elements_of_line(problem)
    across_k = problem.precision == "tf32" and problem.layout == "tt"
    if problem.m <= 64 and (across_k or not EPILOGUES[problem.epilogue].plain):
        config = KernelConfig("warp_specialized", 64, narrowed(128, problem.n), block_k,
                              num_warps=4, num_stages=6, group_m=8)
    elif problem.m <= 64:
        block_n = 16
        while block_n < problem.m:
            block_n *= 2
        units = -(-problem.n // 64) * problem.batch
        split = split_to_fill(units, 2 * device.num_sms, problem.k // block_k, 32)
        config = KernelConfig("warp_specialized", 64, block_n, block_k, num_warps=4, num_stages=8,
                              group_m=8, split_k=split, swap_ab=1)
    else:
        tiles = -(-problem.m // 128) * -(-problem.n // 256) * problem.batch
        few_registers = problem.precision == "tf32" and EPILOGUES[problem.epilogue].d_is_matrix
        wide = tiles >= device.num_sms // 2 and not few_registers
        block_n = narrowed(256 if wide else 128, problem.n)
        config = KernelConfig("warp_specialized", 128, block_n, block_k, num_warps=8, num_stages=6,
                              group_m=8, epilogue_subtile=2 if block_n == 256 else 1)
        if not tile.stores_by_tma(problem, config):
            config = replace(config, epilogue_subtile=1)
    if min(problem.align_a, problem.align_b) < FULL_ALIGNMENT and problem.dtype_a != "fp32":
        config = replace(config, pad_operands=1)
    while (config.num_stages > 2
           and tile.shared_bytes(problem, config) > device.shared_bytes_per_block):
        config = replace(config, num_stages=config.num_stages - 1)
    return config


WARP_SPECIALIZED = KernelSpec(
    name="warp_specialized",
    idea="a producer warp copies, consumer groups multiply; clusters share operands or K",
    archs=(90,),
    takes=Takes(("bf16", "fp16", "fp32"), ("native", "tf32"), two_strides="ab",
                all_epilogues=True),
    constraints=(
        rules.archs(90), rules.not_interpreted, rules.gluon,
        rules.Constraint("tf32_layout", _tf32_of_problem, of_problem=True),
        rules.Constraint("tf32_swap", _tf32_across), rules.tma_extents,
        rules.unused(*rules.CUDA_TILES),
        rules.flags_and_turned, rules.whole_epilogue,
        rules.Constraint("epilogue", _further_epilogue), POWERS,
        CONSUMERS, TILE, rules.Constraint("tile", _tf32_registers),
        rules.Constraint("cluster", _cluster), SHARING, rules.Constraint("subtile", _subtile),
        OVERSIZED,
        rules.Constraint("alignment", _aligned_or_padded),
        rules.Constraint("swap", _not_swapped_for_nothing), rules.split_k, rules.grid,
        rules.shared_memory(tile.shared_bytes)),
    shared_bytes=tile.shared_bytes, launches=launches, default=default, footprint=footprint,
    sum_order=sum_order)

"""What a tile of the warp-specialised Hopper kernel takes: epilogue tiles, boxes, shared memory,
registers, SMs. The device code gets its offsets in shared memory from here, as constants."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import warpgroups
from tritongemm.kernels.swap import swapped
from tritongemm.kernels.tensor_map import tma_store
from tritongemm.kernels.warpgroups import (
    BARRIER_BYTES,
    OTHER_BYTES,
    consumer_registers,
    consumers_of,
)
from tritongemm.problem import EPILOGUES, GemmProblem, dtype_of

#: Registers a thread of the producer, by consumers: more where the operands share one buffer (its
#: loads are PTX), and more again where a cluster shares operands.
_PRODUCER_REGISTERS = 24
_ONE_BUFFER_PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 32}
_MULTICAST_PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 56}
#: Registers that a consumer needs beside its accumulator and what it holds of D: with 56 some wide
#: tiles spill (Triton 3.6).
_OTHER_REGISTERS = 80
#: The same where scales are undone, and more beside a D (with 56, and with none more, 256 columns
#: spill; Triton 3.7).
_SCALED_OTHER_REGISTERS, _SCALED_D_REGISTERS = 72, 24
#: And of a second accumulator (Triton 3.6 and 3.7).
_SECOND_ACCUMULATOR_REGISTERS = 24
#: More of them for a matrix D that is float32, transposed, or lies where TMA cannot
#: store C: with 24, 208 and 224 columns spill.
_MATRIX_REGISTERS = 56
#: More of them for a vector beside a matrix D: without, 256 columns spill.
_VECTOR_REGISTERS = 16
#: Columns of a swizzle atom of a 16-bit result: rows of 128 bytes.
SWIZZLE_ATOM = 64
#: Columns of a fragment, which is finished and written to its epilogue tile at once, where they
#: divide that.
_FRAGMENT_COLUMNS = 16
#: The most columns of a fragment whose scales are undone: of eight, a thread holds two exponents.
_SCALED_COLUMNS = 32
#: Columns of C that warps store along rows at once: one row of them a warp, one element a thread.
_ROW_COLUMNS = 32
#: SMs of 132 that clusters of four and eight leave idle on an H200.
_LEFT_OVER = 12
#: Bytes of shared memory of a block (CUDA programming guide, compute capability 9.0).
MOST_SHARED_BYTES = 227 * 1024


def programs_of(config: KernelConfig) -> int:
    """Programs of a cluster."""
    return config.cluster_k * multicasters_of(config)


def multicasters_of(config: KernelConfig) -> int:
    """Programs of a cluster that share operands by multicast."""
    return config.cluster_m * config.cluster_n


def columns_of_c(problem: GemmProblem, config: KernelConfig) -> int:
    """Columns of C that a program stores of a tile: of a gated product half of the tile's."""
    columns = config.block_n // config.cluster_k
    return columns // 2 if problem.gated else columns


def outputs_of(problem: GemmProblem) -> int:
    """Matrices of C's extents that a launch writes: C, and with an auxiliary output one more, or
    two, the halves of a gated product's."""
    if not EPILOGUES[problem.epilogue].aux:
        return 1
    return 3 if problem.gated else 2


def power_in(width: int) -> int:
    """The largest power of two that divides a width."""
    return width & -width


def epilogue_columns(problem: GemmProblem, config: KernelConfig) -> int:
    """Columns of an epilogue tile of the one buffer, which TMA stores as one box.

    Where all of a tile are staged together: 64, a swizzle atom, if they divide the columns; else an
    odd multiple of 16, so that rows are whole sectors of memory and at most two of a warp's rows
    fall into one bank; or all columns, where 16 do not divide them, and of 32. Where one is stored
    after the other: the largest multiple of 16, up to 64, that divides. Transposed, where several
    small ones are stored faster than a large one: the largest power of two, up to 32, that
    divides."""
    columns = columns_of_c(problem, config)
    if transposed(config):
        return min(power_in(columns), SWIZZLE_ATOM // 2)
    if columns % SWIZZLE_ATOM == 0:
        return SWIZZLE_ATOM
    if columns % 16 or columns == 32:
        return columns
    if config.epilogue_subtile == 2:
        return max(width for width in (16, 32, 48) if columns % width == 0)
    return columns // power_in(columns // 16)


def fragment_columns(problem: GemmProblem, config: KernelConfig) -> int:
    """Columns of C, a power of two, that ``device.consumer_ptx`` finishes at once."""
    if stores_by_tma(problem, config):
        return min(power_in(epilogue_columns(problem, config)), _FRAGMENT_COLUMNS)
    power = power_in(columns_of_c(problem, config))
    if scaled(config):
        return min(power, _SCALED_COLUMNS)
    return min(power, SWIZZLE_ATOM) if multicasters_of(config) > 1 or transposed(config) else power


def row_columns(config: KernelConfig) -> int:
    """Columns that are stored at once where warps store along rows of C."""
    return SWIZZLE_ATOM if transposed(config) else _ROW_COLUMNS


def is_power_of_two(width: int) -> bool:
    """Whether a width is a power of two."""
    return power_in(width) == width


def one_buffer(problem: GemmProblem, config: KernelConfig) -> bool:
    """Whether ``device.consumer_ptx`` runs it, which keeps everything in one buffer, the first in
    shared memory, so that it knows addresses. It alone has every epilogue, TF32, and operands that
    are scaled copies."""
    return (scaled(config) or not is_power_of_two(config.block_n) or programs_of(config) > 1
            or transposed(config) or not EPILOGUES[problem.epilogue].plain
            or problem.dtype_a == "fp32")


def scaled(config: KernelConfig) -> bool:
    """Whether the operands are copies whose rows and columns are scaled by powers of two
    (``kernels.scaled_product``)."""
    return config.kernel == "scaled_product"


def transposed(config: KernelConfig) -> bool:
    """Whether the kernel computes the transposed product and transposes tiles before it stores
    them."""
    return config.swap_ab == 2


def across(problem: GemmProblem, config: KernelConfig) -> tuple[bool, bool]:
    """Whether A and B, as the kernel sees them, are stored across K."""
    layout = swapped(problem).layout if config.swap_ab else problem.layout
    return layout[0] == "t", layout[1] == "n"


def columns_of_b(problem: GemmProblem, config: KernelConfig) -> int:
    """Columns of B that a stage holds: in one buffer, a B stored across K lies in whole swizzle
    atoms, of as many columns as a step has elements along K: 128 bytes."""
    if one_buffer(problem, config) and across(problem, config)[1]:
        return -(-config.block_n // config.block_k) * config.block_k
    return config.block_n


def load_boxes(problem: GemmProblem, config: KernelConfig) -> tuple[int, int]:
    """The outer sides of A's and B's boxes in the one buffer, of which a program of a cluster loads
    its share. Rows of an operand stored along K: the share in one box. Of one stored across K, in
    swizzle atoms (:func:`columns_of_b`), elements along K: all of a step where whole atoms are
    shared out, else an equal range of every atom. Each half of a gated product's B is loaded by
    itself."""
    atom = config.block_k

    def outer(rows: int, programs: int, is_across: bool) -> int:
        if not is_across:
            return rows // programs
        return atom if rows // atom % programs == 0 else atom // programs

    across_a, across_b = across(problem, config)
    return (outer(config.block_m, config.cluster_n, across_a),
            outer(columns_of_b(problem, config) // (2 if problem.gated else 1), config.cluster_m,
                  across_b))


def chunks_per_stage(config: KernelConfig) -> int:
    """Chunks (what one warp sends to one program of a cluster that shares K) that fit in a
    consumer's rows of A in a stage: a power of two; 0 without such a cluster."""
    if config.cluster_k == 1:
        return 0
    chunks = 16 // (config.block_n // 8 // config.cluster_k)
    return 1 << chunks.bit_length() - 1


def cluster_partials_bytes(config: KernelConfig) -> int:
    """What one program of a cluster that shares K receives: its consumers' float32 accumulators."""
    return 4 * config.block_m * config.block_n if config.cluster_k > 1 else 0


def stores_by_tma(problem: GemmProblem, config: KernelConfig) -> bool:
    """Whether TMA stores C: from the one buffer 16-bit values."""
    return (config.split_k == 1 and config.swap_ab != 1 and tma_store(problem)
            and not (one_buffer(problem, config) and dtype_of(problem.dtype_out).itemsize != 2))


def evict_first(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether C, which the L2 cannot hold, is stored with the policy evict_first, so that A and B
    stay there, which tiles read again. Only PTX stores, those from the one buffer, can say so."""
    return (one_buffer(problem, config) and stores_by_tma(problem, config)
            and problem.bytes_of_c() > device.l2_bytes)


def vector_of(problem: GemmProblem, config: KernelConfig) -> int:
    """Elements that a thread stores at once where warps store along rows of C: 16-bit rows without
    gaps that TMA cannot store. 0: it stores in the accumulator's layout, two elements
    of a row and eight rows a warp, which is as good for float32."""
    size = dtype_of(problem.dtype_out).itemsize
    if (config.split_k > 1 or config.swap_ab == 1 or size != 2 or problem.align_c < size
            or stores_by_tma(problem, config)):
        return 0
    return 2 if problem.columns % 2 == 0 and problem.align_c >= 2 * size else 1


def stage_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes of both operands in a stage."""
    row_a, row_b = (dtype_of(x).itemsize * config.block_k
                    for x in (problem.dtype_a, problem.dtype_b))
    return config.block_m * row_a + columns_of_b(problem, config) * row_b


def store_buffers(problem: GemmProblem, config: KernelConfig) -> int:
    """Store buffers of a consumer whose epilogue tiles are stored one after the other: two, so that
    it fills one while TMA reads the other, where they fit and no second program is to
    fit on the SM."""
    if config.epilogue_subtile == 1 or consumers_of(config) == 1 or not one_buffer(problem, config):
        return 1
    buffer = (64 * epilogue_columns(problem, config) * outputs_of(problem)
              * dtype_of(problem.dtype_out).itemsize)
    stages = config.num_stages * stage_bytes(problem, config)
    total = stages + 2 * buffer * consumers_of(config) + BARRIER_BYTES + OTHER_BYTES
    return 2 if total <= MOST_SHARED_BYTES else 1


def staged_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes of C that a consumer stages in shared memory before it stores them."""
    rows, columns = rows_of(config), columns_of_c(problem, config)
    if one_buffer(problem, config) and (
            config.epilogue_subtile == 2 or not stores_by_tma(problem, config)):
        rows = 64  # one accumulator after the other
    if vector_of(problem, config):
        most = fragment_columns(problem, config) if one_buffer(problem, config) else columns
        columns = min(row_columns(config), most)
    elif not stores_by_tma(problem, config):
        return 0
    elif one_buffer(problem, config):
        if config.epilogue_subtile == 2:
            columns = store_buffers(problem, config) * epilogue_columns(problem, config)
    else:
        columns //= config.epilogue_subtile
    return rows * columns * outputs_of(problem) * dtype_of(problem.dtype_out).itemsize


def barriers_offset(problem: GemmProblem, config: KernelConfig) -> int:
    """Where the barriers of the one buffer begin, bytes: behind the stages of operands, the partial
    sums that a cluster exchanges, and the store buffers."""
    return dict(layout_constants(problem, config))["BARRIERS_OFFSET"]


def layout_constants(problem: GemmProblem, config: KernelConfig) -> tuple[tuple[str, int], ...]:
    """The layout of shared memory as constants of the device code. Offsets are bytes in the one
    buffer; they and the boxes are 0 where there are several. STORE_BYTES is a consumer's."""
    one, stage = one_buffer(problem, config), stage_bytes(problem, config)
    partials = config.num_stages * stage * one
    store = partials + cluster_partials_bytes(config)
    staged = staged_bytes(problem, config) * (one and stores_by_tma(problem, config))
    barriers = store + staged * consumers_of(config)
    a_box, b_box = load_boxes(problem, config) if one else (0, 0)
    return (("ONE_BUFFER", one), ("STAGE_BYTES", stage), ("A_BOX", a_box), ("B_BOX", b_box),
            ("PARTIALS_OFFSET", partials),
            ("STORE_OFFSET", store), ("STORE_BYTES", staged), ("BARRIERS_OFFSET", barriers),
            ("BUFFER_BYTES", (barriers + BARRIER_BYTES) * one))


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the operands' stages, what a cluster exchanges, what of C is staged, the barriers."""
    barriers = BARRIER_BYTES if one_buffer(problem, config) else 16 * config.num_stages + 16
    return (config.num_stages * stage_bytes(problem, config) + cluster_partials_bytes(config)
            + consumers_of(config) * staged_bytes(problem, config) + barriers + OTHER_BYTES)


def rows_of(config: KernelConfig) -> int:
    """Rows of a tile that a consumer multiplies, and of a box of A."""
    return config.block_m if config.pingpong else config.block_m // consumers_of(config)


def programs_an_sm(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> int:
    """Programs an SM."""
    return warpgroups.programs_an_sm(config, shared_bytes(problem, config), device)


def registers_of(problem: GemmProblem, config: KernelConfig) -> tuple[int, int]:
    """Registers a thread of the consumers and of the producer's group."""
    consumers = consumers_of(config)
    producer = _PRODUCER_REGISTERS
    if one_buffer(problem, config):
        producer = (_MULTICAST_PRODUCER_REGISTERS if multicasters_of(config) > 1 else
                    _ONE_BUFFER_PRODUCER_REGISTERS)[consumers]
    return consumer_registers(consumers, producer), producer


def early_fragments(problem: GemmProblem, config: KernelConfig, addend: object) -> int:
    """Fragments of a tile's D, or of the exponents of scaled columns, that are loaded before the
    last product is complete: those for which the accumulator leaves registers. Of eight columns a
    thread holds four values of a matrix, and two of a vector at most; of a gated product's bias
    those of both halves."""
    reads_d = addend not in ("none", "scale")
    accumulators, width = rows_of(config) // 64, fragment_columns(problem, config)
    spare = registers_of(problem, config)[0] - accumulators * config.block_n // 2
    if scaled(config):
        spare -= _SCALED_OTHER_REGISTERS + reads_d * _SCALED_D_REGISTERS
        return max(0, min(config.block_n, 4 * spare) // width)
    if not reads_d or not one_buffer(problem, config):
        return 0
    spare -= _OTHER_REGISTERS + (accumulators - 1) * _SECOND_ACCUMULATOR_REGISTERS
    if addend == "tile" and (transposed(config) or not stores_by_tma(problem, config)):
        spare -= _MATRIX_REGISTERS
    epilogue = EPILOGUES[problem.epilogue]
    columns = spare * (2 if addend == "tile" or problem.gated else 4)
    if epilogue.residual and epilogue.addend == "bias":
        columns = (spare - _VECTOR_REGISTERS) * 4 // 3
    fragments = accumulators * columns_of_c(problem, config) // width
    return max(0, min(fragments, columns // width))


def sms_of(config: KernelConfig, device: DeviceSpec) -> int:
    """SMs that the config's clusters can occupy: a cluster lies within a group of 16 or 18 SMs, of
    which clusters of four and eight leave some idle."""
    sms, size = device.num_sms, programs_of(config)
    if size > 2:
        sms -= _LEFT_OVER * sms // 132
    return max(sms // size, 1) * size

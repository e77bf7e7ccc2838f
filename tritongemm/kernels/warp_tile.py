"""What a tile of the warp-specialised Hopper kernel is made of, and what it takes: pieces, boxes,
shared memory, registers, SMs."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels.swap import swapped
from tritongemm.kernels.tensor_map import tma_store
from tritongemm.problem import GemmProblem, dtype_of

#: Registers a thread that the kernel starts with, by consumers: threads are 128 a consumer and
#: 128 for the producer's group, and the sum must fit the SM (twice, for one consumer).
START_REGISTERS = {1: 128, 2: 168, 3: 128}
#: Registers a thread of the producer, by consumers: it writes its loads out where the operands
#: share one buffer, and more of them in a cluster.
_PRODUCER_REGISTERS = 24
_WRITING_PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 32}
_SHARING_PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 56}
#: Registers that a consumer needs beside its accumulator and what it holds of D: with 56 some wide
#: tiles spill (Triton 3.6).
_OTHER_REGISTERS = 80
#: And of a second accumulator (Triton 3.6 and 3.7).
_SECOND_ACCUMULATOR_REGISTERS = 24
#: More of them for a matrix D that is float32, turned, or lies where the copy engine cannot store
#: C: with 24, 208 and 224 columns spill.
_MATRIX_REGISTERS = 56
#: Columns of a swizzled row of 128 bytes.
PIECE = 64
#: Columns that are finished and put into a panel of C at once, where they divide it.
_FINISHED_COLUMNS = 16
#: Columns of C that warps store along rows at once: a row of them a warp, element by element.
STORED_COLUMNS = 32
#: SMs of 132 that clusters of four and eight leave idle on an H200.
_LEFT_OVER = 12
#: What a block may have (CUDA programming guide, compute capability 9.0).
_MOST_SHARED = 227 * 1024
#: The barriers' share of the one buffer: 32 of them.
_BARRIERS = 8 * 32
#: What Triton and alignment add.
_OTHERS = 240


def programs_of(config: KernelConfig) -> int:
    """Programs of a cluster."""
    return config.cluster_k * sharers_of(config)


def sharers_of(config: KernelConfig) -> int:
    """Programs of a cluster that share operands."""
    return config.cluster_m * config.cluster_n


def consumers_of(config: KernelConfig) -> int:
    """Consumer warpgroups: 4 warps each."""
    return config.num_warps // 4


def part_of(width: int) -> int:
    """The largest power of two that divides a width."""
    return width & -width


def panel_columns(config: KernelConfig) -> int:
    """Columns of a panel, in which C goes from the one buffer to memory. Those of a tile are stored
    together: 64, a swizzled row, where they divide; else an odd number of times 16, whole sectors
    of memory and a warp's lines two in a bank at most; or all, where not even 16 divide, and of 32.
    Where one is stored after the other, the most times 16 that divide, at most 64. Turned, where
    several small ones are stored faster than a large one, the power of two that divides, at most
    32."""
    columns = config.block_n // config.cluster_k
    if turned(config):
        return min(part_of(columns), PIECE // 2)
    if columns % PIECE == 0:
        return PIECE
    if columns % 16 or columns == 32:
        return columns
    if config.epilogue_subtile == 2:
        return max(panel for panel in (16, 32, 48) if columns % panel == 0)
    return columns // part_of(columns // 16)


def part_columns(problem: GemmProblem, config: KernelConfig) -> int:
    """Columns of C, a power of two, that the any-width path finishes at once."""
    if stores_by_tma(problem, config):
        return min(part_of(panel_columns(config)), _FINISHED_COLUMNS)
    part = part_of(config.block_n // config.cluster_k)
    return min(part, PIECE) if sharers_of(config) > 1 or turned(config) else part


def is_power(width: int) -> bool:
    """Whether a width is a power of two."""
    return part_of(width) == width


def one_buffer(config: KernelConfig) -> bool:
    """Whether device code wants addresses, so that both operands share the first of shared
    memory."""
    return not is_power(config.block_n) or programs_of(config) > 1 or turned(config)


def turned(config: KernelConfig) -> bool:
    """Whether the tiles of the transposed product are turned before they are stored."""
    return config.swap_ab == 2


def across(problem: GemmProblem, config: KernelConfig) -> tuple[bool, bool]:
    """Whether A and B, as the kernel sees them, are stored across K."""
    layout = swapped(problem).layout if config.swap_ab else problem.layout
    return layout[0] == "t", layout[1] == "n"


def columns_of_b(problem: GemmProblem, config: KernelConfig) -> int:
    """Columns of B that a stage holds: in one buffer the tensor instruction reads a B stored
    across K in swizzled rows of 64."""
    if one_buffer(config) and across(problem, config)[1]:
        return -(-config.block_n // PIECE) * PIECE
    return config.block_n


def chunks_a_stage(config: KernelConfig) -> int:
    """Chunks, of what one warp of a cluster's program sends to another program, that a consumer's
    rows of A in a stage have room for: a power of two."""
    chunks = 16 // (config.block_n // 8 // config.cluster_k)
    return 1 << chunks.bit_length() - 1


def exchanged_bytes(config: KernelConfig) -> int:
    """What the programs of a cluster send to one of them: its consumers' float32 accumulators."""
    return 4 * config.block_m * config.block_n if config.cluster_k > 1 else 0


def stores_by_tma(problem: GemmProblem, config: KernelConfig) -> bool:
    """Whether the copy engine stores C: from the one buffer 16-bit values."""
    return (config.split_k == 1 and config.swap_ab != 1 and tma_store(problem)
            and not (one_buffer(config) and dtype_of(problem.dtype_out).itemsize != 2))


def streams(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether C, which the L2 cannot hold, is to leave it before A and B do, of which tiles ask
    again: its copies are written out, and can say so, where they are made from the one buffer."""
    return (one_buffer(config) and stores_by_tma(problem, config)
            and problem.bytes_of_c() > device.l2_bytes)


def vector_of(problem: GemmProblem, config: KernelConfig) -> int:
    """Elements that a thread stores at once where warps store along rows of C, through shared
    memory: 16-bit rows without gaps that the copy engine cannot store. 0: it stores what it has,
    two of a row, and a warp of eight rows, which is as good for float32."""
    size = dtype_of(problem.dtype_out).itemsize
    if (config.split_k > 1 or config.swap_ab == 1 or size != 2 or problem.align_c < size
            or stores_by_tma(problem, config)):
        return 0
    return 2 if problem.n % 2 == 0 and problem.align_c >= 2 * size else 1


def operand_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """STAGES buffers of both operands."""
    rows = config.block_m + columns_of_b(problem, config)
    return config.num_stages * rows * config.block_k * dtype_of(problem.dtype_a).itemsize


def panel_places(problem: GemmProblem, config: KernelConfig) -> int:
    """Places of a consumer for panels that are stored one after the other: two, so that it fills
    one while the copy engine reads the other, where they fit and no second program wants the
    room."""
    if config.epilogue_subtile == 1 or consumers_of(config) == 1 or not one_buffer(config):
        return 1
    panel = 64 * panel_columns(config) * dtype_of(problem.dtype_out).itemsize
    twice = operand_bytes(problem, config) + 2 * panel * consumers_of(config)
    return 2 if twice + _BARRIERS + _OTHERS <= _MOST_SHARED else 1


def piece_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """What of C is in shared memory before it is stored, of all consumers."""
    rows, columns = rows_of(config), config.block_n // config.cluster_k
    if one_buffer(config) and (config.epilogue_subtile == 2 or not stores_by_tma(problem, config)):
        rows = 64  # one accumulator after the other
    if vector_of(problem, config):
        part = part_columns(problem, config) if one_buffer(config) else columns
        columns = min(PIECE if turned(config) else STORED_COLUMNS, part)
    elif not stores_by_tma(problem, config):
        return 0
    elif one_buffer(config):
        if config.epilogue_subtile == 2:
            columns = panel_places(problem, config) * panel_columns(config)
    else:
        columns //= config.epilogue_subtile
    return rows * columns * dtype_of(problem.dtype_out).itemsize * consumers_of(config)


def addressed_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """The one buffer's bytes before its barriers, which device code knows by address: operands,
    what a cluster exchanges, panels of C."""
    panels = piece_bytes(problem, config) if stores_by_tma(problem, config) else 0
    return operand_bytes(problem, config) + exchanged_bytes(config) + panels


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the operands' buffers, what a cluster exchanges, the pieces of C, the barriers."""
    barriers = _BARRIERS if one_buffer(config) else 16 * config.num_stages + 16
    return (operand_bytes(problem, config) + exchanged_bytes(config)
            + piece_bytes(problem, config) + barriers + _OTHERS)


def rows_of(config: KernelConfig) -> int:
    """Rows of a consumer, and of a piece of A."""
    return config.block_m if config.pingpong else config.block_m // consumers_of(config)


def programs_an_sm(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> int:
    """Programs an SM: two of one consumer where shared memory allows, else one."""
    if consumers_of(config) > 1:
        return 1
    return max(1, min(2, device.blocks_by_shared(shared_bytes(problem, config))))


def registers_of(config: KernelConfig) -> tuple[int, int]:
    """Registers a thread of the consumers and of the producer's group, in multiples of 8: together
    at most what the kernel starts with."""
    consumers = consumers_of(config)
    producer = _PRODUCER_REGISTERS
    if one_buffer(config):
        producer = (_SHARING_PRODUCER_REGISTERS if sharers_of(config) > 1 else
                    _WRITING_PRODUCER_REGISTERS)[consumers]
    rest = START_REGISTERS[consumers] * (consumers + 1) - producer
    return rest // consumers // 8 * 8, producer


def early_parts(problem: GemmProblem, config: KernelConfig, addend: object) -> int:
    """Parts of a tile's D that are asked for before the tile's products are summed: those for
    which the accumulator leaves registers. Of eight columns a thread has four values of a matrix,
    and two of a vector at most."""
    if addend in ("none", "scale") or not one_buffer(config):
        return 0
    accumulators = rows_of(config) // 64
    others = _OTHER_REGISTERS + (accumulators - 1) * _SECOND_ACCUMULATOR_REGISTERS
    spare = registers_of(config)[0] - accumulators * config.block_n // 2 - others
    if addend == "tile" and (turned(config) or not stores_by_tma(problem, config)):
        spare -= _MATRIX_REGISTERS
    columns = spare * (2 if addend == "tile" else 4)
    part = part_columns(problem, config)
    return max(0, min(accumulators * config.block_n // config.cluster_k // part, columns // part))


def sms_of(config: KernelConfig, device: DeviceSpec) -> int:
    """SMs that the config's clusters can lie on: each within one of the groups of 16 or 18 SMs, of
    which clusters of four and eight leave some over."""
    sms, size = device.num_sms, programs_of(config)
    if size > 2:
        sms -= _LEFT_OVER * sms // 132
    return max(sms // size, 1) * size

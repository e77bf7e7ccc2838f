"""What a config of a kernel occupies on a device and how it works: :class:`Footprint`.

Selection predicts times from footprints. It knows no kernel by name, so that a new kernel needs
nothing there: its ``KernelSpec.footprint`` says what the predicted time depends on.
"""

from __future__ import annotations

from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.formats import format_of
from tritongemm.problem import GemmProblem

#: Registers that a thread may have; a kernel that needs more spills.
MAX_REGISTERS = 255
#: Resident threads of an SM (CUDA programming guide, compute capability 8.0 and 9.0).
_MAX_THREADS = 2048
#: On a contended device a program takes two units where there are so many for each one that fits.
#: With fewer, pairs can leave SMs idle at the end; all products of FSDP2's bench have more
#: (perf/results/nvidia-h200/exploratory/fsdp-programs.txt).
_PAIRED = 3


class Footprint(NamedTuple):
    """What a config occupies and which units it uses, for problems of one kind.

    It must not depend on the problem's extents beyond what divides them, nor on the config's
    ``group_m`` and ``dependent_launch``: selection asks once for all problems of a kind
    (``selection/columns.py: kind_of``) and all configs that differ in these two alone.

    Attributes:
        sms: SMs that the programs can be placed on.
        programs_per_sm: programs that an SM holds at a time.
        tiles_per_program: tiles that a program works on at a time: 2 for ping-pong consumers.
        persistent: a program computes tile after tile, and a launch has at most ``sms *
            programs_per_sm`` programs, but on a contended device (:func:`resident`). False: a
            program for each tile.
        copy_engine: TMA loads the operands, and stores C where rows of C are
            whole multiples of 16 bytes. False: threads load and store.
        producer_warps: warps of their own issue the loads (warp specialization).
        tensor_cores: tensor cores multiply. False: CUDA cores.
        k_over_threads: the threads of a program divide K among them and add their sums at the end.
            False: they divide the tile.
        products: multiplications by the unit for one product of an element of A and one of B: 1,
            or as many as there are products of parts, where float32 operands are split.
        registers: of a thread, estimated; those above :data:`MAX_REGISTERS` are spilled. Of a
            kernel whose operands do not pass through registers, the accumulators alone.
        columns_b: columns of B that a pipeline stage holds (rows of A, where the config swaps).
        bits_a, bits_b: of an element of the problem's A and B, as the kernel loads them.
    """

    sms: int
    programs_per_sm: int
    tiles_per_program: int
    persistent: bool
    copy_engine: bool
    producer_warps: bool
    tensor_cores: bool
    k_over_threads: bool
    products: int
    registers: float
    columns_b: int
    bits_a: int
    bits_b: int


def bits_of(dtype: str) -> int:
    """Bits of an element."""
    return format_of(dtype).bits


def accumulators(config: KernelConfig) -> float:
    """Registers of a thread that hold the float32 sums of one tile."""
    return config.block_m * config.block_n / (32 * config.num_warps)


def programs_that_fit(config: KernelConfig, device: DeviceSpec, shared_bytes: int,
                      registers: float) -> int:
    """Programs that an SM holds at a time: bounded by shared memory, registers and threads.

    Args:
        shared_bytes: of a program. registers: of a thread.
    """
    used = min(MAX_REGISTERS, registers) * 32 * config.num_warps
    return max(1, min(device.blocks_by_shared(shared_bytes),
                      int(device.registers_per_sm // used),
                      _MAX_THREADS // (32 * config.num_warps)))


def resident(units: int, programs: int, device: DeviceSpec) -> int:
    """Programs of a persistent launch over ``units``: as many as the device holds.

    On a contended device one for each unit, or for two from :data:`_PAIRED` units a program on. A
    program of a persistent launch that has to wait for an SM starts its whole share of the units
    late, while the others end; of small programs the next one runs on whichever SM is free. With
    two units a program stores one while it loads the next.
    """
    if device.contended:
        return units if units < _PAIRED * programs else -(-units // 2)
    return min(units, programs)


def of_threads(problem: GemmProblem, config: KernelConfig, device: DeviceSpec, *,
               shared_bytes: int, registers: float, tensor_cores: bool,
               k_over_threads: bool = False, products: int = 1) -> Footprint:
    """The footprint of a kernel whose threads load the operands, a program for each tile."""
    return Footprint(
        sms=device.num_sms,
        programs_per_sm=programs_that_fit(config, device, shared_bytes, registers),
        tiles_per_program=1, persistent=False, copy_engine=False, producer_warps=False,
        tensor_cores=tensor_cores, k_over_threads=k_over_threads, products=products,
        registers=registers, columns_b=config.block_n, bits_a=bits_of(problem.dtype_a),
        bits_b=bits_of(problem.dtype_b))

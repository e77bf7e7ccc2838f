"""What the warp-specialised Hopper kernels have in common: consumer warpgroups, registers,
barriers, and how many programs share an SM."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec

#: Registers a thread that a kernel starts with, by consumers: threads are 128 a consumer and 128
#: for the producer's group, and the sum must fit the SM (twice, for one consumer).
START_REGISTERS = {1: 128, 2: 168, 3: 128}
#: Bytes of the barriers of a kernel that keeps its operands in one buffer: 32, for
#: :data:`MAX_STAGES` stages, full and empty, and two for each of three consumers.
BARRIER_BYTES = 8 * 32
MAX_STAGES = 13
#: Bytes of shared memory that Triton and alignment add.
OTHER_BYTES = 240


def consumers_of(config: KernelConfig) -> int:
    """Consumer warpgroups: 4 warps each."""
    return config.num_warps // 4


def consumer_registers(consumers: int, producer: int) -> int:
    """Registers a thread of a consumer where one of the producer's group has ``producer``, in
    multiples of 8: together at most what the kernel starts with."""
    rest = START_REGISTERS[consumers] * (consumers + 1) - producer
    return rest // consumers // 8 * 8


def programs_an_sm(config: KernelConfig, shared_bytes: int, device: DeviceSpec) -> int:
    """Programs an SM: two of one consumer where shared memory allows, else one."""
    if consumers_of(config) > 1:
        return 1
    return max(1, min(2, device.blocks_by_shared(shared_bytes)))

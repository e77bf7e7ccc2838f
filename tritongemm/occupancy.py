"""Occupancy: resident warps over the largest number that an SM holds."""

from __future__ import annotations

from tritongemm.device import DeviceSpec

#: Compute capability -> (warps, blocks) an SM holds at most. CUDA C++ Programming Guide,
#: "Technical Specifications per Compute Capability".
_LIMITS = {75: (32, 16), 80: (64, 32), 86: (48, 16), 87: (48, 16), 89: (48, 24), 90: (64, 32),
           100: (64, 32), 103: (64, 32), 120: (48, 24)}
#: Units in which an SM gives out registers, to a warp, and shared memory, to a block, bytes; warps
#: are dealt to so many sub-partitions, each with its share of the registers (same guide,
#: "Hardware Multithreading").
_REGISTER_UNIT, _SHARED_UNIT, _PARTITIONS = 256, 128, 4
_WARP = 32


def occupancy(device: DeviceSpec, *, num_warps: int, registers: int | None,
              shared_bytes: int) -> float | None:
    """Resident warps / the most an SM holds, from 0 (a block does not fit) to 1; None where the
    limits or the registers are not known.

    Args:
        num_warps: warps a block.
        registers: registers a thread.
        shared_bytes: shared memory a block.
    """
    limits = _LIMITS.get(device.arch)
    if limits is None or not registers or num_warps < 1:
        return None
    most_warps, most_blocks = limits
    per_warp = -(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    warps = device.registers_per_sm // per_warp // _PARTITIONS * _PARTITIONS
    blocks = min(most_blocks, most_warps // num_warps, warps // num_warps,
                 device.blocks_by_shared(-(-shared_bytes // _SHARED_UNIT) * _SHARED_UNIT))
    return blocks * num_warps / most_warps

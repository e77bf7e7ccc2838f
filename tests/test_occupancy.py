"""The share of an SM's warps that blocks fill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritongemm.device import device_named, known_devices
from tritongemm.kernels import warp_tile
from tritongemm.occupancy import occupancy

H200 = device_named("nvidia-h200")


@pytest.mark.parametrize(("warps", "registers", "shared", "share"), [
    # Limits of sm_90: 64 warps, 32 blocks, 65536 registers, 233472 bytes of shared memory.
    (8, 32, 0, 1.0), (8, 255, 0, 8 / 64), (8, 168, 0, 8 / 64), (4, 128, 0, 16 / 64),
    (8, 32, 200_000, 8 / 64), (8, 32, 100_000, 16 / 64), (1, 16, 0, 32 / 64),
    (8, 128, 16640, 16 / 64), (4, 255, 0, 8 / 64), (8, 32, 99328, 16 / 64), (32, 32, 8192, 1.0),
    (32, 128, 0, 0.0),  # a block does not fit
    # 42 warps by registers, of which each of the four sub-partitions holds ten.
    (2, 48, 0, 40 / 64), (1, 48, 0, 32 / 64),
])
def test_occupancy_is_the_scarcest_resources(warps, registers, shared, share):
    assert occupancy(H200, num_warps=warps, registers=registers, shared_bytes=shared) == share


def test_sm_75_keeps_no_shared_memory_of_a_block():
    turing = replace(H200, arch=75, shared_bytes_per_sm=65536)
    assert occupancy(turing, num_warps=8, registers=32, shared_bytes=32768) == 16 / 32
    assert occupancy(replace(turing, arch=80), num_warps=8, registers=32,
                     shared_bytes=32768) == 8 / 64


def test_occupancy_is_unknown_without_registers_or_limits():
    assert occupancy(H200, num_warps=4, registers=None, shared_bytes=0) is None
    assert occupancy(replace(H200, arch=0), num_warps=4, registers=32, shared_bytes=0) is None


def test_the_hopper_kernels_limit_is_that_of_every_hopper_device():
    limits = {x.shared_bytes_per_block for x in known_devices().values() if x.arch == 90}
    assert limits == {warp_tile.MOST_SHARED_BYTES}

"""A batch with two strides an operand: what the kernels compile to for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled import compiled, disassembled, local_accesses_in_loops, sass

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels import shared_bytes, violation
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.driver import _fields
from tritongemm.problem import GemmProblem

HOPPER = representative(90)
#: Several buffers; one buffer, whose loads are PTX; a cluster; the transposed product.
HOPPERS = (
    KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4),
    KernelConfig("warp_specialized", 128, 176, 64, num_warps=8, num_stages=4),
    KernelConfig("warp_specialized", 128, 256, 64, num_warps=8, num_stages=4, cluster_m=2,
                 epilogue_subtile=2),
    KernelConfig("warp_specialized", 64, 16, 64, num_warps=4, num_stages=8, swap_ab=1, split_k=2))
POINTERS = (KernelConfig("tiled", 128, 128, 64, num_warps=8, num_stages=3),
            KernelConfig("gemv", 4, 16, 256, num_warps=4, num_stages=2))


def problem_for(config: KernelConfig, two_strides: str = "ab", layout: str = "nt") -> GemmProblem:
    few = {"gemv": 4}.get(config.kernel, 16 if config.swap_ab else 1024)
    plain = GemmProblem.contiguous(few, 1024, 512, batch=24, layout=layout)
    return replace(plain, two_strides=two_strides)


def check(config: KernelConfig, problem: GemmProblem):
    """Builds a config; the parameters are those that the launcher packs, nothing spills."""
    assert violation(problem, config, HOPPER) is None
    launch = launches_of(problem, config, HOPPER)[0]
    binary = compiled(problem, config, HOPPER)[0]
    sizes = [size for size, _, _ in _fields(launch)]
    assert [*sizes, 8, 8] == [size for size, _ in binary.parameters]
    assert binary.shared_bytes <= shared_bytes(problem, config) and binary.spills == 0
    text = disassembled(binary)
    assert not local_accesses_in_loops(text)
    return binary, text


@pytest.mark.parametrize("config", HOPPERS, ids=str)
def test_tma_walks_both_axes_of_the_batch(config):
    binary, text = check(config, problem_for(config, layout="nn"))
    assert "UTMALDG.4D" in text and "UTMALDG.3D" not in text
    assert "two_strides_ab" in binary.symbol


@pytest.mark.parametrize("config", POINTERS, ids=str)
def test_a_pointer_kernel_takes_the_outer_strides_that_it_needs(config):
    few = check(config, problem_for(config, "b"))[0]
    all_ = check(config, problem_for(config, "abc"))[0]
    plain = compiled(replace(problem_for(config), two_strides="none"), config, HOPPER)[0]
    assert len(few.parameters) == len(plain.parameters) + 2  # the inner extent and B's stride
    assert len(all_.parameters) == len(plain.parameters) + 4
    assert few.registers <= plain.registers + 16 and sum(sass(few).values())

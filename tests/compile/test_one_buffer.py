"""Tiles of any width, and of clusters: what their code relies on in shared memory and in order."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from compiled import disassembled

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import CompileError
from tritongemm.kernels import violation
from tritongemm.kernels.compile import compile_launch, launches_of
from tritongemm.problem import GemmProblem

H200 = representative(90)


def wide(block_m, block_n, warps, **more):
    return KernelConfig("warp_specialized", block_m, block_n, 64, num_warps=warps,
                        **{"num_stages": 3, **more})


CASES = [(wide(128, 144, 8), "bf16", "nt", 1),
         (wide(128, 112, 8, epilogue_subtile=2), "fp16", "tt", 1),
         (wide(192, 80, 12), "bf16", "nt", 3), (wide(64, 176, 8, pingpong=1), "fp16", "nt", 1),
         (wide(64, 48, 4, swap_ab=1), "bf16", "nn", 1),
         (wide(64, 192, 4, split_k=2), "bf16", "nt", 1),
         (wide(192, 96, 12), "bf16", "tn", 1), (wide(128, 144, 8), "fp16", "nn", 1)]
CLUSTERS = [(wide(64, 16, 4, cluster_k=2, swap_ab=1, num_stages=8), "bf16", "nt", 1),
            (wide(64, 64, 4, cluster_k=4, num_stages=6), "fp16", "tn", 3),
            (wide(128, 128, 8, cluster_k=4, num_stages=4), "bf16", "nn", 1),
            (wide(128, 96, 8, cluster_k=2, num_stages=4), "bf16", "tt", 1)]


def gluon_launch(config, dtype, layout, batch=1):
    m = 48 if config.swap_ab else 1000
    problem = GemmProblem.contiguous(m, 2000, 512, batch=batch, dtype=dtype, layout=layout)
    assert violation(problem, config, H200) is None
    return next(x for x in launches_of(problem, config, H200) if x.gluon)


@pytest.mark.parametrize("config, dtype, layout, batch", [*CASES, *CLUSTERS], ids=str)
def test_the_operands_buffer_is_the_first_in_shared_memory(config, dtype, layout, batch):
    launch = gluon_launch(config, dtype, layout, batch)
    across = layout[0] == "t" if config.swap_ab else layout[1] == "n"
    columns = -(-config.block_n // 64) * 64 if across else config.block_n  # whole swizzled rows
    assert launch.first_shared == config.num_stages * (config.block_m + columns) * 128
    binary = compile_launch(launch, 90)  # raises where it is not
    assert binary.shared_bytes > launch.first_shared and not binary.spills
    assert disassembled(binary).count(f"HGMMA.64x{config.block_n}x16") >= 4


@pytest.mark.parametrize("config, dtype, layout, batch", CLUSTERS, ids=str)
def test_a_group_puts_its_sums_where_its_operands_were_once_all_its_warps_are_done(
        config, dtype, layout, batch):
    # The last wait for products, a barrier of the group's warps, and only then the first store.
    code = disassembled(compile_launch(gluon_launch(config, dtype, layout, batch), 90))
    ends = [m.start() for m in re.finditer(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0", code)]
    assert len(ends) == config.num_warps // 4
    for end in ends:
        store = code.index("STS.128", end)
        assert "BAR.SYNC" in code[end:store]


def test_a_cluster_is_one_of_the_launch_and_does_one_tile():
    config, *rest = CLUSTERS[2]
    launch = gluon_launch(config, *rest)
    assert launch.cluster == 4 and launch.grid == (4 * 8 * 16, 1, 1)  # not the device's SMs
    assert gluon_launch(replace(config, cluster_k=1), *rest).grid == (128, 1, 1)


def test_something_before_it_is_a_compile_error():
    config, dtype, layout, batch = CASES[0]
    problem = GemmProblem.contiguous(1000, 2000, 512, dtype=dtype, layout=layout)
    launch = next(x for x in launches_of(problem, config, H200) if x.gluon)
    with pytest.raises(CompileError, match="where the operands' 200000 bytes must be first"):
        compile_launch(replace(launch, first_shared=200_000), 90)

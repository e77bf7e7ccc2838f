"""Tiles of any width: where their operands lie in shared memory, which the code relies on."""

from __future__ import annotations

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
         (wide(64, 192, 4, split_k=2), "bf16", "nt", 1)]


@pytest.mark.parametrize("config, dtype, layout, batch", CASES, ids=str)
def test_the_operands_buffer_is_the_first_in_shared_memory(config, dtype, layout, batch):
    m = 48 if config.swap_ab else 1000
    problem = GemmProblem.contiguous(m, 2000, 512, batch=batch, dtype=dtype, layout=layout)
    assert violation(problem, config, H200) is None
    launch = next(x for x in launches_of(problem, config, H200) if x.gluon)
    assert launch.first_shared == config.num_stages * (config.block_m + config.block_n) * 128
    binary = compile_launch(launch, 90)  # raises where it is not
    assert binary.shared_bytes > launch.first_shared and not binary.spills
    assert disassembled(binary).count(f"HGMMA.64x{config.block_n}x16") >= 4


def test_something_before_it_is_a_compile_error():
    config, dtype, layout, batch = CASES[0]
    problem = GemmProblem.contiguous(1000, 2000, 512, dtype=dtype, layout=layout)
    launch = next(x for x in launches_of(problem, config, H200) if x.gluon)
    with pytest.raises(CompileError, match="where the operands' 200000 bytes must be first"):
        compile_launch(replace(launch, first_shared=200_000), 90)

"""Tiles of any width: where their operands lie in shared memory, which the code relies on."""

from __future__ import annotations

import re

import pytest

triton = pytest.importorskip("triton")

from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import representative  # noqa: E402
from tritongemm.kernels import violation  # noqa: E402
from tritongemm.kernels.compile import compile_launch, launches_of  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

H200 = representative(90)
_BASE = re.compile(r"mov\.[bu]32\s+(%r\d+), global_smem;")


def wide(block_m, block_n, warps, **more):
    return KernelConfig("warp_specialized", block_m, block_n, 64, num_warps=warps,
                        **{"num_stages": 3, **more})


CASES = [(wide(128, 144, 8), "bf16", "nt", 1),
         (wide(128, 112, 8, epilogue_subtile=2), "fp16", "tt", 1),
         (wide(192, 80, 12), "bf16", "nt", 3), (wide(64, 176, 8, pingpong=1), "fp16", "nt", 1),
         (wide(64, 48, 4, swap_ab=1), "bf16", "nn", 1),
         (wide(64, 192, 4, split_k=2), "bf16", "nt", 1)]


def offsets(ptx: str) -> list[int]:
    """Places in shared memory that the code names as constants."""
    found = [int(x) for x in re.findall(r"global_smem\+(\d+)", ptx)]
    for base in set(_BASE.findall(ptx)):
        found += [int(x) for x in re.findall(rf"add\.s32\s+%r\d+, {base}, (\d+);", ptx)]
    return found


@pytest.mark.parametrize("config, dtype, layout, batch", CASES, ids=str)
def test_the_operands_buffer_is_the_first_in_shared_memory(monkeypatch, config, dtype, layout,
                                                           batch):
    m = 48 if config.swap_ab else 1000
    problem = GemmProblem.contiguous(m, 2000, 512, batch=batch, dtype=dtype, layout=layout)
    assert violation(problem, config, H200) is None
    texts = []
    compile_it = triton.compile

    def kept(*args, **more):
        kernel = compile_it(*args, **more)
        texts.append(kernel.asm["ptx"])
        return kernel

    monkeypatch.setattr(triton, "compile", kept)
    launch = next(x for x in launches_of(problem, config, H200) if x.gluon)
    binary = compile_launch(launch, 90)
    operands = config.num_stages * (config.block_m + config.block_n) * 128
    found = offsets(texts[0])
    assert found and min(found) >= operands, f"{min(found)} lies inside the {operands} bytes"
    assert binary.shared_bytes >= operands and not binary.spills
    assert f"m64n{config.block_n}k16" in texts[0]

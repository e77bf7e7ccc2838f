"""complex64 operands arranged, and a 16-bit A split: what the instructions must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled import count, sass

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels.compile import build_launches, launches_of
from tritongemm.kernels.complex_product import float32_problem
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem

H100 = representative(90)
WIDE = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)


def test_arranging_moves_whole_elements_without_spills():
    problem = GemmProblem.contiguous(1024, 1024, 1024, dtype="c64", layout="tn",
                                     precision="fp16x3")
    arranging = [x for x in launches_of(problem, WIDE, H100) if x.function == "arrange_complex"]
    binaries, _ = build_launches(tuple(arranging), 90)
    assert len(binaries) == 2
    for binary, stores in zip(binaries, (2, 1)):
        opcodes = sass(binary)
        assert binary.spills == 0
        wide = sum(n for name, n in opcodes.items() if name.startswith("LDG") and "64" in name)
        assert count(opcodes, "LDG") == wide and count(opcodes, "STG") == stores * wide
    # The transposed A goes through shared memory: both its loads and its stores are of rows.
    assert count(sass(binaries[1]), "STS") > 0


def test_a_complex_product_shares_the_binaries_of_float32():
    problem = GemmProblem.contiguous(1024, 1024, 1024, dtype="c64", layout="nt",
                                     precision="fp16x3")
    mine = [x.static_key() for x in launches_of(problem, WIDE, H100)]
    others = [x.static_key() for x in launches_of(float32_problem(problem), WIDE, H100)]
    assert mine[1:] == others


@pytest.mark.parametrize("narrow", ("bf16", "fp16"))
@pytest.mark.parametrize("layout", ("nt", "tn"))
def test_a_16_bit_a_is_split_in_vectors_without_spills(layout, narrow):
    problem = GemmProblem.contiguous(1024, 1024, 1024, dtype="fp32", layout=layout,
                                     precision="fp16x3")
    geometry = replace(Geometry.contiguous(problem), stored_a=narrow)
    split, _, guard = launches_of(problem, WIDE, H100, geometry)
    for launch in (split, guard):
        assert {x.name: x.dtype for x in launch.arguments if x.name in ("a", "b")} == {
            "a": narrow, "b": "fp32"}
    (binary, _), _ = build_launches((split, guard), 90)
    assert binary.spills == 0
    # Four elements of A, or of B, at a time.
    loads = [name for name in sass(binary) if name.startswith("LDG")]
    assert loads and all("64" in name or "128" in name for name in loads)

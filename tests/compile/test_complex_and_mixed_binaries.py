"""complex64 operands arranged, and a 16-bit A split: what the instructions must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled import count, sass

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import UnsupportedError
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


@pytest.mark.parametrize("narrow", ("bf16", "fp16"))
@pytest.mark.parametrize("config", (
    KernelConfig("gemv", 4, 16, 256, num_warps=4),
    KernelConfig("gemv", 4, 16, 256, num_warps=4, num_stages=3),
    KernelConfig("tiled_bf16x6", 64, 64, 32, num_warps=4, num_stages=4),
    KernelConfig("tiled_bf16x6", 16, 32, 64, num_warps=2, num_stages=3),
    KernelConfig("simt", 32, 64, 32, num_warps=4, num_stages=3, thread_m=4, thread_n=4)),
    ids=lambda x: x.config_id)
def test_kernels_for_few_rows_load_a_16_bit_a_in_vectors_without_spills(config, narrow):
    m = config.block_m
    problem = GemmProblem.contiguous(m, 1024, 1024, dtype="fp32", layout="nt", precision="fp16x3")
    geometry = replace(Geometry.contiguous(problem), stored_a=narrow)
    launches = launches_of(problem, config, H100, geometry)
    assert {x.name: (x.dtype, x.align) for x in launches[0].arguments if x.name in ("a", "b")} == {
        "a": (narrow, 8), "b": ("fp32", 16)}
    (binary,), _ = build_launches(launches, 90)
    opcodes = sass(binary)
    assert binary.spills == 0
    copies = [name for name in opcodes if name.startswith("LDGSTS")]
    assert bool(copies) is (config.num_stages > 2)
    if copies:
        assert all("64" in name or "128" in name for name in copies)
    else:
        assert count(opcodes, "LDG") == sum(
            n for name, n in opcodes.items() if name.startswith("LDG.E.64")
            or name.startswith("LDG.E") and "128" in name)


SIMT = KernelConfig("simt", 32, 64, 32, num_warps=4, num_stages=3, thread_m=4, thread_n=4)


def mixed(m: int, k: int, letter: str, align: int = 16) -> tuple[GemmProblem, Geometry]:
    """A float32 problem with an A of bf16 whose rows are padded to 8 elements."""
    problem = GemmProblem(m, 64, k, 1, "fp32", "fp32", "fp32", letter + "t", align, 16, 16,
                          precision="fp16x3")
    lead = -(-(k if letter == "n" else m) // 8) * 8
    strides = (lead, 1) if letter == "n" else (1, lead)
    return problem, replace(Geometry.contiguous(problem), am=strides[0], ak=strides[1], bk=1,
                            bn=-(-k // 8) * 8, stored_a="bf16")


@pytest.mark.parametrize(("m", "k", "letter"), ((33, 1024, "n"), (32, 1030, "n"), (34, 101, "t")))
def test_simt_copies_two_elements_of_16_bits_at_a_time(m, k, letter):
    problem, geometry = mixed(m, k, letter)
    (binary,), _ = build_launches(launches_of(problem, SIMT, H100, geometry)[:1], 90)
    assert count(sass(binary), "LDGSTS") > 0


@pytest.mark.parametrize(("m", "k", "letter", "align"), (
    (32, 101, "n", 16), (32, 2049, "n", 16), (33, 1024, "t", 16), (32, 1024, "n", 4)))
def test_simt_refuses_copies_of_2_bytes(m, k, letter, align):
    problem, geometry = mixed(m, k, letter, align)
    with pytest.raises(UnsupportedError, match="copies 4 bytes and more of A"):
        launches_of(problem, SIMT, H100, geometry)
    assert launches_of(problem, SIMT, H100, replace(geometry, stored_a=""))


def test_simt_refuses_more_conversions_than_a_launch_takes():
    problem, geometry = mixed(64, 2**19, "n")
    with pytest.raises(UnsupportedError, match="would convert 536,870,912 elements of A"):
        launches_of(problem, SIMT, H100, geometry)

"""The launcher packs what the compiled kernel takes: parameter by parameter, and by tensor map."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled import compiled
from test_instructions import (
    COLUMNS,
    COPIED,
    FEW,
    FMA,
    PADDED,
    PERSISTENT,
    ROWS_64,
    SHARED,
    SKINNY,
    SKINNY_SWAPPED,
    STREAM,
    SWAPPED,
    TALL,
    THIN,
    UNALIGNED,
    Case,
    shape,
)

from tritongemm.device import representative
from tritongemm.kernels import SPECS
from tritongemm.kernels.compile import build_launches, launches_of
from tritongemm.kernels.driver import _HOST_ELEMENT_TYPE, _TENSOR_MAP_BYTES, _fields
from tritongemm.kernels.launch import Descriptor, Geometry
from tritongemm.problem import GemmProblem

#: Triton appends a pointer to its global scratch and one to its profiler's.
APPENDED = ((8, 8), (8, 8))
#: Not unit stride anywhere: every stride stays an argument.
GAPPED = Geometry(ab=9_000_000, am=6, ak=4096, bb=9_000_000, bk=5, bn=4096, cb=9_000_000, cm=3072,
                  cn=2)
BIG = GemmProblem.contiguous(2**16, 2**15, 2**15 + 2**14, layout="nt")

CASES = (
    *COPIED,
    *(Case(arch, ROWS_64, shape(layout)) for arch in (80, 90, 100) for layout in ("nn", "tt")),
    Case(90, FMA, shape(dtype="fp32", batch=2)), Case(90, ROWS_64, UNALIGNED),
    Case(90, replace(ROWS_64, split_k=4), shape(dtype_out="fp32")),
    Case(90, replace(ROWS_64, split_k=2), GemmProblem.contiguous(100, 77, 4096, batch=3)),
    Case(90, PADDED, replace(shape(), align_b=4)),
    Case(90, PADDED, replace(shape(batch=2), align_a=2)),
    Case(90, replace(SWAPPED, pad_operands=1), GemmProblem.contiguous(16, 4095, 4095)),
    Case(90, STREAM, THIN), Case(90, replace(STREAM, swap_ab=1, split_k=4), TALL),
    Case(90, SKINNY, FEW), Case(90, replace(SKINNY_SWAPPED, split_k=4), COLUMNS),
    Case(90, SKINNY, replace(FEW, batch=3, dtype_out="fp32", epilogue="add+gelu")),
    Case(90, ROWS_64, BIG), Case(90, SHARED, BIG), Case(90, PERSISTENT, BIG),
)


def offsets(sizes_and_alignments) -> list[int]:
    """Where each parameter lies: PTX places each at the next multiple of its alignment."""
    found, end = [], 0
    for size, align in sizes_and_alignments:
        end = -(-end // align) * align
        found.append(end)
        end += size
    return found


def check(launches, arch: int) -> None:
    binaries, _ = build_launches(launches, arch)
    for launch, binary in zip(launches, binaries, strict=True):
        packed = [(size, align) for size, align, _ in _fields(launch)]
        taken = list(binary.parameters)
        assert [size for size, _ in packed] + [8, 8] == [size for size, _ in taken], launch.symbol
        assert offsets([*packed, *APPENDED]) == offsets(taken), launch.symbol
        assert binary.symbol == launch.symbol and launch.symbol.encode() in binary.cubin
        assert binary.cubin.startswith(b"\x7fELF")
        descriptors = [x for x in launch.arguments if isinstance(x, Descriptor)]
        assert len(binary.maps) == len(descriptors)
        for meta, x in zip(binary.maps, descriptors, strict=True):
            assert meta["elem_type"] in _HOST_ELEMENT_TYPE and 0 <= meta["swizzle"] <= 3
            box = tuple(meta["block_size"])
            assert len(box) == len(x.box) and all(a <= b for a, b in zip(box, x.box, strict=True))
            assert max(box) <= 256


@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_parameters_are_those_of_the_binary(case):
    device = representative(case.arch)
    check(launches_of(case.problem, case.config, device), case.arch)


def test_strides_that_are_not_one_are_packed_too():
    device = representative(90)
    check(launches_of(shape(), ROWS_64, device, GAPPED), 90)
    check(launches_of(shape(), replace(ROWS_64, split_k=2), device, GAPPED), 90)
    padded = replace(shape(), align_a=2, align_b=2)
    check(launches_of(padded, PADDED, device, GAPPED), 90)
    along_k = replace(GAPPED, am=8192, ak=1, bk=1, bn=8192)
    for config in (SKINNY, replace(SKINNY, split_k=2)):
        check(launches_of(FEW, config, device, along_k), 90)


def test_strides_beyond_32_bits_are_packed_as_64():
    wide = replace(GAPPED, am=2**33, cm=2**34)
    launches = launches_of(shape(), ROWS_64, representative(90), wide)
    check(launches, 90)
    assert [8, 8] == [size for size, _, value in _fields(launches[0]) if value in (2**33, 2**34)]
    wide = replace(wide, ak=1, bk=1, bn=8192)
    launches = launches_of(FEW, SKINNY, representative(90), wide)
    check(launches, 90)
    assert [8, 8] == [size for size, _, value in _fields(launches[0]) if value in (2**33, 2**34)]


@pytest.mark.parametrize("kernel", SPECS)
def test_the_rule_default_packs_on_every_architecture_it_is_for(kernel):
    spec = SPECS[kernel]
    for arch in spec.archs:
        device = representative(arch)
        for dtype in ("bf16", "fp32"):
            few = {"gemv": THIN, "skinny": FEW}.get(kernel)
            problem = replace(few, dtype_a=dtype, dtype_b=dtype, dtype_out=dtype
                              ) if few else shape(dtype=dtype)
            if spec.supports(problem, device) is None:
                check(launches_of(problem, spec.default(problem, device), device), arch)


def test_a_tensor_map_is_as_large_as_the_driver_makes_it():
    binary = compiled(shape(), PERSISTENT, representative(90))[0]
    assert (_TENSOR_MAP_BYTES, 64) in binary.parameters

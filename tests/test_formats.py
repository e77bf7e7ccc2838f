"""Number formats and compute modes: what their rows say, and that a new one is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritongemm import compute
from tritongemm.compute import COMPUTES, PRECISIONS, compute_of, precision_for
from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import ConstraintError, ProblemError
from tritongemm.formats import FORMATS, Format, format_of, register_format, remove_format
from tritongemm.kernels import SPECS
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.kernels.reduce import partials_bytes
from tritongemm.kernels.swap import swapped
from tritongemm.kernels.takes import Takes
from tritongemm.problem import GemmProblem

H200 = representative(90)
FP32 = GemmProblem.contiguous(512, 256, 1024, dtype="fp32")


@pytest.fixture
def nibble():
    """A format of 4 bits, two of which torch holds in one byte, known inside the test only."""
    yield register_format(Format("nib4", 4, "uint8", "u8", 0.0, packed=2, poison=255))
    remove_format("nib4")


def test_bytes_are_counted_in_bits(nibble):
    assert [nibble.bytes_of(count) for count in (0, 1, 2, 3, 256)] == [0, 1, 1, 2, 128]
    names = ("bf16", "fp16", "fp32", "fp64", "nib4")
    assert [format_of(name).bytes_of(3) for name in names] == [6, 6, 12, 24, 2]
    assert (nibble.elements_of(16), format_of("fp32").elements_of(16)) == (32, 4)
    assert format_of("fp64").elements_of(4) == 1
    with pytest.raises(ProblemError, match="nib4 is 4 bits, not whole bytes; use bytes_of"):
        _ = nibble.itemsize


def test_a_registered_format_is_one_of_a_problem(nibble):
    problem = GemmProblem(32, 32, 64, dtype_a="nib4", dtype_b="nib4")
    assert problem.compute is COMPUTES["ieee"] and problem.unit == "nib4"
    assert "nib4" in compute.units() and problem.a.format is nibble
    remove_format("nib4")
    with pytest.raises(ProblemError, match="dtype 'nib4' is not known"):
        GemmProblem(32, 32, 64, dtype_a="nib4", dtype_b="nib4")
    again = register_format(Format("nib4", 4, "uint8", "u8", 0.0, packed=2))
    assert replace(problem).a.format is again


@pytest.mark.parametrize(("name", "says"), [
    ("bf16", "a format named 'bf16' is registered already"), ("e4m3x", "without x"),
    ("a_b", "not letters and digits"), ("", "not letters and digits")])
def test_a_format_needs_a_name_of_its_own(name, says):
    before = dict(FORMATS)
    with pytest.raises(ProblemError, match=says):
        register_format(Format(name, 8, "uint8", "u8", 0.0))
    assert FORMATS == before


def test_torch_and_triton_know_the_formats_by_their_names():
    torch = pytest.importorskip("torch")
    from tritongemm.formats import format_of_dtype, torch_dtype

    for name, one in FORMATS.items():
        dtype = torch_dtype(name)
        assert dtype.itemsize * 8 == one.bits and format_of_dtype(dtype) is one
        assert torch.finfo(dtype).eps == one.eps
    with pytest.raises(ProblemError, match="no number format is held in tensors of torch.int8"):
        format_of_dtype(torch.int8)


@pytest.mark.parametrize(("dtype", "precision", "mode", "kind"), [
    ("bf16", "ieee", "native", "bf16"), ("fp16", "ieee", "native", "fp16"),
    ("fp32", "ieee", "ieee", "fp32"), ("fp64", "ieee", "ieee", "fp64"),
    ("fp32", "tf32", "tf32", "tf32"), ("fp32", "fp16x3", "fp16x3", "fp16x3"),
    ("c64", "ieee", "ieee", "fp32"), ("c64", "fp16x3", "fp16x3", "fp16x3")])
def test_a_problem_has_one_compute_mode(dtype, precision, mode, kind):
    problem = replace(FP32, dtype_a=dtype, dtype_b=dtype, precision=precision)
    assert problem.compute is COMPUTES[mode] is compute_of(precision, format_of(dtype))
    assert problem.unit == kind and kind in compute.units()


@pytest.mark.parametrize(("dtype", "precision", "says"), [
    ("bf16", "tf32", "precision tf32 is for fp32, c64 operands, not bf16"),
    ("fp64", "fp16x3", "precision fp16x3 is for fp32, c64 operands, not fp64"),
    ("fp32", "fp16x2", "precision 'fp16x2' is not known; use one of ieee, tf32, fp16x3"),
    ("fp32", ["ieee"], "is not known"), ("fp32", None, "is not known")])
def test_a_mode_that_operands_do_not_have_is_refused(dtype, precision, says):
    with pytest.raises(ProblemError, match=says):
        replace(FP32, dtype_a=dtype, dtype_b=dtype, precision=precision)


def test_one_precision_for_several_formats_is_that_of_those_that_have_it():
    found = {(p, name): precision_for(p, format_of(name))
             for p in ("ieee", "tf32", "fp16x3") for name in ("bf16", "fp32", "fp64")}
    assert {key for key, precision in found.items() if precision == key[0]} == {
        ("tf32", "fp32"), ("fp16x3", "fp32"), *(("ieee", x) for x in ("bf16", "fp32", "fp64"))}
    assert {found["tf32", "bf16"], found["fp16x3", "fp64"]} == {"ieee"}


def test_a_roof_is_of_the_unit_that_multiplies_and_of_its_products():
    peaks = {"fp16": 990.0, "tf32": 495.0, "fp32": 67.0}
    found = [replace(FP32, precision=p).peak_tflops(peaks) for p in ("ieee", "tf32", "fp16x3")]
    assert found == [67.0, 495.0, 330.0]
    assert replace(FP32, precision="fp16x3").peak_tflops({"fp32": 67.0}) is None


#: Kernels that run a product of split operands as the exact one.
ON_CUDA_CORES = [name for name, spec in SPECS.items()
                 if {"ieee", "fp16x3"} <= {*spec.takes.computes}]


@pytest.mark.parametrize("name", ON_CUDA_CORES)
def test_a_kernel_of_both_modes_compiles_split_products_as_exact_ones(name):
    assert {"tiled", "gemv"} <= {*ON_CUDA_CORES}
    exact, split = FP32, replace(FP32, precision="fp16x3")
    if name == "gemv":
        exact, split = replace(exact, m=4), replace(split, m=4)
    spec = SPECS[name]
    assert spec.supports(split, H200) is None is spec.supports(exact, H200)
    config = spec.default(exact, H200)
    assert spec.default(split, H200) == config
    for parts in (1, 2):
        both = [launches_of(p, replace(config, split_k=parts), H200) for p in (exact, split)]
        assert both[0] == both[1]


def test_partial_sums_are_kept_as_the_mode_accumulates():
    for precision in PRECISIONS:
        problem = replace(FP32, precision=precision)
        assert partials_bytes(problem, 3) == 3 * 512 * 256 * 4 and partials_bytes(problem, 1) == 0


def test_a_kernel_takes_what_its_spec_names_and_nothing_else():
    takes = Takes(("fp16", "bf16xfp16"), ("native",), outputs=("fp32",), scales=("row", "block"),
                  groupings=("m",))
    mixed = GemmProblem(64, 64, 64, dtype_a="bf16", dtype_b="fp16", dtype_out="fp32")
    assert takes.violation(mixed) is None
    assert takes.violation(replace(mixed, scale_a="row", scale_b="1x32", grouping="m4")) is None
    for changes, rule, says in (
            ({"dtype_b": "bf16"}, "dtype", "takes fp16, bf16xfp16, not bf16"),
            ({"dtype_a": "fp32"}, "dtype", "takes fp16, bf16xfp16, not fp32xfp16"),
            ({"dtype_out": "bf16"}, "dtype", "writes fp32, not bf16"),
            ({"scale_b": "tensor"}, "scale", "takes scales row, block; B has scale tensor"),
            ({"grouping": "k4"}, "grouping", "takes groups along m; grouping is k4")):
        found = takes.violation(replace(mixed, **changes))
        assert (found.rule, found.message) == (rule, says)


def test_no_kernel_takes_a_format_that_none_was_written_for(nibble):
    problem = GemmProblem(64, 64, 64, dtype_a="nib4", dtype_b="nib4", dtype_out="fp32")
    for spec in (*SPECS.values(), *RUNG_SPECS.values()):
        assert spec.supports(problem, H200).rule == "dtype"
        with pytest.raises(ConstraintError, match="breaks the rule 'dtype'.*not nib4"):
            spec.require(problem, KernelConfig(spec.name, 64, 64, 64), H200)


def test_the_transposed_product_takes_scales_and_groups_along():
    problem = GemmProblem(96, 40, 24, dtype_a="bf16", dtype_b="fp16", layout="nt", align_b=8,
                          scale_a="row", scale_b="1x8", grouping="m4")
    found = swapped(problem)
    assert (found.m, found.n, found.operands, found.layout) == (40, 96, "fp16xbf16", "nt")
    assert (found.a, found.b) == (problem.b._replace(major="k"), problem.a._replace(major="k"))
    assert found.grouping == "n4" and swapped(found) == problem
    assert found.bytes() == problem.bytes() and found.flops() == problem.flops()
    assert swapped(replace(problem, grouping="k2")).grouping == "k2"

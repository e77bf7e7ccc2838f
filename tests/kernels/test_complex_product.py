"""complex64 as a float32 product: its problem, its launches and what is refused, with no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritongemm.config import KernelConfig
from tritongemm.device import known_devices, representative
from tritongemm.errors import ConstraintError, UnsupportedError
from tritongemm.kernels.complex_product import arranging_us, complex_launches, float32_problem
from tritongemm.kernels.launch import Descriptor, Geometry, Pointer
from tritongemm.kernels.split_fp32 import split_operands
from tritongemm.problem import LAYOUTS, GemmProblem
from tritongemm.selection import choose, torch_wins
from tritongemm.selection.hosttime import PYTHON

H100 = representative(90)
SPLIT = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)
CONFIGS = {"split": SPLIT, "split-k": replace(SPLIT, block_m=64, num_warps=4, split_k=4),
           "tiled": KernelConfig("tiled", 64, 64, 32)}


def problem_of(*extents: int, precision: str = "fp16x3", **more) -> GemmProblem:
    return GemmProblem.contiguous(*extents, dtype="c64", precision=precision, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_float32_problem_has_the_same_real_operations(layout):
    problem = problem_of(300, 200, 100, batch=3, layout=layout, epilogue="bias")
    real = float32_problem(problem)
    assert (real.m, real.n, real.k, real.batch) == (300, 400, 200, 3)
    assert real.layout == "n" + layout[1] and real.precision == "fp16x3"
    assert real.epilogue == "bias" and real.dtype_out == "fp32"
    assert real.flops() == problem.flops() == 8 * 3 * 300 * 200 * 100
    assert problem.unit == real.unit == "fp16x3"
    peaks = {"fp32": 60.0, "fp16": 990.0}
    assert problem.peak_tflops(peaks) == real.peak_tflops(peaks) == 330.0
    assert problem_of(8, 8, 8, precision="ieee").peak_tflops(peaks) == 60.0


REFUSED = {
    "formats": (replace(problem_of(8, 8, 8), dtype_b="fp32"), "complex64 only"),
    "output": (replace(problem_of(8, 8, 8), dtype_out="fp32"), "complex64 only"),
    "scales": (replace(problem_of(8, 8, 8), scale_a="row"), "without scales"),
    "activation": (problem_of(8, 8, 8, epilogue="bias+relu"), "scale, bias and add alone"),
    "extent": (problem_of(8, 2**30, 8), "twice an extent"),
    "address": (replace(problem_of(8, 8, 8), align_a=4), "no multiple of 8 bytes"),
}


@pytest.mark.parametrize(("problem", "says"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_float32_problem_says_why(problem, says):
    with pytest.raises(UnsupportedError, match=says):
        float32_problem(problem)
    with pytest.raises(UnsupportedError, match=says):
        choose(problem, H100)


def test_rows_with_gaps_and_illegal_configs_are_refused():
    problem = problem_of(64, 64, 64)
    g = Geometry.contiguous(problem)
    with pytest.raises(UnsupportedError, match="rows of the result have gaps"):
        complex_launches(problem, SPLIT, H100, replace(g, cn=2))
    added = replace(problem, epilogue="add")
    with pytest.raises(UnsupportedError, match="rows of the input have gaps"):
        complex_launches(added, SPLIT, H100, replace(Geometry.contiguous(added), dn=0))
    with pytest.raises(ConstraintError):
        complex_launches(problem, replace(SPLIT, block_m=64), H100, g)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("broadcast", (False, True))
def test_scratch_is_shared_by_no_two_operands(name, layout, broadcast):
    """What the arranging launches write lies behind what the product itself keeps in scratch, and
    every launch of the product that reads B reads it there."""
    config, problem = CONFIGS[name], problem_of(300, 200, 101, batch=3, layout=layout)
    g = Geometry.contiguous(problem)
    if broadcast:
        g = replace(g, bb=0, ab=0)
    launches = complex_launches(problem, config, H100, g)
    arranging = [x for x in launches if x.function == "arrange_complex"]
    rest = launches[len(arranging):]
    assert [x.arguments[0].operand for x in arranging] == (
        ["b", "a"] if layout[0] == "t" else ["b"])
    real, at = float32_problem(problem), 0
    if name.startswith("split"):
        at = split_operands(real, config, replace(g, ab=2 * g.ab, bb=2 * g.bb)).scratch_bytes
    batches = 1 if broadcast else 3
    for launch in arranging:
        target, = (x for x in launch.arguments if x.name == "target")
        rows, lead = (x.value for x in launch.arguments if x.name in ("rows", "lead"))
        assert target.offset >= at and target.offset % 128 == 0
        at = target.offset + 8 * batches * rows * lead * (2 if dict(launch.constants)["PAIRED"]
                                                          else 1)
    assert {x.scratch_bytes for x in launches} == {at}
    moved = {x.arguments[0].operand for x in arranging}
    places = {x.arguments[0].operand: x.arguments[1].offset for x in arranging}
    for launch in rest:
        for x in launch.arguments:
            if isinstance(x, (Pointer, Descriptor)):
                assert x.operand not in moved
                if x.name in moved:
                    assert x.operand == "scratch" and x.offset == places[x.name]


def test_conjugation_changes_signs_alone():
    problem = problem_of(64, 64, 64)
    g = Geometry.contiguous(problem)
    keys, signs = set(), set()
    for flags in ((False, False), (True, False), (False, True), (True, True)):
        launches = complex_launches(problem, SPLIT, H100, replace(g, conjugated=flags))
        keys.add(str([x.static_key() for x in launches]))
        signs.update(x.value for x in launches[0].arguments if x.name == "signs")
    assert len(keys) == 1 and signs == {0b010, 0b100, 0b001, 0b111}


def test_selection_is_that_of_the_float32_product():
    device = known_devices()["nvidia-h100-80gb-hbm3"]
    problem = problem_of(4096, 4096, 4096)
    choice, real = choose(problem, device), choose(float32_problem(problem), device)
    assert choice.config == real.config and choice.source == real.source
    assert choice.time_us == real.time_us and "as 4096x8192x8192 fp32" in choice.note
    assert torch_wins(problem, choice, device, PYTHON) is None


@pytest.mark.parametrize("size", (16, 64, 128))
def test_small_products_are_torchs(size):
    device = known_devices()["nvidia-h100-80gb-hbm3"]
    problem = problem_of(size, size, size)
    assert torch_wins(problem, choose(problem, device), device, PYTHON)


def test_precision_ieee_is_torchs():
    device = known_devices()["nvidia-h100-80gb-hbm3"]
    problem = problem_of(4096, 4096, 4096, precision="ieee")
    assert "precision ieee is torch's" in torch_wins(
        problem, choose(problem, device), device, PYTHON)


def test_arranging_takes_time_by_bytes():
    device = known_devices()["nvidia-h100-80gb-hbm3"]
    short, long = (arranging_us(problem_of(1024, n, 1024), device) for n in (1024, 4096))
    assert 2.0 < short < long
    assert arranging_us(problem_of(1024, 1024, 1024, layout="tn"), device) > short
    assert arranging_us(problem_of(8, 8, 8), replace(device, memory_gbps=0.0)) == 2.0

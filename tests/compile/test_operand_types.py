"""Every kernel refuses operands of a type that it was not written for, with a clear error."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from test_instructions import FEW, THIN, shape

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import CompileError
from tritongemm.kernels import SPECS, compile, spec_named
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.kernels.launch import Descriptor, Pointer
from tritongemm.problem import GemmProblem, dtype_of

#: Triton's names of formats that no kernel takes yet.
UNSUPPORTED = ("fp8e4nv", "fp8e5", "i8", "i16", "fp64")
FP32 = GemmProblem.contiguous(512, 512, 512, dtype="fp32", layout="nt", precision="fp16x3")
PROBLEMS = {"gemv": THIN, "skinny": FEW, "split_product": FP32, "tiled_bf16x6": FP32,
            "scaled_product": replace(FP32, precision="tf32"), "simt": FP32}
H200 = representative(90)


def launches(kernel: str, **changes):
    """What a kernel's rule default launches on a device that it is for."""
    spec, problem = spec_named(kernel), replace(PROBLEMS.get(kernel, shape()), **changes)
    device = H200 if 90 in spec.archs else representative(spec.archs[-1])
    config = spec.default(problem, device)
    spec.require(problem, config, device)
    return device, spec.launches(problem, config, device, compile.Geometry.contiguous(problem))


def retyped(monkeypatch, element: str, names: set[str]) -> None:
    """The compiler is told that these arguments have elements of this type."""
    real = compile._signature

    def signature(launch, parameters):
        types, attributes = real(launch, parameters)
        for x in launch.arguments:
            if isinstance(x, (Pointer, Descriptor)) and x.name in names:
                old = dtype_of(x.dtype).triton_name
                types[x.name] = re.sub(rf"(\*|<){old}\b", rf"\g<1>{element}", types[x.name])
                assert element in types[x.name]
        return types, attributes

    monkeypatch.setattr(compile, "_signature", signature)


@pytest.mark.parametrize("element", UNSUPPORTED)
@pytest.mark.parametrize("kernel", [*SPECS, *RUNG_SPECS])
def test_every_kernel_refuses_an_unsupported_operand(kernel, element, monkeypatch):
    device, (launch, *_) = launches(kernel)
    retyped(monkeypatch, element, {"a", "b", "a_desc", "b_desc"})
    with pytest.raises(CompileError, match=rf"a is {re.escape(named(element))}, for which this "
                                           r"kernel was not written; it takes (bf16, fp16|fp32)"):
        compile.compile_launch(launch, device.arch)


@pytest.mark.parametrize("element", ["bf16", "fp8e4nv", "fp32"])
def test_the_product_of_parts_refuses_parts_of_another_type(element, monkeypatch):
    device, found = launches("split_product")
    product = next(x for x in found if x.function == "split_product")
    retyped(monkeypatch, element, {"a_desc", "b_desc"})
    with pytest.raises(CompileError, match=f"a is {element}, for which this kernel was not"):
        compile.compile_launch(product, device.arch)


@pytest.mark.parametrize("kernel", SPECS)
def test_every_kernel_refuses_an_unsupported_b(kernel, monkeypatch):
    device, (launch, *_) = launches(kernel)
    retyped(monkeypatch, "fp8e4nv", {"b", "b_desc"})
    with pytest.raises(CompileError, match="b is fp8e4nv, for which this kernel was not"):
        compile.compile_launch(launch, device.arch)


def test_gemv_takes_operands_of_two_types(monkeypatch):
    """It makes float32 of each by itself."""
    device, (launch, *_) = launches("gemv")
    retyped(monkeypatch, "fp32", {"b", "b_desc"})
    assert compile.compile_launch(launch, device.arch).symbol


@pytest.mark.parametrize("kernel", [name for name in SPECS if name != "gemv"])
def test_every_other_kernel_refuses_operands_of_two_types(kernel, monkeypatch):
    device, (launch, *_) = launches(kernel)
    retyped(monkeypatch, "fp16", {"b", "b_desc"})
    # A kernel of float32 alone refuses B by itself.
    with pytest.raises(CompileError, match="operands a and b differ in type|b is fp16, for which"):
        compile.compile_launch(launch, device.arch)


def test_what_no_problem_asks_for_is_refused_by_the_passes_too(monkeypatch):
    padded = next(x for x in launches("warp_specialized", align_a=4)[1]
                  if x.function == "pad_operands")
    retyped(monkeypatch, "fp8e4nv", {"a", "b", "partials"})
    with pytest.raises(CompileError, match="a is fp8e4nv.*it takes bf16, fp16"):
        compile.compile_launch(padded, 90)
    split = compile.launches_of(FEW, replace(SPECS["skinny"].default(FEW, H200), split_k=2),
                                H200)[1]
    with pytest.raises(CompileError, match="partials is fp8e4nv.*it takes fp32"):
        compile.compile_launch(split, 90)


@pytest.mark.parametrize("n, epilogue, name", [(2000, "none", "c"), (2001, "none", "c"),
                                               (2000, "add", "d")])
def test_ptx_for_16_bits_refuses_others(n, epilogue, name, monkeypatch):
    problem = GemmProblem.contiguous(1000, n, 512, layout="nt", epilogue=epilogue)
    config = KernelConfig("warp_specialized", 128, 144, 64, num_warps=8, num_stages=3)
    launch, = compile.launches_of(problem, config, H200)
    retyped(monkeypatch, "i16", {"c", "c_desc"} if name == "c" else {"d"})
    with pytest.raises(CompileError, match=f"{name} is int16, for which this kernel was not"):
        compile.compile_launch(launch, 90)


def named(element: str) -> str:
    """A type's name as Triton prints it: signatures say ``i8``, types ``int8``."""
    return element.replace("i", "int", 1) if element.startswith("i") else element

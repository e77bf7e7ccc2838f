"""Checks of the element types that a kernel was written for. Another type might compile, and be
wrong: PTX that names a type, conversions by bits, and copies of a fixed width assume one."""

import triton
import triton.language as tl
from triton.experimental import gluon

#: Types of the operands of tensor instructions -> their names in PTX. Of float32 the instruction
#: reads TF32: it ignores the low 13 bits, to whose place TMA has rounded.
_PTX_NAMES = {"bf16": "bf16", "fp16": "f16", "fp32": "tf32"}


@triton.constexpr_function
def _is_one_of(element, allowed):
    return str(element) in allowed.split(", ")


@triton.constexpr_function
def _refusal(name, element, allowed):
    return (f"{name} is {element}, for which this kernel was not written; it takes "
            f"{allowed}. Use a kernel that takes {element}, or convert {name}")


@triton.jit
def require_type(NAME: tl.constexpr, ELEMENT: tl.constexpr, ALLOWED: tl.constexpr):
    """Refuses to compile where the ELEMENT type of argument NAME is none of the ALLOWED names, in
    one string with commas (Triton 3.6 takes no tuple of strings)."""
    tl.static_assert(_is_one_of(ELEMENT, ALLOWED), _refusal(NAME, ELEMENT, ALLOWED))


@triton.jit
def require_operands(A: tl.constexpr, B: tl.constexpr, ALLOWED: tl.constexpr):
    """Refuses to compile where A's or B's element type is none of the ALLOWED names, or they
    differ."""
    require_type("a", A, ALLOWED)
    require_type("b", B, ALLOWED)
    tl.static_assert(A == B, "operands a and b differ in type; this kernel takes equal ones")


@triton.constexpr_function
def ptx_name(element):
    """The name of an operand type in PTX's tensor instructions: ``bf16``, ``f16`` or ``tf32``.
    Raises ``KeyError`` for any other type."""
    return _PTX_NAMES[str(element)]


gluon_require_type = gluon.jit(require_type.fn)
gluon_require_operands = gluon.jit(require_operands.fn)

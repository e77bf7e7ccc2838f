"""From operands to a callable: checks, the problem, and the closure that launches.

Everything here runs once for each kind of call. A repeated call runs only the closure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tritongemm import settings
from tritongemm.epilogues import factor_named
from tritongemm.errors import LaunchError, UnsupportedError
from tritongemm.formats import COMPLEX_FORMATS, OPERAND_FORMATS, torch_dtype
from tritongemm.kernels.launch import Geometry
from tritongemm.ops.declined import Declined, DeclinedByChoice, DeclinedNow
from tritongemm.ops.native import Bound
from tritongemm.ops.operands import (
    VECTORS_ARE_TORCHS,
    CallForm,
    StridedShape,
    Strides,
    form_of,
    gapless,
    problem_of_form,
    repeats,
    span_bytes,
)
from tritongemm.ops.plan import PRODUCT, Plan
from tritongemm.ops.plans import AnyPlan, Key, plans
from tritongemm.ops.plans import alone as _alone
from tritongemm.problem import FULL_ALIGNMENT, Epilogue, GemmProblem

#: call(a, b, address of a, address of b, alpha, d, address of d, beta[, out]) -> the result, or the
#: reason why torch must run it
Call = Callable[..., torch.Tensor | Declined]

#: The formats of operands, by torch's dtype.
NAMES = {torch_dtype(name): name for name in (*OPERAND_FORMATS, *COMPLEX_FORMATS)}
#: precision_setting("cuda", "matmul"): torch's property takes 3 us, this getter less than 1 us
#: (host of an H200).
precision_setting = torch._C._get_fp32_precision_getter


class Rule(NamedTuple):
    """How an operation reads its operands.

    Attributes:
        ranks: ranks of A and B; None: any that ``matmul`` accepts.
        flipped: B is passed as [N, K], as in ``linear``.
        broadcasts: whether the batches of A and B may differ.
        activation: applied to the result.
        forced: also run products that the policy gives to torch (``strict``).
        mixed: A is of 16 bits, B and the result are float32: a float32 product by a kernel that
            reads A as it is. Its callers know the call by torch's precision setting.
        gradient_of: D multiplies the product, or with an activation its derivative at D does;
            empty: D is added.
    """

    name: str
    ranks: tuple[int, int] | None = None
    flipped: bool = False
    broadcasts: bool = True
    activation: str = "none"
    forced: bool = False
    mixed: bool = False
    gradient_of: str = ""


class Operands(NamedTuple):
    """The tensors of a call. ``added``: D is added; if false, D is checked but not read."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor | None = None
    d: torch.Tensor | None = None
    added: bool = False
    scaled: bool = False
    dtype_out: torch.dtype | None = None


def bind(rule: Rule, x: Operands, patient: bool = False) -> Call:
    """The callable for operands with these properties. ``patient``: as in
    :meth:`tritongemm.ops.plans.Plans.get`.

    Raises:
        Declined: torch must run them.
    """
    dtype_out = (x.b.dtype if rule.mixed else
                 x.a.dtype if x.dtype_out is None else x.dtype_out)
    _check(rule, x, dtype_out)
    *others, last = forms_of(rule, x)
    for form in others:
        try:
            return _bound(rule, x, form, dtype_out, patient)
        except Declined as reason:
            if not reason.lasting:
                raise
        patient = False  # the call was judged
    return _bound(rule, x, last, dtype_out, patient)


def _bound(rule: Rule, x: Operands, form: CallForm, dtype_out: torch.dtype,
           patient: bool) -> Call:
    """The callable that runs ``form``. Raises Declined."""
    key = (*_problem(rule, x, form, dtype_out), x.a.device)
    plan = plans.get(key, forced=rule.forced, patient=patient)
    if x.out is not None:
        return _into(rule, x, form, key, plan)
    return _fresh(form, key, plan, dtype_out)


def problem_of(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> GemmProblem:
    """The :class:`GemmProblem` of ``matmul(a, b)``.

    Raises:
        UnsupportedError: no kernel of this package accepts such operands.
    """
    rule, x = Rule("matmul", forced=True), Operands(a, b, out)
    try:
        _check(rule, x, a.dtype)
        return _problem(rule, x, forms_of(rule, x)[0], a.dtype)[0]
    except Declined as reason:
        raise UnsupportedError(str(reason)) from None


def _check(rule: Rule, x: Operands, dtype_out: torch.dtype) -> None:
    """Raises Declined for operands that no kernel accepts, whatever their extents."""
    a, b, d, out = x.a, x.b, x.d, x.out
    if settings.current().disable:
        raise Declined("TRITONGEMM_DISABLE is set")
    if torch._C._get_tracing_state() is not None:
        raise DeclinedNow("torch.jit.trace can record only torch's own calls")
    if a.dtype not in NAMES or a.dtype != b.dtype and not rule.mixed:
        raise Declined(dtypes_reason(a, b))
    if dtype_out is not a.dtype and (dtype_out is not torch.float32 or a.is_complex()):
        raise Declined(f"the result is to be {dtype_out}, of {a.dtype} operands")
    if rule.gradient_of and a.is_complex():
        raise Declined("complex products have no factor")
    if a.device != b.device:
        raise Declined(f"devices are {a.device} and {b.device}")
    if not a.is_cuda and not (a.device.type == "cpu" and settings.current().interpret):
        raise Declined(f"operands are on {a.device}")
    if a.layout is not torch.strided or b.layout is not torch.strided:
        raise Declined("an operand is not strided")
    for name, other in (("the input", d), ("out=", out)):
        if other is not None and (other.dtype != dtype_out or other.device != a.device
                                  or other.layout is not torch.strided):
            raise Declined(f"{name} is {other.dtype} on {other.device}, {other.layout}")
        if other is not None and other.is_conj():
            raise Declined(f"{name} is a lazy conjugate")
    if out is not None and repeats(StridedShape(out.shape, out.stride())):
        raise Declined("out= overlaps itself")
    reason = ranks_reason(rule, a, b, d)
    if reason is not None:
        raise Declined(reason)
    if 1 in (a.dim(), b.dim()) and not rule.forced:
        # Memory-bound: torch's gemv already reads at the memory's bandwidth.
        raise DeclinedByChoice(VECTORS_ARE_TORCHS)


def ranks_reason(rule: Rule, a: torch.Tensor, b: torch.Tensor,
                 d: torch.Tensor | None = None) -> str | None:
    """Why torch's function of ``rule`` refuses operands of these ranks and batches, or a bias of
    this shape; None if it accepts them."""
    ranks = (a.dim(), b.dim())
    if rule.ranks is not None and ranks != rule.ranks or rule.flipped and b.dim() != 2:
        return f"ranks are {ranks[0]} and {ranks[1]}"
    if not rule.broadcasts and a.shape[0] != b.shape[0]:
        return f"shapes are {tuple(a.shape)} and {tuple(b.shape)}"
    if rule.flipped and d is not None and tuple(d.shape) != (b.shape[0],):
        return f"the bias is of shape {tuple(d.shape)}"
    return None


def dtypes_reason(a: torch.Tensor, b: torch.Tensor) -> str:
    """The reason for operands whose dtypes no kernel supports."""
    return f"dtypes are {a.dtype} and {b.dtype}"


def forms_of(rule: Rule, x: Operands) -> list[CallForm]:
    """The readings of a call, the best first. A batch of two axes is one launch with two strides an
    operand, or a few launches of kernels that take one stride. These come first in float32, where
    the kernels for two strides are the slower ones. Complex and mixed operands, which the split
    pass reads, have no other; nor has a call under batch invariance, where kernels that sum in
    another order would depend on M. Raises Declined."""
    if rule.mixed or x.a.is_complex() or settings.current().batch_invariant:
        return [_form(rule, x, two_strides=False)]
    whole = _form(rule, x)
    if not whole.inner:
        return [whole]
    try:
        cut = _form(rule, x, two_strides=False)
    except Declined:
        return [whole]
    return [cut, whole] if x.a.dtype is torch.float32 else [whole, cut]


def _form(rule: Rule, x: Operands, two_strides: bool = True) -> CallForm:
    shape, stride = x.b.shape, x.b.stride()
    b = StridedShape(shape[::-1], stride[::-1]) if rule.flipped else StridedShape(shape, stride)
    form = form_of(StridedShape(x.a.shape, x.a.stride()), b,
                   None if x.out is None else StridedShape(x.out.shape, x.out.stride()),
                   None if x.d is None else StridedShape(x.d.shape, x.d.stride()), two_strides)
    return form if x.added else form._replace(d=None)


def _problem(rule: Rule, x: Operands, form: CallForm,
             dtype_out: torch.dtype) -> tuple[GemmProblem, Geometry]:
    addend = form.addend
    if addend == "none" and x.scaled:
        addend = "scale"
    if rule.gradient_of:
        addend = factor_named(rule.gradient_of, vector=addend == "bias")
    # torch's allocator aligns a new result, and so its rows, to 512 bytes.
    bases = (x.a.data_ptr(), x.b.data_ptr(), 0 if x.out is None else x.out.data_ptr(),
             0 if x.d is None else x.d.data_ptr())
    dtypes = NAMES[x.a.dtype], NAMES[x.b.dtype], NAMES[dtype_out]
    precision = "ieee" if rule.mixed else _precision_of(x.a)
    problem, geometry = problem_of_form(
        form, bases, dtypes, str(Epilogue(addend, rule.activation)), precision)
    if rule.mixed:
        return _widened(problem, geometry, form, _precision_of(x.b))
    if x.a.is_conj() or x.b.is_conj():
        geometry = replace(geometry, conjugated=(x.a.is_conj(), x.b.is_conj()))
    return problem, geometry


def _widened(problem: GemmProblem, geometry: Geometry, form: CallForm,
             precision: str) -> tuple[GemmProblem, Geometry]:
    """The float32 problem of an A of 16 bits, whose alignment covers as many elements of 4 bytes.
    Raises Declined where A is to be converted first."""
    if precision != "fp16x3":
        raise Declined(f"at precision {precision} no kernel reads A as {problem.dtype_a}")
    if settings.current().batch_invariant:  # some M would be read, and others converted
        raise Declined(f"under batch invariance A is converted from {problem.dtype_a}")
    if len(form.parts) > 1:
        raise Declined("the batch has several strides")
    return (replace(problem, dtype_a="fp32", align_a=min(2 * problem.align_a, FULL_ALIGNMENT),
                    precision=precision),
            replace(geometry, stored_a=problem.dtype_a))


def _precision_of(a: torch.Tensor) -> str:
    """The precision of a product of A: float32 and complex64 on CUDA obey torch's setting, then
    ``TRITONGEMM_FP32``."""
    if a.dtype not in (torch.float32, torch.complex64) or not a.is_cuda:
        return "ieee"
    if precision_setting("cuda", "matmul") == "tf32":
        return "tf32"
    return "fp16x3" if settings.current().fp32 == "split" else "ieee"


def _fresh(form: CallForm, key: Key, plan: AnyPlan, dtype: torch.dtype) -> Call:
    """A call that allocates its result. (``empty_strided`` parses its arguments in half the time of
    ``empty``.)"""
    shape, strides, device, empty = form.shape, gapless(form.shape), key[2], torch.empty_strided
    if isinstance(plan, Plan) and len(form.parts) == 1 and _alone():
        at = _at(form, plan)

        def call(a, b, pa, pb, alpha=1.0, d=None, pd=0, beta=0.0):  # the hot path: no loop
            c = empty(shape, strides, dtype=dtype, device=device)
            try:
                at((pa, pb, c.data_ptr(), pd, alpha, beta))
            except (LaunchError, torch.OutOfMemoryError) as error:
                return _rescued(form, key, error, a, b, c, d, alpha, beta) or c
            return c
        call.bound = Bound(plan, shape, strides, dtype)  # type: ignore[attr-defined]
        return call
    write = _guarded(form, key, plan)

    def anywhere(a, b, pa, pb, alpha=1.0, d=None, pd=0, beta=0.0):
        c = empty(shape, strides, dtype=dtype, device=device)
        return write(a, b, c, d, alpha, beta) or c
    return anywhere


def _into(rule: Rule, x: Operands, form: CallForm, key: Key, plan: AnyPlan) -> Call:
    """A call that writes ``out``. If ``out`` shares memory with an operand, the call writes a
    temporary first, so that the result is the same as without sharing."""
    assert x.out is not None
    write = _guarded(form, key, plan)
    added, scaled, dtype_out = x.added, x.scaled, x.dtype_out  # `call` must not hold the tensors
    size = x.a.element_size()
    span_a, span_b, span_c, span_d = (
        0 if t is None else span_bytes(StridedShape(t.shape, t.stride()), t.element_size())
        for t in (x.a, x.b, x.out, x.d if x.added else None))
    # A tile of D is read before the same tile of C is written, so D may be C itself.
    in_place = form.d == form.c and form.outer[2] == form.outer[3] and size == x.out.element_size()
    spare: list[Call] = []

    def call(a, b, pa, pb, alpha=1.0, d=None, pd=0, beta=0.0, out=None):
        pc = out.data_ptr()
        end = pc + span_c
        if (pa < end and pc < pa + span_a or pb < end and pc < pb + span_b
                or pd < end and pc < pd + span_d and not (in_place and pd == pc)):
            if not spare:
                try:
                    spare.append(bind(rule, Operands(a, b, None, d, added, scaled, dtype_out)))
                except Declined as reason:
                    return reason.fresh()
            result = spare[0](a, b, pa, pb, alpha, d, pd, beta)
            return result if isinstance(result, Declined) else out.copy_(result)
        return write(a, b, out, d, alpha, beta) or out
    if isinstance(plan, Plan) and len(form.parts) == 1 and _alone():
        call.bound = Bound(  # type: ignore[attr-defined]
            plan, (), (), x.out.dtype, (span_a, span_b, span_c, span_d, in_place))
    return call


def _guarded(form: CallForm, key: Key, plan: AnyPlan) -> Callable[..., Declined | None]:
    write = _write(form, plan)

    def guarded(a, b, c, d, alpha, beta):
        try:
            write(a, b, c, d, alpha, beta)
        except (LaunchError, torch.OutOfMemoryError) as error:
            return _rescued(form, key, error, a, b, c, d, alpha, beta)
        return None
    return guarded


def _rescued(form: CallForm, key: Key, error: Exception, *call: Any) -> Declined | None:
    """Handles a failed launch: None if the call ran with another plan, else why torch must run it.

    If there is no memory for its scratch, this call runs with a plan that needs none. If the driver
    refuses the launch, the problem goes to torch from now on.
    """
    if isinstance(error, LaunchError):
        reason = plans.refuse(key, error)
        for forget in on_refusal:
            forget()
        return reason
    try:
        _write(form, plans.get(key, scratch=False, forced=True))(*call)
    except Declined as declined:
        return DeclinedNow(str(declined))
    except torch.OutOfMemoryError:
        return DeclinedNow("there is no memory for the scratch of this call")
    return None


#: Called when a problem is refused permanently, to forget the cached calls of it.
on_refusal: list[Callable[[], None]] = []


def _write(form: CallForm, plan: AnyPlan) -> Callable[..., None]:
    """write(a, b, c, d, alpha, beta): the launches of one call."""
    if not isinstance(plan, Plan):
        return _by_view(form, plan)
    at, current = _at(form, plan), torch.cuda.current_device
    alone, index = _alone(), plan.index

    def write(a, b, c, d, alpha, beta):
        values = (a.data_ptr(), b.data_ptr(), c.data_ptr(), 0 if d is None else d.data_ptr(),
                  alpha, beta)
        if alone or current() == index:
            at(values)
        else:
            with torch.cuda.device(index):
                at(values)
    return write


def _at(form: CallForm, plan: Plan) -> Callable[..., None]:
    """A function that launches the plan on the values of :data:`PRODUCT`, several times if the
    batch has no single stride. Raises Declined if the plan reads other operands as well."""
    if plan.operands != PRODUCT:
        raise Declined(f"the kernel reads {', '.join(plan.operands[len(PRODUCT):])}, which this "
                       "call does not pass")
    if len(form.parts) == 1:
        return plan.at
    problem = plan.problem
    sizes = tuple(x.format.bytes_of for x in (problem.a, problem.b, problem.c, problem.c))
    parts = [tuple(size(offset) for size, offset in zip(sizes, part)) for part in form.parts]

    def at(values):
        pa, pb, pc, pd, alpha, beta = values
        for a, b, c, d in parts:
            plan.at((pa + a, pb + b, pc + c, pd + d, alpha, beta))
    return at


def _by_view(form: CallForm, plan: Any) -> Callable[..., None]:
    """Calls a plan that takes tensors (the interpreter's) with views of the operands."""
    m, n, k = form.m, form.n, form.k

    def view(x: torch.Tensor, rows: int, cols: int, index: int, strides: Strides, offset: int):
        shape: tuple[int, ...] = (form.batch, rows, cols) if form.batch > 1 else (rows, cols)
        steps: tuple[int, ...] = strides[-len(shape):]
        if form.inner:
            shape = (form.batch // form.inner, form.inner, rows, cols)
            steps = (form.outer[index], *strides)
        return x.as_strided(shape, steps, x.storage_offset() + offset)

    def write(a, b, c, d, alpha, beta):
        for pa, pb, pc, pd in form.parts:
            plan(view(a, m, k, 0, form.a, pa), view(b, k, n, 1, form.b, pb),
                 view(c, m, n, 2, form.c, pc),
                 None if form.d is None else view(d, m, n, 3, form.d, pd), alpha, beta)
    return write

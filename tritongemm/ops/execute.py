"""Runs products on this package's kernels, or returns the reason why torch must run them. No
autograd, no autocast, no modes.

A call is looked up by a flat key of everything that its launch depends on, read directly from the
tensors. The key maps to a closure that allocates, fills in addresses and launches. Problem,
selection and plan are computed only for a new key.

A product that torch must run is returned as a :class:`Declined`, never raised; callers check for
it.

Operands are plain tensors without a lazy negative bit, as below torch's dispatcher; complex ones
may be lazy conjugates.
"""

from __future__ import annotations

import os
import threading

import torch

from tritongemm import settings
from tritongemm.ops import calls, native
from tritongemm.ops.calls import Call, Operands, Rule, bind, precision_setting
from tritongemm.ops.declined import Declined, DeclinedAtFirst, DeclinedForNow
from tritongemm.ops.plans import forget as forget_plans
from tritongemm.ops.sights import ONE_OF_MANY, SEEN_TOO_LITTLE, seen
from tritongemm.ops.untraced import untraced
from tritongemm.problem import ACTIVATIONS

__all__ = ["MIXED", "Declined", "Op", "clear_plans", "dispatch_keys", "fused", "mixed", "product",
           "product_into"]


class Op:
    """A :class:`Rule` and the cache of its calls: key -> callable.

    Attributes:
        forced: the same op, which also runs products that the policy gives to torch.
        number: the op's number in the native dispatcher.
        plain: the same op without the activation.
    """

    __slots__ = ("forced", "hits", "number", "plain", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule, self.hits = rule, dict[tuple, Call]()
        self.plain = self if rule.activation == "none" else Op(rule._replace(activation="none"))
        self.forced = self if rule.forced else Op(rule._replace(forced=True))
        self.number = len(_ops)
        _ops.append(self)


float32, complex64 = torch.float32, torch.complex64
_ops: list[Op] = []
_lock = threading.Lock()

MATMUL, MV, DOT = Op(Rule("matmul")), Op(Rule("mv", (2, 1))), Op(Rule("dot", (1, 1)))
MM = Op(Rule("mm", (2, 2)))
BMM, BADDBMM = (Op(Rule(name, (3, 3), broadcasts=False)) for name in ("bmm", "baddbmm"))
ADDMM, LINEAR = (
    {name: Op(rule._replace(activation=name)) for name in ACTIVATIONS}
    for rule in (Rule("addmm", (2, 2)), Rule("linear", flipped=True)))
#: By the activation whose derivative at D multiplies the product; ``none``: D does.
MULMM = {name: Op(Rule("mulmm", (2, 2), gradient_of=name)) for name in ACTIVATIONS}
#: The same of an A of 16 bits and a float32 B.
MIXED = {op: Op(op.rule._replace(mixed=True)) for op in (MATMUL, MM, BMM, *LINEAR.values())}


@untraced
def product(op: Op, a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, *,
            looked: bool = False, patient: bool = False) -> torch.Tensor | Declined:
    """alpha * A @ B in newly allocated memory.

    Args:
        looked: the native dispatcher has just been asked for the call; under an override, where
            small products wait.
        patient: decline a product until it is due (:mod:`tritongemm.ops.sights`).
    """
    if (not looked and alpha == 1.0 and (find := native.run_below) is not None
            and (known := find(op.number, a, b)) is not None):
        return known
    kind = a.dtype
    if kind is float32:  # torch's precision setting is part of the key
        kind = precision_setting("cuda", "matmul")
    elif kind is complex64:
        kind = _complex_kind(a, b)
    try:
        pa, pb = a.data_ptr(), b.data_ptr()
        key = (a.shape, b.shape, a.stride(), b.stride(), kind, b.dtype, a.device, b.device,
               pa & 15, pb & 15, alpha == 1.0)
    except RuntimeError:
        return _NOT_STRIDED
    if (pa < _LOW or pb < _LOW) and _without_memory(a, b):
        return _NOT_IN_MEMORY
    call = op.hits.get(key)
    if call is None:
        if patient and (waits := _waits(op, key, a, b, looked)) is not None:
            return waits
        generation = native.generation()
        call = _learn(op, key, Operands(a, b, scaled=alpha != 1.0), patient)
        result = call(a, b, pa, pb, alpha)
        if alpha == 1.0 and key in op.hits:
            native.offer(generation, op.number, call, result, a, b)
        return result
    return call(a, b, pa, pb, alpha)


@untraced
def product_into(op: Op, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None,
                 dtype_out: torch.dtype | None = None, *, looked: bool = False,
                 patient: bool = False) -> torch.Tensor | Declined:
    """A @ B in ``out``, or as ``dtype_out``. ``patient``: as in :func:`product`, ``looked`` too,
    but the native dispatcher is not asked here."""
    kind = a.dtype
    if kind is float32:
        kind = precision_setting("cuda", "matmul")
    elif kind is complex64:
        kind = _complex_kind(a, b, out)
    try:
        pa, pb = a.data_ptr(), b.data_ptr()
        key = (a.shape, b.shape, a.stride(), b.stride(), kind, b.dtype, a.device, b.device,
               pa & 15, pb & 15, dtype_out, _out_key(out))
    except RuntimeError:
        return _NOT_STRIDED
    if (pa < _LOW or pb < _LOW or out is not None and out.data_ptr() < _LOW
            ) and _without_memory(a, b, out):
        return _NOT_IN_MEMORY
    call = op.hits.get(key)
    if call is None:
        if patient and (waits := _waits(op, key, a, b, looked)) is not None:
            return waits
        generation = native.generation()
        call = _learn(op, key, Operands(a, b, out, dtype_out=dtype_out), patient)
        result = call(a, b, pa, pb, 1.0, None, 0, 0.0, *(() if out is None else (out,)))
        if key in op.hits:
            native.offer(generation, op.number, call, result, a, b, out=out, dtype_out=dtype_out)
        return result
    if out is None:
        return call(a, b, pa, pb)
    return call(a, b, pa, pb, 1.0, None, 0, 0.0, out)


@untraced
def fused(op: Op, d: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float = 1.0,
          alpha: float = 1.0, out: torch.Tensor | None = None, *, looked: bool = False,
          patient: bool = False) -> torch.Tensor | Declined:
    """The op's activation of alpha * A @ B + beta * D; D is not read where beta is 0. Of an op with
    a factor, the product times that. ``looked`` and ``patient``: as in :func:`product`."""
    if (not looked and out is None and (find := native.run_below) is not None
            and (known := find(op.number, a, b, d, beta, alpha)) is not None):
        return known
    kind = a.dtype
    if kind is float32:
        kind = precision_setting("cuda", "matmul")
    elif kind is complex64:
        kind = _complex_kind(a, b, d, out)
    try:
        pa, pb, pd = a.data_ptr(), b.data_ptr(), d.data_ptr()
        key = (a.shape, b.shape, d.shape, a.stride(), b.stride(), d.stride(), kind, b.dtype,
               d.dtype, a.device, b.device, d.device, pa & 15, pb & 15, pd & 15, beta == 0.0,
               beta == 1.0, alpha == 1.0, _out_key(out))
    except RuntimeError:
        return _NOT_STRIDED
    if (pa < _LOW or pb < _LOW or pd < _LOW or out is not None and out.data_ptr() < _LOW
            ) and _without_memory(a, b, d, out):
        return _NOT_IN_MEMORY
    call = op.hits.get(key)
    if call is None:
        if patient and (waits := _waits(op, key, a, b, looked)) is not None:
            return waits
        generation = native.generation()
        call = _learn_fused(op, key, d, a, b, beta, alpha, out, patient)
        result = call(a, b, pa, pb, alpha, d, pd, beta, *(() if out is None else (out,)))
        if key in op.hits:
            native.offer(generation, op.number, call, result, a, b, d, out, alpha, beta)
        return result
    if out is None:
        return call(a, b, pa, pb, alpha, d, pd, beta)
    return call(a, b, pa, pb, alpha, d, pd, beta, out)


@untraced
def mixed(op: Op, a: torch.Tensor, b: torch.Tensor,
          d: torch.Tensor | None = None,
          out: torch.Tensor | None = None) -> torch.Tensor | Declined:
    """The op's activation of A @ B, or of A @ B + D, in float32, of an A of 16 bits, which kernels
    read as it is, and a float32 B."""
    op = MIXED[op]
    try:
        pa, pb, pd = a.data_ptr(), b.data_ptr(), 0 if d is None else d.data_ptr()
        key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
               pa & 15, pb & 15, precision_setting("cuda", "matmul"),
               None if d is None else (d.shape, d.stride(), d.dtype, d.device, pd & 15),
               _out_key(out))
    except RuntimeError:
        return _NOT_STRIDED
    if (pa < _LOW or pb < _LOW or d is not None and pd < _LOW or out is not None
            and out.data_ptr() < _LOW) and _without_memory(a, b, d, out):
        return _NOT_IN_MEMORY
    call = op.hits.get(key)
    if call is not None:
        if out is None:
            return call(a, b, pa, pb, 1.0, d, pd, 1.0)
        return call(a, b, pa, pb, 1.0, d, pd, 1.0, out)
    generation = native.generation()
    call = _learn(op, key, Operands(a, b, out, d, added=d is not None))
    result = call(a, b, pa, pb, 1.0, d, pd, 1.0, *(() if out is None else (out,)))
    if key in op.hits and not isinstance(result, Declined):  # torch does not take the operands
        native.offer(generation, op.number, call, result, a, b, d, out, 1.0, float(d is not None))
    return result


def _complex_kind(*tensors: torch.Tensor | None) -> tuple:
    """What a complex call depends on beside shapes and strides: the precision that torch is set
    to, and which tensors are lazy conjugates."""
    return precision_setting("cuda", "matmul"), *(x is not None and x.is_conj() for x in tensors)


def _out_key(out: torch.Tensor | None) -> tuple | None:
    """The part of the key that describes ``out``, without memory that it shares with operands."""
    if out is None:
        return None
    return out.shape, out.stride(), out.dtype, out.device, out.data_ptr() & 15


def _waits(op: Op, key: tuple, a: torch.Tensor, b: torch.Tensor, looked: bool) -> Declined | None:
    """Why a call without an answer is torch's for now. None: it is to be judged."""
    if settings.current().batch_invariant:  # whoever multiplies must not depend on what came before
        return None
    kind = op.number, key
    if seen.waits(kind):
        return _ONE_OF_MANY
    columns = b.shape[-1] if b.dim() else 0  # torch refuses a scalar, in its own words
    if looked or seen.due(kind, a.numel() * columns, a.nbytes + b.nbytes,
                          a.dtype is float32 and precision_setting("cuda", "matmul") != "tf32"):
        return None
    return _SEEN_TOO_LITTLE


_SEEN_TOO_LITTLE, _ONE_OF_MANY = DeclinedForNow(SEEN_TOO_LITTLE), DeclinedForNow(ONE_OF_MANY)
_NOT_STRIDED = Declined("an operand is not strided, or has no storage")
_NOT_IN_MEMORY = Declined("the values of an operand or of out= are not in memory")


#: An address below this may be an offset into a freed storage, whose base address is 0, and is
#: checked. Addresses of CUDA memory are usually higher.
_LOW = 1 << 33


def _without_memory(*tensors: torch.Tensor | None) -> bool:
    """Whether a tensor has elements but no memory: torch's lazy zeros, or a freed storage."""
    return any(x is not None and x.numel() and x.device.type != "meta"
               and not (x.data_ptr() and x.untyped_storage().data_ptr()) for x in tensors)


def _learn_fused(op: Op, key: tuple, d: torch.Tensor, a: torch.Tensor, b: torch.Tensor,
                 beta: float, alpha: float, out: torch.Tensor | None, patient: bool) -> Call:
    operands = Operands(a, b, out, d, added=beta != 0.0, scaled=alpha != 1.0)
    if alpha == 1.0 and beta in (0.0, 1.0):
        return _learn(op, key, operands, patient)
    reason = judge(alpha, beta)  # a declined problem needs no plan
    return _learn(op, key, operands, patient, True) if reason is None else _refusing(reason)


#: Least and largest magnitude of a factor that kernels accept: the range of normal float32 numbers.
_LEAST, _MOST = torch.finfo(float32).tiny, torch.finfo(float32).max


def judge(alpha: float, beta: float) -> Declined | None:
    """Why torch must handle these factors; None if kernels can. Declined are alpha = 0 (torch then
    reads neither A nor B, so that their NaN do not spread), a beta that underflows to 0 in float32,
    and factors that torch refuses."""
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if type(factor) is int and factor.bit_length() > 63:
            return Declined(f"{name} does not fit 64 bits")
        if not _LEAST <= abs(factor) <= _MOST and (factor != 0 or name == "alpha"):
            return Declined(f"{name} is {factor}")
    return None


def _judging(call: Call) -> Call:
    """``call`` with a check of its factors; ordinary ones pass with one comparison."""
    least, most = _LEAST, 2.0**62

    def judged(a, b, pa, pb, alpha, d, pd, beta, out=None):
        if not (least <= abs(alpha) <= most and (least <= abs(beta) <= most or beta == 0)):
            reason = judge(alpha, beta)
            if reason is not None:
                return reason
        if out is None:
            return call(a, b, pa, pb, alpha, d, pd, beta)
        return call(a, b, pa, pb, alpha, d, pd, beta, out)
    if (bound := getattr(call, "bound", None)) is not None:
        judged.bound = bound  # type: ignore[attr-defined]
    return judged


def _learn(op: Op, key: tuple, operands: Operands, patient: bool = False,
           judged: bool = False) -> Call:
    """The callable of a new key. It is cached unless the answer may change.

    It goes into the table that was current at the start, so that it is dropped with that table if
    another thread changes the settings meanwhile.
    """
    hits = op.hits
    try:
        call = bind(op.rule, operands, patient)
        if judged:
            call = _judging(call)
    except Declined as reason:
        call = _refusing(reason)
        if isinstance(reason, DeclinedAtFirst):
            seen.wait((op.number, key), reason.calls)
        if not reason.lasting:
            return call
    return _keep(hits, key, call)


def _keep(hits: dict[tuple, Call], key: tuple, call: Call) -> Call:
    """Adds a call. If the table is full, its oldest quarter is dropped first: hits are not recorded
    (no LRU order), and the plan of a dropped call is still cached."""
    with _lock:
        limit = settings.current().plan_cache_size
        if len(hits) >= limit:
            for old in list(hits)[:limit // 4 + 1]:
                del hits[old]
        hits[key] = call
    return call


def _refusing(reason: Declined) -> Call:
    """A call that always returns ``reason``."""
    reason = reason.fresh()
    return lambda *_: reason


def _forget_calls(sights: bool = False) -> None:
    """``sights``: small products wait again; else those that were decided keep their plans."""
    for op in _ops:
        op.hits = {}
    if sights:
        seen.clear()
    native.empty(sights)


def _start_again() -> None:
    _forget_calls(sights=True)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # the parent's may be held
    _start_again()


@untraced
def clear_plans() -> None:
    """Forgets every plan, so that newly published tables and changed settings take effect."""
    forget_plans()
    _start_again()


def dispatch_keys() -> tuple[str, ...]:
    """The keys of torch's dispatcher at which kernels of this package run: CUDA, and the CPU in
    Triton's interpreter."""
    return ("CUDA", "CPU") if settings.current().interpret else ("CUDA",)


calls.on_refusal.append(_forget_calls)
native.on_ready.append(_forget_calls)
settings.when_changed(_start_again)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

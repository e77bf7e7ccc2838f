"""This package's entries in torch's dispatcher, and what stood there before.

An entry stands below autograd and autocast, which therefore stay torch's, and sees plain tensors.
It asks the policy of its operation, then :mod:`tritongemm.ops.execute`; what that declines goes to
the kernel that was there when the entry was made (``torch.library.get_kernel``): torch's own, or
another override such as those of ``torch._native``.

The dispatcher frees a Python kernel as it is taken out, even if another thread has chosen it and
waits for the interpreter's lock to call it; so kernels are held for some time longer.

A program may enter an override in each of its steps, so the functions that are registered are made
once for each policy.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tritongemm.errors import UnsupportedError
from tritongemm.ops import execute, native
from tritongemm.ops.calls import NAMES, dtypes_reason
from tritongemm.ops.execute import Declined, Op, fused, product, product_into
from tritongemm.ops.native import Form
from tritongemm.ops.untraced import untraced
from tritongemm.problem import NOTHING_TO_MULTIPLY

Kernel = Callable[..., Tensor]

#: Operation -> its overloads in aten, where the installed torch has them.
OVERLOADS = {
    "mm": ("mm", "mm.out", "mm.dtype", "mm.dtype_out"),
    "bmm": ("bmm", "bmm.out", "bmm.dtype", "bmm.dtype_out"),
    "addmm": ("addmm", "addmm.out", "addmm.dtype", "addmm.dtype_out", "addmm_"),
    "baddbmm": ("baddbmm", "baddbmm.out", "baddbmm.dtype", "baddbmm.dtype_out", "baddbmm_"),
}
OPS = tuple(OVERLOADS)
_FORMS = {"mm": Form.PRODUCT, "mm.out": Form.PRODUCT_OUT, "bmm": Form.PRODUCT,
          "bmm.out": Form.PRODUCT_OUT, "addmm": Form.SUM, "addmm.out": Form.SUM_OUT,
          "addmm_": Form.SUM_IN_PLACE, "baddbmm": Form.SUM, "baddbmm.out": Form.SUM_OUT,
          "baddbmm_": Form.SUM_IN_PLACE}
#: Different reasons that one entry counts apart; they may name shapes.
_REASONS = 100
_NUMBERS = (int, float, bool)
#: Kernels are held while they are younger than this, or among the last so many.
_HELD_SECONDS, _HELD_LAST = 10.0, 256
_held: deque[tuple[float, object]] = deque()


class Watch:
    """Sees the calls that pass through entries: those of kernels, and those of torch."""

    def __call__(self, name: str, taken: bool, run: Callable[..., Tensor | Declined], args: tuple,
                 kwargs: dict) -> Tensor | Declined:
        """Makes the call of overload ``name`` and returns what it returns. Raises what it raises.

        Args:
            taken: ``run`` is a kernel's, not torch's.
            args, kwargs: aten's; a kernel's :class:`Op` goes before them.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operation's entries go by.

    Attributes:
        products: multiplications (batch * M * N * K) below which a call is torch's.
        patient: a product is torch's until it is due (:mod:`tritongemm.ops.sights`).
        strict: raise instead of calling torch.
        watch: sees the calls.
        keys: the dispatch keys to stand at.
    """

    products: float
    patient: bool
    strict: bool
    watch: Watch | None
    keys: tuple[str, ...]


@dataclass(slots=True)
class Tally:
    """Calls of one overload. A plain ``+=`` of an attribute is not torn under the GIL."""

    taken: int = 0
    declined: dict[str, int] = field(default_factory=dict)

    def decline(self, reason: str, times: int = 1) -> None:
        """Counts one more for ``reason``, or so many."""
        declined = self.declined
        if reason not in declined and len(declined) >= _REASONS:
            reason = "other reasons"
        declined[reason] = declined.get(reason, 0) + times


#: By overload, of all overrides of this process so far.
tallies: dict[str, Tally] = {name: Tally() for names in OVERLOADS.values() for name in names}


class Entries:
    """The entries of one operation, from here to :meth:`remove`.

    Raises:
        RuntimeError: torch refuses one; none stands then.
    """

    def __init__(self, op: str, policy: Policy) -> None:
        self.policy = policy
        self._libraries: list[Any] = []
        self._native: list[tuple[ModuleType, str, object]] = []
        self._finalizer: weakref.finalize | None = None
        try:
            with warnings.catch_warnings():  # overriding a kernel is what is asked for
                warnings.filterwarnings("ignore", "Warning only once for all operators")
                for key in policy.keys:
                    self._install(op, policy, key)
        except BaseException:
            self.remove()
            raise

    def _install(self, op: str, policy: Policy, key: str) -> None:
        library = torch.library.Library("aten", "IMPL", key)
        self._libraries.append(library)
        for name in OVERLOADS[op]:
            original = _standing(name, key)
            if original is None:
                continue
            module = self._native_for(name)
            torchs = module and module.standing(f"aten::{name}", key)
            # What sees calls may hold many of them, and is not kept.
            make = _kept_kernel if policy.watch is None else _kernel
            kernel, below = make(op, name, key, policy, module is not None)
            # Below this key there is nothing left to choose from.
            below.run = partial(original.call_boxed, torch._C.DispatchKeySet(_key(key)))
            library.impl(name, kernel, key, allow_override=True)
            _hold(_standing(name, key))
            if module:
                self._install_native(module, op, name, key, torchs)

    def _native_for(self, name: str) -> ModuleType | None:
        """The native dispatcher, where it may answer calls of an overload."""
        policy = self.policy
        if name not in _FORMS or policy.strict or policy.watch is not None:
            return None
        return native.table()

    def _install_native(self, module: ModuleType, op: str, name: str, key: str,
                        torchs: object) -> None:
        """Known calls are answered in C++, above the entry that stands now, which the others
        reach. ``torchs``: the kernel below both."""
        self._native.append((module, name, module.install(
            f"aten::{name}", key, [("none", _OPS[op].number)], _FORMS[name],
            self.policy.products, self.policy.patient, torchs)))
        if self._finalizer is None:
            # At the end of the process before torch takes the Python kernels below them out:
            # finalizers run in the reverse order of their making.
            self._finalizer = weakref.finalize(self, _remove, self._native)
        _hold(_standing(name, key))

    def count(self) -> None:
        """Adds what was counted in C++ to :data:`tallies`."""
        for module, name, installed in self._native:
            taken, declined = module.counts(installed)
            tallies[name].taken += taken
            for reason, times in declined.items():
                tallies[name].decline(reason, times)

    def remove(self) -> None:
        """What stood there before stands again."""
        _remove(self._native)
        self.count()
        self._native.clear()
        while self._libraries:
            self._libraries.pop()._destroy()


def _remove(entries: list[tuple[ModuleType, str, object]]) -> None:
    for module, _, installed in entries:
        module.remove(installed)


def _hold(kernel: object) -> None:
    now = time.monotonic()
    _held.append((now, kernel))
    while len(_held) > _HELD_LAST and now - _held[0][0] > _HELD_SECONDS:
        _held.popleft()


def _standing(name: str, key: str) -> Any | None:
    """The kernel that torch now runs for an overload on a key; None where it has none."""
    try:
        return torch.library.get_kernel(f"aten::{name}", _key(key))
    except RuntimeError:  # no such overload in this torch, or no kernel for the key
        return None


def _key(name: str) -> Any:
    """The dispatch key. (``get_kernel`` takes 5 us to find it by its name.)"""
    return getattr(torch._C.DispatchKey, name)


_OPS = {"mm": execute.MM, "bmm": execute.BMM, "addmm": execute.ADDMM["none"],
        "baddbmm": execute.BADDBMM}


class _Below:
    """The kernel below an entry. It is found anew whenever the entry is made."""

    __slots__ = ("run",)
    run: Kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.run(*args, **kwargs)


def _kernel(op: str, name: str, key: str, policy: Policy, looked: bool) -> tuple[Kernel, _Below]:
    """The Python entry, and what it calls where it declines. ``looked``: the native dispatcher
    stands above it, where it has looked the call up, and where small products wait."""
    ours = _OPS[op].forced if policy.strict else _OPS[op]
    make = _product_entry if op in ("mm", "bmm") else (
        _in_place_entry if name.endswith("_") else _sum_entry)
    below = _Below()
    theirs = _watched(policy.watch, name, False, below)
    return untraced(make(ours, theirs, policy, looked, name)), below


_kept_kernel = lru_cache(maxsize=256)(_kernel)  # of a dozen policies


def _watched(watch: Watch | None, name: str, taken: bool, run: Kernel) -> Kernel:
    if watch is None:
        return run
    return lambda *args, **kwargs: watch(name, taken, run, args, kwargs)


def _product_entry(op: Op, theirs: Kernel, policy: Policy, looked: bool, name: str) -> Kernel:
    """mm and bmm. The dispatcher leaves out what has its default value."""
    tally, strict, least = tallies[name], policy.strict, policy.products
    patient = policy.patient
    fresh, into = (_watched(policy.watch, name, True, run) for run in (product, product_into))

    def entry(self: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *,
              out: Tensor | None = None) -> Tensor:
        reason = _told_at_once(self, mat2, least)
        if reason is not None and self.dtype not in NAMES:
            native.refuse(op.number, reason, self, mat2, out=out)
        if reason is None:
            result = (fresh(op, self, mat2, looked=looked, patient=patient)
                      if out is None and out_dtype is None
                      else into(op, self, mat2, out=out, dtype_out=out_dtype, looked=looked,
                                patient=patient))
            if not isinstance(result, Declined):
                tally.taken += 1
                return result
            reason = str(result)
        tally.decline(reason)
        if strict:
            raise _refusal(name, reason)
        operands = (self, mat2) if out_dtype is None else (self, mat2, out_dtype)
        return theirs(*operands) if out is None else theirs(*operands, out=out)
    return entry


def _sum_entry(op: Op, theirs: Kernel, policy: Policy, looked: bool, name: str) -> Kernel:
    """addmm and baddbmm."""
    tally, strict, least = tallies[name], policy.strict, policy.products
    patient = policy.patient
    run = _watched(policy.watch, name, True, fused)

    def entry(self: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, *,
              beta: float = 1, alpha: float = 1, out: Tensor | None = None) -> Tensor:
        reason = _told_at_once(a, b, least)
        if reason is not None and a.dtype not in NAMES:
            native.refuse(op.number, reason, a, b, self, out, alpha, beta)
        if reason is None and out_dtype is not None:
            reason = "out_dtype= is given"
        elif reason is None and (type(beta) not in _NUMBERS or type(alpha) not in _NUMBERS):
            reason = "alpha or beta is no real number"
        elif reason is None:
            result = run(op, self, a, b, beta=beta, alpha=alpha, out=out, looked=looked,
                         patient=patient)
            if not isinstance(result, Declined):
                tally.taken += 1
                return result
            reason = str(result)
        tally.decline(reason)
        if strict:
            raise _refusal(name, reason)
        operands = (self, a, b) if out_dtype is None else (self, a, b, out_dtype)
        if out is None:
            return theirs(*operands, beta=beta, alpha=alpha)
        return theirs(*operands, beta=beta, alpha=alpha, out=out)
    return entry


def _in_place_entry(op: Op, theirs: Kernel, policy: Policy, looked: bool, name: str) -> Kernel:
    """addmm_ and baddbmm_: the input is where the result goes."""
    written = _sum_entry(op, lambda self, *operands, out=None, **numbers:
                         theirs(self, *operands, **numbers), policy, looked, name)

    def entry(self: Tensor, a: Tensor, b: Tensor, *, beta: float = 1,
              alpha: float = 1) -> Tensor:
        return written(self, a, b, beta=beta, alpha=alpha, out=self)
    return entry


def _told_at_once(a: Tensor, b: Tensor, least: float) -> str | None:
    """Why [..., M, K] @ [..., K, N] is torch's, where no key is needed to know."""
    try:
        products = a.numel() * b.size(-1)
    except IndexError:
        return None  # torch will refuse it
    if products < least:
        return native.FEWER_FLOPS
    if not products:
        return NOTHING_TO_MULTIPLY
    return None if a.dtype in NAMES else dtypes_reason(a, b)


def _refusal(name: str, reason: str) -> UnsupportedError:
    return UnsupportedError(f"under tritongemm.override(strict=True), aten::{name} would go to "
                            f"torch: {reason}")

"""Modes that apply inside a ``with`` block or a decorated function: a budget of SMs, batch
invariance, how float32 is computed.

Each mode is a setting of the whole process (``TRITONGEMM_NUM_SMS``, ``TRITONGEMM_BATCH_INVARIANT``,
``TRITONGEMM_FP32``); blocks of several threads and coroutines may overlap
(:func:`tritongemm.settings.request`). Entering and leaving a block clears the plans, which are then
rebuilt from cached binaries: put a block around a phase of a program, not around a single call.
"""

from __future__ import annotations

from typing import Literal

from tritongemm import settings
from tritongemm.errors import UsageError
from tritongemm.ops.blocks import Block
from tritongemm.ops.untraced import untraced


class _Mode(Block):
    """A block that requests settings."""

    _asked: dict[str, object]

    @untraced
    def __enter__(self) -> None:
        settings.request(self._asked)

    @untraced
    def __exit__(self, *error: object) -> None:
        settings.withdraw(self._asked)


class sm_budget(_Mode):
    """Products use at most ``num_sms`` SMs and leave the rest to other kernels; None: all SMs.

    Persistent kernels launch at most that many programs. Selection counts waves with that many SMs
    and prefers kernels that stay within the budget (a kernel with one tile per cluster does if all
    its clusters fit at once). Copies of unaligned operands and the passes over a split K are short
    and not limited.

    Raises:
        UsageError: not an integer of at least 1.
    """

    def __init__(self, num_sms: int | None) -> None:
        if num_sms is not None and (isinstance(num_sms, bool) or not isinstance(num_sms, int)
                                    or num_sms < 1):
            raise UsageError(f"num_sms={num_sms!r} is not an integer of at least 1")
        self._asked = {"num_sms": num_sms}


class batch_invariant(_Mode):
    """A row of ``a @ b`` has the same bits however many rows ``a`` has.

    All M and batches of an N, K, dtype, layout, alignment and epilogue take configs that add the
    products of an element of C in one order; each M takes the fastest of them. It holds for ``a``
    stored row by row, without gaps or with rows that begin a multiple of 16 bytes apart, and except
    in float32 for batches with two strides. A call that goes to torch is not bound by it, which
    ``strict`` rules out.

    Raises:
        UsageError: neither True nor False, such as the function of a decorator without brackets.
    """

    def __init__(self, enabled: bool = True) -> None:
        if not isinstance(enabled, bool):
            raise UsageError(f"enabled={enabled!r} is neither True nor False; a decorator is "
                             "written @batch_invariant()")
        self._asked = {"batch_invariant": enabled}


class fp32_compute(_Mode):
    """How float32 products run.

    ``split``, the default: as three fp16 tensor-core products of operands that are split into two
    fp16 parts each, as six bf16 ones of three parts each, or on CUDA cores, whichever is faster.
    The error of each element of C is at most (K + 4) 2^-23 times the element of |A| |B|, twice the
    bound of K float32 multiply-adds; docs/accuracy.md has the measured errors. Results differ in
    bits from cuBLAS SGEMM's. ``ieee``: on CUDA cores only.

    Where torch allows TF32, TF32 runs. ``ieee`` then rules out kernels that multiply scaled fp16
    copies, which are slow where rows span more than fp16 holds: products for which one would be
    chosen go to torch.

    Raises:
        UsageError: another mode.
    """

    def __init__(self, mode: Literal["split", "ieee"]) -> None:
        if mode not in settings.FP32_MODES:
            raise UsageError(f"mode={mode!r} is not a way to compute float32; use one of "
                             f"{', '.join(settings.FP32_MODES)}")
        self._asked = {"fp32": mode}

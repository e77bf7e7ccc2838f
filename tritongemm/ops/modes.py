"""Ways to run that hold inside a ``with`` block: a budget of SMs, rows independent of the batch.

Each is a setting of the whole process (``TRITONGEMM_NUM_SMS``, ``TRITONGEMM_BATCH_INVARIANT``).
Entering and leaving a block forgets the plans, which are made again from stored binaries: set it
around a program's phase rather than around a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tritongemm import settings
from tritongemm.errors import UsageError


@contextlib.contextmanager
def sm_budget(num_sms: int | None) -> Iterator[None]:
    """Products fill at most ``num_sms`` SMs, so that another kernel has the rest; None: all.

    Persistent kernels launch at most that many programs, and selection counts waves with them and
    takes kernels that keep to it wherever one does (a cluster does one tile: it keeps to it where
    all of them fit). Copies of unaligned operands and the passes over a split K are short and not
    bound by it.

    Raises:
        UsageError: not an integer of at least 1.
    """
    if num_sms is not None and (isinstance(num_sms, bool) or not isinstance(num_sms, int)
                                or num_sms < 1):
        raise UsageError(f"num_sms={num_sms!r} is not an integer of at least 1")
    with settings.override(num_sms=num_sms):
        yield


@contextlib.contextmanager
def batch_invariant(enabled: bool = True) -> Iterator[None]:
    """A row of ``a @ b`` has the same bits however many rows ``a`` has.

    One config serves every M of an N, K, dtype, layout and alignment; none splits K by M. It holds
    for ``a`` stored row by row; a call that goes to torch is not bound by it, which ``strict``
    rules out.
    """
    with settings.override(batch_invariant=bool(enabled)):
        yield

"""Peak memory of a call, as torch's allocator counts it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_bytes(call: Callable[[], object]) -> int:
    """Peak of the bytes that ``call`` allocates on the current device.

    ``call`` runs once before, so that one-time allocations do not count.
    """
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before

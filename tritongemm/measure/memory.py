"""Peak memory of a call, as torch's allocator counts it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_bytes(call: Callable[[], object]) -> int:
    """Bytes on the current device that ``call`` takes at most beyond what is allocated before it.

    It is called once before, so that what is made by a first call only does not count.
    """
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before

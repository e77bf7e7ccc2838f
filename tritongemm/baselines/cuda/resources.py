"""What a compiled CUDA kernel takes, as its compiler says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What ``ptxas`` says a kernel takes.

    Attributes:
        registers: a thread.
        spill_bytes: stored to and loaded from local memory for want of registers, a thread.
        stack_bytes: local memory, a thread.
        shared_bytes: static shared memory, a block.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int

"""What the measuring process is asked: one program and its modes. It loads no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProgramJob:
    """One program to measure.

    Attributes:
        program: its name.
        modes: those wanted; the program runs those that it can.
        tiny: small sizes, for the CPU.
        seed: of weights, inputs and orders.
        budget_s: time of a mode's rounds.
        min_flops: as for ``tritongemm.override``.
        rank, port: this process's among those of the job, and where they meet; 0: not yet.
    """

    program: str
    modes: tuple[str, ...]
    tiny: bool = False
    seed: int = 0
    budget_s: float = 10.0
    min_flops: float | None = None
    rank: int = 0
    port: int = 0

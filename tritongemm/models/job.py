"""The request to the measuring process: one program and its modes. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProgramJob:
    """One program to measure.

    Attributes:
        program: name of the program.
        modes: the requested modes; the program runs those that it supports.
        tiny: small sizes, for the CPU.
        seed: seed of weights, inputs and the order of measurements.
        budget_s: seconds for the rounds of a mode.
        min_flops: as for ``tritongemm.override``.
        rank, port: rank of this process in the job, and the port of the process group; 0: not yet
            known.
    """

    program: str
    modes: tuple[str, ...]
    tiny: bool = False
    seed: int = 0
    budget_s: float = 10.0
    min_flops: float | None = None
    rank: int = 0
    port: int = 0

"""How a sweep runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tritongemm.device import DeviceSpec


@dataclass(frozen=True)
class Options:
    """How a sweep runs; see :func:`tritongemm.tuning.sweep.sweep`. ``gain`` is what a search must
    still expect to go on; None: every candidate is measured. ``expect`` describes a device before
    its worker is ready, if it can; None: nothing is planned or compiled until then."""

    devices: tuple[int | None, ...] | None
    budget_s: float | None
    compile_workers: int
    per_config_timeout_s: float
    compile_timeout_s: float
    finalists: int
    seed: int
    measurer: str
    measurer_arguments: Mapping[str, object]
    builder: str
    gain: float | None = None
    share_budget: bool = True
    expect: Callable[[int | None], DeviceSpec | None] | None = None

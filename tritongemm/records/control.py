"""Torch, the baseline of every suite, and torch against torch, its hidden control: their names, and
how far from 1 the control's mean ratio may be.

Beyond the limit a run is void: its machine was not still enough to say anything. The bench marks
it so; the report checks it again from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable

#: As the column ``provider`` names them.
BASELINE, CONTROL = "torch", "torch-control"
#: Of a mean over a suite, for times that the device's own clock took.
DEVICE_LIMIT = 0.005
#: The clock of a busy host is no device timer: this only catches nonsense.
HOST_LIMIT = 0.05


def control_limit(timers: Iterable[str]) -> float:
    """The limit for control rows taken by ``timers``: that of the coarsest one among them."""
    return HOST_LIMIT if "host" in set(timers) else DEVICE_LIMIT

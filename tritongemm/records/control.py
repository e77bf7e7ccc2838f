"""Names of the baseline (torch) and of the hidden control (torch against torch), and the limits of
the control's mean ratio.

A run whose control is outside the limit is void: the machine was too noisy. The bench marks it; the
report checks it again from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Values of the column ``provider``.
BASELINE, CONTROL = "torch", "torch-control"
#: Limit of |mean ratio - 1| over a suite, for times by the GPU's clock.
DEVICE_LIMIT = 0.005
#: The same for times by the host's clock, which is less exact: it only finds gross errors.
HOST_LIMIT = 0.05


def control_limit(timers: Iterable[str]) -> float:
    """The limit for control rows taken by ``timers``: that of the coarsest one among them."""
    return HOST_LIMIT if "host" in set(timers) else DEVICE_LIMIT

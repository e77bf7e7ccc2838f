"""Which config a problem gets, and from where: tuned row of the device or a
sibling, model, nearest row, rule default."""

from __future__ import annotations

from tritongemm.selection.model import Estimate, estimate
from tritongemm.selection.policy import (
    Choice,
    by_promise,
    candidates,
    choose,
    default_config,
    expected_gain,
    reload,
    torch_wins,
)

__all__ = ["Choice", "Estimate", "by_promise", "candidates", "choose", "default_config", "estimate",
           "expected_gain", "reload", "torch_wins"]

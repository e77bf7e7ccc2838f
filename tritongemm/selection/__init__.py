"""Chooses a config for a problem: a tuned row of the device or of its sibling, the calibrated
model, the nearest row, or the rule default; and decides whether torch runs the problem."""

from __future__ import annotations

from tritongemm.selection.decision import torch_wins
from tritongemm.selection.invariance import sum_class
from tritongemm.selection.model import Estimate, estimate
from tritongemm.selection.policy import (
    Choice,
    by_promise,
    candidates,
    choose,
    default_config,
    expected_gain,
    reload,
)

__all__ = ["Choice", "Estimate", "by_promise", "candidates", "choose", "default_config", "estimate",
           "expected_gain", "reload", "sum_class", "torch_wins"]

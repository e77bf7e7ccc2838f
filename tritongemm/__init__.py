"""tritongemm: autotuned Triton GEMM, a faster ``torch.matmul``.

Importing the package imports neither torch nor triton and touches no device; public names are
loaded at first use (PEP 562).
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# As libraries do: nothing is shown unless the program, or TRITONGEMM_LOG, asks for it.
logging.getLogger("tritongemm").addHandler(logging.NullHandler())

#: Public name -> the module that holds it.
_HOME = {
    "matmul": "tritongemm.ops.functions",
    "mm": "tritongemm.ops.functions",
    "bmm": "tritongemm.ops.functions",
    "mv": "tritongemm.ops.functions",
    "dot": "tritongemm.ops.functions",
    "addmm": "tritongemm.ops.functions",
    "mulmm": "tritongemm.ops.functions",
    "baddbmm": "tritongemm.ops.functions",
    "linear": "tritongemm.ops.functions",
    "gated_linear": "tritongemm.ops.functions",
    "sm_budget": "tritongemm.ops.modes",
    "batch_invariant": "tritongemm.ops.modes",
    "fp32_compute": "tritongemm.ops.modes",
    "override": "tritongemm.integration.override",
    "enable": "tritongemm.integration.override",
    "disable": "tritongemm.integration.override",
    "override_report": "tritongemm.integration.override",
    "explain": "tritongemm.ops.explain",
    "tune": "tritongemm.tuning.sweep",
    "warmup": "tritongemm.tuning.warmup",
    "GemmProblem": "tritongemm.problem",
    "KernelConfig": "tritongemm.config",
    "DeviceSpec": "tritongemm.device",
    "TritonGemmError": "tritongemm.errors",
}

if TYPE_CHECKING:
    from tritongemm.config import KernelConfig
    from tritongemm.device import DeviceSpec
    from tritongemm.errors import TritonGemmError
    from tritongemm.integration.override import disable, enable, override, override_report
    from tritongemm.ops.explain import explain
    from tritongemm.ops.functions import (
        addmm,
        baddbmm,
        bmm,
        dot,
        gated_linear,
        linear,
        matmul,
        mm,
        mulmm,
        mv,
    )
    from tritongemm.ops.modes import batch_invariant, fp32_compute, sm_budget
    from tritongemm.problem import GemmProblem
    from tritongemm.tuning.sweep import tune
    from tritongemm.tuning.warmup import warmup

__all__ = ["DeviceSpec", "GemmProblem", "KernelConfig", "TritonGemmError", "__version__", "addmm",
           "baddbmm", "batch_invariant", "bmm", "disable", "dot", "enable", "explain",
           "fp32_compute", "gated_linear", "linear", "matmul", "mm", "mulmm", "mv",
           "override", "override_report", "sm_budget", "tune", "warmup"]


if not TYPE_CHECKING:  # a checker would take any name for one that this finds
    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'tritongemm' has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names; no import or table of this file."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

"""The kernels: specs that need neither triton nor torch; device code is loaded at first launch.

``SPECS`` is the one list of what ``matmul`` runs; ``RUNG_SPECS`` are the ladder's, for study.
``violation`` and ``shared_bytes`` are the one legality that the sweep, the selection and the tests
share.
"""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import ConfigError
from tritongemm.kernels.constraints import Violation
from tritongemm.kernels.gemv import GEMV
from tritongemm.kernels.persistent_tma import PERSISTENT_TMA
from tritongemm.kernels.scaled_product import SCALED_PRODUCT
from tritongemm.kernels.simt import SIMT
from tritongemm.kernels.skinny import SKINNY
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.split_product import SPLIT_PRODUCT
from tritongemm.kernels.tiled import TILED
from tritongemm.kernels.tiled_bf16x6 import TILED_BF16X6
from tritongemm.kernels.warp_specialized import WARP_SPECIALIZED
from tritongemm.problem import GemmProblem

SPECS: dict[str, KernelSpec] = {
    s.name: s for s in (
        WARP_SPECIALIZED, PERSISTENT_TMA, SPLIT_PRODUCT, SCALED_PRODUCT, TILED, TILED_BF16X6, SIMT,
        GEMV, SKINNY)}

def spec_named(name: str) -> KernelSpec:
    """The spec ``name``, of a kernel or of a rung of the ladder. Raises :class:`ConfigError` for
    an unknown one."""
    spec = SPECS.get(name)
    if spec is None:
        from tritongemm.kernels.ladder import RUNG_SPECS  # no call needs it

        spec = RUNG_SPECS.get(name)
    if spec is None:
        raise ConfigError(f"kernel {name!r} is not known; known: "
                          f"{', '.join((*SPECS, *RUNG_SPECS))}")
    return spec


def violation(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Violation | None:
    """The first rule that ``config`` breaks for ``problem`` on ``device``, or None."""
    if config.kernel not in SPECS:
        return Violation("kernel", f"kernel {config.kernel!r} is not known; "
                                   f"known: {', '.join(SPECS)}")
    return SPECS[config.kernel].violation(problem, config, device)


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """The shared memory that a program of ``config`` takes, bytes."""
    return spec_named(config.kernel).shared_bytes(problem, config)

"""A kernel and a number format from outside the package, which no module of the package knows by
name.

:data:`OUTSIDER` computes as the tiled kernel does, under its own name, rules, footprint and space.
No shipped kernel has its traits: its threads divide K among them and its loads have warps of their
own. It alone takes :data:`FORMAT`, whose operands have a factor for each row of A and column of B.
:func:`registered` adds both as another package would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tritongemm import selection
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.formats import Format, register_format, remove_format
from tritongemm.kernels import SPECS, tiled
from tritongemm.kernels import constraints as rules
from tritongemm.kernels.footprint import Footprint, of_threads
from tritongemm.kernels.launch import Argument, Geometry, Launch, Pointer, Scalar
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.takes import OF_A, Takes
from tritongemm.problem import GemmProblem

NAME = "outsider"
#: 8 bits, 3 of them mantissa, held by torch as bytes.
FORMAT = Format("zed8", 8, "uint8", "u8", 2.0**-3, "e5m2", poison=255.0)

def _even_columns(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str | None:
    return None if problem.n % 2 == 0 else f"takes an even n, not {problem.n}"


def _footprint(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Footprint:
    of_tiles = of_threads(problem, config, device,
                          shared_bytes=tiled.shared_bytes(problem, config), registers=64.0,
                          tensor_cores=True, k_over_threads=True)
    return of_tiles._replace(producer_warps=True)


def _launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
              geometry: Geometry) -> tuple[Launch, ...]:
    launches = tiled.launches(problem, config, device, geometry)
    factors: list[Argument] = []
    for name, scale, axis in (("scale_a", problem.a.scale, -2), ("scale_b", problem.b.scale, -1)):
        if scale is not None:
            factors += [Pointer(name, name, scale.format, 16),
                        Scalar(f"stride_{name}", geometry.view(name).strides[axis])]
    return tuple(replace(one, arguments=(*one.arguments, *factors)) for one in launches)


def _default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    return replace(tiled.default(problem, device), kernel=NAME, num_stages=3, split_k=1)


OUTSIDER = KernelSpec(
    name=NAME, idea="a kernel of another package", archs=(80, 90),
    constraints=(
        rules.min_arch(80),
        rules.Constraint("even", _even_columns, of_problem=True),
        rules.powers_of_two, rules.dot_shape, rules.accumulator, rules.grid,
        rules.shared_memory(tiled.shared_bytes)),
    shared_bytes=tiled.shared_bytes, launches=_launches, default=_default,
    footprint=_footprint,
    takes=Takes(("bf16", "fp16", FORMAT.name), outputs=(OF_A, "bf16", "fp32"), scales=("row",)))

SPACE = {"schema_version": 1, "kernel": NAME, "products": [
    {"dtypes": ["bf16", "fp16"], "axes": {
        "block_m": [32, 64], "block_n": [64, 128], "block_k": [64], "num_warps": [4],
        "num_stages": [3], "dependent_launch": [0, 1]}},
    {"dtypes": [FORMAT.name], "axes": {
        "block_m": [32, 64, 128], "block_n": [64], "block_k": [128], "num_warps": [4],
        "num_stages": [3]}}]}
#: A config of the space.
CONFIG = KernelConfig(NAME, 64, 128, 64, num_warps=4, num_stages=3)


def scaled(m: int = 256, n: int = 512, k: int = 1024, **words: str) -> GemmProblem:
    """A problem of the format with a factor for each row of A and column of B, C in bf16."""
    return GemmProblem.contiguous(m, n, k, dtype=FORMAT.name, layout="nt", **{
        "dtype_out": "bf16", "scale_a": "row", "scale_b": "row", **words})


@contextmanager
def registered(configs: Path, *, alone: bool = False) -> Iterator[KernelSpec]:
    """Registers the format, and the kernel with its space in the folder ``configs``, which
    settings name.

    Args:
        alone: no other kernel is registered.
    """
    path, others = configs / "spaces" / f"{NAME}.json", dict(SPECS)
    path.write_text(json.dumps(SPACE), encoding="utf-8")
    if alone:
        SPECS.clear()
    SPECS[NAME] = OUTSIDER
    register_format(FORMAT)
    selection.reload()
    try:
        yield OUTSIDER
    finally:
        SPECS.clear()
        SPECS.update(others)
        remove_format(FORMAT.name)
        path.unlink()
        selection.reload()

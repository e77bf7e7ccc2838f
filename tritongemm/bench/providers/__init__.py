"""Providers: whose product is measured. One small class a file, looked up by name.

To add one, write a class with the four members of :class:`Provider` in a file here and name it
in ``PROVIDERS``. A class of another package needs no entry: ``--providers package.module:Class``.
A class that stands for many names is in ``FAMILIES``: the rungs of the ladder are one. Both tables
hold names that are imported when they are asked for, so that what measures knows no provider.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tritongemm.errors import UsageError
from tritongemm.records.control import BASELINE

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.config import KernelConfig
    from tritongemm.measure.contender import Contender
    from tritongemm.problem import GemmProblem

#: Name -> where its class is.
PROVIDERS = {
    BASELINE: "tritongemm.bench.providers.torch_best:TorchBest",
    "tritongemm": "tritongemm.bench.providers.selected:Selected",
    "tritongemm-auto": "tritongemm.bench.providers.auto:Auto",
    "inductor": "tritongemm.bench.providers.inductor:Inductor",
    "numpy_blocked": "tritongemm.bench.providers.numpy_blocked:NumpyBlocked",
    # Of packages that must be installed.
    "cublaslt-tuned": "tritongemm.bench.providers.cublaslt_tuned:CublasLtTuned",
    "deep_gemm": "tritongemm.bench.providers.deep_gemm:DeepGemm",
    "flag_gems": "tritongemm.bench.providers.flag_gems:FlagGems",
    "triton_kernels": "tritongemm.bench.providers.triton_kernels:TritonKernels",
    "quack": "tritongemm.bench.providers.quack:Quack",
}
#: Classes of many names: ``takes(name)`` says whether a name is one of theirs, and an instance is
#: made of the name.
FAMILIES = ("tritongemm.ladder.provider:RungProvider",)


@dataclass(frozen=True)
class Prepared:
    """A provider made ready for one problem.

    Attributes:
        contender: what the measuring module runs; its name is the provider's.
        columns: what the CSV row says of it (``kernel, config_id, selection_source, ...``).
    """

    contender: Contender
    columns: Mapping[str, object] = field(default_factory=dict)


class Provider(Protocol):
    """What a provider class offers; it is made without arguments, in the measuring process."""

    name: str

    def available(self, target: Target) -> str | None:
        """Why it cannot run on ``target``, with the way out; None where it can."""

    def build(self, problem: GemmProblem, target: Target) -> KernelConfig | None:
        """The config that :func:`tritongemm.kernels.compile.build` may compile beforehand, in
        another process; None where there is nothing to compile ahead."""

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        """Compiles and binds what ``problem`` needs. Any exception becomes the row's status."""


def _attribute(target: str) -> Any:
    """``"package.module:Class"`` -> the class."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _family_of(name: str) -> Any:
    """The class that takes ``name``, or None."""
    return next((family for family in map(_attribute, FAMILIES) if family.takes(name)), None)


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """``names`` without repeats, the baseline first. Raises :class:`UsageError`."""
    for name in names:
        if name not in PROVIDERS and ":" not in name and _family_of(name) is None:
            raise UsageError(f"provider {name!r} is not known; use some of "
                             f"{', '.join(PROVIDERS)}, a rung of the ladder, or "
                             "package.module:Class")
    return tuple(dict.fromkeys((BASELINE, *names)))


def load(name: str) -> Provider:
    """The provider ``name``, or the class ``package.module:Class``.

    Raises:
        UsageError: no such provider, or one that cannot be imported.
    """
    if name not in PROVIDERS and (family := _family_of(name)) is not None:
        return family(name)
    target = PROVIDERS.get(name, name)
    if ":" not in target.strip(":"):
        raise UsageError(f"provider {name!r} is not known; use some of {', '.join(PROVIDERS)}, "
                         "or package.module:Class")
    try:
        provider = _attribute(target)()
    except (ImportError, AttributeError, TypeError) as error:  # TypeError: no class, or arguments
        raise UsageError(f"provider {name!r} cannot be loaded: {error}; name a class that is made "
                         "without arguments, package.module:Class") from error
    absent = [member for member in ("name", "available", "build", "prepare")
              if not hasattr(provider, member)]
    if absent:
        raise UsageError(f"provider {name!r} has no {', '.join(absent)}; see "
                         "tritongemm.bench.providers.Provider")
    return provider

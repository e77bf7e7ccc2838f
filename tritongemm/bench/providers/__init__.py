"""Providers: whose product is measured. One small class a file, looked up by name.

To add one, write a class with the four members of :class:`Provider` in a file here and name it
in ``PROVIDERS``. A class of another package needs no entry: ``--providers package.module:Class``.
Every rung of the ladder is one as well, by its name (:mod:`tritongemm.bench.rung_provider`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tritongemm.errors import UsageError

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.config import KernelConfig
    from tritongemm.measure.contender import Contender
    from tritongemm.problem import GemmProblem

BASELINE = "torch"

#: Name -> where its class is.
PROVIDERS = {
    BASELINE: "tritongemm.bench.providers.torch_best:TorchBest",
    "tritongemm": "tritongemm.bench.providers.selected:Selected",
    "tritongemm-auto": "tritongemm.bench.providers.auto:Auto",
    "inductor": "tritongemm.bench.providers.inductor:Inductor",
    "numpy_blocked": "tritongemm.bench.providers.numpy_blocked:NumpyBlocked",
}


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


def _is_rung(name: str) -> bool:
    from tritongemm.bench.rung_provider import is_rung

    return is_rung(name)


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """``names`` without repeats, the baseline first. Raises :class:`UsageError`."""
    for name in names:
        if name not in PROVIDERS and ":" not in name and not _is_rung(name):
            raise UsageError(f"provider {name!r} is not known; use some of "
                             f"{', '.join(PROVIDERS)}, a rung of the ladder, or "
                             "package.module:Class")
    return tuple(dict.fromkeys((BASELINE, *names)))


def load(name: str) -> Provider:
    """The provider ``name``, or the class ``package.module:Class``.

    Raises:
        UsageError: no such provider, or one that cannot be imported.
    """
    if name not in PROVIDERS and _is_rung(name):
        from tritongemm.bench.rung_provider import RungProvider

        return RungProvider(name)
    module_name, _, class_name = PROVIDERS.get(name, name).partition(":")
    if not class_name:
        raise UsageError(f"provider {name!r} is not known; use some of {', '.join(PROVIDERS)}, "
                         "or package.module:Class")
    try:
        provider = getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError, TypeError) as error:  # TypeError: no class, or arguments
        raise UsageError(f"provider {name!r} cannot be loaded: {error}; name a class that is made "
                         "without arguments, package.module:Class") from error
    absent = [member for member in ("name", "available", "build", "prepare")
              if not hasattr(provider, member)]
    if absent:
        raise UsageError(f"provider {name!r} has no {', '.join(absent)}; see "
                         "tritongemm.bench.providers.Provider")
    return provider

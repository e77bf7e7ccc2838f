"""Problems and configs as JSON objects and as keys, identical in all file formats."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping

from tritongemm.config import KernelConfig
from tritongemm.errors import ConfigError, ProblemError
from tritongemm.problem import GemmProblem

_DEFAULTS = {"batch": 1, "align_a": 16, "align_b": 16, "align_c": 16, "epilogue": "none",
             "precision": "ieee"}
_ALWAYS = ("m", "n", "k", "dtype_a", "layout")
_AS_A = ("dtype_b", "dtype_out")
_FIELDS = (*_ALWAYS, *_AS_A, *_DEFAULTS)
#: Fields that are written only if they are not ``none``, so that files without them do not change.
MODIFIERS = ("scale_a", "scale_b", "grouping")
#: The same of fields that calls alone have: no table has rows of such problems.
_OF_CALLS = ("two_strides",)
_KNOWN = (*_FIELDS, *MODIFIERS, *_OF_CALLS)


def modifiers(problem: GemmProblem) -> dict[str, str]:
    """Those of :data:`MODIFIERS` that are not ``none``."""
    if problem.plain:
        return {}
    return {name: word for name in MODIFIERS if (word := getattr(problem, name)) != "none"}


def _optional(problem: GemmProblem) -> dict[str, str]:
    """All fields that are written only if they are not ``none``."""
    found = modifiers(problem)
    found.update((name, word) for name in _OF_CALLS
                 if (word := getattr(problem, name)) != "none")
    return found


def problem_to_json(problem: GemmProblem) -> dict[str, object]:
    """The problem as a flat object.

    Left out: ``dtype_b`` and ``dtype_out`` equal to ``dtype_a``, and ``batch`` 1, alignments 16,
    ``epilogue`` none, ``precision`` ieee, and scales, grouping and two_strides where there are
    none.
    """
    values: dict[str, object] = {name: getattr(problem, name) for name in _ALWAYS}
    values.update((name, getattr(problem, name)) for name in _AS_A
                  if getattr(problem, name) != problem.dtype_a)
    values.update((name, getattr(problem, name)) for name, default in _DEFAULTS.items()
                  if getattr(problem, name) != default)
    values.update(_optional(problem))
    return values


def problem_from_json(values: Mapping[str, object]) -> GemmProblem:
    """The inverse of :func:`problem_to_json`. Raises :class:`ProblemError`."""
    if not isinstance(values, Mapping):
        raise ProblemError(f"problem is a {type(values).__name__}, not an object")
    for name in _ALWAYS:
        if name not in values:
            raise ProblemError(f"{name} of the problem is missing")
    for name in values:
        if name not in _KNOWN:
            raise ProblemError(f"unknown field {str(name)[:80]!r} of a problem; "
                               f"known: {', '.join(_KNOWN)}")
    defaults = {**_DEFAULTS, **{name: values["dtype_a"] for name in _AS_A}}
    return GemmProblem(**{**defaults, **values})  # type: ignore[arg-type]


def config_to_json(config: KernelConfig) -> dict[str, object]:
    """``{"kernel": ..., "block_m": ..., ...}``, parameters at their default left out."""
    return {"kernel": config.kernel, **config.to_json()}


def config_from_json(values: Mapping[str, object]) -> KernelConfig:
    """The inverse of :func:`config_to_json`. Raises :class:`ConfigError`."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"config is a {type(values).__name__}, not an object")
    rest = dict(values)
    return KernelConfig.from_json(rest.pop("kernel", ""), rest)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=65536)
def problem_key(problem: GemmProblem) -> str:
    """A canonical string: equal keys are equal problems."""
    return "|".join((*(str(getattr(problem, name)) for name in _FIELDS),
                     *(f"{name}={word}" for name, word in _optional(problem).items())))


def digest(*parts: str) -> int:
    """64 bits of BLAKE2b over the parts; among a million keys two agree with odds of 3e-8."""
    raw = "\n".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")

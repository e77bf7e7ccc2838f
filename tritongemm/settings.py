"""Every environment variable that this package reads: name, default, parser, meaning.

Nothing else in the package reads the environment. Values are read once, at first use;
:func:`reload` reads them again, :func:`override` replaces some of them for a while (tests).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tritongemm.errors import UsageError

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}
POLICIES = ("auto", "own")
LOG_LEVELS = ("off", "error", "warning", "info", "debug")


def _flag(name: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise UsageError(f"{name}={text!r} is neither true nor false; use 1 or 0")


def _path(name: str, text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _level(name: str, text: str) -> str:
    if text.lower() in LOG_LEVELS:
        return text.lower()
    raise UsageError(f"{name}={text!r} is not a level; use one of {', '.join(LOG_LEVELS)}")


def _count(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise UsageError(f"{name}={text!r} is not a count; use an integer of at least 1")
    return value


def _budget(name: str, text: str) -> int | None:
    return _count(name, text) if text else None


def _policy(name: str, text: str) -> str:
    if text.lower() in POLICIES:
        return text.lower()
    raise UsageError(f"{name}={text!r} is not a policy; use one of {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its field in :class:`Settings`, default text, parser, meaning."""

    field: str
    name: str
    default: str
    parse: Callable[[str, str], object]
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("config_dir", "TRITONGEMM_CONFIG_DIR", "", _path,
             "folder with spaces/, tuned/, calibration/ and devices/; default: the packaged copy"),
    Variable("cache_dir", "TRITONGEMM_CACHE_DIR", "", _path,
             "folder for compiled kernels; default: the user's cache folder"),
    Variable("disable", "TRITONGEMM_DISABLE", "0", _flag, "send every call to torch"),
    Variable("strict", "TRITONGEMM_STRICT", "0", _flag,
             "raise, naming the reason, where a call would go to torch"),
    Variable("log", "TRITONGEMM_LOG", "warning", _level,
             "log level; info logs each new choice once (problem, kernel, config, source)"),
    Variable("profile", "TRITONGEMM_PROFILE", "0", _flag,
             "wrap each launch in a profiler range that names the problem and the config"),
    Variable("plan_cache_size", "TRITONGEMM_PLAN_CACHE_SIZE", "4096", _count,
             "plans kept in memory (least recently used are dropped)"),
    Variable("policy", "TRITONGEMM_POLICY", "auto", _policy,
             "auto: torch's kernel runs where it was measured to be faster by more than handing a "
             "call over costs; own: never"),
    Variable("num_sms", "TRITONGEMM_NUM_SMS", "", _budget,
             "SMs that products may fill, so that others (communication) have the rest"),
    Variable("batch_invariant", "TRITONGEMM_BATCH_INVARIANT", "0", _flag,
             "one config for every M: a row's result does not depend on the other rows"),
    Variable("interpret", "TRITON_INTERPRET", "0", _flag,
             "Triton's own: run kernels in its interpreter, on CPU tensors"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The parsed variables; see :data:`VARIABLES` for what each one means."""

    config_dir: Path | None
    cache_dir: Path | None
    disable: bool
    strict: bool
    log: str
    profile: bool
    plan_cache_size: int
    policy: str
    num_sms: int | None
    batch_invariant: bool
    interpret: bool


_current: Settings | None = None


def current() -> Settings:
    """The settings in force. Raises :class:`UsageError` for a value that cannot be parsed."""
    global _current
    if _current is None:
        _current = _read()
    return _current


_listeners: list[Callable[[], None]] = []


def when_changed(listener: Callable[[], None]) -> None:
    """``listener`` is called after every :func:`reload` and :func:`override`, and whenever else
    something is :func:`changed`: for what was made under the settings and tables before."""
    _listeners.append(listener)


def changed() -> None:
    """Something that choices depend on is another now."""
    for listener in _listeners:
        listener()


def _put(values: Settings | None) -> None:
    global _current
    _current = values
    changed()


def reload() -> Settings:
    """Reads the environment again."""
    _put(None)
    return current()


@contextlib.contextmanager
def override(**values: object) -> Iterator[Settings]:
    """Replaces some settings inside a ``with`` block."""
    before = current()
    unknown = set(values) - {f.name for f in fields(Settings)}
    if unknown:
        raise UsageError(f"no setting is named {', '.join(sorted(unknown))}")
    within = replace(before, **values)  # type: ignore[arg-type]
    _put(within)
    try:
        yield within
    finally:
        _put(before)


def _read() -> Settings:
    values = {v.field: v.parse(v.name, os.environ.get(v.name, v.default)) for v in VARIABLES}
    return Settings(**values)  # type: ignore[arg-type]


def config_root() -> Path:
    """The folder ``configs/``: TRITONGEMM_CONFIG_DIR, the packaged copy, or the checkout's.

    Raises:
        UsageError: none of the three exists.
    """
    chosen = current().config_dir
    if chosen is not None:
        if chosen.is_dir():
            return chosen
        raise UsageError(f"TRITONGEMM_CONFIG_DIR={chosen} is not a folder")
    package = Path(__file__).resolve().parent
    for candidate in (package / "configs", package.parent / "configs"):
        if candidate.is_dir():
            return candidate
    raise UsageError(f"no configs/ folder in {package} or beside it; reinstall the package "
                     "or set TRITONGEMM_CONFIG_DIR")


def cache_root() -> Path:
    """The folder for compiled kernels and other things that can be made again."""
    chosen = current().cache_dir
    if chosen is not None:
        return chosen
    try:
        import platformdirs
    except ImportError:  # an offline GPU machine may lack it; its answer on Linux is this one
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(base) / "tritongemm"
    return Path(platformdirs.user_cache_dir("tritongemm"))


def child_environment(**changes: str) -> dict[str, str]:
    """A copy of the environment for a child process, with ``changes`` on top."""
    return {**os.environ, **changes}

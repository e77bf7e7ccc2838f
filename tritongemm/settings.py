"""Every environment variable that this package reads: name, default, parser, meaning.

Nothing else in the package reads the environment. Values are read once, at first use;
:func:`reload` reads them again, :func:`override` replaces some of them for a while (tests).
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tritongemm.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent
#: Of a checkout; an installed package has its copy inside.
_CHECKOUT = _PACKAGE.parent / "configs"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}
#: Of the variables that are this package's own.
PREFIX = "TRITONGEMM_"
POLICIES = ("auto", "own")
FP32_MODES = ("split", "ieee")
NATIVE_MODES = ("auto", "on", "off")
OFF = "off"
LOG_LEVELS = (OFF, "error", "warning", "info", "debug")


#: Characters of a wrong value that an error quotes.
_QUOTED = 200


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= _QUOTED else f"{text[:_QUOTED]!r}... ({len(text)} characters)"


def _flag(name: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise UsageError(f"{name}={_quoted(text)} is neither true nor false; use 1 or 0")


def _path(name: str, text: str) -> Path | None:
    if not text:
        return None
    try:
        path = Path(text).expanduser()
        os.lstat(path)
    except RuntimeError as error:  # ~name of no user, or ~ without a home
        raise UsageError(f"{name}={_quoted(text)} begins with ~ and names no home folder; use a "
                         "full path") from error
    except OSError as error:  # it may be made later, or another part of the program says more
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"{name}={_quoted(text)} is longer than the system allows a path to "
                             "be; use a shorter one") from error
    return path


def _path_or_off(name: str, text: str) -> Path | str | None:
    return OFF if text.lower() == OFF else _path(name, text)


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _level(name: str, text: str) -> str | None:
    if not text:
        return None
    if text.lower() in LOG_LEVELS:
        return text.lower()
    raise UsageError(f"{name}={_quoted(text)} is not a level; use one of {', '.join(LOG_LEVELS)}")


def _count(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise UsageError(f"{name}={_quoted(text)} is not a count; use an integer of at least 1")
    return value


def _budget(name: str, text: str) -> int | None:
    return _count(name, text) if text else None


def _policy(name: str, text: str) -> str:
    if text.lower() in POLICIES:
        return text.lower()
    raise UsageError(f"{name}={_quoted(text)} is not a policy; use one of {', '.join(POLICIES)}")


def _fp32(name: str, text: str) -> str:
    if text.lower() in FP32_MODES:
        return text.lower()
    raise UsageError(f"{name}={_quoted(text)} is not a way to compute float32; use one of "
                     f"{', '.join(FP32_MODES)}")


def _mode(name: str, text: str) -> str:
    if text.lower() == "auto":
        return "auto"
    try:
        return "on" if _flag(name, text) else "off"
    except UsageError:
        raise UsageError(f"{name}={_quoted(text)} is not a mode; use auto, 1 or 0") from None


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
             "folder with any of tuned/, calibration/, spaces/ and devices/, read before your own "
             "tables and the shipped ones"),
    Variable("config_only", "TRITONGEMM_CONFIG_ONLY", "0", _flag,
             "read TRITONGEMM_CONFIG_DIR alone, without your own tables and the shipped ones"),
    Variable("user_dir", "TRITONGEMM_USER_DIR", "", _path,
             "folder for your own tuned tables; default: tritongemm in the user's data folder"),
    Variable("cache_dir", "TRITONGEMM_CACHE_DIR", "", _path,
             "folder for compiled kernels; default: the user's cache folder"),
    Variable("cubins", "TRITONGEMM_CUBINS", "", _path_or_off,
             "folder of a pack of compiled kernels (`tritongemm cubins build`), in place of the "
             "installed package's; off: use none"),
    Variable("plugins", "TRITONGEMM_PLUGINS", "", _names,
             "a comma list of modules that register kernels or formats; commands and worker "
             "processes import them first"),
    Variable("disable", "TRITONGEMM_DISABLE", "0", _flag, "send every call to torch"),
    Variable("strict", "TRITONGEMM_STRICT", "0", _flag,
             "raise, naming the reason, where a call would go to torch"),
    Variable("log", "TRITONGEMM_LOG", "", _level,
             "show log lines of this level and above on standard error; info logs each new choice "
             "once (problem, kernel, config, source); unset: the program's own logging decides"),
    Variable("profile", "TRITONGEMM_PROFILE", "0", _flag,
             "wrap each launch in a profiler range that names the problem and the config"),
    Variable("plan_cache_size", "TRITONGEMM_PLAN_CACHE_SIZE", "4096", _count,
             "plans kept in memory (least recently used are dropped)"),
    Variable("policy", "TRITONGEMM_POLICY", "auto", _policy,
             "auto: torch's kernel runs where it was measured to be faster by more than handing a "
             "call over costs; own: never"),
    Variable("num_sms", "TRITONGEMM_NUM_SMS", "", _budget,
             "SMs that products may fill, so that others (communication) have the rest"),
    Variable("concurrent", "TRITONGEMM_CONCURRENT", "auto", _mode,
             "other kernels run beside products, on SMs that come and go: launch a program for "
             "one tile or two, which the device places as SMs are free, in place of as many as it "
             "has SMs. auto: where FSDP2 shards modules over NCCL. 1: always. 0: never"),
    Variable("batch_invariant", "TRITONGEMM_BATCH_INVARIANT", "0", _flag,
             "one order of summation for every M: a row's bits do not depend on the other rows"),
    Variable("fp32", "TRITONGEMM_FP32", "split", _fp32,
             "float32 products where torch's precision is ieee: split: as three fp16 or six bf16 "
             "products of split operands, or on CUDA cores, whichever is faster; ieee: on CUDA "
             "cores only, and under TF32 none by scaled fp16 copies"),
    Variable("native", "TRITONGEMM_NATIVE", "auto", _mode,
             "find and launch repeated products in C++. auto: where there is a GPU; the library "
             "comes with the package, or is compiled once for each torch, in the background, if "
             "there is a C++ compiler. 1: also elsewhere, but compiled by `tritongemm native` "
             "alone. 0: never"),
    Variable("interpret", "TRITON_INTERPRET", "0", _flag,
             "Triton's own: run kernels in its interpreter, on CPU tensors"),
    Variable("visible_devices", "CUDA_VISIBLE_DEVICES", "", _names,
             "CUDA's own: the GPUs that a process sees; `tritongemm worker` gives each of its "
             "processes one"),
)

#: Variables of Triton's that change the code it compiles (its knobs.py, and the list by which its
#: library keys its cache); those of other vendors' backends and those that only print are left out.
COMPILER_VARIABLES = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "DISABLE_FAST_REDUCTION", "DISABLE_LLVM_OPT",
    "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT", "LLVM_EXTRACT_DI_LOCAL_VARIABLES",
    "LLVM_PASS_PLUGIN_PATH", "PTXAS_OPTIONS", "STORE_TMEM_TO_GLOBAL_BYPASS_SMEM", "TRITON_DEBUG",
    "TRITON_DEFAULT_FP_FUSION", "TRITON_DISABLE_LINE_INFO",
    "TRITON_DISABLE_RESHAPE_ENCODING_INFERENCE", "TRITON_ENABLE_ASAN",
    "TRITON_ENABLE_EXPERIMENTAL_CONSAN", "TRITON_F32_DEFAULT", "TRITON_INSTRUMENTATION_MODE",
    "TRITON_KERNEL_OVERRIDE", "TRITON_LIBDEVICE_PATH", "TRITON_MOCK_PTX_VERSION",
    "TRITON_OVERRIDE_ARCH", "TRITON_OVERRIDE_DIR", "TRITON_PLUGIN_PATHS",
    "TRITON_PREFER_TMEM_16x256_LOAD_LAYOUT", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_PTXAS_PATH",
    "USE_IR_LOC",
)


def compiler_environment() -> dict[str, str]:
    """Those of :data:`COMPILER_VARIABLES` that are set, now: Triton too reads them when it
    compiles, not when it is imported."""
    return {name: value for name in COMPILER_VARIABLES if (value := os.environ.get(name))}


@dataclass(frozen=True, slots=True)
class Settings:
    """The parsed variables; see :data:`VARIABLES` for what each one means."""

    config_dir: Path | None
    config_only: bool
    user_dir: Path | None
    cache_dir: Path | None
    cubins: Path | str | None
    plugins: tuple[str, ...]
    disable: bool
    strict: bool
    log: str | None
    profile: bool
    plan_cache_size: int
    policy: str
    num_sms: int | None
    concurrent: str
    batch_invariant: bool
    fp32: str
    native: bool
    interpret: bool
    visible_devices: tuple[str, ...]


_base: Settings | None = None
_current: Settings | None = None
_requests: list[dict[str, object]] = []
_lock = threading.RLock()


def current() -> Settings:
    """The settings in force. Raises :class:`UsageError` for a value that cannot be parsed."""
    if _current is None:
        base = _read()
        show_log(base.log)
        _put(base, tell=False)
    assert _current is not None
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


def _put(base: Settings | None, *, tell: bool = True) -> None:
    global _base, _current
    with _lock:
        _base = base
        _current = None if base is None else replace(base, **_requested())  # type: ignore[arg-type]
    if base is not None:
        show_log(base.log)
    _layers.cache_clear()
    if tell:
        changed()


def reload() -> Settings:
    """Reads the environment again."""
    _put(None)
    return current()


@contextlib.contextmanager
def override(**values: object) -> Iterator[Settings]:
    """Replaces some settings inside a ``with`` block."""
    unknown = set(values) - {f.name for f in fields(Settings)}
    if unknown:
        raise UsageError(f"no setting is named {', '.join(sorted(unknown))}")
    current()
    before = _base
    assert before is not None
    try:
        _put(replace(before, **values))  # type: ignore[arg-type]
        yield current()
    finally:
        _put(before)


def _least(values: list[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


#: Setting -> how the values of several open requests combine.
_COMBINED: dict[str, Callable[[list], object]] = {
    "num_sms": _least, "batch_invariant": any, "fp32": lambda values: values[-1]}


def _requested() -> dict[str, object]:
    """The settings that open requests decide."""
    values: dict[str, list[object]] = {}
    for one in _requests:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: _COMBINED[name](of_all) for name, of_all in values.items()}


def request(asked: dict[str, object]) -> None:
    """Asks for settings of :data:`_COMBINED`, for the whole process, until :func:`withdraw`.

    Requests may overlap in threads and coroutines, end in any order, and be made several times.
    While several are open, the smallest budget of SMs and any ``batch_invariant`` hold, and of
    ``fp32`` the one made last. They stand in place of what the environment says.
    """
    current()
    try:
        with _lock:
            _requests.append(asked)
        _put(_base)
    except BaseException:  # Ctrl-C too: nobody would withdraw it
        withdraw(asked)
        raise


def withdraw(asked: dict[str, object]) -> None:
    """Ends the last :func:`request` of this very ``asked``."""
    with _lock:
        for place in reversed(range(len(_requests))):
            if _requests[place] is asked:
                del _requests[place]
                break
    _put(_base)


_handler: logging.Handler | None = None


def show_log(level: str | None) -> None:
    """Shows the package's log lines of ``level`` and above on standard error; None or ``off``: no
    longer.

    Nothing is shown unless TRITONGEMM_LOG or the command line asks for it. The logger
    ``tritongemm`` then gets a handler, and a level where the program has given it none. Its
    propagation, and handlers and levels that the program sets, stay as they are.
    """
    global _handler
    logger = logging.getLogger("tritongemm")
    if _handler is not None:
        logger.removeHandler(_handler)
        if logger.level == _handler.level:
            logger.setLevel(logging.NOTSET)
        _handler = None
    if level in (None, "off"):
        return
    _handler = logging.StreamHandler()
    _handler.setLevel(level.upper())
    _handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(_handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(_handler.level)


def unknown_variables() -> dict[str, str]:
    """Variables of the environment that are named like those of :data:`VARIABLES` and are none of
    them, each with the closest that is one, if any: misspelled ones, which nothing reads. Those of
    the tests, ``TRITONGEMM_TEST_*``, are left out."""
    words = [v.name.removeprefix(PREFIX) for v in VARIABLES if v.name.startswith(PREFIX)]
    found = {}
    for name in sorted(os.environ):
        word = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and not word.startswith("TEST_") and word not in words:
            close = difflib.get_close_matches(word, words, n=1)  # the prefix is like any other's
            found[name] = PREFIX + close[0] if close else ""
    return found


def _read() -> Settings:
    values = {v.field: v.parse(v.name, os.environ.get(v.name, v.default)) for v in VARIABLES}
    return Settings(**values)  # type: ignore[arg-type]


def shipped_root() -> Path:
    """The ``configs/`` that came with the package: the packaged copy, or the checkout's.

    Raises:
        UsageError: neither exists.
    """
    for candidate in (_PACKAGE / "configs", _CHECKOUT):
        if candidate.is_dir():
            return candidate
    raise UsageError(f"no configs/ folder in {_PACKAGE} or beside it; reinstall the package "
                     "or set TRITONGEMM_CONFIG_DIR")


def user_root() -> Path:
    """The folder of the user's own tables; it need not exist."""
    return current().user_dir or _user_folder("user_data_dir", "XDG_DATA_HOME", ".local/share")


def config_roots() -> tuple[Path, ...]:
    """The folders that configuration is read from, the first that has something wins:
    TRITONGEMM_CONFIG_DIR, the user's own, the shipped one. The user's need not exist.

    Raises:
        UsageError: TRITONGEMM_CONFIG_DIR is not a folder, or nothing is shipped.
    """
    return _layers()


@functools.cache  # emptied whenever a setting changes
def _layers() -> tuple[Path, ...]:
    values = current()
    if values.config_dir is not None and not values.config_dir.is_dir():
        raise UsageError(f"TRITONGEMM_CONFIG_DIR={values.config_dir} is not a folder")
    if values.config_only:
        if values.config_dir is None:
            raise UsageError("TRITONGEMM_CONFIG_ONLY=1 needs TRITONGEMM_CONFIG_DIR, the folder to "
                             "read")
        return (values.config_dir,)
    top = () if values.config_dir is None else (values.config_dir,)
    return (*top, user_root(), shipped_root())


def config_root() -> Path:
    """The folder that `publish` and `calibrate` write to: TRITONGEMM_CONFIG_DIR, else the
    checkout's ``configs/``, else (an installed package) the user's own folder.

    Raises:
        UsageError: as :func:`config_roots`.
    """
    first, *_ = config_roots()
    if current().config_dir is not None:
        return first
    return _CHECKOUT if shipped_root() == _CHECKOUT else user_root()


def origin_of(root: Path) -> str:
    """What a folder of :func:`config_roots` is: ``TRITONGEMM_CONFIG_DIR``, ``your own`` or
    ``shipped``."""
    if root == current().config_dir:
        return "TRITONGEMM_CONFIG_DIR"
    return "shipped" if root == shipped_root() else "your own"


def config_files(*folder: str) -> dict[str, list[Path]]:
    """Name -> files of every ``*.json`` in ``folder`` of all :func:`config_roots`, by name; of a
    name in several roots, the one that wins first."""
    found: dict[str, list[Path]] = {}
    for root in config_roots():
        for path in root.joinpath(*folder).glob("*.json"):
            found.setdefault(path.stem, []).append(path)
    return dict(sorted(found.items()))


def cache_root() -> Path:
    """The folder for compiled kernels and other things that can be made again."""
    return current().cache_dir or _user_folder("user_cache_dir", "XDG_CACHE_HOME", ".cache")


def _user_folder(kind: str, variable: str, default: str) -> Path:
    """platformdirs' folder of ``kind`` for this package."""
    try:
        import platformdirs
    except ImportError:  # an offline GPU machine may lack it; its answer on Linux is this one
        base = os.environ.get(variable) or str(Path.home() / default)
        return Path(base) / "tritongemm"
    return Path(getattr(platformdirs, kind)("tritongemm"))


def child_environment(**changes: str) -> dict[str, str]:
    """A copy of the environment for a child process, with ``changes`` on top. The child shows
    the log lines that this process shows."""
    level = current().log
    return {**os.environ, **({"TRITONGEMM_LOG": level} if level else {}), **changes}

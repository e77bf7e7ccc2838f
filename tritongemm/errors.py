"""Every error this package raises on its own account, and what each one means.

A message names the thing, the value, the limit and the way out.
"""

from __future__ import annotations

#: What a terminal obeys or what changes the order of a line: C0 and C1 controls but for line breaks
#: and tabs, line and paragraph separators, and marks of direction (Unicode, "Bidirectional
#: Algorithm", explicit formatting).
_CONTROLS = {code: ascii(chr(code))[1:-1] for code in (
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F),
    *range(0x2066, 0x206A)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """``text`` with control characters as escapes such as ``\\x1b``, safe to show on a terminal."""
    return text.translate(_CONTROLS)


class TritonGemmError(Exception):
    """Base of all errors of this package."""


class ProblemError(TritonGemmError, ValueError):
    """A matrix problem that cannot exist: a negative size, an unknown dtype or layout."""


class ConfigError(TritonGemmError, ValueError):
    """A kernel configuration that is malformed, whatever the problem."""


class ConstraintError(TritonGemmError, ValueError):
    """A well-formed configuration that this problem or this device does not allow."""


class DataFileError(TritonGemmError, ValueError):
    """A file of ours (suite, space, tuned table, journal, CSV) that cannot be used.

    Args:
        path: the file.
        reason: what is wrong with it, and how to mend it.
        row: 1-based row or line, where one can be named.
        field: the field, where one can be named.
    """

    def __init__(self, path: object, reason: str, *, row: int | None = None,
                 field: str | None = None) -> None:
        self.path, self.reason, self.row, self.field = str(path), reason, row, field
        place = str(path)
        if row is not None:
            place += f", row {row}"
        if field is not None:
            place += f", field '{field}'"
        super().__init__(printable(f"{place}: {reason}"))

    def __reduce__(self):
        return (_data_file_error, (self.path, self.reason, self.row, self.field))


def _data_file_error(path: str, reason: str, row: int | None, field: str | None) -> DataFileError:
    return DataFileError(path, reason, row=row, field=field)


class UsageError(TritonGemmError, ValueError):
    """A wrong argument to a command or a public function."""


class DeviceError(TritonGemmError, RuntimeError):
    """No usable device, or one that cannot do what was asked."""


class CompileError(TritonGemmError, RuntimeError):
    """A kernel that the compiler refused."""


class LaunchError(TritonGemmError, RuntimeError):
    """A kernel that the driver refused to load or launch."""


class NumericsError(TritonGemmError, ArithmeticError):
    """A result outside the error limit."""


class UnsupportedError(TritonGemmError, RuntimeError):
    """What would have gone to torch, under ``strict=True``."""


class MissingDependencyError(TritonGemmError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


def install_command(extra: str) -> str:
    """How this package is installed with an optional ``extra``: it is on no package index."""
    return f"pip install '.[{extra}]' in a clone, or 'FILE.whl[{extra}]' from a wheel"


def missing(package: str, extra: str, what: str) -> MissingDependencyError:
    """The error for an optional ``package`` of extra ``extra`` that ``what`` needs."""
    return MissingDependencyError(
        f"{what} needs {package}, which is not installed. "
        f"Run: {install_command(extra)}")

"""Checks output paths before a command runs for hours."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tritongemm.errors import DataFileError
from tritongemm.records.atomic import write_error


def file_argument(text: str) -> Path:
    """argparse type of an output file. Refuses ``DIR/``, whose slash a ``Path`` would drop."""
    if text.endswith("/"):
        raise argparse.ArgumentTypeError(f"{text} is a folder; name the file in it")
    return Path(text)


def check_file(path: str | Path) -> None:
    """Raises :class:`DataFileError` where ``path`` cannot be written; changes nothing."""
    path = Path(path)
    try:
        if path.is_dir():
            raise DataFileError(path, "is a folder, not a file; name the file in it")
        if path.exists() and not path.is_file():  # to open a pipe would wait for its reader
            raise DataFileError(path, "is not a regular file; choose another path")
        if path.exists():
            with open(path, "ab"):
                return
        _check_below(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def check_folder(path: str | Path) -> None:
    """Raises :class:`DataFileError` where no file can be made in ``path``; changes nothing."""
    try:
        _check_below(Path(path))
    except OSError as error:
        raise write_error(path, error) from error


def _check_below(folder: Path) -> None:
    """Makes and removes a file in the nearest folder above that exists. Raises OSError."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass

"""Every configuration file that a call may read, checked for ``tritongemm doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tritongemm.errors import DataFileError


def damaged(root: Path) -> list[DataFileError]:
    """What is wrong with the files below ``root``, one error a file, by path.

    Device files, spaces (the ladder's too), tuned tables and calibrations are read as strictly as
    `sweep` and `publish` read them: a table with a row that calls leave out is among them.
    """
    found = []
    for path, read in _files(root):
        try:
            read(path)
        except DataFileError as error:
            found.append(error)
    return found


def _files(root: Path) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    from tritongemm.device import read_device
    from tritongemm.records.spaces import read_space

    kinds: list[tuple[str, Callable[[Path], object]]] = [
        ("devices/*.json", read_device), ("spaces/*.json", read_space),
        ("spaces/ladder/*.json", read_space), ("tuned/*/*.json", _read_table)]
    try:
        from tritongemm.records.calibration import read_placed
    except ImportError:  # numpy is missing, which has its own line
        pass
    else:
        kinds.append(("calibration/*.json", read_placed))
    for pattern, read in kinds:
        for path in sorted(root.glob(pattern)):
            yield path, read


def _read_table(path: Path) -> None:
    from tritongemm.device import known_devices
    from tritongemm.records.tables import check_place, read_table

    table = read_table(path)
    device = known_devices().get(path.parent.name)
    check_place(path, table.header, device.arch if device is not None else None)

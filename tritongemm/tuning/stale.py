"""Tuned tables by origin, and their rows that were measured with other software than is installed.

A stale row is still used: it is legal, and was the fastest. ``sweep --stale`` measures such
problems again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import DataFileError
from tritongemm.kernels import SPECS
from tritongemm.kernels.revision import kernel_revision
from tritongemm.kernels.triton_version import triton_version
from tritongemm.measure import clocks
from tritongemm.problem import GemmProblem
from tritongemm.records.run import is_run_id
from tritongemm.records.tables import LADDER, Key, TunedRow, TunedTable, read_table


@dataclass(frozen=True)
class Present:
    """The software that a measurement on this machine would use; None: unknown."""

    triton: str | None
    driver: str | None


@dataclass(frozen=True)
class Listed:
    """A table of one origin.

    Attributes:
        path, origin: the file; see :func:`tritongemm.settings.origin_of`.
        table: None if it cannot be read; ``error`` gives the reason.
        covered: keys of rows that are not used because a table of an earlier origin has them too.
    """

    path: Path
    origin: str
    table: TunedTable | None
    error: str = ""
    covered: frozenset[Key] = frozenset()


def present() -> Present:
    """Of this machine."""
    return Present(triton_version(), clocks.driver_version())


def stale_because(row: TunedRow, now: Present) -> tuple[str, ...]:
    """Why ``row`` is stale: another Triton, driver or revision of its kernel; empty if it is not
    stale. A value that is missing in the row or unknown on this machine does not make it stale."""
    found = []
    if row.config.kernel not in SPECS:
        return (f"kernel {row.config.kernel} is not known",)
    for name, theirs, ours in (("Triton", row.triton, now.triton),
                               ("driver", row.driver, now.driver),
                               ("kernel revision", row.kernel_revision,
                                kernel_revision(row.config))):
        if theirs and ours and theirs != ours:
            found.append(f"{name} {theirs}, now {ours}")
    return tuple(found)


def measured_at(row: TunedRow) -> datetime | None:
    """When the row's run began, UTC; None if its id does not contain a time."""
    if not is_run_id(row.run_id):
        return None
    try:
        return datetime.strptime(row.run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def listed(device: str | None = None) -> Iterator[Listed]:
    """The tables of ``device`` (a slug), or of all devices, in the order of precedence of their
    origins; without the ladder's."""
    seen: dict[Path, set[Key]] = {}
    for root in settings.config_roots():
        for path in sorted((root / "tuned").glob(f"{device or '*'}/*.json")):
            try:
                table = read_table(path)
            except DataFileError as error:
                yield Listed(path, settings.origin_of(root), None, str(error))
                continue
            if table.header.op == LADDER:
                continue
            before = seen.setdefault(path.relative_to(root), set())
            yield Listed(path, settings.origin_of(root), table,
                         covered=frozenset(before & table.rows.keys()))
            before.update(table.rows)


def stale_problems(device: str, now: Present | None = None) -> list[GemmProblem]:
    """The problems of ``device`` whose row is stale, oldest first."""
    now = now or present()
    found: list[tuple[str, GemmProblem]] = []
    for one in listed(device):
        if one.table is not None:
            found += [(row.run_id, row.problem(one.table.header))
                      for key, row in one.table.rows.items()
                      if key not in one.covered and stale_because(row, now)]
    return [problem for _, problem in sorted(found, key=lambda item: item[0])]

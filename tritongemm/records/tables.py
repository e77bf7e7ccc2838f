"""Tuned tables: the best config of each problem on one device, one JSON row on each line.

The header states what the rows are for and what they were made with. A row made with another space,
torch or Triton states its own. Merges are locked and atomic: concurrent publishers lose nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.errors import ConfigError, DataFileError, ProblemError
from tritongemm.problem import MAX_EXTENT, GemmProblem, epilogue_of
from tritongemm.records import atomic, prepared
from tritongemm.records.codec import MODIFIERS, modifiers
from tritongemm.records.layers import first_usable, leave_out
from tritongemm.records.reading import JSON_LIMIT, Fields, decode, parse_json, read_bytes

SCHEMA_VERSION = 1
#: The op of the ladder's tables, with one winner for each rung; ``matmul`` never reads them.
LADDER = "ladder"

#: Header fields that identify a table; they must agree in a merge.
IDENTITY = ("device", "arch", "op", "dtype_a", "dtype_b", "dtype_out", "precision", "layout",
            *MODIFIERS)
#: Header fields that a row overrides where it differs.
PROVENANCE = ("space_hash", "torch", "triton")
_KEY = ("batch", "m", "n", "k", "align_a", "align_b", "align_c", "epilogue")
_HEADER = ("schema_version", *(name for name in IDENTITY if name not in MODIFIERS), *PROVENANCE)
#: Of a row too; absent in tables from before it was kept.
_VS_TORCH = "vs_torch"
#: Of a row alone, where it is known.
_MADE_WITH = ("driver", "kernel_revision")
_ROW = (*_KEY, "kernel", "config", "time_us", "margin_vs_second", "run_id")

Key = tuple  # of TunedRow.key, with the kernel behind it in a ladder's table


@dataclass(frozen=True)
class TableHeader:
    """Identifies a table, and states what its most recently published rows were made with.

    Attributes:
        device: slug; arch: compute capability, e.g. 90.
        op: as :attr:`GemmProblem.op`, or ``ladder``.
        dtype_a, dtype_b, dtype_out, precision, layout, scale_a, scale_b, grouping: as in
            :class:`GemmProblem`.
        space_hash: of the space(s) swept; torch, triton: versions.
    """

    device: str
    arch: int
    op: str
    dtype_a: str
    dtype_b: str
    dtype_out: str
    precision: str
    layout: str
    space_hash: str
    torch: str
    triton: str
    schema_version: int = SCHEMA_VERSION
    scale_a: str = "none"
    scale_b: str = "none"
    grouping: str = "none"

    @classmethod
    def of(cls, problem: GemmProblem, *, device: str, arch: int, space_hash: str, torch: str,
           triton: str, op: str | None = None) -> TableHeader:
        """The header of the table that ``problem`` belongs to."""
        return cls(device, arch, op or problem.op, problem.dtype_a, problem.dtype_b,
                   problem.dtype_out, problem.precision, problem.layout, space_hash, torch,
                   triton, **modifiers(problem))


@dataclass(frozen=True)
class TunedRow:
    """The best configuration of one problem.

    Attributes:
        batch, m, n, k, align_a, align_b, align_c, epilogue: the problem, beyond the header.
        config: the winner.
        time_us: its time by the full protocol, microseconds.
        margin_vs_second: time of the second best over ``time_us``, minus 1; None: only one ran.
        run_id: of the sweep that measured it.
        space_hash, torch, triton: what it was made with; None: as the header says. Rows that were
            read or merged have them filled in.
        vs_torch: torch's time over ours, in the same rounds; None: not measured.
        driver, kernel_revision: what it was made with, too; None: not recorded.
    """

    batch: int
    m: int
    n: int
    k: int
    align_a: int
    align_b: int
    align_c: int
    epilogue: str
    config: KernelConfig
    time_us: float
    margin_vs_second: float | None
    run_id: str
    space_hash: str | None = None
    torch: str | None = None
    triton: str | None = None
    vs_torch: float | None = None
    driver: str | None = None
    kernel_revision: str | None = None

    @property
    def key(self) -> Key:
        """``(batch, m, n, k, align_a, align_b, align_c, epilogue)``; rows sort by it."""
        return (self.batch, self.m, self.n, self.k, self.align_a, self.align_b, self.align_c,
                self.epilogue)

    @classmethod
    def of(cls, problem: GemmProblem, config: KernelConfig, *, time_us: float,
           margin_vs_second: float | None, run_id: str, space_hash: str | None = None,
           torch: str | None = None, triton: str | None = None,
           vs_torch: float | None = None, driver: str | None = None,
           kernel_revision: str | None = None) -> TunedRow:
        """The row of ``problem`` with the winner ``config``."""
        return cls(*key_of(problem), config, time_us, margin_vs_second, run_id, space_hash,
                   torch, triton, vs_torch, driver, kernel_revision)

    def problem(self, header: TableHeader) -> GemmProblem:
        """The problem that this row answers in the table of ``header``."""
        return GemmProblem(self.m, self.n, self.k, self.batch, header.dtype_a, header.dtype_b,
                           header.dtype_out, header.layout, self.align_a, self.align_b,
                           self.align_c, self.epilogue, header.precision, header.scale_a,
                           header.scale_b, header.grouping)


def key_of(problem: GemmProblem) -> Key:
    """The :attr:`TunedRow.key` of a problem's row."""
    return (problem.batch, problem.m, problem.n, problem.k, problem.align_a, problem.align_b,
            problem.align_c, problem.epilogue)


@dataclass
class TunedTable:
    """A table: ``rows`` by :attr:`TunedRow.key` (in a ladder's, by key and kernel)."""

    header: TableHeader
    rows: Mapping[Key, TunedRow] = field(default_factory=dict)

    def key(self, row: TunedRow) -> Key:
        """The key of ``row`` in :attr:`rows`."""
        return (*row.key, row.config.kernel) if self.header.op == LADDER else row.key


@dataclass(frozen=True)
class MergeReport:
    """The result of a merge: rows added, rows replaced, and existing rows kept."""

    added: int
    replaced: int
    kept: int


def path_for(problem: GemmProblem, device: str, op: str | None = None,
             root: Path | None = None) -> Path:
    """The table below ``root`` that ``problem`` belongs to on the device with that slug:
    ``<root>/tuned/<device>/<op>-<dtype>-<precision>-<layout>.json``.

    ``<dtype>`` is A's, then ``x<dtype of B>`` and ``-<dtype of C>`` where they differ from it;
    scales and groups follow the layout. ``root`` is the folder that is written to,
    :func:`settings.config_root`, if not given.
    """
    words = (op or problem.op, problem.formats("-"), problem.precision, problem.layout,
             *problem.modifiers())
    return (root or settings.config_root()) / "tuned" / device / f"{'-'.join(words)}.json"


def layers_for(problem: GemmProblem, device: str, op: str | None = None
               ) -> list[tuple[Path, int, int]]:
    """(table, inode, time of its last change in ns) of each layer that has one for ``problem``,
    the one that wins first; see :func:`settings.config_roots`. One ``stat`` a layer."""
    found = []
    for root in settings.config_roots():
        path = path_for(problem, device, op, root)
        try:
            file = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # reading it says why
            found.append((path, 0, 0))
            continue
        found.append((path, file.st_ino, file.st_mtime_ns))
    return found


def read_table(path: str | os.PathLike[str], *, skipped: list[DataFileError] | None = None
               ) -> TunedTable:
    """Reads and validates a table; nothing in it is ever executed.

    Args:
        path: the table.
        skipped: where given, a row that cannot be used, such as one with a parameter of a newer
            version, is left out and its error appended here.

    Raises:
        DataFileError: naming the file, the row (1 is the first) and the field.
    """
    return _parsed(path, read_bytes(path, JSON_LIMIT), skipped)


def _parsed(path: str | os.PathLike[str], raw: bytes, skipped: list[DataFileError] | None
            ) -> TunedTable:
    top = Fields(path, parse_json(path, decode(path, raw)), what="table")
    top.only((*_HEADER, "rows"), MODIFIERS)
    table = TunedTable(_header(top))
    entries = top.values["rows"]
    if not isinstance(entries, list):
        raise top.error("rows", "is not a list")
    for number, entry in enumerate(entries, 1):
        try:
            row = _row(Fields(path, entry, number, what="row"), table.header)
            key = table.key(row)
            if key in table.rows:
                raise DataFileError(path, "is for the same problem as an earlier row; keep one",
                                    row=number)
        except DataFileError as error:
            if skipped is None:
                raise
            skipped.append(error)
            continue
        table.rows[key] = row
    return table


class _PreparedRows(Mapping[Key, TunedRow]):
    """The rows of a table that was read before, each made when it is asked for."""

    def __init__(self, path: object, made: prepared.Prepared, header: TableHeader) -> None:
        self._path, self._arrays, self._header = path, made.arrays, header
        self._numbers = {tuple(key): number for number, key in enumerate(made.head["keys"])}
        if len(self._numbers) != len(made.arrays["ends"]):
            raise ValueError("keys and rows of different numbers")

    def __getitem__(self, key: Key) -> TunedRow:
        number = self._numbers[key]
        values = json.loads(prepared.line(self._arrays, number))
        return _row(Fields(self._path, values, number + 1, what="row"), self._header)

    def __contains__(self, key: object) -> bool:
        return key in self._numbers

    def __iter__(self) -> Iterator[Key]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _prepared(table: TunedTable) -> prepared.Prepared:
    return prepared.Prepared(
        {"header": _head(table.header), "keys": [list(key) for key in table.rows]},
        prepared.lines_of(_dump(_values(row, table.header)) for row in table.rows.values()))


def _of_prepared(path: Path, made: prepared.Prepared) -> TunedTable | None:
    try:
        header = _header(Fields(path, made.head["header"], what="table"))
        return TunedTable(header, _PreparedRows(path, made, header))
    except (KeyError, TypeError, ValueError):  # DataFileError is one
        return None


def _read_usable(path: Path, skipped: list[DataFileError]) -> TunedTable:
    """As :func:`read_table`, by what was made of the same content before where that was kept."""
    raw = read_bytes(path, JSON_LIMIT)
    key = prepared.key_of("table", raw)
    made = None if key is None else prepared.load(key)
    table = None if made is None else _of_prepared(path, made)
    if table is None:
        table = _parsed(path, raw, skipped)
        if key is not None and not skipped:
            prepared.keep(key, _prepared(table))
    return table


def prepare(path: Path, folder: Path) -> None:
    """Keeps what is made of a table in ``folder``. Raises :class:`DataFileError`."""
    raw = read_bytes(path, JSON_LIMIT)
    if (key := prepared.key_of("table", raw)) is not None:
        prepared.keep(key, _prepared(_parsed(path, raw, None)), folder)


def check_place(path: Path, header: TableHeader, arch: int | None = None) -> None:
    """Checks that a table is in the folder of its device and has the name of what it is about, and
    that the device has the architecture ``arch``, where that is given.

    Raises:
        DataFileError: naming the field that does not fit.
    """
    about = GemmProblem(1, 1, 1, dtype_a=header.dtype_a, dtype_b=header.dtype_b,
                        dtype_out=header.dtype_out, layout=header.layout,
                        precision=header.precision, scale_a=header.scale_a,
                        scale_b=header.scale_b, grouping=header.grouping)
    wanted = path_for(about, header.device, header.op, Path())
    if wanted.parent.name != path.parent.name:
        raise DataFileError(path, f"is a table of {header.device} in the folder of "
                            f"{path.parent.name}; move it to {wanted.parent.name}/", field="device")
    if wanted.name != path.name:
        raise DataFileError(path, f"is about {wanted.stem}, which its name does not say; rename it "
                            f"to {wanted.name}")
    if arch is not None and header.arch != arch:
        raise DataFileError(path, f"{header.arch} is not the architecture of {header.device}, "
                            f"{arch}; measure again with `tritongemm sweep`", field="arch")


def read_layers(paths: Sequence[Path], arch: int) -> TunedTable | None:
    """One table of several that :func:`layers_for` found, for a device of architecture ``arch``: a
    row of an earlier path wins over that of a later one for the same problem. The header is the
    first's.

    A damaged or misplaced table and a row that cannot be used are left out, with one warning a
    file. None where no table is left.
    """
    def read(path: Path) -> TunedTable:
        skipped: list[DataFileError] = []
        table = _read_usable(path, skipped)
        check_place(path, table.header, arch)
        if skipped:
            rows = "the row is" if len(skipped) == 1 else f"{len(skipped)} rows are"
            leave_out(skipped[0], f"{rows} left out")
        return table

    found = [table for path in paths if (table := first_usable([path], read)) is not None]
    if not found:
        return None
    first, *others = found
    if not others:
        return first
    rows = {key: row for table in reversed(found) for key, row in table.rows.items()}
    return TunedTable(first.header, dict(sorted(rows.items())))


def _same_subject(path: object, ours: TableHeader, theirs: TableHeader) -> None:
    """Raises :class:`DataFileError` where the rows of ``theirs`` do not belong into the table at
    ``path`` with the header ``ours``."""
    for name in IDENTITY:
        if getattr(ours, name) != getattr(theirs, name):
            raise DataFileError(path, f"is a table of {getattr(ours, name)!r}, but the rows to "
                                f"merge are of {getattr(theirs, name)!r}", field=name)


def _header(top: Fields) -> TableHeader:
    top.version(SCHEMA_VERSION)
    values: dict[str, object] = {name: top.word(name) for name in _HEADER
                                 if name not in ("schema_version", "arch")}
    values.update((name, top.word(name)) for name in MODIFIERS if name in top.values)
    values["arch"] = top.integer("arch", 1, 10_000)
    header = TableHeader(**values)  # type: ignore[arg-type]
    about = {name: getattr(header, name)
             for name in ("dtype_a", "dtype_b", "dtype_out", "layout", "precision", *MODIFIERS)}
    asked: dict[str, str] = {}
    for name in about:  # one more field at a time, to find the invalid one
        asked[name] = about[name]
        try:
            GemmProblem(1, 1, 1, **asked)  # type: ignore[arg-type]
        except ProblemError as error:
            raise top.error(name, str(error)) from error
    return header


def _row(entry: Fields, header: TableHeader) -> TunedRow:
    entry.only(_ROW, (*PROVENANCE, _VS_TORCH, *_MADE_WITH))
    for name in ("align_a", "align_b", "align_c"):
        if entry.integer(name, 1, 16) not in (1, 2, 4, 8, 16):
            raise entry.error(name, f"{entry.values[name]} is not 1, 2, 4, 8 or 16")
    try:
        epilogue_of(epilogue := entry.word("epilogue"))
    except ProblemError as error:
        raise entry.error("epilogue", str(error)[:500]) from error
    try:
        config = KernelConfig.from_json(entry.word("kernel"),
                                        entry.values["config"])  # type: ignore[arg-type]
    except ConfigError as error:
        raise entry.error("config", str(error)[:500]) from error
    time_us = entry.number("time_us", 0.0)
    if time_us == 0.0:
        raise entry.error("time_us", "0 is not a measured time")
    margin = None
    if entry.values["margin_vs_second"] is not None:
        margin = entry.number("margin_vs_second")
    provenance = {name: entry.word(name) if name in entry.values else getattr(header, name)
                  for name in PROVENANCE}
    return TunedRow(
        entry.integer("batch", 1, MAX_EXTENT), *(entry.integer(n, 0, MAX_EXTENT) for n in "mnk"),
        *(entry.integer(f"align_{x}", 1, 16) for x in "abc"), epilogue, config,
        time_us, margin, entry.word("run_id"), **provenance,
        vs_torch=entry.number(_VS_TORCH, 1e-6) if _VS_TORCH in entry.values else None,
        **{name: entry.word(name) for name in _MADE_WITH if name in entry.values})


def _dump(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _values(row: TunedRow, header: TableHeader) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(row, name) for name in _KEY}
    values.update(kernel=row.config.kernel, config=row.config.to_json(), time_us=row.time_us,
                  margin_vs_second=row.margin_vs_second, run_id=row.run_id)
    values.update((name, getattr(row, name)) for name in PROVENANCE
                  if getattr(row, name) not in (None, getattr(header, name)))
    if row.vs_torch is not None:
        values[_VS_TORCH] = row.vs_torch
    values.update((name, getattr(row, name)) for name in _MADE_WITH
                  if getattr(row, name) is not None)
    return values


def _head(header: TableHeader) -> dict[str, object]:
    head = {name: getattr(header, name) for name in _HEADER}
    head.update((name, word) for name in MODIFIERS if (word := getattr(header, name)) != "none")
    return head


def write_table(path: str | os.PathLike[str], table: TunedTable) -> None:
    """Writes a table atomically, one row a line, sorted by :attr:`TunedRow.key`.

    Validates everything first, so that the file can always be read. To change an existing table use
    :func:`merge`, which holds the lock.

    Raises:
        DataFileError: a bad header or row, or not writable; the file is as it was.
    """
    head = _head(table.header)
    _header(Fields(path, head, what="header"))
    for row in table.rows.values():
        _row(Fields(path, _values(row, table.header), what="row"), table.header)
    rows = sorted(table.rows.values(), key=lambda row: (row.key, row.config.kernel))
    lines = [_dump(_values(row, table.header)) for row in rows]
    text = "{\n" + "".join(f"{_dump(name)}: {_dump(value)},\n" for name, value in head.items())
    text += '"rows": [\n' + ",\n".join(lines) + ("\n]\n}\n" if lines else "]\n}\n")
    atomic.write_atomic(path, text, follow_links=True)


def merge(path: str | os.PathLike[str], header: TableHeader, rows: Iterable[TunedRow],
          replace_row: Callable[[TunedRow, TunedRow], bool]) -> MergeReport:
    """Merges rows into the table at ``path`` (made if absent), under its lock, atomically.

    Args:
        path: the table.
        header: what the incoming rows are about and were made with.
        rows: the incoming rows.
        replace_row: ``replace_row(old, new)`` returns whether ``new`` replaces ``old`` for the same
            problem; both have their provenance set.

    The file's header becomes ``header`` if any row is added or replaced; older rows keep their own
    provenance.

    Raises:
        DataFileError: the table is bad or about something else, is locked for too long, or
            cannot be written; nothing is changed then.
    """
    path = Path(path)
    with atomic.locked(path):
        table = read_table(path) if path.exists() else TunedTable(header)
        _same_subject(path, table.header, header)
        added = replaced = kept = 0
        for row in rows:
            row = _filled(row, header)
            key = table.key(row)
            old = table.rows.get(key)
            if old is None:
                added += 1
            elif replace_row(old, row):
                replaced += 1
            else:
                kept += 1
                continue
            table.rows[key] = row
        if added or replaced:
            table.header = header
            write_table(path, table)
    return MergeReport(added, replaced, kept)


def _filled(row: TunedRow, header: TableHeader) -> TunedRow:
    absent: Mapping[str, object] = {name: getattr(header, name) for name in PROVENANCE
                                    if getattr(row, name) is None}
    return replace(row, **absent) if absent else row

"""Packed journals: the timings of many sweeps as compressed columns, in one file of NumPy arrays.

A packed journal keeps what tables and calibrations are made from: each run's header, the time of
every config that ran, and the winners. It drops failures, clocks, error ratios, registers and the
spread of a time. One file is a fifth of the size of the gzipped journals that it replaces, and
:func:`tritongemm.records.journal.read_journal` reads it as it reads those.

Distinct headers, problems and configs are stored once, as JSON. The other arrays are columns:

===================  =========================================================================
``headers``          UTF-8 bytes of a JSON list, a header each run; ``journal`` is its file's name
``problems``         UTF-8 bytes of a JSON list of distinct problems
``configs``          UTF-8 bytes of a JSON list of distinct configs
``result_counts``    results of each run
``result_problem``   of each result: index into ``problems``
``result_config``    index into ``configs``
``result_final``     1: of the final rounds; 0: of the coarse stage
``result_time_us``   microseconds
``result_utc``       when it was recorded, seconds since 1970; 0: not known
``winner_counts``    winners of each run; their columns are those of results without
                     ``result_final``, and ``winner_<field>`` of :data:`WINNER_FIELDS`
===================  =========================================================================
"""

from __future__ import annotations

import functools
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritongemm.errors import DataFileError
from tritongemm.records import atomic, reading

if TYPE_CHECKING:
    import numpy as np

#: Numbers of a winner beside its time; NaN stands for none.
WINNER_FIELDS = ("ratio_vs_torch", "ratio_low", "ratio_high", "margin_vs_second")
#: Bytes of all arrays together, unpacked; the largest file of ours has 9 MB.
LIMIT = 256 << 20
#: First bytes of a zip archive, which an ``.npz`` is.
_MAGIC = b"PK\x03\x04"
#: The time of a record in a journal.
_UTC = "%Y-%m-%dT%H:%M:%SZ"
#: Of a header, what the winners of its run repeat.
_PROVENANCE = ("device", "arch", "space_hash", "environment")
_VERSIONS = ("torch", "triton", "cuda", "driver")
_STAGES = ("coarse", "final")


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a zip archive, by its first bytes. Raises :class:`DataFileError`."""
    with reading.open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


# --- writing ------------------------------------------------------------------------------------


class _Table:
    """Distinct JSON values and the index of each."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, value: object) -> int:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        return self._index.setdefault(text, len(self._index))

    def array(self) -> np.ndarray:
        return _bytes(f"[{','.join(self._index)}]")


def _bytes(text: str) -> np.ndarray:
    import numpy as np

    return np.frombuffer(text.encode(), dtype=np.uint8)


def pack(path: str | os.PathLike[str],
         journals: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]) -> None:
    """Packs journals into one file.

    Args:
        path: the file to write, by convention ``.npz``; replaced in one step.
        journals: (name, records) of each, as ``read_journal`` yields them; the order is kept. A
            packed journal's runs keep the name that they have.

    Raises:
        DataFileError: a journal that cannot be read; a record before the first header, or of
            another run than the header before it; not writable.
    """
    import numpy as np

    headers: list[Mapping[str, Any]] = []
    problems, configs = _Table(), _Table()
    columns: dict[str, list[Any]] = {name: [] for name in (
        "result_counts", "result_problem", "result_config", "result_final", "result_time_us",
        "result_utc", "winner_counts", "winner_problem", "winner_config", "winner_time_us",
        "winner_utc",
        *(f"winner_{name}" for name in WINNER_FIELDS))}
    for name, records in journals:
        run = ""
        for record in records:
            kind = record["kind"]
            if kind == "header":
                run = record["run_id"]
                headers.append({"journal": name, **record})
                columns["result_counts"].append(0)
                columns["winner_counts"].append(0)
                continue
            timed = kind == "result" and record["status"] == "ok" and record.get("time_us")
            if not timed and kind != "winner":
                continue
            if record["run_id"] != run:
                raise DataFileError(name, f"a record of run {record['run_id']!r:.80} follows the "
                                    f"header of {run!r:.80}", field="run_id")
            columns[f"{kind}_counts"][-1] += 1
            columns[f"{kind}_problem"].append(problems.index(record["problem"]))
            columns[f"{kind}_config"].append(configs.index(record["config"]))
            columns[f"{kind}_time_us"].append(record["time_us"])
            columns[f"{kind}_utc"].append(_seconds(record.get("utc")))
            if kind == "result":
                columns["result_final"].append(_STAGES.index(record["stage"]))
                continue
            for field in WINNER_FIELDS:
                value = record.get(field)
                columns[f"winner_{field}"].append(math.nan if value is None else value)
    arrays = {"headers": _bytes(json.dumps(headers, separators=(",", ":"))),
              "problems": problems.array(), "configs": configs.array()}
    for column, values in columns.items():
        if column == "result_final":
            arrays[column] = np.array(values, np.uint8)
        else:
            whole = column.endswith(("_counts", "_problem", "_config", "_utc"))
            arrays[column] = np.array(values, np.uint32 if whole else np.float64)
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_LZMA) as archive:
        for column, array in arrays.items():
            one = io.BytesIO()
            np.lib.format.write_array(one, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{column}.npy"), one.getvalue(), zipfile.ZIP_LZMA)
    atomic.write_atomic(path, raw.getvalue())


def _seconds(utc: object) -> int:
    """``2026-11-21T05:23:00Z`` as seconds since 1970; 0 for anything else."""
    try:
        return int(datetime.strptime(utc, _UTC).replace(  # type: ignore[arg-type]
            tzinfo=timezone.utc).timestamp())
    except (TypeError, ValueError):
        return 0


# --- reading ------------------------------------------------------------------------------------


def unpack(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of a packed journal, run by run: its header, its results, its winners.

    Results and winners of one problem or config share its object.

    Raises:
        DataFileError: the file is damaged, larger than :data:`LIMIT`, or its columns do not fit
            together.
    """
    path = Path(path)
    arrays = _arrays(path)
    headers, problems, configs = (_objects(path, arrays, name)
                                  for name in ("headers", "problems", "configs"))
    results = _columns(path, arrays, "result", ("final", "time_us", "utc"), problems, configs,
                       headers)
    winners = _columns(path, arrays, "winner", ("time_us", "utc", *WINNER_FIELDS), problems,
                       configs, headers)
    for header, some, best in zip(headers, results, winners, strict=True):
        yield header
        run = {"run_id": header.get("run_id")}
        for problem, config, final, time_us, utc in zip(*some, strict=True):
            yield {"kind": "result", "problem": problems[problem], "config": configs[config],
                   "stage": _STAGES[final != 0], "status": "ok", "time_us": time_us, **run,
                   **_when(utc)}
        versions = header.get("versions")
        known = versions if isinstance(versions, dict) else {}
        provenance = {**{name: header.get(name) for name in _PROVENANCE},
                      **{name: known.get(name) for name in _VERSIONS}}
        for problem, config, time_us, utc, *others in zip(*best, strict=True):
            numbers = {name: None if math.isnan(value) else value
                       for name, value in zip(WINNER_FIELDS, others, strict=True)}
            yield {"kind": "winner", "problem": problems[problem], "config": configs[config],
                   "time_us": time_us, **numbers, **provenance, **run, **_when(utc)}


@functools.lru_cache(maxsize=64)
def _when(seconds: int) -> dict[str, str]:
    """The field ``utc`` of a record; empty for 0 and for a time that no record has."""
    if not 0 < seconds < 1 << 32:
        return {}
    return {"utc": f"{datetime.fromtimestamp(seconds, timezone.utc):{_UTC}}"}


def _arrays(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    found = {}
    with reading.open_regular(path, LIMIT) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                size = sum(member.file_size for member in members)
                if size > LIMIT:
                    raise DataFileError(path, f"unpacks to {size} bytes; at most {LIMIT} are read")
                for member in members:
                    with archive.open(member) as packed:
                        raw = packed.read(member.file_size + 1)
                    found[member.filename.removesuffix(".npy")] = _array(path, member.filename,
                                                                         raw, np)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
                _lzma_error()) as error:
            raise DataFileError(path, f"is a zip archive, and damaged: {error}") from error
    return found


def _lzma_error() -> type[Exception]:
    import lzma

    return lzma.LZMAError


def _array(path: Path, name: str, raw: bytes, np: Any) -> np.ndarray:
    """An array of one dimension from the bytes of an ``.npy`` file, without pickle."""
    file = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of the format is not known")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise DataFileError(path, f"is no array: {error}", field=name) from error
    data = raw[file.tell():]
    if dtype.hasobject or dtype.kind not in "uf" or len(shape) != 1 or (
            shape[0] * dtype.itemsize != len(data)):
        raise DataFileError(path, f"is no column of numbers: {dtype}, {shape}, {len(data)} bytes",
                            field=name)
    return np.frombuffer(data, dtype)


def _named(path: Path, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise DataFileError(path, "is missing; this is not a packed journal", field=name)
    return arrays[name]


def _objects(path: Path, arrays: Mapping[str, np.ndarray], name: str) -> list[dict[str, Any]]:
    text = reading.decode(path, _named(path, arrays, name).tobytes())
    values = reading.parse_json(path, text)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise DataFileError(path, "is not a list of objects", field=name)
    return values


def _columns(path: Path, arrays: Mapping[str, np.ndarray], kind: str, others: tuple[str, ...],
             problems: list[Any], configs: list[Any], headers: list[Any]
             ) -> Iterator[list[list[Any]]]:
    """The columns of results or winners, run by run."""
    limits = {f"{kind}_problem": len(problems), f"{kind}_config": len(configs)}
    columns = {name: _named(path, arrays, name)
               for name in (*limits, *(f"{kind}_{other}" for other in others))}
    counts = _named(path, arrays, f"{kind}_counts").tolist()
    rows = sum(int(count) for count in counts)
    if len(counts) != len(headers):
        raise DataFileError(path, f"has {len(counts)} runs; there are {len(headers)} headers",
                            field=f"{kind}_counts")
    for name, values in columns.items():
        if len(values) != rows:
            raise DataFileError(path, f"has {len(values)} values; the runs have {rows}", field=name)
        limit = limits.get(name)
        if limit is not None and (values.dtype.kind != "u" or (rows and values.max() >= limit)):
            raise DataFileError(path, f"holds an index beyond {limit}", field=name)
    return _by_run(columns, counts)


def _by_run(columns: Mapping[str, np.ndarray], counts: list[int]) -> Iterator[list[list[Any]]]:
    begin = 0
    for count in counts:
        yield [values[begin:begin + count].tolist() for values in columns.values()]
        begin += count

"""The algorithms that the accuracy study compares, and the rows of its CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tritongemm.errors import DataFileError
from tritongemm.records.atomic import write_atomic
from tritongemm.records.reading import SMALL_LIMIT, csv_records


@dataclass(frozen=True)
class Algorithm:
    """What multiplies.

    Attributes:
        how: one line.
        precision: of the problem; of torch's products torch's setting.
        kernel: the kernel that runs, with its default config; empty: selection chooses.
        torch: torch multiplies.
    """

    how: str
    precision: str
    kernel: str = ""
    torch: bool = False


#: By name. The first is the reference for the others.
ALGORITHMS = {
    "sgemm": Algorithm("torch's float32 product (cuBLAS SGEMM), TF32 off", "ieee", torch=True),
    "cublas_tf32": Algorithm("torch's TF32 product", "tf32", torch=True),
    "ieee": Algorithm("the kernel that selection takes at the setting ieee", "ieee"),
    "split": Algorithm("the kernel that selection takes at the setting split", "fp16x3"),
    "tf32": Algorithm("the kernel that selection takes under TF32", "tf32"),
    "split_product": Algorithm("three fp16 products of split operands", "fp16x3",
                               kernel="split_product"),
    "tiled_bf16x6": Algorithm("six bf16 products of split operands", "fp16x3",
                              kernel="tiled_bf16x6"),
    "simt": Algorithm("float32 multiply-adds on CUDA cores", "ieee", kernel="simt"),
}
#: Names in the CSVs of earlier releases.
_RENAMED = {"fp16x3": "split"}
#: How the status begins where a kernel that was named has no config for a product.
NO_CONFIG = "no legal config"


@dataclass(frozen=True)
class Row:
    """One line of the CSV.

    Attributes:
        flagged: of split products: rows of A and columns of B whose range exceeds that of the fp16
            parts; the guard computes them. 0 for other algorithms.
        max_error, norm_error: see ``accuracy.py``; NaN where ``status`` is not ``ok``.
        stray: elements that are NaN or infinite where the reference is not, or the reverse.
        status: ``ok``, or the reason why there is no result.
    """

    device: str
    distribution: str
    layout: str
    m: int
    n: int
    k: int
    seed: int
    algorithm: str
    config_id: str
    flagged: int
    max_error: float
    norm_error: float
    stray: int
    status: str

    @property
    def failed(self) -> bool:
        """Whether a result is missing that there should be, or has stray elements."""
        missing = self.status != "ok" and not self.status.startswith(NO_CONFIG)
        return missing or self.stray > 0


_TYPES = {"int": int, "float": float, "str": str}


def write_csv(path: str | Path, rows: Sequence[Row]) -> Path:
    """Writes ``rows``, replacing the file. Raises ``DataFileError`` where it cannot be written."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f.name for f in fields(Row)])
    for row in rows:
        writer.writerow([f"{x:.4g}" if isinstance(x, float) else x for x in asdict(row).values()])
    write_atomic(path, text.getvalue(), follow_links=True)
    return Path(path)


def read_csv(path: str | Path) -> list[Row]:
    """The rows of a CSV of :func:`write_csv`, of an earlier release too.

    Raises:
        DataFileError: unreadable, other columns, or a value of another type.
    """
    records, rows = csv_records(path, SMALL_LIMIT), []
    names = [f.name for f in fields(Row)]
    _, header = next(records, (1, []))
    if header != names:
        raise DataFileError(path, f"has the columns {', '.join(header)[:200]}; an accuracy CSV has "
                                  f"{', '.join(names)}", row=1)
    for line, values in records:
        if len(values) != len(names):
            raise DataFileError(path, f"has {len(values)} values; a row has {len(names)}", row=line)
        found = {}
        for field, value in zip(fields(Row), values):
            try:
                found[field.name] = _TYPES[str(field.type)](value)
            except ValueError as error:
                raise DataFileError(path, f"{value[:80]!r} is not a number", row=line,
                                    field=field.name) from error
        found["algorithm"] = _RENAMED.get(found["algorithm"], found["algorithm"])
        rows.append(Row(**found))
    return rows

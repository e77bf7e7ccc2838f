"""Markdown tables, and writing them between markers of a file that is also edited by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from tritongemm.errors import DataFileError, UsageError, printable
from tritongemm.records.atomic import write_atomic
from tritongemm.records.reading import read_bytes
from tritongemm.report import tables
from tritongemm.report.load import Results

#: Section -> its table.
TABLES: dict[str, Callable[[Results], tables.Table]] = {
    "summary": tables.summary_table,
    "correctness": tables.correctness_table,
    "slowest": tables.slowest_table,
    "failures": tables.failures_table,
    "energy": tables.energy_table,
    "rivals": tables.rivals_table,
    "control": tables.control_table,
    "sources": tables.sources_table,
    "runs": tables.runs_table,
    "environment": tables.environment_table,
}
#: Values of ``--section``; ``facts`` are the lines of context.
SECTIONS = (*TABLES, "facts")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LARGEST = 16 * 1024 * 1024


def default_sections(results: Results) -> tuple[str, ...]:
    """The summary and the facts; correctness too where nothing was timed."""
    timed = bool(results.headline["time_us_p50"].notna().any())
    return ("summary", "facts") if timed else ("summary", "correctness", "facts")


def table(shown: tables.Table) -> str:
    """One GitHub-flavoured table. Text from a CSV is escaped."""
    lines = [_line(shown.heads),
             "|" + "|".join("---:" if right else "---" for right in shown.numeric) + "|"]
    lines += [_line(row) for row in shown.cells]
    return "\n".join(lines)


def section(results: Results, name: str, *, heading: bool = True) -> str:
    """A section's Markdown: heading, table, note. Empty if the table is empty.

    Raises:
        UsageError: an unknown section.
    """
    if name == "facts":
        return "\n".join(f"- {_escape(line)}" for line in tables.facts(results))
    if name not in TABLES:
        raise UsageError(f"section {name!r} is not known; use one of {', '.join(SECTIONS)}")
    shown = TABLES[name](results)
    if not shown.cells:
        return _escape(shown.note)
    parts = [f"### {shown.title}" if heading else "", table(shown), _escape(shown.note)]
    return "\n\n".join(part for part in parts if part)


def document(results: Results, *, sections: Sequence[str] = (),
             images: Sequence[tuple[str, str]] = (), heading: bool = False) -> str:
    """The Markdown of a report: warnings first, then ``sections`` (see :func:`default_sections`),
    then ``images``, pairs of caption and relative path."""
    sections = sections or default_sections(results)
    parts = [f"**{_escape(line)}**" for line in tables.alarms(results)]
    if results.headline.empty:
        parts.append("No rows to report.")
    else:
        parts += [section(results, name, heading=heading) for name in sections]
    parts += [f"![{_escape(caption)}]({quote(path)})" for caption, path in images]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_between(path: str | Path, name: str, text: str) -> bool:
    """Replaces the text between ``<!-- tritongemm:NAME -->`` and ``<!-- /tritongemm:NAME -->``.

    The rest of the file does not change, line endings included. The write is atomic.

    Returns:
        Whether the file changed.

    Raises:
        UsageError: a name that a marker cannot hold.
        DataFileError: the file cannot be read or written, is not UTF-8, or does not hold exactly
            one such pair of markers in this order; the message names the markers it has.
    """
    path = Path(path)
    if not _NAME.fullmatch(name):
        raise UsageError(f"marker {name!r} is not a name; use letters, digits, '.', '_' and '-'")
    try:
        before = read_bytes(path, _LARGEST).decode("utf-8")  # with its byte-order mark, if any
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 at byte {error.start}") from error
    first, last = f"<!-- tritongemm:{name} -->", f"<!-- /tritongemm:{name} -->"
    begins, ends = before.count(first), before.count(last)
    if begins != 1 or ends != 1:
        known = sorted(set(re.findall(r"<!-- tritongemm:(\S+) -->", before)))
        has = f"; it has markers for {', '.join(known)}" if known else ""
        raise DataFileError(path, f"must hold {first} and {last} once each, each on a line of its "
                                  f"own; found {begins} and {ends}{has}")
    start, stop = before.index(first) + len(first), before.index(last)
    if stop < start:
        raise DataFileError(path, f"{last} stands before {first}")
    end = "\r\n" if "\r\n" in before else "\n"
    body = end.join(text.strip("\n").splitlines())
    after = f"{before[:start]}{end}{body}{end}{before[stop:]}"
    if after == before:
        return False
    write_atomic(path, after.encode("utf-8"), follow_links=True)
    return True


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    text = printable(" ".join(text.split()))
    for mark in ("\\", "|", "`", "*", "[", "]"):
        text = text.replace(mark, "\\" + mark)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

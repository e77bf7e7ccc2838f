"""``tritongemm compare OLD NEW``: a verdict for each row, and an exit status for CI."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tritongemm.cli.options import add_count, add_number
from tritongemm.errors import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("old", type=Path, metavar="OLD", help="a CSV, or a folder of them")
    parser.add_argument("new", type=Path, metavar="NEW", help="a CSV, or a folder of them")
    parser.add_argument("--by", choices=("ratio", "time"), default="ratio",
                        help="ratio: to torch, paired within each run (default); "
                             "time: the medians, torch's own included")
    add_number(parser, "--tolerance", lambda value: 0 <= value < 1,
               "is outside 0 to 1 (0.01 is one per cent)",
               help="changes up to X are the same (default 0.01: one per cent)")
    parser.add_argument("--provider", default="", metavar="NAMES",
                        help="only these providers, a comma list")
    parser.add_argument("--all", action="store_true",
                        help="list every row (default: SLOWER, BROKEN, MISSING, FASTER)")
    add_count(parser, "--limit", least=0, default=40,
              help="list at most N rows of each verdict (default 40)")
    parser.epilog = ("exit status: 0 nothing SLOWER or BROKEN, 1 something is, 2 unusable input "
                     "or nothing in common")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 if a row is SLOWER or BROKEN. Raises :class:`TritonGemmError`."""
    from tritongemm.report import compare, style
    from tritongemm.report.load import load

    tolerance = compare.TOLERANCE if args.tolerance is None else args.tolerance
    old, new = (load([path], columns=compare.COLUMNS) for path in (args.old, args.new))
    for name, results in (("OLD", old), ("NEW", new)):
        for run_id, reason in results.void_runs.items():
            print(printable(f"!! {name}: run {run_id} is VOID and left out: {reason}"))
        if results.skipped:
            print(printable(f"{name}: skipped, no rows of a bench: "
                            f"{', '.join(path.name for path in results.skipped)}"))
    if args.provider:
        names = [name.strip() for name in args.provider.split(",")]
        old, new = old.only(names), new.only(names)
    result = compare.compare(old, new, by=args.by, tolerance=tolerance)
    counts = result.counts
    listed = [v for v in compare.VERDICTS if counts[v]] if args.all else [
        v for v in (compare.BROKEN, compare.SLOWER, compare.MISSING, compare.FASTER) if counts[v]]
    for verdict in listed:
        _print(verdict, result.worst(verdict, args.limit), counts[verdict])
    mean, compared = result.mean_change()
    words = ", ".join(f"{counts[v]} {v}" for v in compare.VERDICTS if counts[v])
    print(f"{style.plural(len(result.table), 'row')}: {words}")
    if compared:
        print(f"geometric mean of new speed / old speed over {style.plural(compared, 'row')}: "
              f"{style.ratio(mean)} (above 1 is faster; tolerance {tolerance:.1%})")
    if counts[compare.MISSING]:
        print(f"{style.plural(counts[compare.MISSING], 'row')} of OLD not in NEW: "
              "not counted as worse")
    return result.exit_status


def _print(verdict: str, changes: Sequence, count: int) -> None:
    from tritongemm.report import compare, style

    print(f"{verdict}: {compare.VERDICTS[verdict]}")
    for change in changes:
        row = change.row
        name = " ".join(part for part in (row["suite"], row["problem"], row["dtype"],
                                          row["layout"], row["provider"]) if part)
        if change.by:
            unit = " us" if change.by == "time" else ""
            text = (f"{style.ratio(change.change)} ({style.ratio(change.low)} to "
                    f"{style.ratio(change.high)})  {change.by} {style.number(change.old, 3)} -> "
                    f"{style.number(change.new, 3)}{unit}")
        else:
            text = style.shorten(change.reason, 120)
        print(printable(f"  {name:<58} {text}".rstrip()))
    if count > len(changes):
        print(f"  ... and {count - len(changes)} more (--limit)")

"""``tritongemm report``: prints or writes tables, draws plots and writes one HTML page."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tritongemm.cli.options import only_with
from tritongemm.cli.outputs import check_folder
from tritongemm.cli.waiting import Waiting
from tritongemm.errors import MissingDependencyError, UsageError, printable

_HEATMAPS, _TITLE = 6, "tritongemm report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("csv", nargs="*", type=Path, metavar="CSV",
                        help="CSVs that bench wrote, or folders of them; runs.json is read from "
                             "each CSV's folder")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="write report.html, summary.md and PNG plots here")
    parser.add_argument("--markdown", type=Path, metavar="FILE",
                        help="write the tables into FILE, between <!-- tritongemm:NAME --> and "
                             "<!-- /tritongemm:NAME -->")
    parser.add_argument("--marker", metavar="NAME", help="the NAME of the markers in FILE")
    parser.add_argument("--section", metavar="NAMES",
                        help="what to write into FILE or print, a comma list of summary, facts, "
                             "correctness, slowest, failures, energy, rivals, control, sources, "
                             "runs, environment (default: summary,facts, and correctness where "
                             "nothing was timed)")
    parser.add_argument("--plot", action="append", default=[], metavar="NAME",
                        help="with --markdown and --out: also show the plot NAME.png of DIR "
                             "(e.g. overview) between the markers; may be given again")
    parser.add_argument("--journal", action="append", type=Path, default=[], metavar="J",
                        help="a sweep's journal, for heat maps over block sizes; may be given "
                             "again, and without any CSV")
    parser.add_argument("--heatmaps", type=int, metavar="N",
                        help="with --out: draw the heat maps of at most N problems, spread by size "
                             f"(default {_HEATMAPS})")
    parser.add_argument("--tag", default="", help="only rows that carry this tag")
    parser.add_argument("--all-runs", action="store_true",
                        help="count every run's row, not only the newest of each problem and "
                             "provider")
    parser.add_argument("--title", help=f"with --out: the page's title (default {_TITLE!r})")


def run(args: argparse.Namespace) -> int:
    """Returns 0. Raises :class:`TritonGemmError` for unusable input."""
    _check(args)
    if args.out is not None:
        check_folder(args.out)
    if args.out is None:
        return _report(args, None)
    waiting = Waiting("reading the rows, drawing the plots")
    waiting.start()
    try:
        return _report(args, waiting)
    finally:
        waiting.stop()


def _report(args: argparse.Namespace, waiting: Waiting | None) -> int:
    """The same; ``waiting`` ends when the page and the plots are written."""
    from tritongemm.report import heat, load, markdown, tables

    results = (load.load(args.csv, all_runs=args.all_runs, tag=args.tag) if args.csv
               else load.nothing())
    sections = _sections(args) or markdown.default_sections(results)
    maps = heat.read_maps(args.journal)
    plots: list[tuple[str, Path]] = []
    if args.out is not None:
        plots = _write(args, results, maps, waiting)
    if args.markdown is not None:
        text = markdown.document(results, sections=sections,
                                 images=_images(args, plots))
        changed = markdown.write_between(args.markdown, args.marker, text)
        print(f"{args.markdown}: {'written' if changed else 'unchanged'} between the markers "
              f"{args.marker}")
    if args.markdown is None and args.csv:
        for line in tables.alarms(results):
            print(printable(f"!! {line}"))
        print(printable("\n\n".join(_terminal(results, name) for name in sections)))
    elif args.markdown is None and args.out is None:
        print(f"{len(maps)} problems in the journals; --out DIR draws their heat maps")
    return 0


def _check(args: argparse.Namespace) -> None:
    from tritongemm.report import markdown

    if not args.csv and not args.journal:
        raise UsageError("name at least one CSV that `tritongemm bench` wrote, or a --journal")
    if (args.markdown is None) != (args.marker is None):
        raise UsageError("--markdown FILE and --marker NAME go together")
    if args.markdown is not None and not args.csv:
        raise UsageError("--markdown writes tables of a CSV; name one")
    if args.plot and (args.out is None or args.markdown is None):
        raise UsageError("--plot needs --out DIR, where the plot is, and --markdown FILE")
    if args.out is None:
        only_with("--out", {"--title": args.title, "--heatmaps": args.heatmaps})
    if not args.csv:
        only_with("a CSV", {"--tag": args.tag or None, "--all-runs": args.all_runs,
                            "--section": args.section})
    if args.heatmaps is not None and args.heatmaps < 0:
        raise UsageError(f"--heatmaps {args.heatmaps} is negative")
    unknown = [name for name in _sections(args) if name not in markdown.SECTIONS]
    if unknown or (args.section is not None and not _sections(args)):
        raise UsageError(f"section {', '.join(unknown) or '(none)'} is not known; use some of "
                         f"{', '.join(markdown.SECTIONS)}")


def _sections(args: argparse.Namespace) -> list[str]:
    return [name.strip() for name in (args.section or "").split(",") if name.strip()]


def _write(args: argparse.Namespace, results, maps, waiting: Waiting | None
           ) -> list[tuple[str, Path]]:
    from tritongemm.records.atomic import write_atomic
    from tritongemm.report import heat, markdown, page, plots

    chosen = heat.spread(maps, _HEATMAPS if args.heatmaps is None else args.heatmaps)
    title = args.title or _TITLE
    try:
        drawn, missing = plots.write_plots(results, args.out, maps=chosen, mean_of=maps), ""
    except MissingDependencyError as error:  # the page and the tables do not need matplotlib
        drawn, missing = [], f"no PNG plots: {error}"
    every = heat.spread(maps, page.MAX_MAPS)
    html = page.write_page(args.out / "report.html", results, title=title, maps=every,
                           mean_of=maps)
    images = [(caption, path.name) for caption, path in drawn]
    text = markdown.document(results, sections=markdown.SECTIONS, images=images, heading=True)
    write_atomic(args.out / "summary.md", f"# {' '.join(title.split())}\n\n{text}")
    if waiting is not None:
        waiting.stop()
    if missing:
        print(missing)
    print(f"wrote {html}, {args.out / 'summary.md'} and {len(drawn)} plots:")
    for caption, path in drawn:
        print(printable(f"  {path.name:<44} {caption}"))
    if len(maps) > len(chosen):
        print(f"  ({len(chosen)} of {len(maps)} problems have a heat map of their own; "
              "--heatmaps N draws more)")
    return drawn


def _images(args: argparse.Namespace, drawn: Sequence[tuple[str, Path]]) -> list[tuple[str, str]]:
    by_name = {path.stem: (caption, path) for caption, path in drawn}
    images = []
    for name in args.plot:
        if name not in by_name:
            raise UsageError(f"--plot {name}: no such plot was drawn; there are "
                             f"{', '.join(by_name) or 'none'}")
        caption, path = by_name[name]
        here = args.markdown.resolve().parent
        images.append((caption, Path(os.path.relpath(path.resolve(), here)).as_posix()))
    return images


def _terminal(results, name: str) -> str:
    from tritongemm.report import markdown, tables

    if name == "facts":
        return "\n".join(tables.facts(results))
    shown = markdown.TABLES[name](results)
    if not shown.cells:
        return f"{shown.title}: nothing to show." + (f" {shown.note}" if shown.note else "")
    return tables.plain(shown)

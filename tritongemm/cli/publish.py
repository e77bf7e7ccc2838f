"""``tritongemm publish``: merges the winners of journals into the tuned tables."""

from __future__ import annotations

import argparse

_KEPT_SHOWN = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="+", metavar="JOURNAL",
                        help="journals that `tritongemm sweep` wrote")
    parser.add_argument("--force", action="store_true",
                        help="replace rows by slower ones and by those of older versions too")
    parser.add_argument("--to", metavar="DIR",
                        help="write DIR/tuned (default: TRITONGEMM_CONFIG_DIR, else configs/ of a "
                             "checkout, else your own folder; `tritongemm doctor` names it)")


def run(args: argparse.Namespace) -> int:
    """Publishes. Returns 0, or 1 if the journals have no winner."""
    from tritongemm.tuning.publish import publish

    report = publish(args.journals, force=args.force, to=args.to)
    if report.winners == 0:
        print("no winner in these journals: a problem has one once its finalists were measured")
        return 1
    for path, (added, replaced, kept) in sorted(report.tables.items()):
        print(f"{path}: {added} added, {replaced} replaced, {kept} kept")
    for one in report.kept[:_KEPT_SHOWN]:
        print(f"  kept {one.problem}: {one.row.config.config_id} {one.row.time_us:g} us "
              f"(run {one.row.run_id}); {one.reason}")
    if len(report.kept) > _KEPT_SHOWN:
        print(f"  and {len(report.kept) - _KEPT_SHOWN} more rows kept")
    return 0

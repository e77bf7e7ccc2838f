"""``tritongemm tables``: tuned tables and rows by age and origin, and which rows are stale."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from tritongemm.cli.where import add_device_name

if TYPE_CHECKING:
    from tritongemm.tuning.stale import Listed, Present


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    add_device_name(parser, "only the tables of this device, e.g. nvidia-h200 (default: all)")
    parser.add_argument("--rows", action="store_true", help="list every row, the oldest first")
    parser.add_argument("--stale", action="store_true",
                        help="list only stale rows: made with another Triton, driver or kernel "
                             "revision than is here now")


def run(args: argparse.Namespace) -> int:
    """Lists; 1 where a table cannot be read."""
    from tritongemm.device import device_named
    from tritongemm.tuning.stale import listed, present

    slug = device_named(args.device_name).slug if args.device_name else None
    now, at = present(), datetime.now(timezone.utc)
    print(f"here: Triton {now.triton or 'none'}, driver {now.driver or 'none'}")
    found = list(listed(slug))
    for one in found:
        _print_table(one, now, at, args.rows or args.stale, args.stale)
    if not found:
        print(f"no tuned table{' of ' + slug if slug else ''}")
    return 1 if any(one.table is None for one in found) else 0


def _print_table(one: Listed, now: Present, at: datetime, rows: bool, stale_only: bool) -> None:
    from tritongemm.tuning.stale import measured_at, stale_because

    name = f"{one.path.parent.name}/{one.path.name} ({one.origin})"
    if one.table is None:
        print(f"{name}: cannot be read: {one.error}")
        return
    header = one.table.header
    reasons = {key: stale_because(row, now) for key, row in one.table.rows.items()}
    count = Counter(reason for found in reasons.values() for reason in found)
    ages = [at - when for row in one.table.rows.values() if (when := measured_at(row)) is not None]
    text = f"{name}: {len(reasons)} row{'' if len(reasons) == 1 else 's'}"
    if ages:
        youngest, oldest = _age(min(ages)), _age(max(ages))
        text += f", {oldest} old" if youngest == oldest else f", {youngest} to {oldest} old"
    stale = sum(bool(found) for found in reasons.values())
    text += f", {stale} stale" if stale else ", none stale"
    if one.covered:
        text += f", {len(one.covered)} replaced by rows of an earlier origin"
    print(text)
    for reason, number in sorted(count.items()):
        print(f"  {number}: {reason}")
    if not rows:
        return
    for key, row in sorted(one.table.rows.items(), key=lambda item: item[1].run_id):
        if stale_only and not reasons[key]:
            continue
        when = measured_at(row)
        words = [_age(at - when) if when else "age not known", str(row.problem(header)),
                 row.config.config_id, f"{row.time_us:g} us"]
        if key in one.covered:
            words.append("does not serve: an earlier origin has this problem")
        print("  " + "  ".join([*words, "; ".join(reasons[key])]).rstrip())


def _age(age: object) -> str:
    """``3 d``, ``5 h`` or ``20 min``."""
    seconds = max(0.0, age.total_seconds())  # type: ignore[attr-defined]
    for unit, length in (("d", 86400), ("h", 3600)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 60:.0f} min"

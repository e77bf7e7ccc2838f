"""``python -m tests.faults [NAME ...]``: injects faults and prints what became of each.

Exit status 1 where one is not healed.
"""

from __future__ import annotations

import sys

from . import inject, load


def main(names: list[str]) -> int:
    """Prints the table."""
    faults = load()
    if unknown := [name for name in names if name not in faults]:
        print(f"unknown fault {', '.join(unknown)}; known: {', '.join(faults)}", file=sys.stderr)
        return 2
    print(f"{'fault':<28}{'healed':<8}{'lost':>5}{'s':>6}  what happened")
    left = 0
    for one, seen, seconds in inject(names or faults):
        left += not seen.healed
        print(f"{one.name:<28}{'yes' if seen.healed else 'no':<8}{seen.lost:>5}{seconds:>6.1f}  "
              f"{seen.what[:120]}", flush=True)
    return bool(left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

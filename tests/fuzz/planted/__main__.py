"""``python -m tests.fuzz.planted [WORD ...]``: plants each bug (those whose names hold a word) and
says whether the fuzzer found it within a minute. Exit status 1 where it did not."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import PLANTED, hunt


def main(words: list[str]) -> int:
    """Prints one row a bug."""
    missed = 0
    for bug in PLANTED:
        if words and not any(word in bug.name for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = hunt(bug, Path(folder))
        missed += found.verdict != "found"
        print(f"{found.verdict:<8}{found.seconds:>6.1f} s  {found.name:<52}{found.detail[:150]}",
              flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

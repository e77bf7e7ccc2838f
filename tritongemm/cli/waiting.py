"""Progress displays: a spinner or one line during start-up, and counts of what is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Waiting:
    """Shows ``text`` from :meth:`start` to :meth:`stop`: on a terminal with a spinner and the
    elapsed seconds, which :meth:`stop` removes; elsewhere as one line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._shown: Progress | None = None

    def start(self) -> None:
        """Shows the text."""
        if sys.stdout.isatty():
            try:
                from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
            except ImportError:
                pass  # the line says the same
            else:
                self._shown = Progress(SpinnerColumn(), TextColumn("{task.description}"),
                                       TimeElapsedColumn(), transient=True)
                self._shown.add_task(self._text)
                self._shown.start()
                return
        print(f"{self._text} ...", flush=True)

    def stop(self) -> None:
        """Ends the display; can be called more than once."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


def starting() -> Waiting:
    """The display for the seconds in which this process and the measuring one import torch and
    Triton."""
    return Waiting("starting: torch and Triton are imported, a measuring process begins")


def counting(what: str) -> Callable[[int, int], None]:
    """progress(done, total): shows the count on standard error, on a terminal in one line, which
    each call overwrites; elsewhere as a line for each tenth of the work."""
    terminal = sys.stderr.isatty()
    tenths = 0

    def progress(done: int, total: int) -> None:
        nonlocal tenths
        if terminal:
            print(f"\r{done} of {total} {what}", end="\n" if done == total else "",
                  file=sys.stderr, flush=True)
        elif 10 * done // total > tenths:
            tenths = 10 * done // total
            print(f"{done} of {total} {what}", file=sys.stderr, flush=True)
    return progress

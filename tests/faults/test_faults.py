"""The bench of faults: what is healed stays healed."""

from __future__ import annotations

import os
import time

import pytest

from faults import FAULTS, Fault, Seen, inject, load

load()
#: tests/tuning has each of these as a test of its own.
TESTED_ELSEWHERE = {
    "worker-exits", "worker-hangs", "context-lost", "launch-refused", "wrong-result", "no-memory",
    "compiler-dies", "compiler-refuses", "disk-full", "journal-torn", "journal-damaged",
}
#: Seconds; what is healed takes less.
LIMIT_S = 10.0


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in TESTED_ELSEWHERE])
def test_a_fault_is_healed_and_no_row_is_lost(name):
    ((_, seen, _),) = inject([name], LIMIT_S)
    assert seen.healed and seen.lost == 0, seen


def test_the_lists_name_faults_that_there_are():
    assert TESTED_ELSEWHERE <= FAULTS.keys()


def test_a_fault_that_hangs_or_ends_its_process_is_a_row(monkeypatch):
    for name, run in (("sleeps", lambda folder: time.sleep(60)),
                      ("dies", lambda folder: os._exit(3)),
                      ("raises", lambda folder: 1 / 0),
                      ("fine", lambda folder: Seen("ok", True))):
        monkeypatch.setitem(FAULTS, name, Fault(name, "", run))
    words = {fault.name: (seen.what, seen.healed) for fault, seen, _ in
             inject(("sleeps", "dies", "raises", "fine"), 0.5)}
    assert words["sleeps"] == ("hangs: no end after 0.5 s", False)
    assert words["dies"] == ("the process ended with 3", False)
    assert words["raises"][0].startswith("escaped: ZeroDivisionError") and not words["raises"][1]
    assert words["fine"] == ("ok", True)

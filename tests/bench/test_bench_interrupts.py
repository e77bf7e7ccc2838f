"""Ctrl-C and kill -9 of a bench: the rows before it are whole, no process stays, resume goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tritongemm import settings
from tritongemm.records.rows import read_rows

pytest.importorskip("torch")
#: Enough shapes that the bench is in the middle of them when it is ended.
WORDS = ["bench", "--m", "8:800:8", "--n", "24", "--k", "8", "--dtype", "fp32", "--device", "cpu",
         "--providers", "numpy_blocked", "--budget", "0.05", "--out", "host.csv"]


def until(condition, seconds: float = 120.0):
    """Waits for ``condition`` to hold; its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def children_of(pid: int) -> list[int]:
    """Processes that ``pid`` started, as Linux lists them."""
    folder = Path(f"/proc/{pid}/task")
    try:
        return [int(child) for task in folder.iterdir()
                for child in (task / "children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether a process still runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists processes by /proc")
@pytest.mark.parametrize("number", [
    signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.thorough)],
    ids=lambda s: s.name)
def test_a_bench_that_is_ended_leaves_whole_rows_and_no_process(tmp_path, number):
    # What a shell starts in the background ignores Ctrl-C, and so does all that it starts.
    process = subprocess.Popen([sys.executable, "-m", "tritongemm", *WORDS], cwd=tmp_path,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=settings.child_environment(PYTHONPATH=os.pathsep.join(sys.path)))
    out = tmp_path / "host.csv"
    until(lambda: process.poll() is not None or out.exists() and len(out.read_bytes()) > 4000)
    started = children_of(process.pid)
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == (130 if number == signal.SIGINT else -number), said
    assert started, "the measuring process was not seen"
    until(lambda: not any(map(alive, started)), 60)
    rows = list(read_rows(out))
    assert 3 <= len(rows) < 300 and {row["status"] for row in rows} == {"ok"}
    if number == signal.SIGINT:
        assert "Traceback" not in said and "--resume" in said

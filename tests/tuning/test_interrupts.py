"""The sweep itself killed, interrupted or ended: the journal is whole, nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest
from test_sweep import results

from tritongemm.records.codec import config_from_json
from tritongemm.records.journal import read_journal

HERE = Path(__file__).resolve().parent
CONFIGS = [fakes.config(n) for n in range(1, 13)]
PROBLEMS = [fakes.problem(16), fakes.problem(32)]

_SCRIPT = """
import sys
sys.path[:0] = [{here!r}, {root!r}]
import fakes
print("started", flush=True)
fakes.run({journal!r}, [fakes.config(n) for n in range(1, 13)],
          problems=[fakes.problem(16), fakes.problem(32)], resume={resume}, log={log!r},
          each_s={each_s}, behaviour={behaviour!r})
print("done", flush=True)
"""


def start(folder: Path, *, resume: bool = False, each_s: float = 0.1,
          behaviour: dict[str, str] | None = None) -> subprocess.Popen[str]:
    code = _SCRIPT.format(here=str(HERE), root=str(HERE.parents[1]), resume=resume,
                          journal=str(folder / "j.jsonl"), log=str(folder / "log"),
                          each_s=each_s, behaviour=behaviour or {})
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def begun(folder: Path, stage: str = "coarse") -> list[str]:
    log = folder / "log"
    return [line.rsplit(" ", 1)[0] for line in log.read_text().splitlines()
            if line.startswith(stage)] if log.exists() else []


def wait_for(condition, limit_s: float = 300.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=300)
    finally:
        process.kill()


def test_kill_9_of_the_sweep_loses_nothing_ends_its_children_and_resumes(tmp_path):
    process = start(tmp_path)
    wait_for(lambda: len(begun(tmp_path)) >= 6)
    offspring = children(process.pid)
    assert offspring
    process.kill()
    process.communicate()
    wait_for(lambda: not any(running(pid) for pid in offspring))
    kept = results(tmp_path / "j.jsonl")
    assert 0 < len(kept) < 24
    before = begun(tmp_path)
    out, err = finish(start(tmp_path, resume=True, each_s=0.0))
    assert "done" in out, err
    after = begun(tmp_path)[len(before):]
    again = {(int(line.split()[1].split("x")[0]), line.split(":")[1]) for line in after}
    assert not again & set(kept)
    assert len(results(tmp_path / "j.jsonl")) == 24
    assert sum(r["kind"] == "winner" for r in read_journal(tmp_path / "j.jsonl")) == 2


def test_kill_9_while_a_worker_hangs_leaves_no_worker(tmp_path):
    process = start(tmp_path, behaviour={f"coarse *:{CONFIGS[2].config_id}": "hang"})
    wait_for(lambda: len(begun(tmp_path)) >= 3)
    offspring = children(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(running(pid) for pid in offspring))


@pytest.mark.parametrize("number", [
    signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_an_interrupt_ends_the_sweep_with_a_whole_journal_and_no_child(tmp_path, number):
    process = start(tmp_path)
    wait_for(lambda: len(begun(tmp_path)) >= 4)
    offspring = children(process.pid)
    process.send_signal(number)
    _, err = finish(process)
    assert "KeyboardInterrupt" in err
    assert not any(running(pid) for pid in offspring)
    raw = (tmp_path / "j.jsonl").read_bytes()
    assert raw.endswith(b"\n")
    out, err = finish(start(tmp_path, resume=True, each_s=0.0))
    assert "done" in out, err
    assert len(results(tmp_path / "j.jsonl")) == 24


def test_an_interrupt_while_the_first_worker_starts_leaves_nothing(tmp_path):
    process = start(tmp_path)
    wait_for(lambda: children(process.pid))
    offspring = children(process.pid)
    process.send_signal(signal.SIGINT)
    finish(process)
    wait_for(lambda: not any(running(pid) for pid in offspring))
    assert process.returncode != 0


def test_a_worker_killed_by_the_system_is_journalled_and_replaced(tmp_path):
    process = start(tmp_path, behaviour={f"coarse 16x16x16:{CONFIGS[3].config_id}": "hang"})
    wait_for(lambda: len(begun(tmp_path)) >= 4)
    assert CONFIGS[3].config_id in begun(tmp_path)[-1]
    for pid in children(process.pid):  # the idle compiler too: it is started again
        os.kill(pid, signal.SIGKILL)
    out, err = finish(process)
    assert "done" in out, err
    found = results(tmp_path / "j.jsonl")
    assert len(found) == 24
    assert found[16, CONFIGS[3].config_id]["status"] == "died"
    assert "SIGKILL" in found[16, CONFIGS[3].config_id]["reason"]
    out, err = finish(start(tmp_path, resume=True, each_s=0.0))
    assert "done" in out, err
    again = [r["status"] for r in read_journal(tmp_path / "j.jsonl") if r["kind"] == "result"
             and r["stage"] == "coarse" and r["problem"]["m"] == 16
             and config_from_json(r["config"]) == CONFIGS[3]]
    assert again == ["died", "ok"]


def test_a_second_sweep_on_the_same_journal_is_refused(tmp_path):
    process = start(tmp_path, each_s=0.5)
    try:
        wait_for(lambda: begun(tmp_path))
        out, err = finish(start(tmp_path, resume=True, each_s=0.0))
        assert "done" not in out
        assert "in use" in err
    finally:
        process.kill()
        process.communicate()

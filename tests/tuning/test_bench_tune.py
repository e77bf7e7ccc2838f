"""perf/bench_tune.py on the CPU: what it times, what `tune` gets, and what it writes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from perf_scripts import loaded

SCRIPT = Path(__file__).resolve().parents[2] / "perf" / "bench_tune.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="perf/ is not beside the tests")


@pytest.fixture
def module():
    return loaded("bench_tune")


@pytest.mark.parametrize("after_ms, status", [(4.0, 0), (5.02, 0), (6.0, 1)])
def test_the_program_is_timed_before_and_after_in_the_users_folder(module, tmp_path, monkeypatch,
                                                                   capsys, after_ms, status):
    asked, answers = [], iter([{"ms": 5.0, "torch_ms": 5.5, "device": "one"},
                               {"ms": after_ms, "torch_ms": 5.5, "device": "one"}])

    def run(command, env, **options):
        asked.append((command, env["TRITONGEMM_USER_DIR"]))
        stdout = "" if "tune" in command else f"a warning\n{json.dumps(next(answers))}\n"
        return subprocess.CompletedProcess(command, 0, stdout=stdout)

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["bench_tune.py", str(tmp_path / "out.csv"), "--budget", "7"])
    assert module.main() == status
    (first, _), (tune, folder), (last, _) = asked
    assert first == last and first[-2:] == ["--step", "time"]
    assert "--budget 7.0" in " ".join(tune) and tune[-2:] == ["--step", "program"]
    assert len({where for _, where in asked}) == 1 and not Path(folder).exists()
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert (row["before"], row["after"]) == ("1.1", str(round(5.5 / after_ms, 4)))
    assert "torch's time / ours was 1.100" in capsys.readouterr().out


def test_the_program_and_its_timing_run(tmp_path):
    for step in ("program", "time"):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path / "o.csv"), "--tiny", "--step", step],
            capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ms"] > 0 and found["torch_ms"] > 0

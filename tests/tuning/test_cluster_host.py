"""``tritongemm worker``: which GPUs it serves, and how each worker is started."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.cli import main
from tritongemm.errors import DeviceError, UsageError
from tritongemm.tuning import cluster_host
from tritongemm.tuning.cluster_host import command, gpus_of, serve, shares


def test_gpus_count_in_what_the_batch_system_gave():
    with settings.override(visible_devices=("2", "5", "GPU-7f")):
        assert gpus_of("all") == ["2", "5", "GPU-7f"]
        assert gpus_of("0,2,0") == ["2", "GPU-7f"] and gpus_of("GPU-7f") == ["GPU-7f"]
        with pytest.raises(UsageError, match="'3' is not one of this host's 3 GPUs"):
            gpus_of("1,3")


def test_a_host_without_a_gpu(monkeypatch, capsys):
    torch = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 0))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with settings.override(visible_devices=()):
        with pytest.raises(DeviceError, match="torch sees no CUDA device on this host"):
            gpus_of("all")
        assert main(["worker", "tcp://127.0.0.1:9"]) == 2
    assert "doctor" in capsys.readouterr().err


def test_in_the_interpreter_a_host_has_one_worker_on_the_cpu(monkeypatch, capsys):
    places = []

    def command(address, name, place, others):
        places.append(place)
        return [sys.executable, "-c", "import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == ''"]

    monkeypatch.setattr(cluster_host, "command", command)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with settings.override(interpret=True, visible_devices=("2", "5")):
        assert main(["worker", "tcp://a:1"]) == 0 and places == ["cpu"]
        assert main(["worker", "tcp://a:1", "--devices", "1"]) == 2
    assert "--devices 1 under TRITON_INTERPRET=1" in capsys.readouterr().err


def test_cores_are_dealt_to_the_workers():
    assert shares(range(8), 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert shares([1, 4], 3) == [[1], [1], [4]]
    assert command("tcp://a:1", "node7", "gpu2", ["--death-timeout", "60"])[3:] == [
        "tcp://a:1", "--name", "node7-gpu2", "--nthreads", str(cluster_host.THREADS),
        "--no-dashboard", "--death-timeout", "60"]


def test_each_worker_sees_one_gpu_and_ends_with_the_command(monkeypatch, tmp_path):
    script = ("import os, pathlib; n = os.environ['CUDA_VISIBLE_DEVICES']; "
              "pathlib.Path(n).write_text(str(len(os.sched_getaffinity(0))))")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster_host, "command", lambda *words: [sys.executable, "-c", script])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    before = os.sched_getaffinity(0)
    assert serve("tcp://a:1", ["3", "GPU-7f"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"3", "GPU-7f"}
    assert os.sched_getaffinity(0) == before
    monkeypatch.setattr(cluster_host, "command", lambda *words: [sys.executable, "-c", "0/0"])
    assert serve("tcp://a:1", ["3"]) == 1


def test_a_signal_ends_the_workers(monkeypatch):
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(cluster_host.subprocess, "Popen", Popen)
    monkeypatch.setattr(cluster_host, "command", lambda *words: [
        sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(KeyboardInterrupt):
        serve("tcp://a:1", ["0"])
    assert started[0].poll() is not None


def test_the_command_line_of_dask_jobqueue_is_understood(monkeypatch):
    served = []
    monkeypatch.setattr(cluster_host, "serve", lambda *words: served.append(words) or 0)
    with settings.override(visible_devices=("0", "1")):
        assert main(["worker", "tcp://a:1", "--name", "job-3", "--nthreads", "32",
                     "--memory-limit", "64GiB", "--no-nanny", "--death-timeout", "60"]) == 0
    assert served == [("tcp://a:1", ["0", "1"], "job-3", [
        "--no-nanny", "--memory-limit", "64GiB", "--death-timeout", "60"])]


def test_dask_is_imported_in_functions_alone():
    package = Path(tritongemm.__file__).parent
    found = {name.partition(".")[0] for path in package.rglob("*.py")
             for node in ast.parse(path.read_text(encoding="utf-8")).body
             for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                          [node.module or ""] if isinstance(node, ast.ImportFrom) else [])}
    assert "numpy" in found and not found & {"dask", "distributed", "dask_jobqueue"}

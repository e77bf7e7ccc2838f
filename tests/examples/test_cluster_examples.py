"""The examples of ``examples/cluster``: the job script and the manifest that they generate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cluster"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="examples/ is not beside the tests")


def show(name: str, *words: str) -> str:
    path = os.pathsep.join(filter(None, (str(FOLDER.parents[1]), os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, str(FOLDER / name), *words, "--show"], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_job_script_of_slurm_starts_a_worker_on_each_gpu_of_a_node():
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed (extra [cluster])")
    script = show("slurm.py", "llm_decode", "--gpus", "4", "--cores", "16", "--partition", "gpu")
    assert script.startswith("#!")
    for line in ("#SBATCH --gres=gpu:4", "#SBATCH --cpus-per-task=16", "#SBATCH -p gpu",
                 "#SBATCH -t 01:00:00"):
        assert line in script.splitlines()
    command = script.strip().splitlines()[-1].split()
    assert command[1:4] == ["-m", "tritongemm", "worker"] and command[4].startswith("tcp://")

    from tritongemm.cli import parser_of

    parsed = parser_of("worker").parse_args(command[4:])  # it takes what dask-jobqueue adds
    assert parsed.scheduler == command[4]


def test_the_manifest_of_kubernetes_asks_for_one_gpu_a_pod():
    from distributed.cli.dask_scheduler import main as dask_scheduler
    from distributed.cli.dask_worker import main as dask_worker

    from tritongemm.tuning.cluster_host import THREADS

    found = json.loads(show("kubernetes.py", "--image", "registry/tritongemm:1", "--workers", "3",
                            "--name", "mine"))
    assert found["kind"] == "DaskCluster" and found["metadata"]["name"] == "mine"
    scheduler, worker = found["spec"]["scheduler"], found["spec"]["worker"]
    assert worker["replicas"] == 3
    (container,), (head,) = worker["spec"]["containers"], scheduler["spec"]["containers"]
    assert container["image"] == head["image"] == "registry/tritongemm:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "cpu": "8", "memory": "32Gi"}
    assert "resources" not in head
    # Dask takes the arguments.
    assert container["args"][:2] == ["dask", "worker"] and head["args"][:2] == ["dask", "scheduler"]
    options = dask_worker.make_context("worker", container["args"][2:]).params
    assert options["nthreads"] == THREADS and options["name"] == "$(DASK_WORKER_NAME)"
    dask_scheduler.make_context("scheduler", head["args"][2:])
    # The service forwards each port to the container's of the same name.
    assert ({port["targetPort"]: port["port"] for port in scheduler["service"]["ports"]}
            == {port["name"]: port["containerPort"] for port in head["ports"]}
            == {"tcp-comm": 8786, "http-dashboard": 8787})
    assert scheduler["service"]["selector"] == {"dask.org/cluster-name": "mine",
                                                "dask.org/component": "scheduler"}

"""A Dask cluster of this machine: a scheduler and workers, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: Where workers find the fakes.
_FOLDERS = [str(Path(__file__).resolve().parents[1] / name) for name in ("tuning", "bench")]
_ROOT = str(Path(__file__).resolve().parents[2])


class Cluster:
    """A scheduler and workers, as processes that end with :meth:`close`."""

    def __init__(self, folder: Path):
        self._folder, self._processes = folder, []
        address = folder / "scheduler.json"
        self.scheduler = self._start("distributed.cli.dask_scheduler", "--port", "0", "--host",
                                     "127.0.0.1", "--no-dashboard", "--scheduler-file",
                                     str(address))
        self.workers: dict[str, subprocess.Popen] = {}
        deadline = time.monotonic() + 300
        while not (address.exists() and address.read_text().rstrip().endswith("}")):
            assert time.monotonic() < deadline and self.scheduler.poll() is None
            time.sleep(0.05)
        self.address = json.loads(address.read_text())["address"]

    def _start(self, module, *words, **environment):
        path = os.pathsep.join([*_FOLDERS, _ROOT, os.environ.get("PYTHONPATH", "")])
        log = (self._folder / "log.txt").open("a")
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words], cwd=self._folder, stdout=log, stderr=log,
            start_new_session=True, env={**os.environ, "PYTHONPATH": path, **environment})
        self._processes.append(process)
        return process

    def worker(self, name: str, **environment) -> None:
        """Starts a worker; each has a GPU of its own unless ``environment`` says which."""
        environment.setdefault("CUDA_VISIBLE_DEVICES", str(len(self.workers)))
        self.workers[name] = self._start(
            "distributed.cli.dask_worker", self.address, "--name", name, "--nthreads", "2",
            "--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--memory-limit", "0",
            **environment)

    def host(self, name: str, **environment) -> None:
        """Starts what ``tritongemm worker`` starts on a host."""
        self._start("tritongemm", "worker", self.address, "--name", name, "--no-nanny", "--host",
                    "127.0.0.1", "--memory-limit", "0", **environment)

    def close(self):
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

"""A sweep on a Dask cluster: processes of this machine with fake measurers."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import SimpleNamespace

import fakes
import pytest
from local_cluster import Cluster

from tritongemm.errors import DataFileError, DeviceError, MissingDependencyError
from tritongemm.records.journal import read_journal
from tritongemm.tuning.progress import Progress

pytest.importorskip("distributed", reason="Dask distributed is not installed (extra [cluster])")

from tritongemm.tuning import cluster
from tritongemm.workers import dask_pool

CONFIGS = [fakes.config(n) for n in (1, 2, 3)]
PROBLEMS = [fakes.problem(16 * n) for n in range(1, 17)]


class Said(Progress):
    """Keeps the lines; calls ``then`` after each problem, ``heard`` after each line."""

    def __init__(self, then=lambda done: None, heard=lambda said: None):
        self.lines, self._then, self._heard = [], then, heard

    def say(self, text):
        self.lines.append(text)
        self._heard(self)

    def count(self, *words):
        return sum(all(word in line for word in words) for line in self.lines)

    def closed(self, report, done, problems):
        super().closed(report, done, problems)
        self._then(done)


@pytest.fixture
def local(tmp_path):
    one = Cluster(tmp_path)
    yield one
    one.close()


def run(local, journal, problems=PROBLEMS, configs=CONFIGS, **options):
    arguments = {name: options.pop(name) for name in ("behaviour", "log", "each_s")
                 if name in options}
    return cluster.sweep_on_cluster(
        problems, journal, local.address, compile_workers=1, per_config_timeout_s=30.0,
        candidates=fakes.CandidateList(configs), builder=fakes.BUILDER,
        measurer=options.pop("measurer", "fakes:PlacedMeasurer"),
        measurer_arguments=arguments, **options)


def winners(journal):
    return {(r["device"], r["problem"]["m"]): r["config"]["block_m"]
            for r in read_journal(journal) if r["kind"] == "winner"}


@pytest.mark.thorough
def test_a_killed_worker_and_a_late_one_lose_nothing(local, tmp_path):
    gate = tmp_path / "gate"
    for name in ("a", "b", "c"):
        local.worker(name, FAKE_GATE=str(gate))

    over = []

    def step(said):
        if over and said.count("worker a at", "has joined") and "late" not in local.workers:
            local.workers["a"].kill()
            local.worker("late")
        # Ten of the problems wait for the late worker; at most six are with others by then.
        if said.count("worker late", "has joined") and said.count("worker a at", "has left"):
            gate.touch()

    def then(done):
        over.append(done)
        step(said)

    said = Said(then, step)
    report = run(local, tmp_path / "j.jsonl", progress=said, each_s=0.05)
    assert Counter(p.winner for p in report.problems) == {CONFIGS[0]: len(PROBLEMS)}
    assert not report.stopped and report.device == "nvidia-h200"
    fakes.run(tmp_path / "alone.jsonl", CONFIGS, problems=PROBLEMS)
    assert winners(tmp_path / "j.jsonl") == winners(tmp_path / "alone.jsonl")
    assert said.count("worker a at", "has left") and said.count("worker late at", "has joined")
    kinds = Counter(r["kind"] for r in read_journal(tmp_path / "j.jsonl"))
    # The killed worker may have sent winners, of the problem that it measured and of the one
    # before, that were measured again.
    assert kinds["header"] == 1 and 0 <= kinds["winner"] - len(PROBLEMS) <= 2
    assert len({r["run_id"] for r in read_journal(tmp_path / "j.jsonl")
                if r["kind"] == "winner"}) >= 3  # b, c and the late one
    again = run(local, tmp_path / "j.jsonl", resume=True)
    assert again.measured == 0 and {p.note for p in again.problems} == {"measured before"}


@pytest.mark.thorough
def test_each_kind_of_device_has_its_rows_and_what_does_not_fit_is_named(local, tmp_path):
    gate = tmp_path / "gate"
    local.worker("h200", FAKE_GATE=str(gate))
    local.worker("h100", FAKE_DEVICE="nvidia-h100-80gb-hbm3", FAKE_GATE=str(gate))

    def heard(said):
        if said.count("has joined") == 2 and "no-gpu" not in local.workers:
            local.worker("no-gpu", FAKE_REFUSES="1")
            local.worker("twin", CUDA_VISIBLE_DEVICES="0")
            local.worker("old", FAKE_DRIVER="2")
        if said.count("is left out") == 3:
            gate.touch()

    said = Said(heard=heard)
    report = run(local, tmp_path / "j.jsonl", progress=said, problems=PROBLEMS[3:8])
    assert Counter(device for device, _ in winners(tmp_path / "j.jsonl")) == {
        "nvidia-h200": 5, "nvidia-h100-80gb-hbm3": 5}
    assert report.device == "nvidia-h100-80gb-hbm3, nvidia-h200"
    device = ""
    for record in read_journal(tmp_path / "j.jsonl"):
        device = record["device"] if record["kind"] == "header" else device
        if record["kind"] == "winner":
            assert record["device"] == device
    assert said.count("worker no-gpu at", "is left out", "sees no CUDA device")
    assert said.count("worker old at", "is left out", "driver 2 there and 1 on worker h200")
    assert said.count("worker twin at", "is left out", "it has the same GPU as worker h200")


@pytest.mark.thorough
def test_a_scheduler_that_dies_leaves_the_rows_and_says_so(local, tmp_path):
    local.worker("a")
    said = Said(lambda done: local.scheduler.kill() if done == 2 else None)
    with pytest.raises(DeviceError, match="is gone; .* continue with --resume"):
        run(local, tmp_path / "j.jsonl", progress=said, each_s=0.1)
    assert len(winners(tmp_path / "j.jsonl")) >= 2


@pytest.mark.thorough
def test_versions_that_differ_are_named_and_no_worker_is_an_error(local, tmp_path, monkeypatch):
    with pytest.raises(DeviceError, match="no worker has joined .*`tritongemm worker tcp"):
        run(local, tmp_path / "j.jsonl", worker_timeout_s=1.0)
    local.worker("a")
    monkeypatch.setattr(dask_pool, "software", lambda: {"triton": "9.9"})
    with pytest.raises(DeviceError, match="worker a at .*: versions differ: triton .* there and "
                                          "9.9 here"):
        run(local, tmp_path / "j.jsonl")
    assert not (tmp_path / "j.jsonl").exists()


@pytest.mark.thorough
def test_a_full_disk_on_the_client_keeps_the_rows(local, tmp_path, monkeypatch):
    local.worker("a")

    def fill(done):
        if done == 2:
            def full(*arguments):
                raise OSError(28, "No space left on device")
            monkeypatch.setattr("tritongemm.records.journal.os.write", full)

    with pytest.raises(DataFileError, match="no space left on the disk.*--resume"):
        run(local, tmp_path / "j.jsonl", progress=Said(fill), each_s=0.05)
    monkeypatch.undo()
    before = winners(tmp_path / "j.jsonl")
    assert len(before) >= 2
    report = run(local, tmp_path / "j.jsonl", resume=True)
    assert len(winners(tmp_path / "j.jsonl")) == len(PROBLEMS)
    assert sum(p.note == "measured before" for p in report.problems) >= len(before)


@pytest.mark.thorough
def test_a_budget_ends_what_was_not_begun(local, tmp_path, monkeypatch):
    passed_s = [0.0]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(
        monotonic=lambda: time.monotonic() + passed_s[0], sleep=time.sleep))
    local.worker("a")
    report = run(local, tmp_path / "j.jsonl", each_s=0.05, budget_s=900.0,
                 progress=Said(lambda done: passed_s.append(passed_s.pop() + 500.0)))
    assert report.stopped == "budget" and 2 <= len(report.problems) < len(PROBLEMS)


def test_an_address_without_a_scheduler_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_pool, "CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(DeviceError, match="no Dask scheduler can be reached at "
                                          "'tcp://127.0.0.1:9'.*dask scheduler"):
        cluster.sweep_on_cluster(PROBLEMS, tmp_path / "j.jsonl", "tcp://127.0.0.1:9")
    with pytest.raises(DeviceError, match="can be reached at 'nonsense://x'"):
        cluster.sweep_on_cluster(PROBLEMS, tmp_path / "j.jsonl", "nonsense://x")
    assert not (tmp_path / "j.jsonl").exists()


def test_without_dask_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'tritongemm\[cluster\]'"):
        cluster.sweep_on_cluster(PROBLEMS, tmp_path / "j.jsonl", "tcp://127.0.0.1:9")

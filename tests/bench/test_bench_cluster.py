"""A bench on a Dask cluster: processes of this machine with fake sessions."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from pathlib import Path

import bench_fakes
import pytest
from test_runner import plan, rows_of, sidecar, statuses

from tritongemm.errors import DataFileError, DeviceError

pytest.importorskip("distributed", reason="Dask distributed is not installed (extra [cluster])")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tuning"))

from local_cluster import Cluster

from tritongemm.bench.cluster import bench_on_cluster


@pytest.fixture
def local(tmp_path):
    (tmp_path / "cluster").mkdir()
    one = Cluster(tmp_path / "cluster")
    yield one
    one.close()


@pytest.mark.thorough
def test_passes_on_two_kinds_with_a_worker_that_is_killed(local, tmp_path):
    gate = tmp_path / "gate"
    local.worker("a", FAKE_GATE=str(gate))
    local.worker("b", FAKE_GATE=str(gate))
    local.worker("other", FAKE_GATE=str(gate), FAKE_NAME="Other GPU")
    said = []

    def progress(event):
        said.append(event)
        if sum("has joined" in e.message for e in said) == 3:
            gate.touch()
        if event.rows and event.rows[0]["device"] == "fake-gpu":
            local.workers["a"].kill()

    report = bench_on_cluster(
        plan(tmp_path, range(64, 72), processes=3, device="slow", timeout_s=60.0,
             opener="bench_fakes:open_placed"), local.address, progress)
    rows = rows_of(report.out)
    assert Counter(row["device"] for row in rows) == {"fake-gpu": 24, "other-gpu": 24}
    assert {row["ratio_vs_torch"] for row in rows if row["provider"] == "tritongemm"} == {1.1}
    assert {row["n_processes"] for row in rows} == {3}
    assert set(report.run_ids) == {"square on fake-gpu", "square on other-gpu"}
    for run_id in report.run_ids.values():
        meta = sidecar(tmp_path, run_id)
        assert meta["complete"] and meta["processes"] == 3 and not meta["void"]
    assert any("worker a at" in e.message and "has left" in e.message for e in said)
    assert sum(e.stage == "row" for e in said) == 2 * 3 * 8


@pytest.mark.thorough
def test_what_ends_its_process_is_a_row_and_a_scheduler_that_dies_an_error(local, tmp_path):
    local.worker("a")
    sizes = (64, bench_fakes.EXITS, 65)
    report = bench_on_cluster(plan(tmp_path, sizes), local.address)
    assert statuses(report.out)[bench_fakes.EXITS, "tritongemm"] == "died"
    assert statuses(report.out)[65, "tritongemm"] == "ok"
    with pytest.raises(DeviceError, match="worker a at .*: provider 'inductor' cannot run"):
        bench_on_cluster(plan(tmp_path, opener="bench_fakes:refuse"), local.address)

    def progress(event):
        if event.stage == "row":
            os.kill(local.scheduler.pid, 9)

    with pytest.raises(DeviceError, match="is gone; every row that came before is in the CSV"):
        bench_on_cluster(plan(tmp_path, (128, 129, 130, 131), device="slow",
                              opener="bench_fakes:open_placed"), local.address, progress)
    assert statuses(report.out)[128, "tritongemm"] == "ok"


@pytest.mark.thorough
def test_a_full_disk_on_the_client_keeps_the_rows(local, tmp_path, monkeypatch):
    local.worker("a")

    def progress(event):
        if event.stage == "row" and event.done == 2:
            def full(descriptor):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            monkeypatch.setattr(os, "fsync", full)

    says = r"out\.csv: no space left on the disk; .* The rows in the file are as they were before"
    with pytest.raises(DataFileError, match=says):
        bench_on_cluster(plan(tmp_path, range(64, 70)), local.address, progress)
    monkeypatch.undo()
    before = rows_of(tmp_path / "out.csv")
    assert len(before) == 2 * 3  # torch, tritongemm and the control
    report = bench_on_cluster(plan(tmp_path, range(64, 70), resume=True), local.address)
    assert report.skipped == 2 and report.written == 4 * 3
    assert rows_of(report.out)[:6] == before
    assert set(statuses(report.out).values()) == {"ok"} and len(statuses(report.out)) == 6 * 3

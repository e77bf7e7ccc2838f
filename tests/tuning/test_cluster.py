"""A sweep on a Dask cluster: processes of this machine with fake measurers."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import SimpleNamespace

import fakes
import pytest
from local_cluster import Cluster

from tritongemm.cli import main
from tritongemm.cli.doctor import interpreter_obstacle
from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError, DeviceError, MissingDependencyError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_to_json, problem_from_json, problem_to_json
from tritongemm.records.journal import Journal, read_journal
from tritongemm.records.resume import done_among, read_done
from tritongemm.tuning.progress import Progress, device_line

pytest.importorskip("distributed", reason="Dask distributed is not installed (extra [cluster])")

from tritongemm.tuning import cluster, cluster_worker
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


@pytest.fixture
def another(tmp_path):
    (tmp_path / "another").mkdir()
    one = Cluster(tmp_path / "another")
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


def replaced(local, gate, start_late):
    """Once a problem is over, kills worker a and starts another, whose name begins with late; makes
    the file ``gate`` when the client has seen both."""
    over, started = [], []

    def step(said):
        if over and said.count("worker a at", "has joined") and not started:
            started.append("late")
            local.workers["a"].kill()
            start_late()
        if said.count("worker late", "has joined") and said.count("worker a at", "has left"):
            gate.touch()

    def then(done):
        over.append(done)
        step(said)

    said = Said(then, step)
    return said


@pytest.mark.thorough
def test_a_killed_worker_and_a_late_one_lose_nothing(local, tmp_path):
    # Ten of the problems wait for the gate; at most six are with other workers by then.
    gate = tmp_path / "gate"
    for name in ("a", "b", "c"):
        local.worker(name, FAKE_GATE=str(gate))
    said = replaced(local, gate, lambda: local.worker("late"))
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
def test_the_real_parts_in_the_interpreter_prove_a_winner_of_every_problem(local, tmp_path):
    if obstacle := interpreter_obstacle():
        pytest.skip(obstacle)
    # Nine of the problems wait for the gate; at most six are with other workers by then.
    gate, journal = tmp_path / "gate", tmp_path / "j.jsonl"
    problems = [GemmProblem.contiguous(16, 16, 16 * n) for n in range(1, 13)]
    place = {"TRITON_INTERPRET": "1", "FAKE_GATE": str(gate), "OMP_NUM_THREADS": "1"}
    options = {"candidates": fakes.CandidateList(
        [KernelConfig("tiled", 16, 16, k, num_warps=1, num_stages=1) for k in (16, 32)]),
        "measurer": "gated_measurer:GatedMeasurer", "measurer_arguments": {"final_s": 0.05},
        "per_config_timeout_s": 120.0}
    for name in ("a", "b", "c"):
        local.worker(name, **place)
    said = replaced(local, gate, lambda: local.host("late", **place))
    report = cluster.sweep_on_cluster(problems, journal, local.address, progress=said, **options)
    assert {p.problem for p in report.winners} == set(problems) and report.device == "interpreter"
    assert not report.failures and not report.stopped and report.compile_s == 0
    assert said.count("worker a at", "has left") and said.count("worker late-cpu at", "has joined")
    records = [r for r in read_journal(journal) if r["kind"] != "header"]
    right = {(problem_from_json(r["problem"]), str(r["config"])) for r in records
             if r.get("stage") == "final" and r["status"] == "ok" and r["max_err_ratio"] <= 1}
    won = {(problem_from_json(r["problem"]), str(r["config"])) for r in records
           if r["kind"] == "winner"}
    assert won <= right and {problem for problem, _ in won} == set(problems)
    assert len({r["run_id"] for r in records if r["kind"] == "winner"}) >= 3  # b, c, the late one
    again = cluster.sweep_on_cluster(problems, journal, local.address, resume=True, **options)
    assert again.measured == 0 and {p.note for p in again.problems} == {"measured before"}


@pytest.mark.thorough
def test_the_display_names_each_worker_with_its_problem_and_its_best(local, tmp_path):
    gate = tmp_path / "gate"  # finalists wait for it: until then a state does not change
    local.worker("a", FAKE_FINAL_GATE=str(gate))
    local.worker("b", FAKE_FINAL_GATE=str(gate))
    seen = {}

    class Shown(Progress):
        def update(self, snapshot):
            seen.update({one.device: one for one in snapshot.devices
                         if one.best_us == fakes.time_us(CONFIGS[0])})
            if len(seen) == 2:
                gate.touch()

    report = run(local, tmp_path / "j.jsonl", PROBLEMS[:4], progress=Shown())
    assert seen.keys() == {"worker a", "worker b"} and len(report.winners) == 4
    assert {device_line(one).partition("best ")[2] for one in seen.values()} == {
        "16.00 us, 6.250 of torch's speed"}
    shown = {one.problem for one in seen.values()}
    assert len(shown) == 2 and shown <= {str(one) for one in PROBLEMS[:4]}


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
def test_a_sweep_whose_scheduler_died_is_finished_with_another_scheduler(local, another, tmp_path):
    local.worker("a")
    said = Said(lambda done: local.scheduler.kill() if done == 2 else None)
    with pytest.raises(DeviceError, match="is gone; .* continue with --resume"):
        run(local, tmp_path / "j.jsonl", progress=said, each_s=0.1)
    before = winners(tmp_path / "j.jsonl")
    assert 2 <= len(before) < len(PROBLEMS)
    another.worker("b")
    report = run(another, tmp_path / "j.jsonl", resume=True)
    after = winners(tmp_path / "j.jsonl")
    assert len(after) == len(PROBLEMS) and after == {**after, **before}
    assert {p.problem for p in report.problems} == set(PROBLEMS) and not report.stopped
    assert sum(p.note == "measured before" for p in report.problems) >= len(before)


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


@pytest.mark.thorough
def test_a_problem_whose_worker_dies_after_the_budget_is_reported_as_left(local, tmp_path,
                                                                          monkeypatch):
    passed_s = [0.0]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(
        monotonic=lambda: time.monotonic() + passed_s[0], sleep=time.sleep))
    local.worker("a", FAKE_GATE=str(tmp_path / "never"))
    waiting = fakes.problem(128)  # above 96 cubed: its operands wait for the gate

    class Killed(Said):
        def update(self, snapshot):
            if passed_s[0]:
                local.workers["a"].kill()

    report = run(local, tmp_path / "j.jsonl", [fakes.problem(16), waiting], budget_s=900.0,
                 progress=Killed(lambda done: passed_s.append(passed_s.pop() + 1000.0)))
    assert report.stopped == "budget"
    assert {p.problem: p.note for p in report.problems} == {
        fakes.problem(16): "", waiting: "no time was left: all workers that could run it have left"}


@pytest.mark.thorough
def test_a_config_whose_worker_was_killed_from_outside_is_tried_once_more(local, tmp_path):
    journal, lost = tmp_path / "j.jsonl", CONFIGS[0]
    local.worker("a")
    first = run(local, journal, PROBLEMS[:1],
                behaviour={f"coarse *:{lost.config_id}": "kill"})
    assert first.failures == {"died": 1} and first.problems[0].winner == CONFIGS[1]
    again = run(local, journal, PROBLEMS[:1], resume=True)
    assert again.measured == 1 and again.problems[0].winner == lost
    assert run(local, journal, PROBLEMS[:1], resume=True).problems[0].note == "measured before"


def test_what_workers_are_told_of_a_journal_is_all_that_resuming_needs(tmp_path):
    path, header, problem = tmp_path / "j.jsonl", {"environment": "e"}, PROBLEMS[0]
    of = {"kind": "result", "problem": problem_to_json(problem), "stage": "coarse"}
    killed = {"status": "died", "reason": "the worker was killed by SIGKILL"}
    with Journal.open(path, header) as journal:
        for config, outcome in zip(CONFIGS, (killed, {"status": "timeout", "limit_s": 2.0},
                                             {"status": "ok", "time_us": 3.0}), strict=True):
            journal.append({**of, **outcome, "config": config_to_json(config)})
        journal.append({**of, "kind": "winner", "config": config_to_json(CONFIGS[2]),
                        "gain": 0.01, "space_hash": "a"})
    known = cluster._known(path, header)[problem]
    told = done_among([next(read_journal(path)), *known], "e")
    feed = cluster_worker._Feed()
    feed.known[problem] = told
    for done in (read_done(path, "e"), told, cluster_worker._KnownOfFeed(feed)):
        assert [done.has(problem, c, limit_s=3.0) for c in CONFIGS] == [False, False, True]
        assert [done.retries(problem, c, limit_s=3.0) for c in CONFIGS] == [True, True, False]
        assert done.has(problem, CONFIGS[1], limit_s=2.0)
        assert [done.searched_to(problem, name) for name in "ab"] == [0.01, None]


def test_an_address_without_a_scheduler_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_pool, "CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(DeviceError, match="no Dask scheduler can be reached at "
                                          "'tcp://127.0.0.1:9'.*dask scheduler"):
        cluster.sweep_on_cluster(PROBLEMS, tmp_path / "j.jsonl", "tcp://127.0.0.1:9")
    with pytest.raises(DeviceError, match="can be reached at 'nonsense://x:1'"):
        cluster.sweep_on_cluster(PROBLEMS, tmp_path / "j.jsonl", "nonsense://x:1")
    assert not (tmp_path / "j.jsonl").exists()


def test_an_event_loop_that_starts_late_is_started_again(monkeypatch):
    calls = []

    def client(address, **_):
        calls.append(address)
        assert len(calls) > late

    monkeypatch.setattr("distributed.Client", client)
    late = 1
    dask_pool.connect("tcp://127.0.0.1:9")
    assert len(calls) == 2
    late = 9
    with pytest.raises(DeviceError, match="event loop of Dask did not start.*host is too busy"):
        dask_pool.connect("tcp://127.0.0.1:9")
    assert len(calls) == 4


@pytest.mark.parametrize("words", [["sweep", "--journal", "out"], ["bench", "--out", "out"]],
                         ids=["sweep", "bench"])
def test_a_command_without_a_scheduler_ends_with_2_and_writes_nothing(words, monkeypatch, tmp_path,
                                                                      capsys):
    monkeypatch.setattr(dask_pool, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.chdir(tmp_path)
    shape = ["--m", "64", "--n", "64", "--k", "64", "--scheduler", "tcp://127.0.0.1:9"]
    assert main([*words, *shape]) == 2
    error = capsys.readouterr().err
    assert f"tritongemm {words[0]}: no Dask scheduler can be reached at 'tcp://127.0.0.1:" in error
    assert "Start one with `dask scheduler`" in error and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_without_dask_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[cluster\]'"):
        cluster.sweep_on_cluster(PROBLEMS, tmp_path / "j.jsonl", "tcp://127.0.0.1:9")

"""The bench: rows as they come, failures that stay in their row, resume, medians, void runs."""

import json
import sys

import bench_fakes
import pytest

from tritongemm.bench.runner import BenchPlan, bench
from tritongemm.errors import DataFileError, UsageError
from tritongemm.records.rows import read_rows, read_sidecars
from tritongemm.records.suites import Shape


def plan(tmp_path, sizes=(64, 65), *, suite="square", **more):
    work = [(shape, shape.problem()) for m in sizes
            for shape in [Shape(m=m, n=64, k=64, suite=suite)]]
    values = {"work": work, "providers": ("tritongemm",), "out": tmp_path / "out.csv",
              "device": "fake", "opener": bench_fakes.OPENER, "timeout_s": 5.0}
    return BenchPlan(**{**values, **more})


def rows_of(path):
    return list(read_rows(path))


def statuses(path):
    return {(row["m"], row["provider"]): row["status"] for row in rows_of(path)}


def sidecar(tmp_path, run_id):
    return read_sidecars(tmp_path)[run_id]


def test_a_row_a_provider_and_the_control_with_derived_columns(tmp_path):
    report = bench(plan(tmp_path, tags="mine"))
    rows = rows_of(report.out)
    assert [(r["m"], r["provider"]) for r in rows] == [
        (m, name) for m in (64, 65) for name in ("torch", "tritongemm", "torch-control")]
    assert report.written == 6 and report.statuses == {"ok": 4}
    first = rows[0]
    assert first["tflops"] == pytest.approx(2 * 64**3 / 10e-6 / 1e12)
    assert first["pct_of_roof"] > 0
    assert (first["device"], first["arch"], first["tags"]) == ("fake-gpu", 90, "mine")
    assert {r["run_id"] for r in rows} == {report.run_ids["square"]}


def test_the_record_holds_environment_arguments_and_verdict(tmp_path):
    report = bench(plan(tmp_path, notes={"dtypes": "bf16"}))
    meta = sidecar(tmp_path, report.run_ids["square"])
    assert meta["environment"]["torch"] == "1.2" and meta["dtypes"] == "bf16"
    assert meta["void"] is False and meta["complete"] is True
    assert meta["control"] == {"mean_ratio": pytest.approx(1.001), "count": 2, "limit": 0.005}
    assert str(tmp_path) not in json.dumps(meta)


def test_each_suite_is_a_run_of_its_own(tmp_path):
    first, second = plan(tmp_path), plan(tmp_path, suite="odd")
    report = bench(plan(tmp_path, work=[*first.work, *second.work]))
    assert set(report.run_ids) == {"square", "odd"} == set(report.controls)
    assert len({r["run_id"] for r in rows_of(report.out)}) == 2


def test_a_control_out_of_bounds_voids_its_run(tmp_path):
    report = bench(plan(tmp_path, device="drifting"))
    meta = sidecar(tmp_path, report.run_ids["square"])
    assert report.controls["square"].void and meta["void"] is True
    assert "1.5000" in meta["void_reason"]


@pytest.mark.parametrize(("m", "status", "says"), [
    (bench_fakes.EXITS, "died", "status 7"), (bench_fakes.KILLED, "died", "SIGKILL"),
    (bench_fakes.LOSES_DEVICE, "died", "illegal address"),
    (bench_fakes.WRONG, "wrong", "exceeds"), (bench_fakes.HANGS, "timeout", "no answer"),
])
def test_a_failure_is_a_row_and_the_next_ones_go_on(tmp_path, m, status, says):
    report = bench(plan(tmp_path, (64, m, 66), timeout_s=2.0))
    found = statuses(report.out)
    assert found[m, "tritongemm"] == status and found[m, "torch"] == "ok"
    assert {found[x, name] for x in (64, 66) for name in ("torch", "tritongemm")} == {"ok"}
    [row] = [r for r in rows_of(report.out) if r["status"] == status]
    assert says in row["error"] and row["time_us_p50"] is None


def test_only_the_provider_that_crashes_is_named(tmp_path):
    lost = []
    report = bench(plan(tmp_path, (bench_fakes.EXITS,),
                        providers=("tritongemm", "tritongemm-auto")),
                   lambda event: lost.append(event) if event.stage == "lost" else None)
    assert statuses(report.out) == {
        (bench_fakes.EXITS, "torch"): "ok", (bench_fakes.EXITS, "torch-control"): "ok",
        (bench_fakes.EXITS, "tritongemm"): "died", (bench_fakes.EXITS, "tritongemm-auto"): "ok"}
    assert lost


def test_a_baseline_that_kills_is_named_too(tmp_path):
    report = bench(plan(tmp_path, (bench_fakes.DEADLY_TO_TORCH, 64)))
    found = statuses(report.out)
    assert found[bench_fakes.DEADLY_TO_TORCH, "torch"] == "died"
    assert found[64, "torch"] == found[64, "tritongemm"] == "ok"


def test_resume_measures_only_what_is_missing(tmp_path):
    bench(plan(tmp_path))
    report = bench(plan(tmp_path, (64, 65, 66), resume=True))
    assert (report.written, report.skipped) == (3, 2)
    assert len(rows_of(report.out)) == 9
    assert bench(plan(tmp_path, (64, 65, 66), resume=True)).written == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_resume_adds_a_provider_with_torch_of_the_same_rounds(tmp_path, processes):
    first = bench(plan(tmp_path, processes=processes))
    second = bench(plan(tmp_path, providers=("tritongemm", "tritongemm-auto"), resume=True,
                        processes=processes))
    names = {run: sorted(r["provider"] for r in rows_of(tmp_path / "out.csv") if r["run_id"] == run)
             for run in (first.run_ids["square"], second.run_ids["square"])}
    assert list(names.values()) == [sorted(["torch", "tritongemm", "torch-control"] * 2),
                                    sorted(["torch", "tritongemm-auto", "torch-control"] * 2)]
    assert second.controls["square"].count == 2


def test_resume_measures_again_what_timed_out_at_a_lower_limit(tmp_path):
    slow = {"sizes": (64, bench_fakes.HANGS), "resume": True}
    bench(plan(tmp_path, timeout_s=1.0, **slow))
    assert statuses(tmp_path / "out.csv")[bench_fakes.HANGS, "tritongemm"] == "timeout"
    assert bench(plan(tmp_path, timeout_s=1.0, **slow)).written == 0
    again = bench(plan(tmp_path, timeout_s=1.5, **slow))
    assert again.skipped == 1 and again.written > 0


@pytest.mark.parametrize("before", [{"tags": "other"}, {"device": "other-environment"},
                                    {"device": "drifting"}])
@pytest.mark.parametrize("processes", [1, 2])
def test_resume_counts_neither_other_tags_nor_environments_nor_void_runs(tmp_path, before,
                                                                         processes):
    bench(plan(tmp_path, processes=processes, **before))
    after = {"device": before["device"]} if before.get("device") == "drifting" else {}
    measured = []
    report = bench(plan(tmp_path, resume=True, processes=processes, **after),
                   lambda event: measured.append(event.stage == "row"))
    assert report.skipped == 0 and sum(measured) == 2 * processes


def test_without_resume_everything_is_appended_again(tmp_path):
    bench(plan(tmp_path))
    assert bench(plan(tmp_path)).written == 6
    assert len(rows_of(tmp_path / "out.csv")) == 12


def test_processes_give_the_median_row_and_keep_every_pass(tmp_path):
    report = bench(plan(tmp_path, processes=3))
    ratios = {r["ratio_vs_torch"] for r in rows_of(report.out) if r["provider"] == "tritongemm"}
    assert ratios == {1.1}  # passes saw 1.0, 1.1 and 1.2
    assert {r["n_processes"] for r in rows_of(report.out)} == {3}
    passes = sorted(path.name for path in (tmp_path / "passes").glob("*.csv"))
    assert passes == ["out-1.csv", "out-2.csv", "out-3.csv"]
    assert all(len(rows_of(tmp_path / "passes" / name)) == 6 for name in passes)


def test_an_interrupted_bench_continues_in_the_middle_of_a_pass(tmp_path):
    class Stop(Exception):
        pass

    def stop(event):
        if event.stage == "row" and event.pass_index == 1:
            raise Stop

    with pytest.raises(Stop):
        bench(plan(tmp_path, processes=3), stop)
    assert rows_of(tmp_path / "out.csv") == []
    seen = []
    report = bench(plan(tmp_path, processes=3, resume=True),
                   lambda event: seen.append((event.pass_index, event.problem.m))
                   if event.stage == "row" else None)
    assert seen == [(1, 65), (2, 64), (2, 65)]
    assert {r["n_processes"] for r in rows_of(report.out)} == {3}
    assert {r["run_id"] for r in rows_of(report.out)} == {report.run_ids["square"]}


def test_more_processes_than_a_row_stands_for_measure_it_again(tmp_path):
    bench(plan(tmp_path))
    assert bench(plan(tmp_path, processes=2, resume=True)).skipped == 0
    assert bench(plan(tmp_path, resume=True)).skipped == 2


def test_what_is_not_timed_has_no_time_and_one_pass(tmp_path):
    report = bench(plan(tmp_path, device="untimed", processes=3))
    rows = rows_of(report.out)
    assert {r["status"] for r in rows} == {"ok"} and {r["n_processes"] for r in rows} == {1}
    assert all(r["time_us_p50"] is None and r["tflops"] is None for r in rows)
    assert report.controls["square"].mean_ratio is None


@pytest.mark.parametrize(("change", "says"), [
    ({"work": []}, "no problems"), ({"processes": 0}, "processes=0"),
    ({"timeout_s": 0.0}, "timeout_s"), ({"budget_s": -1.0}, "budget_s"),
    ({"timeout_s": float("nan")}, "timeout_s=nan"), ({"budget_s": float("inf")}, "budget_s=inf"),
    ({"seed": -1}, "seed=-1"), ({"compile_workers": -1}, "compile_workers=-1"),
    ({"providers": ("no_such",)}, "use some of torch, tritongemm"),
])
def test_a_plan_that_makes_no_sense_is_refused(tmp_path, change, says):
    with pytest.raises(UsageError, match=says):
        plan(tmp_path, **change)


def test_a_folder_in_the_place_of_the_csv_is_refused(tmp_path):
    with pytest.raises(UsageError, match="name the CSV"):
        plan(tmp_path, out=tmp_path)


@pytest.mark.parametrize("content", ["not,ours\n1,2\n", "\xff\xfe"])
def test_a_csv_of_something_else_is_found_before_anything_is_measured(tmp_path, content):
    (tmp_path / "out.csv").write_bytes(content.encode("latin-1"))
    seen = []
    with pytest.raises(DataFileError, match="out.csv"):
        bench(plan(tmp_path), seen.append)
    assert [event.stage for event in seen] == ["start"]
    assert (tmp_path / "out.csv").read_bytes() == content.encode("latin-1")


def test_an_unwritable_output_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError, match="not a folder"):
        bench(plan(tmp_path, out=tmp_path / "file" / "out.csv"))


def test_a_full_disk_keeps_the_rows_before_it(tmp_path, monkeypatch):
    from tritongemm.bench import runner

    append, calls = runner.append_rows, []

    def full(path, rows):
        calls.append(path)
        if len(calls) == 3:  # the header, the first problem, then no space
            raise DataFileError(path, "no space left on the disk")
        return append(path, rows)

    monkeypatch.setattr(runner, "append_rows", full)
    with pytest.raises(DataFileError, match="no space"):
        bench(plan(tmp_path))
    assert {r["m"] for r in rows_of(tmp_path / "out.csv")} == {64}
    monkeypatch.undo()
    assert bench(plan(tmp_path, resume=True)).skipped == 1


def test_the_parent_needs_no_torch(tmp_path):
    import subprocess

    code = ("import sys, bench_fakes\nfrom pathlib import Path\n"
            "from tritongemm.bench.runner import BenchPlan, bench\n"
            "from tritongemm.records.suites import Shape\n"
            "if __name__ == '__main__':\n"
            "    s = Shape(m=64, n=64, k=64, suite='x')\n"
            "    bench(BenchPlan([(s, s.problem())], (), Path(sys.argv[1]), device='fake',\n"
            "                    opener=bench_fakes.OPENER))\n"
            "    assert not {'torch', 'triton'} & set(sys.modules)\n")
    script = tmp_path / "script.py"
    script.write_text(code)
    from tritongemm import settings

    done = subprocess.run([sys.executable, str(script), str(tmp_path / "out.csv")],
                          env=settings.child_environment(PYTHONPATH=":".join(sys.path)),
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

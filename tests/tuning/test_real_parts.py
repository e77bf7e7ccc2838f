"""The real builder with no GPU, the real measurer in the interpreter, ``tune`` to the table."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import fakes
import pytest

import tritongemm.tuning.sweep as door
from tritongemm import settings
from tritongemm.cli.doctor import interpreter_obstacle
from tritongemm.config import KernelConfig
from tritongemm.device import device_named, interpreter_device
from tritongemm.errors import ConstraintError, LaunchError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.journal import read_journal
from tritongemm.records.suites import Shape
from tritongemm.selection import choose, reload
from tritongemm.workers.builder import Builder

H200 = device_named("nvidia-h200")
HERE = Path(__file__).resolve().parent
SMALL = KernelConfig("tiled", 16, 16, 32, num_warps=1, num_stages=1)


def test_the_builder_compiles_for_a_gpu_that_is_not_there_and_then_finds_it_stored(tmp_path):
    pytest.importorskip("triton")
    with settings.override(cache_dir=tmp_path):
        problem = GemmProblem.contiguous(64, 64, 64)
        key = Builder.key(problem, SMALL, H200)
        assert not Builder.stored(key)
        outcome = Builder(H200).one(problem, SMALL)
        assert outcome.ok and outcome.values["compile_s"] > 0 and outcome.values["spills"] == 0
        assert Builder.stored(key)
        assert "compile_s" not in Builder(H200).one(problem, SMALL).values
        # Extents are not in the binary, where what they are divisible by is the same.
        assert Builder.key(GemmProblem.contiguous(128, 64, 64), SMALL, H200) == key
        assert Builder.key(GemmProblem.contiguous(64, 64, 65), SMALL, H200) != key


def test_nothing_is_compiled_for_the_interpreter():
    problem, stand_in = GemmProblem.contiguous(64, 64, 64), interpreter_device()
    assert Builder.stored(Builder.key(problem, SMALL, stand_in))
    with pytest.raises(ConstraintError, match="block_k=8"):
        Builder.key(problem, KernelConfig("tiled", 16, 16, 8), stand_in)


@pytest.mark.thorough
def test_the_measurer_proves_and_times_configs_in_the_interpreter(tmp_path):
    obstacle = interpreter_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    code = (f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]\n"
            "import fakes\nfrom tritongemm.tuning.sweep import MEASURER\n"
            "from tritongemm.config import KernelConfig as C\n"
            "configs = [C('tiled', 16, 16, k, num_warps=1, num_stages=1) for k in (16, 32)]\n"
            "configs.append(C('tiled', 16, 16, 8, num_warps=1))\n"
            f"r = fakes.run({str(tmp_path / 'j.jsonl')!r}, configs, problems=["
            "fakes.problem(16)], devices=(None,), measurer=MEASURER, compile_workers=1)\n"
            "(one,) = r.problems\n"
            "assert one.winner in configs[:2], one\n"
            "assert one.time_us > 0 and one.ratio_vs_torch > 0\n"
            "assert r.failures == {'constraint': 1}, r.failures\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=300, env=settings.child_environment(TRITON_INTERPRET="1"))
    assert done.returncode == 0, done.stderr
    coarse = [r for r in read_journal(tmp_path / "j.jsonl") if r.get("stage") == "coarse"]
    assert [r["status"] for r in coarse] == ["ok", "ok", "constraint"]
    assert all(0 <= r["max_err_ratio"] <= 1 for r in coarse[:2])


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """``tune`` over fakes, with tables and cache of its own."""
    configs = tmp_path / "configs"
    configs.mkdir()
    for name in ("spaces", "devices"):
        (configs / name).symlink_to(settings.config_root() / name)
    monkeypatch.setattr(door, "sweep", functools.partial(
        door.sweep, measurer=fakes.MEASURER, builder=fakes.BUILDER))
    with settings.override(config_dir=configs, config_only=True, cache_dir=tmp_path / "cache"):
        yield door.tune
    reload()


def test_what_tune_finds_is_what_selection_chooses_next(tuned):
    problem = GemmProblem.contiguous(512, 512, 512)
    assert choose(problem, H200).source != "exact"
    report = tuned([(512, 512, 512)], top=3)
    assert report.published.added == 1
    choice = choose(problem, H200)
    assert (choice.source, choice.config) == ("exact", report.winners[0].winner)


def test_a_problem_that_was_multiplied_before_is_looked_up_again_after_tune(tuned):
    torch = pytest.importorskip("torch")
    from tritongemm.ops import plans

    key = (GemmProblem.contiguous(512, 512, 512), None, torch.device("cpu"))
    plans.plans.refuse(key, LaunchError("as a plan from before stands there"))
    tuned([(512, 512, 512)], top=3)
    assert not len(plans.plans)


def test_tune_without_publish_leaves_the_tables_alone(tuned, tmp_path):
    report = tuned([(512, 512, 512)], top=3, publish=False)
    assert report.published is None and report.winners
    assert not (tmp_path / "configs" / "tuned").exists()
    assert report.journal.is_relative_to(tmp_path / "cache")


def test_tune_takes_problems_shapes_and_tuples(tuned, tmp_path):
    report = tuned([GemmProblem.contiguous(64, 64, 64, dtype="fp16"), Shape(m=64, n=64, k=32),
                    (64, 32, 64), [2, 64, 64, 64]], layout="nt", top=1,
                   journal=tmp_path / "j.jsonl", publish=False)
    assert {str(p.problem) for p in report.problems} == {
        "64x64x64 fp16 nn", "64x64x32 bf16 nt", "64x32x64 bf16 nt", "2x64x64x64 bf16 nt"}


@pytest.mark.parametrize("problems", [[], ["64x64"], [(64, 64)], [None]])
def test_tune_refuses_what_is_no_problem(tuned, problems):
    with pytest.raises(UsageError):
        tuned(problems)


@pytest.mark.gpu
def test_a_real_sweep_finds_a_winner_and_names_its_environment(tmp_path):
    pytest.importorskip("torch")
    problem = GemmProblem.contiguous(512, 512, 512)
    report = door.sweep([problem], tmp_path / "j.jsonl", top=4)
    (one,) = report.problems
    assert one.winner is not None and one.ratio_vs_torch > 0.1
    assert report.gpu_busy_s > 0
    header = next(read_journal(tmp_path / "j.jsonl"))
    assert header["versions"]["driver"]
    again = door.sweep([problem], tmp_path / "j.jsonl", top=4, resume=True)
    assert again.measured == 0


@pytest.mark.gpu
def test_all_devices_of_the_host_share_a_real_sweep(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    problems = [GemmProblem.contiguous(n, n, n) for n in (256, 384, 512, 640)]
    report = door.sweep(problems, tmp_path / "j.jsonl", top=4, devices=None)
    assert {p.problem for p in report.winners} == set(problems)

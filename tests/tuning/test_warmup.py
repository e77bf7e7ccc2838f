"""Warming up: what is compiled, what is found, what is torch's, how many binaries M can need."""

from __future__ import annotations

import itertools

import pytest

import tritongemm as tg
from tritongemm import settings
from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.errors import CompileError, DeviceError, UsageError
from tritongemm.kernels import SPECS, violation
from tritongemm.kernels.compile import binary_key, launch_key, launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import LAYOUTS, GemmProblem
from tritongemm.records.suites import Shape
from tritongemm.selection import choose
from tritongemm.tuning import warmup as warming
from tritongemm.workers.builder import Builder

H200 = device_named("nvidia-h200")
SHAPES = [(64, 512, 512), (128, 512, 512), (4096, 4096, 512), (999, 1001, 333)]


class Faked(Builder):
    """Builds nothing, and remembers what it was asked for."""

    asked: list = []
    refuses: set = set()

    def one(self, problem, config):
        if problem in self.refuses:
            raise CompileError("the assembler gave up")
        key = self.key(problem, config, self._device)
        self.asked.append(key)
        return warming.Outcome("ok")

    @staticmethod
    def stored(key):
        return key in Faked.asked


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Few builds are made in this process, by a fake."""
    monkeypatch.setattr(warming, "Builder", Faked)
    monkeypatch.setattr(warming, "_WORTH_A_PROCESS", 10**9)
    monkeypatch.setattr(Faked, "asked", [])
    monkeypatch.setattr(Faked, "refuses", set())
    with settings.override(cache_dir=tmp_path):
        yield Faked


def test_each_binary_is_made_once_and_found_the_second_time(faked):
    first = tg.warmup(SHAPES, device="nvidia-h200")
    assert (first.problems, first.found, first.failed) == (4, 0, ())
    assert first.compiled == len(faked.asked) == len(set(faked.asked)) > 1
    second = tg.warmup(SHAPES, device="nvidia-h200")
    assert (second.compiled, second.found, second.binaries) == (0, first.compiled, first.binaries)


def test_what_is_made_is_what_a_call_of_gapless_operands_looks_for(faked):
    tg.warmup([(64, 512, 512)], layout="nt", device=H200)
    problem = GemmProblem.contiguous(64, 512, 512, layout="nt")
    called = Geometry(0, 512, 1, 0, 1, 512, 0, 512, 1)  # strides of a, w.t() and the result
    keys = [binary_key(x, 90) for x in launches_of(problem, choose(problem, H200).config, H200,
                                                   called)]
    assert " ".join(keys) in faked.asked


@pytest.mark.parametrize("fp32, precision", [("split", "fp16x3"), ("ieee", "ieee")])
@pytest.mark.parametrize("command", [False, True], ids=["function", "command"])
def test_float32_has_the_precision_of_calls(faked, monkeypatch, command, fp32, precision):
    chosen = []
    monkeypatch.setattr(warming, "choose", lambda problem, spec: (
        chosen.append(problem) or choose(problem, spec)))
    with settings.override(fp32=fp32):
        if command:
            main(["warmup", "--m", "2048", "--n", "2048", "--k", "2048", "--dtype", "fp32",
                  "--device-name", "nvidia-h100-80gb-hbm3"])
        else:
            tg.warmup((2048, 2048, 2048), dtype="fp32", device="nvidia-h100-80gb-hbm3")
    assert [problem.precision for problem in chosen] == [precision]


@pytest.mark.parametrize("what", [
    (64, 512, 512), [(64, 512, 512)], [Shape(m=64, n=512, k=512)],
    GemmProblem.contiguous(64, 512, 512), [GemmProblem.contiguous(64, 512, 512)],
    iter([(1, 64, 512, 512)])], ids=lambda said: type(said).__name__)
def test_a_problem_is_said_in_many_ways(what, faked):
    report = tg.warmup(what, device="nvidia-h200")
    assert (report.problems, report.compiled) == (1, 1)


def test_a_suite_is_named(faked):
    report = tg.warmup("square", layout="nt", device="nvidia-h200")
    assert report.problems >= 20 and report.compiled + len(report.torchs) > 5


def test_what_torch_runs_is_not_compiled_and_said(faked, monkeypatch):
    problems = [(0, 64, 64), (64, 64, 64)]
    report = tg.warmup(problems, device="nvidia-h200")
    assert report.compiled == 1 and report.torchs[0][1] == "an extent is 0"
    report = tg.warmup((64, 64, 64), dtype="fp64", device="nvidia-h200")
    assert report.compiled == 0 and "fp64" in report.torchs[0][1]
    monkeypatch.setattr(warming, "torch_wins", lambda *_: "torch is faster")
    report = tg.warmup((64, 96, 64), device="nvidia-h200")
    assert (report.compiled, report.torchs[0][1]) == (0, "torch is faster")


def test_a_build_that_fails_is_reported_and_the_others_are_made(faked):
    faked.refuses.add(GemmProblem.contiguous(64, 512, 512))
    report = tg.warmup(SHAPES, device="nvidia-h200")
    assert [p.m for p, _ in report.failed] == [64] and "gave up" in report.failed[0][1]
    assert report.compiled > 0 and "1 config failed to compile" in str(report)


@pytest.mark.parametrize(("workers", "expected"), [(3, 3), (None, 5)])
def test_there_is_a_process_a_core_unless_a_number_is_given(faked, monkeypatch, workers, expected):
    asked = []
    monkeypatch.setattr(warming, "_WORTH_A_PROCESS", 0)
    monkeypatch.setattr(warming.os, "sched_getaffinity", lambda pid: set(range(5)), raising=False)
    monkeypatch.setattr(warming, "compile_all", lambda builds, arguments, *, target, workers,
                        progress: asked.append(workers) or {})
    tg.warmup(SHAPES[:1], device="nvidia-h200", workers=workers)
    assert asked == [expected]


def test_processes_do_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(warming, "BUILDER", "fakes:Builder")
    done = []
    with settings.override(cache_dir=tmp_path):
        report = tg.warmup(SHAPES, device="nvidia-h200", workers=2,
                           progress=lambda some, of: done.append((some, of)))
    assert (report.found, report.failed) == (0, ()) and report.compiled >= 3
    assert done[-1] == (report.compiled, report.compiled)


def test_a_real_build_lands_in_the_store(tmp_path):
    pytest.importorskip("triton")
    # Of a GPU that was never measured torch runs all otherwise.
    with settings.override(cache_dir=tmp_path, policy="own"):
        report = tg.warmup((64, 64, 64), device="nvidia-l40s")
        assert (report.compiled, report.failed) == (1, ())
        assert len(list(tmp_path.rglob("*.bin"))) == report.binaries
        assert tg.warmup((64, 64, 64), device="nvidia-l40s").found == 1


@pytest.mark.parametrize("what, options, error, says", [
    ([], {}, UsageError, "no problems"), (7, {}, UsageError, "7 is no suite"),
    ([(1, 2)], {}, UsageError, "is no problem"), ("no_such_suite", {}, UsageError, "suite"),
    ((64, 64, 64), {"device": "no-such"}, DeviceError, "nvidia-h200"),
    ((64, 64, 64), {"workers": 0}, UsageError, "workers=0")])
def test_wrong_arguments_are_named(what, options, error, says):
    with pytest.raises(error, match=says):
        tg.warmup(what, **{"device": "nvidia-h200", **options})


def test_the_command_says_what_it_did(faked, capsys):
    words = ["warmup", "--m", "64,128", "--n", "512", "--k", "512", "--device-name", "nvidia-h200"]
    assert main(words) == 0
    assert "2 problems for nvidia-h200" in capsys.readouterr().out
    faked.refuses.add(GemmProblem.contiguous(72, 512, 512))
    faked.asked.clear()
    assert main([*words[:2], "72", *words[3:]]) == 1
    assert "failed: 72x512x512" in capsys.readouterr().out
    assert main([*words, "--workers", "0"]) == 2


#: 60 to 84 are needed with the shipped tables and calibration; docs/faq.md says how many every M up
#: to 4,096 needs of 4096 by 4096.
MOST_BINARIES = 90


@pytest.mark.thorough
@pytest.mark.parametrize("n, k", [(4096, 4096), (11008, 4096), (4097, 4097), (4096, 1001)])
def test_a_changing_m_needs_few_binaries(n, k):
    """Of 4096 sizes a sample with every alignment and the neighbourhood of every usual tile."""
    sizes = {*range(1, 34), *range(1, 4097, 61),
             *(tile * i + d for tile in (64, 128, 192) for i in range(1, 6) for d in (-1, 0, 1)),
             *(2**i for i in range(13))}
    keys = set()
    for m in sorted(sizes):
        problem = GemmProblem.contiguous(m, n, k, layout="nt")
        keys |= {binary_key(x, 90)
                 for x in launches_of(problem, choose(problem, H200).config, H200)}
    assert len(keys) <= MOST_BINARIES


@pytest.mark.parametrize("n, k", [(4096, 4096), (4097, 4096), (1000, 1032)])
def test_a_changing_m_of_few_rows_needs_a_skinny_binary_a_tile(n, k):
    tiles, keys = set(), set()
    for m in range(1, 33):
        problem = GemmProblem.contiguous(m, n, k, layout="nt")
        config = SPECS["skinny"].default(problem, H200)
        tiles.add(config.block_m)
        keys |= {binary_key(x, 90) for x in launches_of(problem, config, H200)}
    assert tiles == {8, 16, 32} and len(keys) == 3


#: What CONTRIBUTING.md promises of a config; some 1 to 150 are asked for.
MOST_OF_A_CONFIG = 160
#: Of every divisor up to 16 bytes, below and beyond a tile, and where offsets need 64 bits.
EXTENTS = (1, 2, 3, 4, 8, 16, 33, 66, 100, 136, 264, 520, 1021, 1022, 1024, 3332, 8200, 65536,
           65537, 2**20)


OF_ANY_LAYOUT = [
    KernelConfig("tiled", 64, 64, 32), KernelConfig("tiled", 64, 64, 32, split_k=4),
    KernelConfig("persistent_tma", 64, 64, 64, num_stages=3),
    KernelConfig("warp_specialized", 128, 64, 64, num_warps=8, num_stages=4),
    *(KernelConfig("warp_specialized", 128, 64, 64, num_warps=8, num_stages=4, pad_operands=level,
                   split_k=2) for level in (1, 2)),
    KernelConfig("gemv", 4, 64, 64, num_stages=2, split_k=2)]
SKINNY = [KernelConfig("skinny", 8, 16, 256, num_stages=3, split_k=2, swap_ab=swap)
          for swap in (0, 1)]


@pytest.mark.parametrize("config, layout", [
    *(pytest.param(config, layout, marks=() if layout == "nt" else pytest.mark.thorough)
      for config, layout in itertools.product(OF_ANY_LAYOUT, LAYOUTS)),
    *itertools.product(SKINNY, ["nt"])], ids=str)
def test_whatever_the_shapes_a_config_has_few_binaries(config, layout):
    """Loaded ones stay for the life of a process, which may see any number of shapes. One compiler
    makes a binary of each key."""
    keys, problems = set(), 0
    for m, n, k in itertools.product(EXTENTS, repeat=3):
        problem = GemmProblem.contiguous(m, n, k, layout=layout)
        if violation(problem, config, H200) is None:
            problems += 1
            keys |= {launch_key(x, 90) for x in launches_of(problem, config, H200)}
    least = 200 if config.kernel == "gemv" else 300  # it takes two of these M
    assert problems >= least and len(keys) <= MOST_OF_A_CONFIG

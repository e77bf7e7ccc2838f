"""Compiling ahead never stops a bench."""

import bench_fakes
import pytest

from tritongemm import settings
from tritongemm.bench import precompile
from tritongemm.bench.precompile import build_one, compile_ahead
from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.problem import GemmProblem


def test_every_build_is_done_and_counted():
    seen = []
    done = compile_ahead(["a", "b", "c"], workers=2, compiler=bench_fakes.compile_fake,
                         progress=lambda at, total: seen.append((at, total)))
    assert done == [True] * 3 and seen == [(1, 3), (2, 3), (3, 3)]


def test_nothing_to_build_starts_no_process():
    assert compile_ahead([], compiler=None) == []


def test_a_worker_that_dies_leaves_the_rest_to_the_rows(monkeypatch):
    monkeypatch.setattr(precompile, "TIMEOUT_S", 2.0)
    assert compile_ahead(["dies"], workers=1, compiler=bench_fakes.compile_fake) == []


def test_an_illegal_config_is_no_error_here_and_is_logged(caplog):
    caplog.set_level("INFO", "tritongemm")
    config = KernelConfig("no_such_kernel", 64, 64, 64)
    problem = GemmProblem.contiguous(64, 64, 64)
    assert build_one((problem, config, representative(90))) == (problem, config.config_id, None)
    assert f"{config.config_id} of {problem} is not compiled ahead: " in caplog.text


def test_what_was_compiled_has_its_seconds_and_what_was_there_has_none(tmp_path):
    pytest.importorskip("triton")
    problem, config = GemmProblem.contiguous(64, 64, 64), KernelConfig("tiled", 32, 32, 32)
    with settings.override(cache_dir=tmp_path):
        first, second = (build_one((problem, config, representative(90))) for _ in range(2))
    assert first[2] > 0 and second[2] is None

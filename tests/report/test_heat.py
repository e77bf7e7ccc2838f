"""A journal becomes maps over block_m x block_n."""

import math

import pytest
from made_rows import write_journal

from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.report import heat

SMALL, LARGE = GemmProblem(64, 64, 64), GemmProblem(512, 512, 512)


def config(m, n, kernel="tiled", **more):
    return KernelConfig(kernel, m, n, 32, **more)


def test_a_cell_holds_the_best_of_all_configs_of_its_tile(tmp_path):
    path = write_journal(tmp_path / "j.jsonl", [
        (SMALL, config(64, 64, num_stages=2), "ok", 8.0, "coarse"),
        (SMALL, config(64, 64, num_stages=3), "ok", 5.0, "coarse"),
        (SMALL, config(64, 64, num_stages=4), "compile", None, "coarse"),
        (SMALL, config(128, 64), "ok", 10.0, "coarse")])
    (one,) = heat.read_maps([path])
    cell = one.kernels["tiled"][64, 64]
    assert (cell.time_us, cell.config.num_stages, cell.tried) == (5.0, 3, 3)
    assert dict(cell.failed) == {"compile": 1}
    assert one.share("tiled", (64, 64)) == 1.0
    assert one.share("tiled", (128, 64)) == 0.5
    assert one.share("tiled", (16, 16)) is None


def test_final_times_are_not_mixed_with_coarse_ones(tmp_path):
    path = write_journal(tmp_path / "j.jsonl", [
        (SMALL, config(64, 64), "ok", 8.0, "coarse"), (SMALL, config(64, 64), "ok", 3.0, "final"),
        (SMALL, config(32, 32), "ok", 8.0, "coarse")])
    assert heat.read_maps([path])[0].best_us == 8.0


def test_a_problem_with_final_times_only_is_still_drawn(tmp_path):
    path = write_journal(tmp_path / "j.jsonl", [(SMALL, config(64, 64), "ok", 3.0, "final")])
    assert heat.read_maps([path])[0].best_us == 3.0


def test_the_mean_share_counts_the_problems_where_the_block_ran(tmp_path):
    path = write_journal(tmp_path / "j.jsonl", [
        (SMALL, config(64, 64), "ok", 1.0, "coarse"), (SMALL, config(32, 32), "ok", 4.0, "coarse"),
        (LARGE, config(64, 64), "ok", 4.0, "coarse"), (LARGE, config(32, 32), "wrong", None,
                                                       "coarse")])
    shares = heat.mean_shares(heat.read_maps([path]))["tiled"]
    assert shares[64, 64] == (pytest.approx(1.0), 2)
    assert shares[32, 32] == (pytest.approx(0.25), 1)


def test_untimed_results_have_no_share(tmp_path):
    path = write_journal(tmp_path / "j.jsonl", [(SMALL, config(64, 64), "ok", None, "coarse")])
    (one,) = heat.read_maps([path])
    assert math.isinf(one.best_us)
    assert one.share("tiled", (64, 64)) is None
    assert heat.spread([one], 3) == []
    assert heat.mean_shares([one]) == {}


@pytest.mark.parametrize("count, sizes", [(0, []), (1, [48]), (2, [16, 80]), (3, [16, 48, 80]),
                                          (9, [16, 32, 48, 64, 80])])
def test_a_few_maps_are_spread_over_the_sizes(count, sizes):
    maps = [heat.HeatMap(GemmProblem(m, 16, 16), {"tiled": {(1, 1): heat.Cell(time_us=1.0)}})
            for m in (80, 16, 48, 64, 32)]
    assert [m.problem.m for m in heat.spread(maps, count)] == sizes


@pytest.mark.parametrize("raw", [b"", b"[]\n", b"not json\nat all\n", b"\xff\xff\n{}\n"])
def test_a_hostile_journal_is_one_clear_error(tmp_path, raw):
    path = tmp_path / "j.jsonl"
    path.write_bytes(raw)
    with pytest.raises(DataFileError, match="j.jsonl"):
        heat.read_maps([path])


def test_a_torn_last_line_is_left_out(tmp_path):
    path = write_journal(tmp_path / "j.jsonl", [(SMALL, config(64, 64), "ok", 3.0, "coarse")])
    path.write_bytes(path.read_bytes() + b'{"kind": "result", "prob')
    assert len(heat.read_maps([path])) == 1

"""What a rung refuses, and that what it does not refuse is launched as it should be."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.baselines.cuda.rungs import (
    CUDA_RUNGS,
    MAX_SIZE,
    config_violation,
    require,
    rung_named,
    violation,
)
from tritongemm.device import device_named
from tritongemm.errors import ConfigError, ConstraintError, ProblemError, UsageError
from tritongemm.problem import GemmProblem

H200 = device_named("nvidia-h200")
T4 = replace(H200, slug="t4", name="Tesla T4", arch=75, shared_bytes_per_block=65536,
             shared_bytes_per_sm=65536)


def _problem(m=128, n=128, k=128, **more):
    return GemmProblem.contiguous(m, n, k, dtype=more.pop("dtype", "fp32"), **more)


def test_unknown_rung_lists_the_known_ones():
    with pytest.raises(UsageError, match="'fast'.*naive.*warp_tiled_async"):
        rung_named("fast")


def test_unknown_parameter_lists_the_known_ones():
    with pytest.raises(ConfigError, match="no parameter warp_m.*thread_m"):
        CUDA_RUNGS["thread_tile_2d"].config(warp_m=64)


@pytest.mark.parametrize("name, axes, said", [
    ("thread_tile_2d", {"block_m": 100}, r"block_m=100 is not divisible by thread_m=8"),
    ("thread_tile_2d", {"thread_m": 1, "thread_n": 1}, r"16384 threads a block; at most 1024"),
    ("thread_tile_2d", {"block_k": 1}, r"does not divide evenly"),
    ("thread_tile_2d", {"thread_m": 16, "thread_n": 16}, r"more than 255 registers"),
    ("naive", {"block_m": 64}, r"2048 threads a block; at most 1024"),
    ("smem_tiled_unrolled", {"block_m": 30}, r"must be equal"),
    ("column_8", {"block_m": 33}, r"must be equal"),
    ("double_buffered", {"block_k": 64, "thread_m": 4}, r"bytes of static shared memory; 49152"),
    ("double_buffered", {"thread_m": 2}, r"thread_m=2 is not a multiple of 4"),
    ("outer_product_float4", {"thread_n": 8}, r"thread_n=8 must be 4"),
    ("warp_tiled", {"warp_m": 48}, r"not divisible by warp_m=48"),
    ("warp_tiled", {"thread_m": 16}, r"4 x 4 lanes a warp"),
    ("warp_tiled_async", {"num_stages": 1}, r"num_stages=1; a pipeline needs at least 2"),
    ("warp_tiled_async", {"num_stages": 20}, r"bytes of shared memory; sm_90 allows 232448"),
    ("warp_tiled_async", {"block_k": 12}, r"BK in groups of 8"),
])
def test_illegal_parameters_name_the_value_and_the_limit(name, axes, said):
    config = CUDA_RUNGS[name].config(**axes)
    reason = config_violation(config, H200)
    assert reason is not None and reason.startswith(name)
    with pytest.raises(ConstraintError, match=said):
        require(_problem(), config, H200)


def test_zero_parameter_is_refused():
    config = CUDA_RUNGS["thread_tile_2d"].config(thread_m=0)
    assert "thread_m must be at least 1" in config_violation(config, H200)


def test_square_tile_of_any_side_is_legal():
    rung = CUDA_RUNGS["smem_tiled"]
    config = replace(rung.variants[0], block_m=8, block_n=8, block_k=8)
    assert config_violation(config, H200) is None
    assert rung.macros(config) == {"TILE": 8}


def test_async_rung_needs_sm_80():
    reason = config_violation(CUDA_RUNGS["warp_tiled_async"].variants[0], T4)
    assert "needs sm_80 (cp.async)" in reason and "Tesla T4" in reason


def test_strip_names_the_k_that_fits():
    config = CUDA_RUNGS["smem_strip"].variants[0]
    fits = H200.shared_bytes_per_block // (4 * 32)
    assert violation(_problem(k=fits), config, H200) is None
    reason = violation(_problem(k=fits + 1), config, H200)
    assert f"k <= {fits}" in reason and str(H200.shared_bytes_per_block) in reason


@pytest.mark.parametrize("m, n, k, most, said", [
    (64, 8, (2**32 - 1) // 63, "k", r"64 rows of A.*4294967295.*use block_m <= 63"),
    (4096, 8, (2**32 - 1) // 63, "k", r"64 rows of A"),
    (8, (2**32 - 1) // 15, 16, "n", r"16 rows of B.*4294967295.*use block_k <= 15"),
])
def test_async_rung_names_the_tile_that_32_bits_span(m, n, k, most, said):
    config = CUDA_RUNGS["warp_tiled_async"].variants[0]
    assert violation(_problem(m, n, k), config, H200) is None
    over = _problem(m, n + (most == "n"), k + (most == "k"))
    with pytest.raises(ConstraintError, match=said):
        require(over, config, H200)


def test_rows_that_are_not_there_need_no_offset():
    config = CUDA_RUNGS["warp_tiled_async"].variants[0]
    assert violation(_problem(1, 1, MAX_SIZE), config, H200) is None
    assert violation(_problem(1, MAX_SIZE, 1), config, H200) is None


@pytest.mark.parametrize("problem, said", [
    (_problem(dtype="fp16"), "computes in fp32 only, not fp16"),
    (_problem(dtype="bf16"), "computes in fp32 only, not bf16"),
    (_problem(precision="tf32"), "IEEE fp32"),
    (_problem(batch=3), "one IEEE fp32 product"),
    (_problem(layout="nt"), "layout nn"),
    (_problem(m=1, n=1, k=MAX_SIZE + 1), "above"),
])
def test_problem_that_no_rung_runs_is_refused(problem, said):
    for rung in CUDA_RUNGS.values():
        assert said in violation(problem, rung.variants[0], H200)


def test_grid_that_is_too_tall_is_refused():
    assert "grid of" in violation(_problem(m=65536 * 16, n=1, k=1),
                                  CUDA_RUNGS["smem_strip"].variants[0], H200)


def test_negative_size_is_refused():
    with pytest.raises(ProblemError, match="m=-1"):
        _problem(m=-1)


@given(m=st.integers(1, 5000), n=st.integers(1, 5000),
       rung=st.sampled_from(list(CUDA_RUNGS.values())))
def test_grid_covers_the_result_with_no_idle_row_of_blocks(m, n, rung):
    config = rung.variants[-1]
    x, y = rung.grid(config, m, n)
    rows, columns = -(-m // config.block_m), -(-n // config.block_n)
    assert x * y == rows * columns


@given(values=st.fixed_dictionaries({
    "block_m": st.sampled_from([16, 32, 64, 96, 128, 256]),
    "block_n": st.sampled_from([16, 32, 64, 96, 128, 256]),
    "block_k": st.sampled_from([4, 8, 16, 32]), "thread_m": st.sampled_from([1, 2, 4, 8, 16]),
    "thread_n": st.sampled_from([1, 2, 4, 8, 16]), "warp_m": st.sampled_from([16, 32, 64, 128]),
    "warp_n": st.sampled_from([16, 32, 64, 128]), "num_stages": st.integers(1, 6),
    "group_m": st.sampled_from([1, 8])}), rung=st.sampled_from(list(CUDA_RUNGS.values())))
def test_legal_parameters_move_every_element_of_a_tile_once(values, rung):
    if rung.square:
        return
    config = rung.config(**{axis: values[axis] for axis in rung.axes})
    if config_violation(config, H200) is not None:
        return
    threads = rung.threads(config)
    assert 1 <= threads <= 1024
    assert config.num_warps == -(-threads // 32)
    if rung.warps:
        assert threads * config.thread_m * config.thread_n == config.block_m * config.block_n
    elif "thread_n" in rung.axes:
        assert threads * config.thread_m * config.thread_n == config.block_m * config.block_n
    for _, elements, share in rung.loads(config, threads):
        assert elements % share == 0

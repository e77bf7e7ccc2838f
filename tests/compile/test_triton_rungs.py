"""The ladder's Triton rungs compile with no GPU, and show in the code what they teach."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace

import pytest

from tritongemm import settings
from tritongemm.device import representative
from tritongemm.errors import ConstraintError
from tritongemm.kernels import SPECS, spec_named
from tritongemm.kernels.compile import build, build_launches, launches_of
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.ladder.triton_rung import in_float32, scale_launch
from tritongemm.problem import GemmProblem

pytest.importorskip("triton")
H200 = representative(90)
if settings.current().interpret:
    pytest.skip("compiling needs a process without TRITON_INTERPRET=1", allow_module_level=True)


def problem(m=1024, n=1024, k=1024, dtype="bf16", layout="nn"):
    return GemmProblem.contiguous(m, n, k, dtype=dtype, layout=layout)


def config_of(name, one):
    return RUNG_SPECS[name].default(one, H200)


def ptx_of(name, **changes):
    """The PTX of a rung's first launch."""
    return ptx_of_launch(launches_of(problem(), replace(config_of(name, problem()), **changes),
                                     H200)[0])


def ptx_of_launch(launch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tritongemm.kernels.compile import _signature

    function = getattr(importlib.import_module(launch.module), launch.function)
    signature, attributes = _signature(launch, function.arg_names)
    constants = {(function.arg_names.index(n),): v for n, v in launch.all_constants()}
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={
        "num_warps": launch.num_warps, "num_stages": launch.num_stages}).asm["ptx"]


def test_matmul_knows_no_rung_of_the_ladder():
    assert not set(SPECS) & set(RUNG_SPECS)
    assert all(spec_named(name).name == name for name in RUNG_SPECS)


@pytest.mark.parametrize("name", RUNG_SPECS)
def test_rung_compiles_for_hopper_within_its_estimate(name, tmp_path):
    one = problem()
    with settings.override(cache_dir=tmp_path):
        report = build(one, config_of(name, one), H200)
    assert report.shared_bytes <= RUNG_SPECS[name].shared_bytes(one, config_of(name, one))
    assert not report.spills


@pytest.mark.parametrize("name", ["triton_naive", "triton_vectorized", "triton_stream_k",
                                  "triton_persistent"])
def test_rung_compiles_for_ampere_and_in_fp32(name, tmp_path):
    one, ampere = problem(dtype="fp32"), representative(80)
    with settings.override(cache_dir=tmp_path):
        assert build(one, RUNG_SPECS[name].default(one, ampere), ampere).registers


@pytest.mark.parametrize("name", RUNG_SPECS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 300, 33), (300, 5, 4096), (4096, 8192, 16)])
def test_default_is_legal_for_any_shape(name, shape):
    if name in ("triton_tma", "gluon_warp_specialized"):
        shape = tuple(-(-x // 8) * 8 for x in shape)  # TMA's alignment
        if min(shape) < 64:
            return
    one = problem(*shape)
    assert RUNG_SPECS[name].violation(one, config_of(name, one), H200) is None


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_default_is_legal_for_any_dtype(dtype):
    tensor_cores_only = {"triton_tma", "gluon_warp_specialized"} if dtype == "fp32" else set()
    for name, spec in RUNG_SPECS.items():
        one = problem(dtype=dtype)
        broken = spec.violation(one, spec.default(one, H200), H200)
        assert (broken is None) == (name not in tensor_cores_only), (name, broken)


@pytest.mark.parametrize("name, changes, says", [
    ("triton_naive", {"block_m": 64, "block_n": 64}, "products a step"),
    ("triton_tiled", {"block_m": 48}, "power of two"),
    ("triton_tiled", {"split_k": 2}, "no such parameter"),
    ("triton_pipelined", {"num_stages": 64}, "shared memory"),
    ("triton_split_k", {"split_k": 64}, "at most one part a step")])
def test_illegal_parameters_name_the_limit(name, changes, says):
    with pytest.raises(ConstraintError, match=says):
        launches_of(problem(), replace(config_of(name, problem()), **changes), H200)


@pytest.mark.parametrize("name", RUNG_SPECS)
@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_a_product_that_is_scaled_afterwards_fits_in_float32(name, size):
    one = problem(size, size, size)
    whole, config = in_float32(one, config_of(name, one), H200)
    assert whole.dtype_out == "fp32" and RUNG_SPECS[name].violation(whole, config, H200) is None


@pytest.mark.parametrize("read_c", [False, True])
def test_the_scaling_pass_compiles_and_reads_c_only_if_beta_is_not_zero(read_c, tmp_path):
    launch = scale_launch(problem(100, 300, 8), (300, 1), read_c)
    with settings.override(cache_dir=tmp_path):
        (binary,), _ = build_launches((launch,), 90)
    assert binary.symbol == "tritongemm_ladder_scale"
    # C is bf16: the only 16-bit values that the pass can read.
    assert ("ld.global.b16" in ptx_of_launch(launch).replace("v2.", "").replace("v4.", "")) \
        == read_c


def test_an_empty_result_is_refused():
    one = GemmProblem.contiguous(0, 4, 4)
    assert RUNG_SPECS["triton_tiled"].supports(one, H200).rule == "empty"


def test_a_128_bit_load_appears_with_the_hints():
    wide = re.compile(r"cp\.async\.\w+\.shared\.global.*0x10|ld\.global\.v4")
    assert not wide.search(ptx_of("triton_tiled"))
    assert wide.search(ptx_of("triton_vectorized"))


def test_stages_are_the_second_buffer():
    assert "cp.async" not in ptx_of("triton_vectorized", num_stages=1)
    assert "cp.async.wait_group" in ptx_of("triton_pipelined", num_stages=3)


def test_naive_has_no_matrix_instruction_and_tiled_has():
    assert not re.search(r"wgmma|mma\.sync", ptx_of("triton_naive"))
    assert re.search(r"wgmma|mma\.sync", ptx_of("triton_tiled"))


@pytest.mark.parametrize("name", ["triton_persistent", "triton_stream_k"])
def test_a_loop_around_the_k_loop_does_not_cost_the_pipeline(name):
    ptx = ptx_of(name)
    assert "cp.async.wait_group" in ptx and "wgmma.mma_async" in ptx

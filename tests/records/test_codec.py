"""Problems and configs survive JSON, and equal keys are equal problems."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.config import LEAST, PARAMETERS, KernelConfig
from tritongemm.errors import ConfigError, ProblemError
from tritongemm.problem import DTYPES, LAYOUTS, MAX_EXTENT, GemmProblem
from tritongemm.records import codec

EXTENT = st.integers(0, MAX_EXTENT)
ALIGN = st.sampled_from((1, 2, 4, 8, 16))
DTYPE = st.sampled_from(tuple(DTYPES))
PROBLEMS = st.builds(GemmProblem, EXTENT, EXTENT, EXTENT, EXTENT, DTYPE, DTYPE, DTYPE,
                     st.sampled_from(LAYOUTS), ALIGN, ALIGN, ALIGN,
                     st.sampled_from(("none", "bias+gelu")))
POWER = st.sampled_from((1, 2, 16, 128, 65536))
CONFIGS = st.builds(KernelConfig, st.sampled_from(("tiled", "persistent_tma")), **{
    name: st.sampled_from((0, 8)) if name in LEAST else POWER for name in PARAMETERS})


@given(PROBLEMS)
def test_a_problem_survives_json(problem):
    values = json.loads(json.dumps(codec.problem_to_json(problem)))
    assert codec.problem_from_json(values) == problem


@given(CONFIGS)
def test_a_config_survives_json(config):
    values = json.loads(json.dumps(codec.config_to_json(config)))
    assert codec.config_from_json(values) == config


@given(PROBLEMS, PROBLEMS)
def test_keys_are_equal_where_problems_are(one, other):
    assert (codec.problem_key(one) == codec.problem_key(other)) == (one == other)


@pytest.mark.parametrize("changes", [
    {"scale_a": "row"}, {"scale_b": "1x128"}, {"scale_a": "tensor", "scale_b": "tensor_bf16"},
    {"grouping": "m64"}, {"grouping": "k3", "scale_b": "row", "dtype_b": "fp16"}], ids=str)
def test_scales_and_groups_are_written_where_there_are_any(changes):
    plain = GemmProblem.contiguous(8, 16, 32)
    problem = replace(plain, **changes)
    values = codec.problem_to_json(problem)
    assert values == {**codec.problem_to_json(plain), **changes}
    assert codec.problem_from_json(json.loads(json.dumps(values))) == problem
    assert codec.problem_key(problem) != codec.problem_key(plain)


def test_the_key_of_a_plain_problem_is_as_journals_have_it():
    assert codec.problem_key(GemmProblem.contiguous(8, 16, 32, layout="nt")) == (
        "8|16|32|bf16|nt|bf16|bf16|1|16|16|16|none|ieee")


def test_a_plain_problem_is_a_short_object():
    problem = GemmProblem.contiguous(1024, 4096, 4096, layout="nt")
    assert codec.problem_to_json(problem) == {
        "m": 1024, "n": 4096, "k": 4096, "dtype_a": "bf16", "layout": "nt"}


@pytest.mark.parametrize("change, reason", [
    ({"m": -1}, "m=-1"), ({"m": "1"}, "not an integer"), ({"m": True}, "not an integer"),
    ({"m": None}, "not an integer"), ({"dtype_a": "int4"}, "int4"), ({"dtype_a": []}, "dtype"),
    ({"layout": "xx"}, "layout"), ({"shape": 1}, "unknown field 'shape'"),
    ({"align_a": 3}, "align_a"), ({"precision": "tf32"}, "tf32"), ({"n": 2**40}, "outside")])
def test_a_bad_problem_names_its_field(change, reason):
    values = {"m": 1, "n": 1, "k": 1, "dtype_a": "bf16", "layout": "nn", **change}
    with pytest.raises(ProblemError, match=reason):
        codec.problem_from_json(values)


@pytest.mark.parametrize("values", [None, [], "x", 3])
def test_what_is_no_object_is_refused(values):
    with pytest.raises(ProblemError, match="not an object"):
        codec.problem_from_json(values)
    with pytest.raises(ConfigError):
        codec.config_from_json(values)


def test_a_missing_field_is_named():
    with pytest.raises(ProblemError, match="k of the problem is missing"):
        codec.problem_from_json({"m": 1, "n": 1, "dtype_a": "bf16", "layout": "nn"})

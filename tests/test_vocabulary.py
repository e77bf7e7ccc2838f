"""Problem, config, device, settings and the public names: what they hold and what they refuse."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tritongemm
from tritongemm import settings
from tritongemm.config import DEFAULTS, PARAMETERS, KernelConfig
from tritongemm.device import (
    DeviceSpec,
    device_named,
    known_devices,
    read_device,
    representative,
    slug_of,
)
from tritongemm.errors import (
    ConfigError,
    DataFileError,
    DeviceError,
    ProblemError,
    TritonGemmError,
    UsageError,
)
from tritongemm.problem import (
    ACTIVATIONS,
    ADDENDS,
    EPILOGUES,
    FACTORS,
    LAYOUTS,
    PLAIN_EPILOGUES,
    GemmProblem,
    Scale,
    divisor_of,
    dtype_of,
    epilogue_of,
    grouping_of,
    scale_of,
)

# --- problem ---------------------------------------------------------------------------------

PROBLEM = GemmProblem.contiguous(96, 40, 24, layout="nt", batch=2)


def test_a_problem_counts_operations_and_compulsory_bytes():
    assert PROBLEM.flops() == 2 * 2 * 96 * 40 * 24
    assert PROBLEM.bytes() == 2 * 2 * (96 * 24 + 24 * 40 + 96 * 40)
    assert replace(PROBLEM, dtype_out="fp32").bytes() - PROBLEM.bytes() == 2 * 2 * 96 * 40


@pytest.mark.parametrize(("problem", "words"), [
    (GemmProblem(1, 2, 3), "1x2x3 bf16 nn"), (PROBLEM, "2x96x40x24 bf16 nt"),
    (GemmProblem.contiguous(1, 2, 3, dtype="fp32", precision="tf32"), "1x2x3 fp32 nn tf32"),
    (replace(PROBLEM, dtype_out="fp32", epilogue="relu"), "2x96x40x24 bf16>fp32 nt relu")],
    ids=lambda v: v if isinstance(v, str) else "")
def test_a_problem_reads_as_one_line(problem, words):
    assert str(problem) == words


@pytest.mark.parametrize(("changes", "words"), [
    ({"dtype_b": "fp16"}, "2x96x40x24 bf16xfp16 nt"),
    ({"dtype_b": "fp16", "dtype_out": "fp32"}, "2x96x40x24 bf16xfp16>fp32 nt"),
    ({"scale_a": "row", "scale_b": "1x128_bf16"}, "2x96x40x24 bf16 nt a_row b_1x128_bf16"),
    ({"batch": 1, "grouping": "m8", "epilogue": "relu"}, "96x40x24 bf16 nt relu m8")], ids=str)
def test_a_line_says_what_is_not_plain(changes, words):
    problem = replace(PROBLEM, **changes)
    assert str(problem) == words and problem != PROBLEM and hash(problem) != hash(PROBLEM)


def test_operands_have_each_their_own_format_layout_alignment_and_scale():
    problem = replace(PROBLEM, dtype_b="fp32", dtype_out="fp16", align_b=4, scale_b="1x32")
    assert (problem.a.format.name, problem.a.major, problem.a.align, problem.a.scale) == (
        "bf16", "k", 16, None)
    assert (problem.b.format.name, problem.b.major, problem.b.align) == ("fp32", "k", 4)
    assert problem.b.scale == Scale("block", (1, 32)) and problem.b.elements == 1
    assert (problem.c.format.name, problem.c.major) == ("fp16", "n")
    for layout, majors in (("nn", "kn"), ("nt", "kk"), ("tn", "mn"), ("tt", "mk")):
        one = replace(PROBLEM, layout=layout)
        assert one.a.major + one.b.major == majors
        assert (one.stored("a")[1], one.stored("b")[1]) == one.leading_dimensions()
        assert [one.a.k_major, one.b.k_major] == [letter == "k" for letter in majors]


def test_bytes_are_of_each_operands_format_with_its_factors_and_groups():
    mixed = GemmProblem(96, 40, 24, dtype_a="bf16", dtype_b="fp32", dtype_out="fp16")
    assert mixed.bytes() == 2 * 96 * 24 + 4 * 24 * 40 + 2 * 96 * 40
    for word, factors in (("tensor", 1), ("row", 40), ("32x16", 4), ("1x24", 40)):
        assert replace(mixed, scale_b=word).bytes() - mixed.bytes() == 4 * factors
    assert replace(mixed, scale_a="row_bf16").bytes() - mixed.bytes() == 2 * 96
    for kind, more in (("m", 4 * 24 * 40), ("n", 2 * 96 * 24), ("k", 2 * 96 * 40)):
        grouped = replace(mixed, grouping=f"{kind}3")
        assert grouped.bytes() - mixed.bytes() == 2 * more and grouped.flops() == mixed.flops()
    assert replace(mixed, grouping="m3", scale_b="row").bytes() == (
        replace(mixed, grouping="m3").bytes() + 4 * 3 * 40)


@pytest.mark.parametrize("word", ("tensor", "row", "1x128", "128x128", "1x32_bf16", "row_fp16"))
def test_a_scale_is_spelt_in_one_way(word):
    assert str(scale_of(word)) == word and scale_of(word) is scale_of(word)


@pytest.mark.parametrize("word", ("m1", "n64", "k7"))
def test_a_grouping_is_spelt_in_one_way(word):
    assert str(grouping_of(word)) == word
    assert (grouping_of(word).kind, grouping_of(word).groups) == (word[0], int(word[1:]))


def test_epilogues_are_an_addend_and_an_activation_under_one_name():
    assert len(PLAIN_EPILOGUES) == len(ADDENDS) * len(ACTIVATIONS) + len(FACTORS)
    for name, epilogue in PLAIN_EPILOGUES.items():
        assert str(epilogue) == name and epilogue_of(name) is epilogue
        assert replace(PROBLEM, epilogue=name).epilogue == name
        assert epilogue.reads_d == any(word in ("bias", "add", *FACTORS)
                                       for word in name.split("+"))
        assert epilogue.multiplies == (name in FACTORS)
        assert epilogue.scales == (epilogue.reads_d or name.startswith("scale"))


def test_further_epilogues_are_gated_or_add_a_residual_or_have_a_second_result():
    further = {name: e for name, e in EPILOGUES.items() if not e.plain}
    gates = len(ACTIVATIONS) - 1
    assert len(further) == 2 * len(ACTIVATIONS) - 1 + 2 * 3 * gates
    for name, epilogue in further.items():
        words = name.split("+")
        assert str(epilogue) == name and epilogue_of(name) is epilogue
        assert epilogue.gated == any(w.startswith("gated_") for w in words)
        assert (epilogue.residual, epilogue.aux) == ("residual" in words, "aux" in words)
        assert epilogue.reads_d == ("bias" in words or epilogue.residual)
    assert not {"residual", "gated", "gated_none", "aux"} & set(EPILOGUES)


def test_a_gated_result_has_half_of_the_columns():
    plain = GemmProblem.contiguous(96, 80, 24, layout="nt")
    gated = replace(plain, epilogue="gated_silu")
    assert (gated.n, gated.columns, plain.columns) == (80, 40, 80)
    assert gated.flops() == plain.flops()
    assert plain.bytes() - gated.bytes() == gated.bytes_of_c() == 2 * 96 * 40
    aux = replace(gated, epilogue="bias+gated_silu+aux")
    assert aux.bytes() - gated.bytes() == 2 * 96 * 80 + 2 * 80
    assert GemmProblem.contiguous(96, 40, 24, epilogue="gated_silu").align_c == 8  # rows of 20
    for wrong in (dict(n=81), dict(batch=2)):
        with pytest.raises(ProblemError, match="two halves, so n is even, and the batch is 1"):
            replace(gated, **wrong)


@pytest.mark.parametrize(("epilogue", "bytes_of_d"), [
    ("none", 0), ("relu", 0), ("scale+silu", 0), ("bias", 2 * 40), ("add+gelu", 2 * 2 * 96 * 40)])
def test_the_bytes_of_d_are_compulsory(epilogue, bytes_of_d):
    fused = replace(PROBLEM, epilogue=epilogue)
    assert fused.bytes_of_d() == fused.bytes() - PROBLEM.bytes() == bytes_of_d
    assert fused.flops() == PROBLEM.flops()


@pytest.mark.parametrize(("layout", "leads"), [
    ("nn", (24, 40)), ("nt", (24, 24)), ("tn", (96, 40)), ("tt", (96, 24))])
def test_the_leading_dimensions_follow_the_layout(layout, leads):
    assert replace(PROBLEM, layout=layout).leading_dimensions() == leads


def test_unit_and_op_name_what_bounds_it_and_its_tables():
    assert (PROBLEM.unit, PROBLEM.op) == ("bf16", "bmm")
    one = GemmProblem.contiguous(8, 8, 8, dtype="fp32", precision="tf32")
    assert (one.unit, one.op) == ("tf32", "mm")


@pytest.mark.parametrize(("changes", "says"), [
    ({"m": -1}, "m=-1 is outside 0 to 2147483647"), ({"k": 2**31}, "k=2147483648 is outside"),
    ({"n": 2.0}, "n=2.0 is not an integer"), ({"batch": True}, "batch=True is not an integer"),
    ({"m": "8"}, "m='8' is not an integer"), ({"dtype_a": "int8"}, "dtype 'int8' is not known"),
    ({"dtype_out": None}, "dtype None"), ({"dtype_b": ["bf16"]}, "not known; use one of bf16"),
    ({"layout": "cn"}, "layout 'cn' is not known; use one of nn, nt, tn, tt"),
    ({"precision": "highest"}, "precision 'highest'"), ({"precision": "tf32"}, "for fp32"),
    *(({"epilogue": name}, r"is not known; use none, or one of scale, bias, add, then one of relu")
      for name in ("", "a;b", "Bias", "gelu+bias", "bias+", "bias+bias", "none+relu", "bias+add",
                   "relu+gelu", "bias gelu", None, 3, ["bias"])),
    *(({"scale_a": word}, "scale .* is not ") for word in (
        "", "rows", "1x", "0x128", "1x128x2", "row_fp32", "tensor+row", None, 3)),
    ({"scale_b": "row_int3"}, "dtype 'int3' is not known"),
    *(({"grouping": word}, "grouping .* is not ") for word in (
        "", "m", "m0", "b4", "m-1", "m4.0", "4m", None, 4)),
    ({"grouping": "m4", "batch": 2}, "grouping m4 with batch=2; a grouped problem has a batch"),
    ({"align_a": 3}, "align_a=3 is not 1, 2, 4, 8 or 16"), ({"align_c": 32}, "align_c=32")],
    ids=str)
def test_a_problem_that_cannot_exist_is_refused(changes, says):
    with pytest.raises(ProblemError, match=says):
        replace(GemmProblem(8, 8, 8), **changes)


@given(st.integers(0, 2**40), st.sampled_from((1, 2, 4, 8, 16, 64)))
def test_a_divisor_divides_and_is_the_largest_up_to_its_limit(value, limit):
    found = divisor_of(value, limit)
    assert value % found == 0 and found <= limit and found & (found - 1) == 0
    assert found == limit or value % (2 * found) != 0
    assert divisor_of(value) == min(divisor_of(value, 64), 16)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(LAYOUTS),
       st.sampled_from(("bf16", "fp16", "fp32")))
def test_alignment_of_fresh_operands_follows_the_extents(m, n, k, layout, dtype):
    problem = GemmProblem.contiguous(m, n, k, layout=layout, dtype=dtype)
    size = dtype_of(dtype).itemsize
    for lead, found in zip((*problem.leading_dimensions(), n),
                           (problem.align_a, problem.align_b, problem.align_c), strict=True):
        assert lead * size % found == 0 and (found == 16 or lead * size % (2 * found))


def test_problems_and_configs_are_values():
    config = KernelConfig("tiled", 64, 64, 32)
    assert PROBLEM != str(PROBLEM) and copy.copy(PROBLEM) == PROBLEM != replace(PROBLEM, m=1)
    for one, name in ((PROBLEM, "m"), (config, "block_m")):
        assert pickle.loads(pickle.dumps(one)) == one and len({one, replace(one)}) == 1
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, 1)


# --- config ----------------------------------------------------------------------------------

VALUES = {name: st.integers(0 if DEFAULTS.get(name) == 0 else 1, 300) for name in PARAMETERS}
CONFIGS = st.builds(KernelConfig, st.sampled_from(("tiled", "persistent_tma")), **VALUES)


@given(CONFIGS)
def test_a_config_survives_json_and_names_only_what_is_not_default(config):
    found = json.loads(json.dumps(config.to_json()))
    assert KernelConfig.from_json(config.kernel, found) == config
    assert all(DEFAULTS.get(name) != value for name, value in found.items())


@given(CONFIGS, CONFIGS)
def test_equal_ids_are_equal_configs(one, other):
    assert (one.config_id == other.config_id) == (one == other)
    assert KernelConfig.from_id(one.kernel, one.config_id) == one
    assert one.config_id.replace("_", "").isalnum()


@given(CONFIGS)
def test_an_id_names_the_tile_the_pipeline_and_what_is_not_default(config):
    tile, *words = config.config_id.removeprefix(config.kernel + "_").split("_")
    assert tile == f"{config.block_m}x{config.block_n}x{config.block_k}"
    others = [name for name in config.to_json() if not name.startswith("block_")
              and name not in ("num_warps", "num_stages", "group_m")]
    assert len(words) == 3 + len(others)
    assert words[:3] == [f"w{config.num_warps}", f"s{config.num_stages}", f"g{config.group_m}"]


@pytest.mark.parametrize("text", (
    "", "tiled", "tiled_64x64", "tiled_64x64x", "tiled_64x64x64_q4", "tiled_64x64x64_w8_w4_s2_g8",
    "tiled_64x64x64", "gemv_64x64x64_w4_s2_g8", "tiled_64x64x64_w4_s2_g8_k1",
    "tiled_0x1x1_w4_s2_g8"))
def test_what_is_no_id_is_an_error(text):
    with pytest.raises(ConfigError):
        KernelConfig.from_id("tiled", text)


def test_ids_are_short_and_readable():
    assert KernelConfig("tiled", 128, 256, 64, 8, 3).config_id == "tiled_128x256x64_w8_s3_g8"
    assert KernelConfig("tiled", 16, 32, 64, split_k=4).config_id.endswith("_w4_s2_g8_k4")


def test_a_parameter_may_be_at_either_end_of_its_range():
    config = KernelConfig("tiled", 65536, 1, 1, num_warps=1, dependent_launch=0, swap_ab=65536)
    assert (config.block_m, config.block_n, config.swap_ab) == (65536, 1, 65536)


@pytest.mark.parametrize(("values", "says"), [
    ({"block_m": 0}, "block_m=0 is outside 1 to 65536"), ({"block_m": 65537}, "outside 1 to"),
    ({"num_warps": -4}, "num_warps=-4"), ({"num_stages": 2.0}, "num_stages=2.0 is not an int"),
    ({"split_k": True}, "split_k=True"), ({"block_k": "64"}, "block_k='64'"),
    ({"nonsense": 1, "block_x": 1}, "unknown parameter block_x, nonsense; known: "),
    ({"block_m": None}, "block_m=None")], ids=str)
def test_a_malformed_config_is_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        KernelConfig.from_json("tiled", {"block_m": 64, "block_n": 64, "block_k": 32, **values})


@pytest.mark.parametrize(("kernel", "values", "says"), [
    ("tiled", {"block_m": 64}, "parameter block_k, block_n is missing"),
    ("tiled", [64, 64, 32], "config is a list, not an object"),
    ("", {"block_m": 64, "block_n": 64, "block_k": 32}, "kernel=''"),
    (None, {"block_m": 64, "block_n": 64, "block_k": 32}, "kernel=None")], ids=str)
def test_what_is_no_config_is_refused(kernel, values, says):
    with pytest.raises(ConfigError, match=says):
        KernelConfig.from_json(kernel, values)


# --- device ----------------------------------------------------------------------------------


def test_every_shipped_device_has_peaks_with_a_source():
    assert {80, 89, 90, 100} <= {device.arch for device in known_devices().values()}
    for slug, device in known_devices().items():
        assert slug == device.slug == slug_of(device.name) and device.sm == f"sm_{device.arch}"
        assert device.memory_gbps > 0 and set(device.peak_tflops) >= {"bf16", "fp16", "fp32"}
        assert device.sources and all(device.sources.values())
        assert device.shared_bytes_per_block < device.shared_bytes_per_sm


@pytest.mark.parametrize("arch", (80, 89, 90, 100))
def test_each_architecture_has_a_representative(arch):
    assert representative(arch).arch == arch


@pytest.mark.parametrize(("call", "says"), [
    (lambda: representative(75), "no device of sm_75 .* known: sm_80, sm_89, sm_90"),
    (lambda: device_named("nvidia-h900"), "nvidia-h900.*nvidia-h200")])
def test_an_unknown_device_lists_the_known_ones(call, says):
    with pytest.raises(DeviceError, match=says):
        call()


GOOD = {"name": "NVIDIA X1", "arch": 90, "num_sms": 10, "shared_bytes_per_block": 1000,
        "shared_bytes_per_sm": 2000, "registers_per_sm": 65536, "l2_bytes": 1000}


@pytest.mark.parametrize(("content", "says"), [
    ("{", "is not JSON"), ("[]", "the device is a list, not an object"), ("", "is empty"),
    (json.dumps({**GOOD, "name": 3}), "field 'name'"),
    (json.dumps({**GOOD, "name": " "}), "field 'name': is empty"),
    (json.dumps({**GOOD, "arch": "90"}), "field 'arch'.*not an integer"),
    (json.dumps({**GOOD, "num_sms": 10**30}), "field 'num_sms'.*outside 1 to"),
    (json.dumps({**GOOD, "peak_tflops": [1]}), "the peak_tflops is a list"),
    (json.dumps({**GOOD, "peak_tflops": {"bf16": 0}}), "field 'bf16'.*at least 0.001"),
    (json.dumps({**GOOD, "peak_tflops": {"bf16": "9"}}), "field 'bf16'.*not a number"),
    (json.dumps({**GOOD, "peak_tflops": {"bf16": 1e300}}), "field 'bf16'.*is above"),
    (json.dumps({**GOOD, "peak_tflops": {"bf16": float("nan")}}), "NaN is not a number"),
    (json.dumps({**GOOD, "memory_gbps": "x"}), "field 'memory_gbps'.*not a number"),
    (json.dumps({**GOOD, "memory_gbps": 0.0}), "field 'memory_gbps'.*at least 0.001"),
    (json.dumps({**GOOD, "sources": "me"}), "the sources is a string"),
    (json.dumps({**GOOD, "sources": {"a": 1}}), "field 'a'.*not a string"),
    ("[" * 200_000, "nested too deeply"),
    (json.dumps({**GOOD, "num_sms": 0}), "field 'num_sms'"),
    (json.dumps({**GOOD, "l2_bytes": True}), "field 'l2_bytes'"),
    (json.dumps({k: v for k, v in GOOD.items() if k != "l2_bytes"}), "field 'l2_bytes'"),
    (json.dumps({**GOOD, "wheels": 4}), "field 'wheels'.*is not known"),
    (b"\xff\xfe{", "is not UTF-8")], ids=lambda value: str(value)[:60])
def test_a_bad_device_file_is_one_error(tmp_path, content, says):
    path = tmp_path / "nvidia-x1.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataFileError, match=f"nvidia-x1.json.*{says}"):
        read_device(path)


def test_a_good_device_file_needs_no_peaks(tmp_path):
    path = tmp_path / "nvidia-x1.json"
    path.write_text(json.dumps(GOOD))
    found = read_device(path)
    assert isinstance(found, DeviceSpec) and found.peak_tflops == {} and found.slug == "nvidia-x1"
    path.unlink()
    with pytest.raises(DataFileError, match="does not exist"):
        read_device(path)


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text", "field", "value"), [
    ("TRITONGEMM_DISABLE", "1", "disable", True), ("TRITONGEMM_DISABLE", "off", "disable", False),
    ("TRITONGEMM_STRICT", "YES", "strict", True), ("TRITONGEMM_LOG", "Info", "log", "info"),
    ("TRITONGEMM_PLAN_CACHE_SIZE", "7", "plan_cache_size", 7)], ids=str)
def test_a_variable_is_parsed(monkeypatch, name, text, field, value):
    monkeypatch.setenv(name, text)
    assert getattr(settings.reload(), field) == value


@pytest.mark.parametrize(("name", "text"), [
    ("TRITONGEMM_DISABLE", "maybe"), ("TRITONGEMM_LOG", "loud"),
    ("TRITONGEMM_CACHE_DIR", "~nouser/x"), ("TRITONGEMM_USER_DIR", "~nouser"),
    ("TRITONGEMM_PLAN_CACHE_SIZE", "0"), ("TRITONGEMM_PLAN_CACHE_SIZE", "many")], ids=str)
def test_a_variable_that_cannot_be_parsed_names_itself_and_the_choices(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=f"{name}='{text}'.*use"):
        settings.reload()


@pytest.mark.parametrize("variable", settings.VARIABLES, ids=lambda v: v.field)
def test_a_value_that_is_far_too_long_is_one_short_error_or_words(monkeypatch, variable):
    monkeypatch.setenv(variable.name, "a" * 100_000)
    try:
        found = getattr(settings.reload(), variable.field)
    except UsageError as error:
        assert str(error).startswith(variable.name) and len(str(error)) < 500
    else:
        assert found == ("a" * 100_000,)


def test_every_variable_has_a_field_and_a_meaning():
    assert {v.field for v in settings.VARIABLES} == set(settings.Settings.__dataclass_fields__)
    assert all(len(v.meaning) > 10 for v in settings.VARIABLES)


def test_settings_inside_a_block_end_with_it():
    before = settings.current()
    with pytest.raises(RuntimeError), settings.override(disable=True):
        assert settings.current().disable
        raise RuntimeError
    assert settings.current() == before
    with pytest.raises(UsageError, match="no setting is named nonsense"), settings.override(
            nonsense=1):
        pass


def test_a_config_folder_that_is_none_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITONGEMM_CONFIG_DIR", str(tmp_path / "nowhere"))
    settings.reload()
    with pytest.raises(UsageError, match="TRITONGEMM_CONFIG_DIR=.*nowhere is not a folder"):
        settings.config_root()


def test_without_other_layers_a_config_folder_must_be_named(tmp_path):
    with settings.override(config_only=True), pytest.raises(UsageError, match="needs TRITONGEMM_C"):
        settings.config_roots()
    with settings.override(config_only=True, config_dir=tmp_path):
        assert settings.config_roots() == (tmp_path,)


def test_layers_are_the_config_folder_then_the_users_then_the_shipped(tmp_path):
    mine, users = tmp_path / "mine", tmp_path / "users"
    mine.mkdir()
    with settings.override(user_dir=users):
        assert settings.config_roots() == (users, settings.shipped_root())
        assert settings.config_root() == settings.shipped_root()  # a checkout's, in these tests
        with settings.override(config_dir=mine):
            assert settings.config_roots() == (mine, users, settings.shipped_root())
            assert settings.config_root() == mine
            assert settings.config_files("devices").keys() == {
                path.stem for path in (settings.shipped_root() / "devices").glob("*.json")}
            (mine / "devices").mkdir()
            (mine / "devices" / "nvidia-h200.json").touch()
            assert settings.config_files("devices")["nvidia-h200"][0].is_relative_to(mine)


def test_an_installed_package_is_written_to_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "_CHECKOUT", tmp_path / "no-checkout")
    monkeypatch.setattr(settings, "_PACKAGE", tmp_path / "site-packages" / "tritongemm")
    (tmp_path / "site-packages" / "tritongemm" / "configs").mkdir(parents=True)
    with settings.override(user_dir=tmp_path / "users"):
        assert settings.config_root() == tmp_path / "users"
    with settings.override(user_dir=None):
        assert settings.config_root().name == "tritongemm"
        assert not settings.config_root().is_relative_to(tmp_path)


def test_the_cache_folder_is_the_one_asked_for_or_the_users(monkeypatch, tmp_path):
    with settings.override(cache_dir=tmp_path):
        assert settings.cache_root() == tmp_path
    with settings.override(cache_dir=None):
        assert settings.cache_root().name == "tritongemm"


# --- public names and errors -----------------------------------------------------------------


@pytest.mark.parametrize("name", tritongemm.__all__)
def test_every_public_name_is_there(name):
    if name in ("matmul", "explain", "tune"):
        pytest.importorskip("torch")
    assert getattr(tritongemm, name) is not None and name in dir(tritongemm)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'tritongemm' has no attribute 'matmull'"):
        _ = tritongemm.matmull


def test_an_error_about_a_file_crosses_processes_whole():
    error = DataFileError("a.csv", "is bad", row=3, field="m")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "a.csv, row 3, field 'm': is bad"
    assert isinstance(again, TritonGemmError) and (again.row, again.field) == (3, "m")

"""Spaces: axes become configs in a fixed order, and every bad file is one error."""

import json

import file_faults
import pytest

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.errors import ConfigError, DataFileError, UsageError
from tritongemm.records import spaces
from tritongemm.records.spaces import AxisProduct, Space, read_space

AXES = {"block_m": [64, 128], "block_n": [64], "block_k": [32, 64], "num_warps": [4, 8]}


def _write(tmp_path, data, name="tiled"):
    path = tmp_path / f"{name}.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_a_space_is_the_product_of_its_axes(tmp_path):
    space = read_space(_write(tmp_path, {"schema_version": 1, "kernel": "tiled", "axes": AXES}))
    configs = list(space.configs())
    assert len(configs) == space.size() == 8
    assert configs[0] == KernelConfig("tiled", 64, 64, 32, num_warps=4)
    assert configs == list(space.configs())


def test_products_are_united_and_limited_to_their_dtypes(tmp_path):
    space = read_space(_write(tmp_path, {"schema_version": 1, "kernel": "tiled", "products": [
        {"axes": AXES}, {"axes": {**AXES, "block_m": [128, 256]}, "dtypes": ["fp32"]}]}))
    assert space.size() == 12  # block_m=128 is in both
    assert space.size("bf16") == 8
    assert space.size("fp32") == 12
    assert space.axes["block_m"] == (64, 128, 256)


def test_the_hash_follows_the_content_and_nothing_else(tmp_path):
    one = Space("tiled", AXES)
    again = Space("tiled", dict(reversed(AXES.items())))
    other = Space("tiled", {**AXES, "block_k": [32]})
    assert one.hash == again.hash != other.hash
    assert len(one.hash) == 12
    assert one.hash != Space("other", AXES).hash
    assert one.hash != Space("tiled", products=(AxisProduct(AXES, ("fp32",)),)).hash
    assert spaces.combined_hash([one]) == one.hash
    assert spaces.combined_hash([one, other]) == spaces.combined_hash([other, one]) != one.hash


@pytest.mark.parametrize("change, reason", [
    ({"block_m": []}, "at least one value"), ({"block_m": 64}, "must be a list"),
    ({"block_m": "64"}, "must be a list"), ({"block_m": [64, 64]}, "a value twice"),
    ({"block_m": [0]}, "outside 1"), ({"block_m": [-64]}, "outside 1"),
    ({"block_m": [65537]}, "outside 1"), ({"block_m": [64.0]}, "not an integer"),
    ({"block_m": ["64"]}, "not an integer"), ({"block_m": [True]}, "not an integer"),
    ({"block_m": [None]}, "not an integer"), ({"block_x": [64]}, "unknown axis 'block_x'"),
    ({"kernel": [1]}, "unknown axis"), ({"block_m": [[64]]}, "not an integer")])
def test_a_bad_axis_is_named(tmp_path, change, reason):
    data = {"schema_version": 1, "kernel": "tiled", "axes": {**AXES, **change}}
    with pytest.raises(DataFileError, match=reason) as caught:
        read_space(_write(tmp_path, data))
    assert caught.value.field == "axes"
    with pytest.raises(ConfigError, match=reason):
        Space("tiled", {**AXES, **change})


def test_a_missing_axis_is_named(tmp_path):
    data = {"schema_version": 1, "kernel": "tiled", "axes": {"block_m": [64], "block_n": [64]}}
    with pytest.raises(DataFileError, match="axis block_k is missing"):
        read_space(_write(tmp_path, data))


def test_a_space_of_too_many_configs_is_refused_before_it_is_made(tmp_path):
    many = list(range(1, 1001))
    data = {"schema_version": 1, "kernel": "tiled",
            "axes": {"block_m": many, "block_n": many, "block_k": many}}
    with pytest.raises(DataFileError, match="1000000000 configurations; at most 1000000"):
        read_space(_write(tmp_path, data))


@pytest.mark.parametrize("data, field, reason", [
    ("", None, "is empty"),
    ("[]", None, "is a list"),
    ("null", None, "is null"),
    ('{"schema_version": 1, "kernel": "tiled", "axes": {"block_m": [64', None, "cut short"),
    ({"kernel": "tiled", "axes": AXES}, "schema_version", "missing"),
    ({"schema_version": "1", "kernel": "tiled", "axes": AXES}, "schema_version", "not an integer"),
    ({"schema_version": 2, "kernel": "tiled", "axes": AXES}, "schema_version", "newer"),
    ({"schema_version": 1, "axes": AXES}, "kernel", "missing"),
    ({"schema_version": 1, "kernel": 7, "axes": AXES}, "kernel", "not a string"),
    ({"schema_version": 1, "kernel": "other", "axes": AXES}, "kernel", "does not match"),
    ({"schema_version": 1, "kernel": "../x", "axes": AXES}, "kernel", "not a name"),
    ({"schema_version": 1, "kernel": "tiled"}, "products", "missing"),
    ({"schema_version": 1, "kernel": "tiled", "axes": []}, "axes", "an object of lists"),
    ({"schema_version": 1, "kernel": "tiled", "axes": AXES, "rules": "exit()"}, "rules",
     "not known"),
    ({"schema_version": 1, "kernel": "tiled", "axes": AXES, "products": []}, "products",
     "not known"),
    ({"schema_version": 1, "kernel": "tiled", "products": []}, "products", "at least one"),
    ({"schema_version": 1, "kernel": "tiled", "products": {"axes": AXES}}, "products", "a list"),
    ({"schema_version": 1, "kernel": "tiled", "products": [AXES]}, "axes", "missing"),
    ({"schema_version": 1, "kernel": "tiled", "products": [7]}, None, "a number, not an object"),
    ({"schema_version": 1, "kernel": "tiled", "products": [{"axes": AXES, "dtypes": ["int4"]}]},
     "dtypes", "not one of bf16"),
    ({"schema_version": 1, "kernel": "tiled", "products": [{"axes": AXES, "dtypes": []}]},
     "dtypes", "at least one"),
])
def test_a_bad_space_is_one_error(tmp_path, data, field, reason):
    path = _write(tmp_path, data)
    with pytest.raises(DataFileError, match=reason) as caught:
        read_space(path)
    assert caught.value.field == field
    assert str(path) in str(caught.value)


def test_a_space_that_is_no_text_or_too_large_is_refused(tmp_path):
    path = tmp_path / "tiled.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(DataFileError, match="not UTF-8"):
        read_space(path)
    with pytest.raises(DataFileError, match="at most"):
        read_space(file_faults.sparse(path))


def test_spaces_are_found_by_kernel(tmp_path):
    folder = tmp_path / "spaces"
    folder.mkdir()
    _write(folder, {"schema_version": 1, "kernel": "tiled", "axes": AXES})
    with settings.override(config_dir=tmp_path, config_only=True):
        assert set(spaces.load_spaces()) == {"tiled"}
        assert spaces.load_space("tiled").size() == 8
        with pytest.raises(UsageError, match="there is one for tiled"):
            spaces.load_space("../tiled")


def test_the_shipped_spaces_read():
    for kernel, space in spaces.load_spaces().items():
        assert space.kernel == kernel
        assert 0 < space.size() < spaces.MAX_CONFIGS

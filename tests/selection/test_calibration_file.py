"""The calibration's file: what is written is read again, what is malformed is one clear error."""

from __future__ import annotations

import json

import pytest

from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Covers,
    Layer,
    Neighbour,
    NetworkRecord,
    Section,
    read_calibration,
    read_shipped,
    write_calibration,
)

SECTION = Section(("bf16", "fp16"), ("20260101T000000Z-abcdef",), "3.6.0", 3, 100, 0.1,
                  {"memory": {"dram_gbps": 4000.0}, "tiled": {"fill_us": 1.0}},
                  {"tiled_64x64x64_w4_s3_g8_e1": 1.02},
                  (KernelConfig("tiled", 64, 64, 64), KernelConfig("tiled", 64, 32, 64)),
                  (Neighbour(GemmProblem(64, 64, 33, layout="nt", align_a=2), 1.25),
                   Neighbour(GemmProblem(64, 64, 64), None)),
                  NetworkRecord(("m", "n"), (0.0, 1.0), (1.0, 0.5), (
                      (Layer((0.5, -2.0, 1.0, 0.25), (0.0, 1.0)), Layer((1.0, -1.0), (0.125,))),
                      (Layer((0.5, 0.25), (0.0,)),))),
                  Covers(("tiled",), ("bf16", "fp16"), ("ieee",)))
MADE = Calibration("nvidia-h200", 90, (SECTION,))


@pytest.fixture
def path(tmp_path):
    where = tmp_path / "nvidia-h200.json"
    write_calibration(where, MADE)
    return where


def test_written_and_read_again(path):
    found = read_calibration(path)
    assert found == MADE
    assert found.section("fp16") == SECTION and found.section("fp32") is None


def test_a_section_of_constants_alone_is_read(path):
    data = json.loads(path.read_text())
    for name in ("contenders", "neighbours", "network"):
        del data["sections"][0][name]
    path.write_text(json.dumps(data))
    section = read_calibration(path).section("bf16")
    assert (section.candidates, section.neighbours, section.network) == ((), (), None)


def test_a_file_of_version_4_covers_what_its_units_and_constants_say(path):
    data = json.loads(path.read_text())
    data["schema_version"] = 4
    del data["sections"][0]["covers"]
    data["sections"].append({**data["sections"][0], "units": ["tf32"], "constants": {
        "gemv": {"fill_us_dependent": 1.0}, "tiled_64x64x64_w4": {"pace_us": 1.0}}})
    path.write_text(json.dumps(data))
    found = read_calibration(path)
    assert found.section("bf16") == SECTION
    assert found.section("tf32").covers == Covers(("gemv",), ("fp32",), ("tf32",))
    write_calibration(path, found)
    assert read_calibration(path) == found and json.loads(path.read_text())["schema_version"] == 5


def test_what_is_covered_is_what_was_measured():
    measured = [(GemmProblem(8, 8, 8), KernelConfig("tiled", 64, 64, 64)),
                (GemmProblem(8, 8, 8, dtype_a="fp16"), KernelConfig("gemv", 1, 16, 256))]
    assert Covers.of(measured) == Covers(("gemv", "tiled"), ("bf16", "fp16"), ("ieee",))


def test_one_owner_a_line_so_that_a_diff_reads(path):
    lines = path.read_text().splitlines()
    assert any('"memory": {"dram_gbps": 4000.0}' in line for line in lines)
    assert any(line.strip() == '"tiled": {"fill_us": 1.0}' for line in lines)


def test_the_shipped_calibration_can_be_read():
    found = read_shipped("nvidia-h200")
    assert found is not None and found.section("bf16") is not None
    assert read_shipped("no-such-device") is None


def _set(*where_and_value):
    *where, last, value = where_and_value

    def change(data):
        inside = data
        for name in where:
            inside = inside[name]
        inside[last] = value
    return change


def _drop(*where):
    def change(data):
        inside = data
        for name in where[:-1]:
            inside = inside[name]
        del inside[where[-1]]
    return change


@pytest.mark.parametrize("change, says", [
    (_set("schema_version", 99), "newer"), (_set("schema_version", "1"), "schema_version"),
    (_set("arch", 0), "arch"), (_drop("device"), "device"), (_set("surplus", 1), "surplus"),
    (_set("sections", {}), "not a list"), (_set("sections", [1]), "section"),
    (_drop("sections", 0, "factors"), "factors"), (_set("sections", 0, "more", 1), "more"),
    (_set("sections", 0, "units", []), "units"), (_set("sections", 0, "units", ["int3"]), "int3"),
    (_set("sections", 0, "units", "bf16"), "not a list"),
    (_set("sections", 0, "problems", 0), "problems"),
    (_set("sections", 0, "rms_log_error", -1), "rms_log_error"),
    (_set("sections", 0, "run_ids", [3]), "run_ids"),
    (_set("sections", 0, "constants", []), "constants"),
    (_set("sections", 0, "constants", "tiled", []), "constants.tiled"),
    (_set("sections", 0, "constants", "tiled", "fill_us", 0), "constants.tiled.fill_us"),
    (_set("sections", 0, "constants", "tiled", "fill_us", -2.0), "-2"),
    (_set("sections", 0, "constants", "tiled", "fill_us", 1e12), "outside"),
    (_set("sections", 0, "constants", "tiled", "fill_us", "1"), "not a number"),
    (_set("sections", 0, "constants", "tiled", "fill_us", True), "not a number"),
    (_set("sections", 0, "factors", "x", None), "not a number"),
    (_set("sections", 0, "covers", []), "covers"), (_drop("sections", 0, "covers", "kernels"),
                                                     "kernels"),
    (_set("sections", 0, "covers", "formats", "bf16"), "not a list"),
    (_set("sections", 0, "covers", "surplus", []), "surplus"),
    (_set("sections", 0, "contenders", 3), "not a list"),
    (_set("sections", 0, "contenders", 0, {"kernel": "tiled"}), "block_m"),
    (_set("sections", 0, "contenders", 0, 7), "not an object"),
    (_set("sections", 0, "configs", []), "configs"),
    (_set("sections", 0, "neighbours", {}), "not a list"),
    (_set("sections", 0, "neighbours", 0, 1), "neighbour 1"),
    (_set("sections", 0, "neighbours", 0, "permille", [0]), "permille"),
    (_set("sections", 0, "neighbours", 0, "vs_torch", 0), "vs_torch"),
    (_set("sections", 0, "neighbours", 0, "m", -1), "m=-1"),
    (_set("sections", 0, "neighbours", 0, "layout", "xy"), "layout"),
    (_drop("sections", 0, "neighbours", 0, "k"), "k of the problem"),
    (_set("sections", 0, "network", 3), "not a list"),
    (_set("sections", 0, "network", 0, "mean", [0.0]), "2 names, 1 means, 2 scales and 2 members"),
    (_set("sections", 0, "network", 0, "mean", [0.0, "1"]), "'1' is not a number"),
    (_set("sections", 0, "network", 0, "mean", [0.0, 1e300]), "1e+300 is not a number"),
    (_set("sections", 0, "network", 0, "scale", [0.0, 1.0]), "a scale of at least 1e-06"),
    (_drop("sections", 0, "network", 0, "scale"), "scale"),
    (_set("sections", 0, "network", 0, "names", ["m"]), "1 names, 2 means"),
    (_set("sections", 0, "network", 0, {"names": [], "mean": [], "scale": []}), "0 names"),
    (_set("sections", 0, "network", 0, "names", ["m", 7]), "names"),
    (_set("sections", 0, "network", 1, []), "member 1 has no layers, or its last one has several"),
    (_set("sections", 0, "network", 1, 7), "member 1 has no layers"),
    (_drop("sections", 0, "network", 1, 1), "member 1 has no layers, or its last one has several"),
    (_set("sections", 0, "network", 2, 0, "biases", ""), "member 2: a layer of 2 weights and 0"),
    (_set("sections", 0, "network", 1, 0, "weights", "AAAA"), "not base64 of float16"),
    (_set("sections", 0, "network", 1, 0, "weights", "!"), "not base64 of float16"),
    (_set("sections", 0, "network", 1, 0, "weights", [1.0]), "not base64 of float16"),
    (_set("sections", 0, "network", 1, 0, "biases", "AHwAAA=="), "not finite"),
    (_drop("sections", 0, "network", 1, 0, "biases"), "biases"),
    (_set("schema_version", 3),
     "is older than 4; remove the file and run `tritongemm calibrate`"),
])
def test_a_malformed_field_is_named(change, says, path):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(DataFileError) as found:
        read_calibration(path)
    assert says in str(found.value) and path.name in str(found.value)


def test_a_unit_in_two_sections_is_refused(path):
    data = json.loads(path.read_text())
    data["sections"].append(data["sections"][0])
    path.write_text(json.dumps(data))
    with pytest.raises(DataFileError, match="more than one section"):
        read_calibration(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": NaN}', "\ufeff{}"])
def test_what_is_no_calibration_is_refused(text, path):
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataFileError, match=path.name):
        read_calibration(path)


def test_what_could_not_be_read_is_not_written(path):
    before = path.read_bytes()
    bad = Calibration("nvidia-h200", 90, (Section(
        ("bf16",), (), "3.6.0", 1, 1, 0.1, {"memory": {"dram_gbps": -1.0}}),))
    with pytest.raises(DataFileError, match=r"memory\.dram_gbps"):
        write_calibration(path, bad)
    assert path.read_bytes() == before

"""``perf/results`` stays small and whole: file count and sizes, a record for every run, and timings
from which the committed calibrations and tables follow."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tritongemm.calibration.calibrate import candidates_of, fit, neighbours_of
from tritongemm.calibration.sustained import sustained
from tritongemm.calibration.timing_table import TimingTable
from tritongemm.calibration.timings import read_timings
from tritongemm.records.calibration import read_calibration
from tritongemm.records.packed import unpack
from tritongemm.records.run import read_sidecars

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "perf" / "results"
MB = 1_000_000
#: Calibration -> device, and the packed journals that it was made from.
CALIBRATIONS = {
    "nvidia-h200": ("nvidia-h200", ("nvidia-h200/timings/bf16-fp16.npz",
                                    "nvidia-h200/timings/fp32.npz",
                                    "nvidia-h200/timings/fresh-20261129.npz")),
    "nvidia-h100-80gb-hbm3": ("nvidia-h100-80gb-hbm3",
                              ("nvidia-h100-80gb-hbm3/timings/fp32.npz",))}

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="perf/ is not beside the tests")


def files(*suffixes):
    return [path for path in sorted(RESULTS.rglob("*"))
            if path.is_file() and path.suffix not in (".lock", ".tmp")
            and (path.suffix in suffixes or not suffixes)]


def size(paths):
    return sum(path.stat().st_size for path in paths)


def test_there_are_few_files_and_they_are_small():
    assert len(files()) <= 200
    assert size(files(".csv", ".png", ".svg", ".json")) <= 10 * MB
    assert size(files(".npz")) <= 14 * MB
    assert not files(".gz", ".jsonl") or {p.name for p in files(".gz", ".jsonl")} == {
        "S1.counters.jsonl", "ladder.counters.jsonl"}
    assert not [path for path in files(".json") if path.name != "runs.json"]


def test_every_run_of_a_csv_has_its_record_and_no_other_has_one():
    for folder in {path.parent for path in files(".csv", ".json")}:
        named = set()
        for path in folder.glob("*.csv"):
            with open(path, newline="", encoding="utf-8") as file:
                named |= {row["run_id"] for row in csv.DictReader(file) if "run_id" in row}
        assert named == set(read_sidecars(folder)), folder


def test_every_row_of_the_tables_is_of_a_run_with_timings():
    runs = {run["run_id"] for path in files(".npz") for run in headers(path)}
    for path in sorted((ROOT / "configs" / "tuned").rglob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        assert {row["run_id"] for row in rows} <= runs, path


def headers(path):
    from tritongemm.records import packed

    return packed._objects(path, packed._arrays(path), "headers")


def sections(name, *units):
    """(committed section, what the packed journals hold of it) of a calibration."""
    device, journals = CALIBRATIONS[name]
    committed = {section.units: section for section in read_calibration(
        ROOT / "configs" / "calibration" / f"{name}.json").sections}
    measured = read_timings([RESULTS / one for one in journals], device)
    found = [(committed[one], part) for one, part in measured.parts()]
    assert [section.units for section, _ in found] == list(units)
    return found


def check(section, part, of_sibling=()):
    """``of_sibling``: timings that the network learned from too."""
    both = [*of_sibling, *part.timings]
    problems = dict.fromkeys(timing.problem for timing in both)
    assert (section.problems, section.results) == (len(problems), len(both))
    assert tuple(section.run_ids[-len(part.run_ids):]) == part.run_ids
    assert section.neighbours == neighbours_of(problems, part)


def check_constants(section, part):
    """Fits as ``calibrate`` does."""
    part = sustained(part)
    table = TimingTable(part.timings, part.device)
    fitted = fit(table)
    found = dict(zip(table.keys, np.exp(fitted.constants).tolist(), strict=True))
    committed = {(owner, key): value for owner, values in section.constants.items()
                 for key, value in values.items()}
    assert found.keys() == committed.keys() and fitted.factors.keys() == section.factors.keys()
    # Files hold five digits; another BLAS may differ in the last of them.
    assert all(math.isclose(found[key], committed[key], rel_tol=1e-4) for key in found)
    assert all(abs(fitted.factors[key] - section.factors[key]) < 2e-4 for key in section.factors)
    if section.results == len(part.timings):  # not with a sibling's
        assert section.candidates == candidates_of(table.columns.configs, table.behind)


def test_the_committed_constants_of_the_h100_follow_from_its_packed_journals():
    split, tf32 = sections("nvidia-h100-80gb-hbm3", ("fp16x3",), ("tf32",))
    of_sibling = dict(read_timings([RESULTS / "nvidia-h200/timings/fp32-split.npz"],
                                   "nvidia-h200").parts())
    for section, part in (split, tf32):
        check(section, part, of_sibling[section.units].timings)
        check_constants(section, part)


@pytest.mark.thorough
def test_the_timings_of_the_h200_are_those_of_its_calibration():
    for section, part in sections("nvidia-h200", ("bf16", "fp16"), ("fp32",)):
        check(section, part)
        if section.units == ("fp32",):  # a fit of the 216,599 others takes minutes
            check_constants(section, part)


def test_the_float32_sections_of_the_h200_learned_from_all_its_sweeps_and_the_h100s():
    path = ROOT / "configs" / "calibration" / "nvidia-h200-and-nvidia-h100-80gb-hbm3.json"
    split, tf32 = read_calibration(path).sections
    own, siblings = ({run["run_id"] for run in headers(RESULTS / name)} for name in (
        "nvidia-h200/timings/fp32-split.npz", "nvidia-h100-80gb-hbm3/timings/fp32.npz"))
    for section, units, measured in ((split, ("fp16x3",), 960), (tf32, ("tf32",), 337)):
        assert section.units == units
        assert set(section.run_ids) <= own | siblings and not own.isdisjoint(section.run_ids)
        assert sum(n.vs_torch is not None for n in section.neighbours) == measured
    assert own < {*split.run_ids, *tf32.run_ids}


def test_no_calibration_has_seen_the_last_fresh_shapes():
    runs = {run["run_id"] for run in headers(RESULTS / "nvidia-h200/timings/fresh-43513610.npz")}
    for path in sorted((ROOT / "configs" / "calibration").glob("*.json")):
        for section in read_calibration(path).sections:
            assert not runs & set(section.run_ids), path
    assert runs and len(list(unpack(RESULTS / "nvidia-h200/timings/fresh-43513610.npz"))) > 1000

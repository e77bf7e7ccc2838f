"""A kernel and a format of another package go through all that those of this one go through.

``tests/selection/test_kernels_from_outside.py`` holds that selection knows neither.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fence import FORMAT, NAME, OUTSIDER, registered, scaled

import tritongemm
import tritongemm as tg
from tritongemm import cli, selection, settings
from tritongemm.bench.runner import BenchPlan, bench
from tritongemm.calibration.calibrate import calibrate
from tritongemm.cli.shapes import problems_from
from tritongemm.compute import COMPUTES
from tritongemm.device import device_named
from tritongemm.errors import DataFileError, DeviceError, ProblemError, UnsupportedError
from tritongemm.formats import Format, format_of, register_format, remove_format
from tritongemm.kernels import SPECS, violation
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_from_json, problem_from_json, problem_to_json
from tritongemm.records.journal import read_journal
from tritongemm.records.rows import problem_of, read_rows
from tritongemm.records.spaces import load_space
from tritongemm.records.suites import Shape
from tritongemm.records.tables import path_for, read_table
from tritongemm.selection import choose
from tritongemm.tuning.publish import publish
from tritongemm.tuning.sweep import sweep
from tritongemm.workers.compile_pool import compile_all

TESTS = Path(__file__).resolve().parent
#: TFLOP/s of the format on the device of the tests.
PEAK = 1979.0


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A folder with the shipped spaces and devices, of which the H200 has a peak of the format;
    worker processes know it, and the kernel and the format, by their environment."""
    shipped = Path(tritongemm.__file__).resolve().parent.parent / "configs"
    for name in ("spaces", "devices"):
        shutil.copytree(shipped / name, tmp_path / "configs" / name)
    path = tmp_path / "configs" / "devices" / "nvidia-h200.json"
    device = json.loads(path.read_text())
    device["peak_tflops"][FORMAT.name] = PEAK
    path.write_text(json.dumps(device))
    monkeypatch.setenv("TRITONGEMM_CONFIG_DIR", str(tmp_path / "configs"))
    monkeypatch.setenv("TRITONGEMM_CONFIG_ONLY", "1")
    monkeypatch.setenv("TRITONGEMM_PLUGINS", "fence_plugin")
    monkeypatch.syspath_prepend(TESTS / "tuning")
    settings.reload()
    with registered(tmp_path / "configs"):
        yield tmp_path / "configs"


@pytest.fixture
def h200():
    return device_named("nvidia-h200")


def swept(journal: Path, *problems: GemmProblem):
    """A sweep of the problems in which a config's time is its block_m."""
    return sweep(problems, journal, compile_workers=1, measurer="fakes:Measurer",
                 builder="fakes:Builder")


def test_it_goes_from_legality_to_the_page_of_a_report(configs, h200, tmp_path, capsys):
    problem = scaled()
    # Legality and selection.
    config = OUTSIDER.default(problem, h200)
    assert violation(problem, config, h200) is None
    refused = violation(replace(problem, scale_b="1x128"), config, h200)
    assert refused.message == "takes scales row; B has scale 1x128"
    choice = choose(problem, h200)
    assert (choice.source, choice.config.kernel) == ("rule", NAME)
    assert choice.note.endswith(f"no calibration serves NVIDIA H200 for {FORMAT.name}")
    # A sweep, and its journal.
    journal = tmp_path / "sweep.jsonl"
    report = swept(journal, problem)
    (done,) = report.problems
    assert (done.problem, done.winner.kernel, done.winner.block_m) == (problem, NAME, 32)
    results = [r for r in read_journal(journal) if r["kind"] == "result"]
    assert {problem_from_json(r["problem"]) for r in results} == {problem}
    assert {config_from_json(r["config"]).kernel for r in results} == {NAME}
    assert {r["stage"] for r in results} == {"coarse", "final"}
    # Its tuned table.
    published = publish([journal])
    (path,) = published.tables
    assert path == path_for(problem, h200.slug) and published.added == 1
    assert path.name == f"scaled_mm-{FORMAT.name}-bf16-ieee-nt-a_row-b_row.json"
    table = read_table(path)
    (row,) = table.rows.values()
    assert (row.problem(table.header), row.config) == (problem, done.winner)
    selection.reload()
    assert (choose(problem, h200).source, choose(problem, h200).config) == ("exact", row.config)
    assert choose(scaled(m=255), h200).source == "nearest"
    # The bench, twice, and its CSV.
    csvs = [tmp_path / name / "bench.csv" for name in ("old", "new")]
    for out in csvs:
        done = bench(BenchPlan([(Shape(256, 512, 1024, suite="fence"), problem)],
                               ("tritongemm",), out, opener="fence_session:open_session",
                               timeout_s=60.0))
        assert done.statuses == {"ok": 2}
    rows = {row["provider"]: row for row in read_rows(csvs[0])}
    ours = rows["tritongemm"]
    assert problem_of(ours) == problem
    assert (ours["kernel"], ours["config_id"]) == (NAME, row.config.config_id)
    assert (ours["scale_a"], ours["scale_b"], ours["op"]) == ("row", "row", "scaled_mm")
    by_hand = max(problem.flops() / PEAK / 1e6, problem.bytes() / h200.memory_gbps / 1e3)
    assert ours["pct_of_roof"] == pytest.approx(100 * by_hand / 8.0, rel=1e-5)
    # The report, as Markdown and HTML.
    dtype = f"{FORMAT.name}>bf16 a_row b_row"
    assert cli.main(["report", str(csvs[0]), "--journal", str(journal), "--out",
                     str(tmp_path / "report"), "--heatmaps", "0"]) == 0
    for name in ("summary.md", "report.html"):
        text = (tmp_path / "report" / name).read_text()
        assert dtype.replace(">", "&gt;") in text or dtype in text
        assert row.config.config_id in text
    page = (tmp_path / "report" / "report.html").read_text()
    assert f'"peak_tflops":{PEAK}' in page and str(problem) in page.replace("\\u003e", ">")
    # Two benches compared.
    capsys.readouterr()
    assert cli.main(["compare", *map(str, csvs), "--all"]) == 0
    said = capsys.readouterr().out
    assert f"fence 256x512x1024 {dtype} nt tritongemm" in said and "1 SAME" in said
    # An explanation, and what the other commands make of the same words.
    words = ["--dtype", FORMAT.name, "--dtype-out", "bf16", "--layout", "nt", "--scale-a", "row",
             "--scale-b", "row"]
    assert cli.main(["explain", "256", "512", "1024", *words, "--device-name", "h200"]) == 0
    text = capsys.readouterr().out
    for verb in ("sweep", "bench", "warmup"):
        args = cli.parser_of(verb).parse_args(["--m", "256", "--n", "512", "--k", "1024", *words])
        assert [one for _, one in problems_from(args)] == [problem]
    assert f"problem    {problem}" in text and f"config     {row.config.config_id}" in text
    assert f"measured   {row.time_us:.2f} us" in text and f"roof       {by_hand:.2f} us" in text


def test_once_calibrated_its_choices_are_predicted(configs, h200, tmp_path):
    journal = tmp_path / "sweep.jsonl"
    sizes = [(256, 512, 1024), (512, 512, 1024), (1024, 512, 1024), (256, 1024, 2048)]
    swept(journal, *(scaled(*size) for size in sizes))
    _, calibration = calibrate([journal])
    (section,) = calibration.sections
    assert (section.units, section.covers.kernels) == ((FORMAT.name,), (NAME,))
    selection.reload()
    choice = choose(scaled(768), h200)
    assert (choice.source, choice.config.kernel) == ("model", NAME)
    assert "not calibrated" not in str(explain_problem(scaled(768), h200))


def test_worker_processes_compile_it(configs, h200):
    plain = GemmProblem.contiguous(256, 512, 1024, layout="nt")
    config = OUTSIDER.default(plain, h200)
    found = compile_all([("plain", plain, config), ("scaled", scaled(), config)],
                        {"device": h200}, workers=1)
    assert found["plain"].ok and found["plain"].values["shared_bytes"] > 0
    assert found["scaled"].status == "compile"  # the tiled kernel's code has no such operands
    assert "uint8, for which this kernel was not written" in found["scaled"].reason


@pytest.mark.parametrize("scaled_too", [True, False], ids=["scaled", "plain"])
@pytest.mark.parametrize("spec", [*SPECS.values(), *RUNG_SPECS.values()], ids=lambda s: s.name)
def test_every_shipped_kernel_refuses_the_format_and_says_what_it_takes(configs, h200, spec,
                                                                         scaled_too):
    problem = scaled() if scaled_too else scaled(scale_a="none", scale_b="none")
    for refused in (spec.supports(problem, h200),
                    spec.violation(problem, OUTSIDER.default(problem, h200), h200)):
        assert refused.rule == "dtype"
        assert refused.message == f"takes {', '.join(spec.takes.formats)}, not {FORMAT.name}"


@pytest.mark.parametrize("spec", [*SPECS.values(), *RUNG_SPECS.values()], ids=lambda s: s.name)
def test_every_shipped_kernel_refuses_scales_of_a_format_that_it_takes(h200, spec):
    takes = spec.takes
    problem = next(
        problem for dtype in takes.formats for mode in map(COMPUTES.get, takes.computes)
        if mode.takes(format_of(dtype)) and takes.violation(problem := GemmProblem.contiguous(
            256, 512, 1024, dtype=dtype, layout="nt", precision=mode.precision)) is None)
    refused = spec.supports(replace(problem, scale_b="row"), h200)
    assert (refused.rule, refused.message) == ("scale", "takes no scales; B has scale row")


def test_without_the_kernel_no_kernel_runs_it_and_each_says_why(configs, h200):
    del SPECS[NAME]
    selection.reload()
    with pytest.raises(UnsupportedError) as error:
        choose(scaled(), h200)
    said = str(error.value)
    assert all(f"{spec.name}: takes " in said for spec in SPECS.values() if spec.by_rule)
    text = str(explain_problem(scaled(), h200))
    assert f"kernel     torch: no kernel runs {scaled()} on NVIDIA H200" in text


def test_a_format_of_part_of_a_byte_is_refused_as_any_other(h200):
    register_format(Format("nib4", 4, "uint8", "u8", 0.0, packed=2, poison=255))
    try:
        for words, says in (({"dtype_b": "nib4"}, "tiled: operands of two dtypes, bf16 and nib4"),
                            ({"dtype": "nib4"}, "tiled: takes bf16, fp16, fp32, not nib4")):
            problem = GemmProblem.contiguous(256, 512, 1024, **words)
            with pytest.raises(UnsupportedError, match=says):
                choose(problem, h200)
            assert f"torch: no kernel runs {problem}" in str(explain_problem(problem, h200))
            with tg.batch_invariant(), pytest.raises(UnsupportedError, match="no shipped config"):
                choose(problem, h200)
    finally:
        remove_format("nib4")


def test_without_the_format_its_files_are_refused_by_its_name(tmp_path, configs):
    stored = problem_to_json(scaled())
    remove_format(FORMAT.name)
    with pytest.raises(ProblemError, match=f"dtype '{FORMAT.name}' is not known; use one of bf16"):
        problem_from_json(stored)
    with pytest.raises(DataFileError, match=f"'{FORMAT.name}' is not one of bf16"):
        load_space(NAME)


def test_a_plugin_that_cannot_be_imported_ends_a_command_and_a_sweep(monkeypatch, tmp_path, capsys):
    says = "TRITONGEMM_PLUGINS=no_such: No module named 'no_such'; name modules"
    monkeypatch.setenv("TRITONGEMM_PLUGINS", "fence, no_such")
    monkeypatch.syspath_prepend(TESTS / "tuning")
    settings.reload()
    assert cli.main(["explain", "1", "1", "1"]) == 2
    assert says in capsys.readouterr().err
    with pytest.raises(DeviceError, match=says):
        swept(tmp_path / "sweep.jsonl", GemmProblem(64, 64, 64))


def test_no_module_of_the_package_knows_their_names():
    package = Path(tritongemm.__file__).resolve().parent
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".js", ".cu")]
    assert len(files) > 200
    assert not [path for path in files for name in (NAME, FORMAT.name)
                if name in path.read_text(encoding="utf-8")]

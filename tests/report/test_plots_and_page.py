"""Pictures and the page: what is written, and that nothing in a CSV can get out of its place."""

import html.parser
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from made_rows import LATER, RUN, make_row, write_journal

from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError, MissingDependencyError
from tritongemm.problem import GemmProblem
from tritongemm.records import rows as records
from tritongemm.report import heat, load, page, page_data, plots, roof, style, tables

pytest.importorskip("matplotlib")

SLY = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def results(make_csv, tmp_path):
    """Two suites, three providers, a failure, a control, a sidecar."""
    rows = []
    for i, m in enumerate((16, 256, 1024)):
        for suite in ("square", "llm_decode"):
            rows += [make_row(m, suite=suite, provider="torch", ratio=1.0),
                     make_row(m, suite=suite, ratio=1.1 + i / 10, selection_source="exact",
                              config_id="tiled_64x64x32_w4_s2_g8", max_err_ratio=0.3),
                     make_row(m, suite=suite, provider="inductor", ratio=0.9)]
    rows += [make_row(2048, status="timeout", error="killed after 30 s"),
             make_row(16, provider="torch-control", ratio=1.001)]
    path = make_csv(rows)
    records.write_sidecar(tmp_path, RUN, {"torch": "2.13.0", "triton": "3.7.1"})
    return load.load([path])


@pytest.fixture
def maps(tmp_path):
    problem = GemmProblem(512, 512, 512)
    return heat.read_maps([write_journal(tmp_path / "sweep.jsonl", [
        (problem, KernelConfig(kernel, m, n, 32), "ok" if m < 128 else "wrong",
         float(m + n) if m < 128 else None, "coarse")
        for kernel in ("tiled", "persistent") for m in (32, 64, 128) for n in (32, 64)])])


def png_size(path):
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG")
    return struct.unpack(">II", raw[16:24])


class Elements(html.parser.HTMLParser):
    """Tags, and the text of scripts and cells, of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.scripts, self._in = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data):
        if self._in in ("td", "th"):
            self.cells.append(data)
        if self._in == "script":
            self.scripts.append(data)


def test_every_plot_is_written_with_a_caption(results, maps, tmp_path):
    written = plots.write_plots(results, tmp_path / "out", maps=maps, mean_of=maps)
    assert [path.name for _, path in written] == [
        "overview.png", "ratio-nvidia-h200-bf16-nt.png", "roofline-nvidia-h200-bf16.png",
        "sweep-mean.png", "sweep-512x512x512-bf16-nn.png"]
    for caption, path in written:
        assert caption
        width, height = png_size(path)
        assert 600 < width < 4000 and 200 < height < 6000


def test_the_same_rows_draw_the_same_bytes(results, tmp_path):
    first = plots.write_plots(results, tmp_path / "a")
    second = plots.write_plots(results, tmp_path / "b")
    assert [p.read_bytes() for _, p in first] == [p.read_bytes() for _, p in second]


def test_rows_with_no_time_and_empty_csvs_draw_nothing(make_csv, tmp_path):
    untimed = load.load([make_csv([make_row(max_err_ratio=0.5)])])
    assert plots.write_plots(untimed, tmp_path / "out") == []
    assert plots.write_plots(load.load([make_csv([], "e/e.csv")]), tmp_path / "out") == []


def test_a_device_without_peaks_has_points_and_no_roof(make_csv, tmp_path):
    host = load.load([make_csv([make_row(device="cpu-x", ratio=0.1),
                                make_row(device="cpu-x", ratio=1.0, provider="torch")])])
    names = [path.name for _, path in plots.write_plots(host, tmp_path / "out")]
    assert "roofline-cpu-x-bf16.png" in names
    data, _ = page_data.page_data(host, (), ())
    assert [one["roof"] for one in data["roofs"]] == [None]


def test_a_sweep_in_which_nothing_ran_draws_no_map(tmp_path):
    maps = heat.read_maps([write_journal(tmp_path / "j.jsonl", [
        (GemmProblem(64, 64, 64), KernelConfig("tiled", 64, 64, 32), "died", None, "coarse")])])
    assert plots.write_plots(load.nothing(), tmp_path, mean_of=maps) == []


def test_a_cell_without_a_time_is_grey_and_a_dark_one_has_white_text(maps):
    (panel, _), *_ = [plots.problem_heat(maps[0]).axes[:2]]
    colours = {text.get_text().split("\n")[0]: text.get_color() for text in panel.texts}
    assert colours == {"100%": "#111111", "67%": "#111111", "50%": "white", "wrong": "#999999"}


def test_a_folder_that_cannot_be_written_is_a_clear_error(results, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError, match="file"):
        plots.write_plots(results, tmp_path / "file" / "out")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "x" * 500, "", "..", "bf16>fp32 nt"])
def test_a_title_becomes_a_file_name_that_stays_in_its_folder(name):
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", plots.slug(name))
    assert len(plots.slug(name)) <= 120


def test_the_page_fetches_nothing(results, maps):
    parsed = Elements(page.page(results, maps=maps, mean_of=maps))
    places = [attrs.get("src") or attrs.get("href") for _, attrs in parsed.tags]
    assert [place for place in places if place and not place.startswith(("#", "data:,"))] == []


def test_every_link_of_the_navigation_has_its_section(results, maps):
    parsed = Elements(page.page(results, maps=maps, mean_of=maps))
    links = [attrs["href"][1:] for tag, attrs in parsed.tags if tag == "a"]
    sections = [attrs["id"] for tag, attrs in parsed.tags if tag == "section"]
    assert links == sections and links[0] == "overview"
    assert {"roofline", "rows", "runs", "environment", "notes"} <= set(links)


def test_there_is_a_card_a_suite_and_dtype_and_no_mean_over_suites(results):
    text = page.page(results)
    assert text.count("<div class=card>") == 2
    for name in ("llm_decode bf16", "square bf16"):
        assert f"<h3>{name}</h3>" in text
    assert "<th scope=row>nt tritongemm</th><td><b>1.197</b></td>" in text


def test_a_card_names_the_lowest_ratio_of_each_provider(make_csv):
    rows = [make_row(16 + i, provider=provider, ratio=ratio) for i, (provider, ratio) in enumerate((
        ("tritongemm", 0.97), ("tritongemm", 1.2), ("cublaslt-tuned", 0.85)))]
    text = page.page(load.load([make_csv(rows)]))
    assert "lowest of tritongemm 0.970 at 16x" in text
    assert "lowest of cublaslt-tuned 0.850 at 18x" in text


def test_a_page_of_many_rows_stays_under_6_mb(make_csv, monkeypatch):
    results = load.load([make_csv([make_row(16 + i, ratio=1.0) for i in range(400)])])
    data, left_out = page_data.page_data(results, (), ())
    size = len(page_data.embedded(data["columns"]))
    assert (left_out, data["rows"]) == (0, 400)
    monkeypatch.setattr(page_data, "ROWS_LIMIT", size // 2)
    data, left_out = page_data.page_data(results, (), ())
    assert left_out == 400 - data["rows"] > 0
    assert len(page_data.embedded(data["columns"])) <= size // 2
    assert f"{left_out} rows left out" in page.page(results)
    monkeypatch.undo()
    frame = len(page.page(results)) - size
    assert page_data.ROWS_LIMIT + frame < 6_000_000


def test_the_intensity_is_flops_a_byte_of_compulsory_traffic(make_csv):
    (found,) = plots.with_rate(load.load([make_csv([make_row(64, time_us=4.0)])]).headline)[
        "intensity"]
    assert found == pytest.approx(2 * 64**3 / (3 * 64 * 64 * 2), rel=1e-3)


@pytest.mark.parametrize("which", "xy")
def test_an_axis_of_ratios_has_ratio_ticks_and_the_other_keeps_its_own(which):
    import pandas as pd
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    own = (axes.yaxis if which == "x" else axes.xaxis).get_major_locator()
    plots._ratio_axis(axes, which, pd.Series([0.5, 2.0]))
    axis, other = (axes.xaxis, axes.yaxis) if which == "x" else (axes.yaxis, axes.xaxis)
    assert list(axis.get_majorticklocs()) == list(style.ratio_ticks(0.5 / 1.06, 2.0 * 1.06))
    assert (axis.get_scale(), other.get_scale()) == ("log", "linear")
    assert other.get_major_locator() is own


def test_the_axes_of_a_roofline_hold_what_matters(make_csv):
    rows = [make_row(1024 + i, 1024, 1024, time_us=4.0) for i in range(400)]
    rows += [make_row(1, 1, 1, time_us=4.0)]
    frame = plots.with_rate(load.load([make_csv(rows)]).headline)
    known = roof.roof_of("nvidia-h200", frame)
    low_x, high_x, low_y, high_y = roof.window(frame, known)
    assert low_x > 100 and low_y > 100  # 1x1x1 has an intensity below 1
    assert high_x > frame["intensity"].quantile(0.99) and high_y > known.peak_tflops


def test_throttled_is_explained(make_csv):
    text = page.page(load.load([make_csv([make_row(ratio=1.0, throttled="sw_power_cap")])]))
    assert "1 row measured while the GPU lowered its clock (sw_power_cap)" in text
    assert "<dt>throttled</dt>" in text and "power" in text


def test_the_environment_is_a_line_a_field_and_value(make_csv, tmp_path):
    path = make_csv([make_row(ratio=1.0), make_row(128, ratio=1.0, run=LATER)])
    for run, triton in ((RUN, "3.6.0"), (LATER, "3.7.1")):
        records.write_sidecar(tmp_path, run, {"started_utc": run, "environment": {
            "torch": "2.13.0", "triton": triton}})
    shown = tables.environment_table(load.load([path]))
    assert shown.cells == (("torch", "2.13.0", "all"), ("triton", "3.6.0", "1"),
                           ("triton", "3.7.1", "1"))
    assert [line[0] for line in tables.runs_table(load.load([path])).cells] == [RUN, LATER]


@pytest.mark.parametrize(("run", "says"), [
    (RUN, "Measured 2026-01-01, 2 rows of 1 run."),
    (LATER, "Measured 2026-01-01 to 2026-01-02, 2 rows of 2 runs.")])
def test_the_days_of_the_runs_are_said(make_csv, run, says):
    assert says in tables.facts(load.load([make_csv([make_row(ratio=1.0),
                                                     make_row(128, ratio=1.0, run=run)])]))


def test_a_record_is_flat_with_its_lists_joined():
    assert tables.flatten({"a": {"b": 1, "c": {"d": None}}, "e": [1, "x"], "f": (), "g": True}) == [
        ("a.b", "1"), ("a.c.d", ""), ("e", "1, x"), ("f", ""), ("g", "True")]


def test_the_page_shows_figures_tables_environment_and_every_row(results, maps):
    text = page.page(results, title="A title", maps=maps, mean_of=maps)
    assert "<title>A title</title>" in text
    for part in ("Ratio to torch.matmul by size", "Roofline", "Sweep: share of the best time",
                 "Rows that are not ok", "killed after 30 s", "Control: torch against torch",
                 "Environment", "torch 2.13.0"):
        assert part in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
    assert data["rows"] == 19  # every row but the control
    assert {len(column["values"]) for column in data["columns"]} == {19}


def test_a_void_run_is_an_alarm_on_the_page(make_csv, tmp_path):
    path = make_csv([make_row(ratio=1.0), make_row(128, ratio=1.0, run=LATER)])
    records.write_sidecar(tmp_path, LATER, {"void": True, "void_reason": "noisy"})
    assert f'<p class="alarm">Run {LATER} is VOID: noisy.' in page.page(load.load([path]))


def test_text_from_a_csv_is_escaped(make_csv, tmp_path):
    rows = [make_row(m, ratio=1.0, suite=SLY, provider=SLY, config_id=SLY) for m in (64, 128)]
    rows += [make_row(64, suite="b", provider=SLY, ratio=1.0),
             make_row(256, suite=SLY, status="compile", error=SLY)]
    path = make_csv(rows)
    records.write_sidecar(tmp_path, RUN, {"void": False, SLY: SLY})
    parsed = Elements(page.page(load.load([path]), title=SLY))
    assert "img" not in [tag for tag, _ in parsed.tags]
    assert SLY in parsed.cells
    data = next(json.loads(s) for s in parsed.scripts if s.startswith('{"columns"'))
    [suites] = [column for column in data["columns"] if column["name"] == "suite"]
    assert [SLY, "b"] == suites["texts"]


def test_the_slowest_15_are_listed_unless_a_number_is_asked_for(make_csv):
    found = load.load([make_csv([make_row(64 + i, ratio=1.0 + i / 100) for i in range(20)])])
    assert len(tables.slowest_table(found).cells) == 15
    assert len(tables.slowest_table(found, 3).cells) == 3


def test_the_page_of_nothing_is_a_page(make_csv):
    assert "No rows to report" in page.page(load.load([make_csv([])]))


def test_an_infinite_error_is_a_page_and_not_a_crash(make_csv):
    results = load.load([make_csv([make_row(status="wrong", max_err_ratio=float("inf"))])])
    assert "1 result WRONG" in page.page(results)


def test_a_library_that_is_not_installed_is_named_with_the_command_that_installs_it(
        results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"matplotlib.*'\.\[report\]'"):
        plots.write_plots(results, tmp_path / "out")


def test_without_matplotlib_the_page_and_the_tables_are_written(results, tmp_path, monkeypatch,
                                                                capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(tmp_path / "bench.csv"), "--out", str(tmp_path / "out")]) == 0
    assert "no PNG plots: " in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.html", "summary.md"]


def test_the_tables_need_neither_torch_nor_a_plotting_library(results, tmp_path):
    code = ("import sys; from tritongemm.cli import main; main(['report', sys.argv[1]]); "
            "loaded = {'torch', 'triton', 'matplotlib'} & set(sys.modules); "
            "assert not loaded, loaded")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "bench.csv")], check=True,
                   cwd=Path(page.__file__).parents[2], stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("value, percent, rate", [
    (78.6, "79 %", "78.6"), (0.31, "0.3 %", "0.31"), (0.0, "0 %", "0"), (0.008, "0.008 %", "0.008"),
    (1234.5, "1234 %", "1,234"), (float("nan"), "–", "–"), (9.5, "10 %", "9.5"),
    (100.0, "100 %", "100")])
def test_numbers_of_any_size_stay_legible(value, percent, rate):
    assert (style.percent(value), style.rate(value)) == (percent, rate)


@pytest.mark.parametrize("low, high", [(0.85, 1.25), (0.99, 1.01), (0.01, 100), (0.5, 3), (3, 90)])
def test_ratio_ticks_lie_inside_and_are_few(low, high):
    ticks = style.ratio_ticks(low, high)
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= high for tick in ticks)
    assert 3 <= len(ticks) <= 13
    assert (1.0 in ticks) == (low <= 1 <= high)


def test_known_providers_keep_their_colour_and_no_two_share_one():
    first, second = style.colours(["tritongemm", "x"]), style.colours(["a", "tritongemm", "torch"])
    assert first["tritongemm"] == second["tritongemm"]
    names = ["torch", "tritongemm", "tritongemm-auto", "inductor", "a", "b", "c"]
    assert len(set(style.colours(names).values())) == len(names)
    assert len(set(style.marks(names).values())) == len(names)


def test_the_command_writes_everything_and_names_it(results, maps, tmp_path, capsys):
    readme = tmp_path / "docs" / "README.md"
    readme.parent.mkdir()
    readme.write_text("<!-- tritongemm:h200 -->\n<!-- /tritongemm:h200 -->\n")
    assert main(["report", str(tmp_path / "bench.csv"), "--journal", str(tmp_path / "sweep.jsonl"),
                 "--out", str(tmp_path / "out"), "--markdown", str(readme), "--marker", "h200",
                 "--plot", "overview", "--title", "All"]) == 0
    out = capsys.readouterr().out
    assert "report.html" in out and "overview.png" in out
    assert (tmp_path / "out" / "summary.md").read_text().startswith("# All\n")
    assert "](../out/overview.png)" in readme.read_text()
    assert "| llm_decode | bf16 | nt | tritongemm |" in readme.read_text()


def test_the_command_without_out_prints_the_tables(results, tmp_path, capsys):
    assert main(["report", str(tmp_path / "bench.csv")]) == 0
    out = capsys.readouterr().out
    assert "geomean" in out and "Device: nvidia-h200." in out


def test_the_command_draws_a_journal_alone(maps, tmp_path, capsys):
    assert main(["report", "--journal", str(tmp_path / "sweep.jsonl"),
                 "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "sweep-mean.png").exists()


@pytest.mark.parametrize("arguments, says", [
    ([], "at least one CSV"), (["{csv}", "--marker", "x"], "go together"),
    (["{csv}", "--markdown", "x.md"], "go together"), (["{csv}", "--section", "all"], "not known"),
    (["{csv}", "--section", ","], "not known"), (["{csv}", "--plot", "overview"], "--plot needs"),
    (["absent.csv"], "does not exist"), (["{csv}", "--heatmaps", "-1", "--out", "x"], "negative"),
    (["{csv}", "--title", "mine"], "--title without --out would have no effect"),
    (["--journal", "j.jsonl", "--section", "summary"], "--section without a CSV would have"),
    (["{csv}", "--journal", "absent.jsonl"], "absent.jsonl"),
])
def test_the_command_refuses_what_it_cannot_use(results, tmp_path, capsys, arguments, says):
    arguments = [a.format(csv=tmp_path / "bench.csv") for a in arguments]
    assert main(["report", *arguments]) == 2
    assert says in capsys.readouterr().err

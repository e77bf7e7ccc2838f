"""What the site's pages and the README are made from: generated parts, links, numbers."""

from __future__ import annotations

import argparse
import configparser
import importlib
import itertools
import re
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.cli import VERBS, main, parser_of
from tritongemm.report import markdown
from tritongemm.report.load import load

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "docs" / "_tools"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="docs/ is not beside the tests")


@pytest.fixture
def tool(monkeypatch):
    """A module of docs/_tools by name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


def repo_url() -> str:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    urls = dict(line.split(" = ", 1) for line in
                parser["metadata"]["project_urls"].strip().splitlines())
    return urls["Source"]


def test_the_reference_of_the_command_line_names_every_verb_and_option(tool):
    page = tool("cli_reference").page()
    for verb in VERBS:
        assert f"\n## {verb}\n" in page
        for action in parser_of(verb)._actions:
            if action.help != argparse.SUPPRESS:
                assert all(f"`{option}" in page or f", {option}" in page
                           for option in action.option_strings if option not in ("-h", "--help"))
    assert "%(" not in page


def test_the_reference_of_the_settings_names_every_variable(tool):
    page = tool("cli_reference").settings_page()
    assert all(f"| `{variable.name}` |" in page for variable in settings.VARIABLES)


def test_every_drawing_is_what_the_code_draws_with_a_title_and_small(tool):
    module = tool("drawings")
    made = module.drawings()
    assert {path.stem for path in module.FOLDER.glob("*.svg")} == {*made, "speedup"}
    for name, drawing in made.items():
        path = module.FOLDER / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == drawing, "run python docs/_tools/drawings.py"
        image = ElementTree.fromstring(drawing)
        assert image.find("{http://www.w3.org/2000/svg}title").text, name
        assert len(drawing) < 16_000, name


def test_every_page_stands_in_the_navigation():
    named = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= named


def test_the_python_reference_holds_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: tritongemm\.(\w+)$", text, re.MULTILINE))
    errors = {name for name in tritongemm.__all__ if name.endswith("Error")}
    assert shown == {*tritongemm.__all__, "errors"} - {"__version__"} - errors


def test_the_chart_and_tables_of_the_readme_are_those_of_the_csvs(tool, monkeypatch):
    headline = tool("headline")
    monkeypatch.setattr("sys.argv", ["headline.py", "--check"])
    assert headline.main() == 0


#: Marker of perf/README.md -> the CSVs of its table.
MARKED = {
    "h200-bf16-nt": ("nvidia-h200/bf16-nt.csv", "nvidia-h200/bf16-suites.csv"),
    "h200-others": ("nvidia-h200/bf16-layouts.csv", "nvidia-h200/fp16-nt.csv"),
    "h200-fp32": ("nvidia-h200/fp32.csv", "nvidia-h200/complex64/square.csv"),
    "h200-fresh": ("nvidia-h200/fresh/bf16-fresh-43513610.csv",),
    "h200-epilogues": ("nvidia-h200/epilogues/epilogue-decode.csv",
                       "nvidia-h200/epilogues/epilogue-prefill.csv"),
    "h200-gated": ("nvidia-h200/epilogues/gated-prefill.csv",),
    "h200-rivals": ("nvidia-h200/rivals.csv",),
    "h100-bf16-nt": ("nvidia-h100-80gb-hbm3/bf16-nt.csv",),
    "h100-others": ("nvidia-h100-80gb-hbm3/bf16-layouts.csv", "nvidia-h100-80gb-hbm3/fp16-nt.csv"),
    "h100-fp32": ("nvidia-h100-80gb-hbm3/fp32.csv", "nvidia-h100-80gb-hbm3/complex64/square.csv"),
    "h100-fresh": ("nvidia-h100-80gb-hbm3/fresh/11251411.csv",
                   "nvidia-h100-80gb-hbm3/fresh/88452900.csv"),
    "h100-fp32-fresh": ("nvidia-h100-80gb-hbm3/fresh/27112001.csv",),
    "h100-epilogues": ("nvidia-h100-80gb-hbm3/epilogues/epilogue-decode.csv",
                       "nvidia-h100-80gb-hbm3/epilogues/epilogue-prefill.csv"),
}


#: Markers of other tables than the summary, and which.
SECTIONS = {"h200-rivals-faster": ("rivals", "h200-rivals"),
            "h200-fp32-energy": ("energy", "h200-fp32"),
            "h100-fp32-energy": ("energy", "h100-fp32")}


@pytest.mark.parametrize("marker", (*MARKED, *SECTIONS))
def test_the_tables_of_the_performance_page_are_those_of_the_csvs(marker):
    page = (ROOT / "perf" / "README.md").read_text(encoding="utf-8")
    _, _, rest = page.partition(f"<!-- tritongemm:{marker} -->\n")
    shown, found, _ = rest.partition(f"<!-- /tritongemm:{marker} -->")
    section, of = SECTIONS.get(marker, ("", marker))
    results = load([ROOT / "perf" / "results" / name for name in MARKED[of]])
    sections = (section,) if section else ()
    assert found and shown.startswith(markdown.document(results, sections=sections).rstrip())


def test_every_marker_of_the_performance_page_is_checked():
    page = (ROOT / "perf" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- tritongemm:(\S+) -->", page)) == {
        *MARKED, *SECTIONS, "h200-environment"}


def test_rows_of_autotuned_cublaslt_add_bars_a_column_and_a_note(tool, monkeypatch, tmp_path):
    headline = tool("headline")
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "report"))
    from made_rows import LATER, make_row, write_csv

    for device in headline.DEVICES:
        write_csv(tmp_path / device / "bf16.csv", [
            make_row(m=m, ratio=1.2, suite="square", device=device) for m in (128, 256)])
    one, other = headline.DEVICES
    rows = [make_row(m=m, ratio=ratio, suite="square", device=one, provider=provider, run=LATER)
            for m, ours, tuned in ((128, 1.1, 1.0), (256, 1.5, 1.2), (512, 1.2, 1.0))
            for provider, ratio in (("tritongemm", ours), (headline.AUTOTUNED, tuned))]
    failed = make_row(m=640, suite="square", device=one, provider=headline.AUTOTUNED, run=LATER,
                      status="constraint")
    write_csv(tmp_path / one / "autotuned.csv", [*rows, failed])
    monkeypatch.setattr(headline, "RESULTS", tmp_path)
    monkeypatch.setattr(headline, "FAMILIES", {"square": headline.FAMILIES["square"]})
    monkeypatch.setattr(headline, "DEVICES", {
        device: (*headline.DEVICES[device][:2], ("bf16.csv",)) for device in (one, other)})

    found, _ = headline.summaries()
    tuned = headline.over_autotuned()
    assert tuned == {one: {"square": (pytest.approx(1.2), 3)}}
    assert headline.note(tuned).endswith("(H200: 3 shapes of `square`).")
    assert headline.table(found, tuned).splitlines()[2].endswith("| 1.20 | 1.20 | 1.20 (3) |")
    drawing = headline.chart(found, "torch 2.11", tuned)
    assert drawing.count("1.20x") == 3 and "H200, over autotuned cuBLASLt" in drawing
    assert "H100, over autotuned cuBLASLt" not in drawing
    assert "not in the committed CSVs" not in drawing


def test_absolute_links_of_the_readme_lead_into_the_repository():
    text, url = (ROOT / "README.md").read_text(encoding="utf-8"), repo_url()
    assert f"repository: {url}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    links = re.findall(rf"{re.escape(url)}/(?:blob|tree)/main/([^)\s#]+)", text)
    raw = url.replace("github.com", "raw.githubusercontent.com")
    links += re.findall(rf"{re.escape(raw)}/main/([^)\s]+)", text)
    assert len(links) > 10 and [link for link in links if not (ROOT / link).exists()] == []
    relative = [target for target in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in target]
    assert relative == []  # they would lead nowhere from the package's page


def anchors(page: Path) -> set[str]:
    """A page's anchors: of its headings by GitHub's rule, which mkdocs.yml asks for too, and of
    the names that it takes from docstrings."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    found = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        repeated = (f"{name}-{number}" for number in itertools.count(1))
        found.add(next(each for each in itertools.chain([name], repeated) if each not in found))
    return found


def test_every_link_to_a_heading_leads_to_one():
    pages = [path for folder in (".", "docs", "perf", "configs", "examples")
             for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")]
    links = []
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
            if "://" not in target:
                links.append((page, page.parent / target if target else page, anchor))
            elif target.startswith(f"{repo_url()}/blob/main/") and target.endswith(".md"):
                links.append((page, ROOT / target.split("/blob/main/")[1], anchor))
    assert len(links) > 50
    assert [(page.name, where.name, anchor) for page, where, anchor in links
            if where.suffix == ".md" and anchor not in anchors(where)] == []


def test_each_rung_of_the_ladder_page_shows_its_inner_loop(tool, capsys):
    ladder_page = tool("ladder_page")
    text = (ROOT / "perf" / "LADDER.md").read_text(encoding="utf-8")
    page = ladder_page.page(text)
    assert main(["ladder", "--list"]) == 0
    listed = re.findall(r"^(host|cuda|triton) +(\w+)", capsys.readouterr().out, re.MULTILINE)
    assert ladder_page.rungs_of(text) == [rung for kind, rung in listed if kind != "host"]
    for _, rung in listed:
        if rung not in ladder_page._SHARED:
            loop = ladder_page.inner_loop(rung)
            assert 1 < len(loop.splitlines()) < 40, rung
            assert textwrap.indent(loop, "    ") in page, rung


def test_the_page_names_the_rungs_that_its_charts_leave_out(tool):
    text = (ROOT / "perf" / "LADDER.md").read_text(encoding="utf-8")
    named = re.search(r"The charts leave out (.*?)\n\n", text, re.DOTALL)[1]
    assert re.findall(r"`(\w+)`", named) == tool("ladder_page").left_out()

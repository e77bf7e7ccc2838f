"""The documents keep up with the code: commands parse, links lead somewhere, variables exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.cli import main

ROOT = Path(tritongemm.__file__).resolve().parent.parent
DOCUMENTS = tuple(path for path in (
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
    ROOT / "examples/README.md", ROOT / "perf/README.md", ROOT / "perf/LADDER.md",
    *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "perf/results").rglob("*.md")),
    *sorted((ROOT / "perf/log").glob("*.md"))) if path.exists())
pytestmark = pytest.mark.skipif(not DOCUMENTS, reason="the documents are not beside the package")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[tuple[str, str]]:
    """(document, text) of the fenced blocks of a kind."""
    return [(path.name, text) for path in DOCUMENTS
            for found, text in BLOCK.findall(path.read_text(encoding="utf-8")) if found == kind]


def commands() -> list[str]:
    """Every ``tritongemm VERB ...`` of a block, its continued lines joined."""
    lines = [line.split("#")[0].strip() for _, text in blocks("")
             for line in text.replace("\\\n", " ").splitlines()]
    return sorted({line for line in lines if line.startswith("tritongemm ")})


def test_the_documents_show_the_whole_job():
    shown = {line.split()[1] for line in commands()}
    assert {"sweep", "publish", "bench", "report", "explain"} <= shown


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_documents_is_understood(line, monkeypatch):
    _, verb, *words = shlex.split(line)
    module = importlib.import_module(f"tritongemm.cli.{verb}")
    seen = []
    monkeypatch.setattr(module, "run", lambda args: seen.append(args) or 0)
    assert main([verb, *words]) == 0 and len(seen) == 1


@pytest.mark.parametrize(("name", "text"), blocks("python"), ids=lambda v: v[:20])
def test_an_example_uses_names_that_are_there(name, text):
    names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name) and node.value.id == "tg"}
    assert names and names <= set(tritongemm.__all__)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_the_repository_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#\s]+)\)", path.read_text(encoding="utf-8"))
    inside = [target for target in targets if "://" not in target]
    made_later = {"configs/tuned/", "perf/results", "results/"}  # by sweeps and benches
    missing = [t for t in inside if not (path.parent / t).exists() and t not in made_later]
    assert not missing


def test_the_readme_knows_the_variables():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"TRITON(?:GEMM)?_[A-Z_]+[A-Z0-9]+", text))
    known = {variable.name for variable in settings.VARIABLES}
    assert named <= known, f"unknown: {named - known}"
    assert {"TRITONGEMM_DISABLE", "TRITONGEMM_LOG", "TRITONGEMM_PROFILE", "TRITONGEMM_USER_DIR",
            "TRITONGEMM_CONFIG_DIR", "TRITONGEMM_CONFIG_ONLY"} <= named


def test_markers_come_in_pairs():
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        opened = re.findall(r"<!-- tritongemm:([\w-]+) -->", text)
        closed = re.findall(r"<!-- /tritongemm:([\w-]+) -->", text)
        assert opened == closed and len(set(opened)) == len(opened), path.name

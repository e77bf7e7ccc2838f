"""Every script and notebook of ``examples/`` runs: without a GPU, in Triton's interpreter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tritongemm import settings
from tritongemm.cli.doctor import interpreter_obstacle

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="examples/ is not beside the tests")
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
#: What a script prints where it worked.
SAYS = {"matmul.py": "largest error", "fused_linear.py": "fused ", "override_model.py": "taken",
        "tune_shapes.py": "candidates", "own_provider.py": r"halves_of_k|HalvesOfK"}


def run(folder: Path, *words: object) -> str:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, env=settings.child_environment(
            TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", PYTHONPATH=paths, MPLBACKEND="agg"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_five_scripts_and_two_notebooks_and_the_readme_names_them():
    assert set(SCRIPTS) == set(SAYS) and len(SCRIPTS) == 5 and len(NOTEBOOKS) == 2
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([^)]+)\)", text)) == {*SCRIPTS, *NOTEBOOKS}


#: What `make test` runs of them; `make test-all` runs all.
QUICK = ("matmul.py",)


@pytest.mark.parametrize("name", [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in SCRIPTS])
def test_a_script_runs(name, tmp_path):
    if (obstacle := interpreter_obstacle()) and name != "tune_shapes.py":
        pytest.skip(obstacle)
    assert re.search(SAYS[name], run(tmp_path, FOLDER / name))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_is_committed_without_output(name, tmp_path):
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in code), encoding="utf-8")
    assert run(tmp_path, script)

"""What mypy and pyright say of a user's script: right uses pass, wrong ones are found."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import tritongemm
from tritongemm import settings

CHECKOUT = Path(tritongemm.__file__).resolve().parent.parent

RIGHT = '''
import torch
import tritongemm as tg

a, b = torch.ones(4, 8), torch.ones(8, 4)
c: torch.Tensor = tg.matmul(a, b, strict=True)
d = tg.linear(a, b.t(), activation="gelu")
with tg.override("mm", min_flops=1e9):
    tg.mm(a, b)
print(tg.override_report().taken, tg.explain(a, b).source, tg.explain(64, 64, 64).note)
print(tg.explain(tg.GemmProblem(64, 64, 64), device="h200").config)
report = tg.tune([(64, 64, 64)], top=4)
print(report.winners[0].time_us, tg.__version__)
'''
#: Line -> a word of the complaint about it.
WRONG = {
    "tg.nosuch": "nosuch",
    'tg.linear(a, a, activation="swish")': "swish",
    "tg.matmul(a)": "other",
    "tg.matmul(a, b, strict='yes')": "strict",
    "tg.explain(1.5, 2, 3)": "explain",
    "tg.override(min_flops='many')": "min_flops",
}
HEAD = "import torch\nimport tritongemm as tg\n\na = b = torch.ones(4, 4)\n"
FIRST = HEAD.count("\n") + 1
SCRIPTS = {"right.py": RIGHT, "wrong.py": HEAD + "\n".join(WRONG)}


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")


Complaints = dict[str, dict[int, str]]  # script -> line -> what is said about it


def run(folder: Path, *words: object) -> str:
    done = subprocess.run([sys.executable, "-m", *map(str, words)], cwd=folder, timeout=300,
                          capture_output=True, text=True,
                          env=settings.child_environment(MYPYPATH=str(CHECKOUT)))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(folder: Path) -> Complaints:
    """torch is taken as Any: following it takes a minute."""
    needs("mypy")
    config = folder / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*,triton.*,numpy.*,pandas.*]\nfollow_imports = skip\n"
                      "ignore_missing_imports = True\n"
                      "[mypy-tritongemm.*]\nfollow_imports = silent\n", encoding="utf-8")
    found: Complaints = {name: {} for name in SCRIPTS}
    for line in run(folder, "mypy", "--config-file", config, "--no-error-summary", "--cache-dir",
                    folder / "cache", *SCRIPTS).splitlines():
        name, number, kind, text = line.split(":", 3)
        if kind.strip() == "error":
            lines = found[name]
            lines[int(number)] = lines.get(int(number), "") + text
    return found


def pyright(folder: Path) -> Complaints:
    """By basedpyright, which brings its own node."""
    needs("basedpyright")
    (folder / "pyrightconfig.json").write_text(json.dumps({
        "typeCheckingMode": "standard", "extraPaths": [str(CHECKOUT)],
        "reportMissingModuleSource": False}), encoding="utf-8")
    found: Complaints = {name: {} for name in SCRIPTS}
    said = json.loads(run(folder, "basedpyright", "--outputjson", "--pythonpath", sys.executable,
                          "--project", folder))
    for one in said["generalDiagnostics"]:
        if one["severity"] == "error":
            lines, line = found[Path(one["file"]).name], one["range"]["start"]["line"] + 1
            lines[line] = lines.get(line, "") + one["message"]
    return found


@pytest.fixture(scope="module",
                params=[mypy, pytest.param(pyright, marks=pytest.mark.thorough)])
def complaints(request, tmp_path_factory) -> Complaints:
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return request.param(folder)


def test_right_uses_pass(complaints):
    assert complaints["right.py"] == {}


def test_wrong_uses_are_found(complaints):
    found = complaints["wrong.py"]
    assert sorted(found) == list(range(FIRST, FIRST + len(WRONG)))
    for line, word in enumerate(WRONG.values(), FIRST):
        assert word in found[line], (line, found[line])


def test_checkers_know_every_activation():
    from tritongemm.ops.functions import Activation
    from tritongemm.problem import ACTIVATIONS

    assert typing.get_args(Activation) == ACTIVATIONS


def test_dir_shows_the_public_names_alone():
    shown = [name for name in dir(tritongemm) if not name.startswith("__")]
    assert sorted(shown) == sorted(set(tritongemm.__all__) - {"__version__"})

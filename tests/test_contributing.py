"""Each "how to add" of CONTRIBUTING.md, carried out on a copy of the tree.

An exercise edits the files that its paragraph names, and no other. All edits are made to one copy,
which two processes then check: one compiles, one interprets.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tritongemm import settings

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCES = CHECKOUT / "tests" / "contributing"
Edit = Callable[[str], str]


def inside(start: str, end: str, added: str) -> Edit:
    """Adds a line before the first ``end`` that follows ``start``."""
    def edit(text: str) -> str:
        at = text.index(end, text.index(start))
        return text[:at] + added + text[at:]
    return edit


def both(*edits: Edit) -> Edit:
    def edit(text: str) -> str:
        for one in edits:
            text = one(text)
        return text
    return edit


def whole(source: str | object) -> Edit:
    """A new file: one of ``tests/contributing``, or an object as JSON."""
    return lambda text: ((SOURCES / source).read_text() if isinstance(source, str)
                         else json.dumps(source))


@dataclass(frozen=True)
class Exercise:
    """``paragraph``: what it begins with in CONTRIBUTING. ``edits``: file -> what is done to it.
    ``check``: code that runs where the package is the copy. ``interpreted``: more of it, that runs
    under Triton's interpreter."""

    paragraph: str
    edits: Mapping[str, Edit] = field(default_factory=dict)
    check: str = ""
    interpreted: str = ""


SQUARE_TILES = """def _square_tiles(problem, config, device):
    if config.block_m == config.block_n:
        return None
    return f"block_m={config.block_m} and block_n={config.block_n} differ; use equal ones"


"""
FACTORS = """    constants.append(("SCALED", problem.a.scale is not None))
    if problem.a.scale is not None:
        view = g.view("scale_a")
        arguments += [Pointer("scale_a", "scale_a", problem.a.scale.format, view.align),
                      Scalar("stride_scale_a", view.strides[0])]
    else:
        constants += [("scale_a", None), ("stride_scale_a", None)]
"""
H200 = json.loads((CHECKOUT / "configs/devices/nvidia-h200.json").read_text())
EXERCISES = {
    "kernel": Exercise("A kernel", {
        "tritongemm/kernels/device/exercise.py": whole("exercise_kernel_device.py"),
        "tritongemm/kernels/exercise.py": whole("exercise_kernel_spec.py"),
        "tritongemm/kernels/__init__.py": both(
            inside("from tritongemm.kernels.gemv", "from tritongemm.kernels.gemv",
                   "from tritongemm.kernels.exercise import EXERCISE\n"),
            inside("SPECS: dict", ")}", ", EXERCISE")),
        "configs/spaces/exercise.json": whole({"schema_version": 1, "kernel": "exercise", "axes": {
            "block_m": [32, 64], "block_n": [32, 64], "block_k": [32], "num_warps": [4],
            "num_stages": [2]}})}, """
from tritongemm.selection import candidates
from tritongemm.tuning.candidates import KernelPlanner
ours = [c for c in candidates(PROBLEM, H200) if c.kernel == "exercise"]
assert len(ours) == 2
assert sorted(c.block_m for c in KernelPlanner(["exercise"])(PROBLEM, H200).configs) == [32, 64]
sys.path.insert(0, TESTS + "/compile")
import compiled
assert ("exercise", 90) in compiled.TARGETS
assert compiled.fault(PROBLEM, ours[0], H200) is None
""", """
for size in ((70, 40, 50), (64, 64, 64)):
    a, b, c = operands(*size)
    bind(*size)(a, b, c)
    torch.testing.assert_close(c, a @ b)
"""),
    "constraint": Exercise("A constraint", {"tritongemm/kernels/exercise.py": both(
        inside("def footprint(", "def footprint(", SQUARE_TILES),
        inside("constraints=(", "rules.shared_memory(",
               'rules.Constraint("square", _square_tiles), '))}, """
from tritongemm.kernels import violation
bad = KernelConfig("exercise", 32, 64, 32, num_warps=4, num_stages=2)
found = violation(PROBLEM, bad, H200)
assert (found.rule, found.message) == ("square", "block_m=32 and block_n=64 differ; use equal ones")
from tritongemm.tuning.candidates import KernelPlanner
assert KernelPlanner(["exercise"])(PROBLEM, H200).report.removed["exercise", "square"] == 2
"""),
    "activation": Exercise("An activation", {
        "tritongemm/activations.py": both(
            inside("BY_NAME = {", "\n)}", '\n    Activation("logistic", "sigmoid", '
                   "lambda grad, y: grad * y * (1 - y), of_result=True),"),
            inside("Name = Literal[", "]\n", ', "logistic"')),
        "tritongemm/kernels/device/epilogue.py": inside(
            "def activate(", "    else:\n        tl.static_assert",
            '    elif ACTIVATION == "logistic":\n'
            "        acc = 1.0 / (1.0 + tl.exp(-acc))\n")}, """
import torch, typing, tritongemm
from tritongemm.ops.functions import Activation
from tritongemm.problem import ACTIVATIONS
assert typing.get_args(Activation) == ACTIVATIONS and "logistic" in ACTIVATIONS
x, w = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
assert torch.allclose(tritongemm.linear(x, w, activation="logistic"), torch.sigmoid(x @ w.T))
assert "logistic" in out(["bench", "--help"])
""", """
for kernel in ("tiled", "exercise"):
    a, b, c = operands(40, 32, 48)
    d = torch.randn(32)
    bind(40, 32, 48, kernel=kernel, epilogue="bias+logistic")(a, b, c, d)
    torch.testing.assert_close(c, torch.sigmoid(a @ b + d))
"""),
    "format": Exercise("A format", {"tritongemm/formats.py": inside(
        "FORMATS = {", "\n)}", '\n    Format("tiny8", 8, "float8_e5m2", "fp8e5", 2.0**-2, '
        '"e5m2"),')}, """
import torch
from tritongemm.formats import torch_dtype
problem = GemmProblem.contiguous(64, 64, 64, dtype="tiny8", dtype_out="bf16")
assert (torch_dtype("tiny8"), problem.bytes()) == (torch.float8_e5m2, 64 * 64 * (1 + 1 + 2))
from tritongemm.kernels import SPECS
assert all(spec.supports(problem, H200).rule == "dtype" for spec in SPECS.values())
assert "tiny8" in out(["bench", "--help"])
"""),
    "compute mode": Exercise("A compute mode", {
        "tritongemm/compute.py": inside(
            "COMPUTES = {", "\n)}", '\n    Compute("bf16once", "bf16once", ("fp32",), peak="bf16", '
            "eps=2 * 2.0**-8),"),
        "tritongemm/kernels/exercise.py": inside('("native", "ieee"', ")", ', "bf16once"')}, """
problem = GemmProblem.contiguous(64, 64, 64, dtype="fp32", precision="bf16once")
assert problem.peak_tflops(H200.peak_tflops) == H200.peak_tflops["bf16"]
assert problem.unit == "bf16once" and str(problem) == "64x64x64 fp32 nn bf16once"
from tritongemm.kernels import SPECS
said = {name: spec.takes.violation(problem) for name, spec in SPECS.items()}
assert said.pop("exercise") is None
assert {v.rule for v in said.values()} == {"precision", "dtype"}
assert "bf16once" in out(["explain", "--help"])
"""),
    "operand": Exercise("An operand of a kernel", {
        "tritongemm/kernels/exercise.py": both(
            inside("def launches(", "    extra, epilogue", FACTORS),
            inside("takes=Takes(", "),\n    constraints", ', scales=("row",)')),
        "tritongemm/kernels/device/exercise.py": both(
            inside("def exercise(", "d, alpha", "scale_a, stride_scale_a, "),
            inside("def exercise(", "GROUP_M: ", "SCALED: tl.constexpr, "),
            inside("acc = dot_over_k(", "    value = load_d(", "    if SCALED:\n"
                   "        acc *= tl.load(scale_a + (rows % M) * stride_scale_a)[:, None]\n"))},
        """
from tritongemm.kernels.compile import launches_of
scaled = GemmProblem.contiguous(64, 64, 64, scale_a="row")
(launch,) = launches_of(scaled, SPEC.default(scaled, H200), H200)
assert launch.operands() == ("a", "b", "c", "scale_a")
""", """
a, b, c = operands(40, 32, 48)
factors = torch.rand(40, 1)
bound = bind(40, 32, 48, scale_a="row")
bound(a, b, c, scale_a=factors)
torch.testing.assert_close(c, (factors * a) @ b)
from tritongemm.errors import LaunchError
try:
    bound(a, b, c)
except LaunchError as error:
    assert "'scale_a'" in str(error)
else:
    raise AssertionError("a call without its factors ran")
"""),
    "provider": Exercise("A provider", {
        "tritongemm/bench/providers/exercise.py": whole("exercise_provider.py"),
        "tritongemm/bench/providers/__init__.py": inside(
            "PROVIDERS = {", "}\n",
            '    "exercise": "tritongemm.bench.providers.exercise:Exercise",\n')}, """
assert "exercise" in out(["bench", "--list"])
path = pathlib.Path("bench") / "out.csv"
out(["bench", "--m", "32", "--n", "32", "--k", "32", "--device", "cpu", "--providers", "exercise",
     "--budget", "0.05", "--out", str(path)], status=None)
from tritongemm.records.rows import read_rows
(row,) = [row for row in read_rows(path) if row["provider"] == "exercise"]
assert (row["status"], row["kernel"]) == ("ok", "torch.matmul") and row["time_us_p50"] > 0
"""),
    "suite": Exercise("A suite", {
        "perf/suites/exercise.csv": lambda text: "m,n,k,note\n640,320,168,made up\n",
        "perf/suites/README.md": lambda text: text + "\n| `exercise` | 1 | made up |\n"}, """
from tritongemm.records.suites import known_suites, read_suite
(one,) = read_suite(known_suites()["exercise"])
assert (one.m, one.n, one.k, one.suite, one.note) == (640, 320, 168, "exercise", "made up")
assert "exercise" in out(["bench", "--list"])
"""),
    "device": Exercise("A device", {"configs/devices/acme-gpu-9.json": whole(
        {**H200, "name": "ACME GPU 9", "num_sms": 66})}, """
from tritongemm.device import device_named, slug_of
from tritongemm.records.tables import path_for
device = device_named("acme-gpu-9")
assert (device.num_sms, slug_of(device.name)) == (66, device.slug)
assert path_for(PROBLEM, device.slug).parent.parts[-2:] == ("tuned", "acme-gpu-9")
assert "ACME GPU 9 (sm_90, 66 SMs)" in out(["explain", "64", "64", "64", "--device-name", "acme"])
"""),
    "column": Exercise("A CSV column", {"tritongemm/records/columns.py": inside(
        "COLUMNS: tuple", "\n)\n", '\n    Column("fan_rpm", int, "speed of the fan, revolutions a '
        'minute"),')}, """
from tritongemm.records.rows import append_rows, derive, problem_columns, read_rows
old = pathlib.Path(OLD_CSV)
assert all(row["fan_rpm"] is None for row in read_rows(old))
row = derive({"run_id": "20260101T000000Z-abcdef", "device": "d", "provider": "p", "status": "ok",
              "time_us_p50": 2.0, **problem_columns(PROBLEM)}, unit_peak_tflops=None,
             memory_gbps=None)
mine = pathlib.Path("column.csv")
append_rows(mine, [row])
assert "fan_rpm" not in mine.read_text()
append_rows(mine, [{**row, "fan_rpm": 900}])
assert [r["fan_rpm"] for r in read_rows(mine)] == [None, 900]
"""),
    "setting": Exercise("A setting", {"tritongemm/settings.py": both(
        inside("VARIABLES: tuple", "\n)\n", '\n    Variable("quiet", "TRITONGEMM_QUIET", "0", '
               '_flag, "show nothing"),'),
        inside("class Settings", "\n\n\n", "\n    quiet: bool"))}, """
from tritongemm import settings
assert settings.current().quiet is False
os.environ["TRITONGEMM_QUIET"] = "1"
assert settings.reload().quiet is True
with settings.override(quiet=False):
    assert settings.current().quiet is False
sys.path.insert(0, CHECKOUT + "/docs/_tools")
import cli_reference
assert "| `TRITONGEMM_QUIET` |" in cli_reference.settings_page()
"""),
    "verb": Exercise("A verb", {
        "tritongemm/cli/exercise.py": whole("exercise_verb.py"),
        "tritongemm/cli/__init__.py": inside("VERBS = {", "}\n", '    "exercise": "say how much '
                                             'work a product is",\n')}, """
assert out(["exercise", "--size", "4"]).strip() == "128"
code = "import sys; from tritongemm.cli import main\\ntry: main(['exercise', '--help'])\\n" \\
    "except SystemExit: print('torch' in sys.modules)"
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
assert "--size" in done.stdout and done.stdout.endswith("False\\n")
import cli_reference
assert "## exercise" in cli_reference.page()
"""),
    "folder": Exercise("A folder of the package", {
        "tritongemm/extra/__init__.py": lambda text: '"""An exercise."""\n',
        "setup.cfg": inside("packages =", "    tritongemm.integration\n", "    tritongemm.extra\n"),
        "tests/test_layering.py": inside("LAYERS = (", '("cli",)', '("extra",), ')}, """
sys.path[:0] = ["tests", TESTS + "/packaging"]
import test_install, test_layering
test_layering.test_every_file_has_a_layer()
test_layering.test_imports_point_down("extra")
test_install.test_setup_cfg_names_every_package_folder()
shutil.copytree("tritongemm/extra", "tritongemm/forgotten")
try:
    test_install.test_setup_cfg_names_every_package_folder()
except AssertionError:
    pass
else:
    raise AssertionError("a folder that setup.cfg does not name was not noticed")
"""),
}
#: What every check finds: the copy is the current folder, and the package is the copy's.
COMMON = """
import contextlib, io, json, os, pathlib, shutil, subprocess, sys, traceback
import tritongemm
assert pathlib.Path(tritongemm.__file__).parent == pathlib.Path("tritongemm").resolve()
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.problem import GemmProblem
from tritongemm.kernels import SPECS
H200, PROBLEM = device_named("nvidia-h200"), GemmProblem.contiguous(256, 512, 1024)
SPEC = SPECS["exercise"]

def out(words, status=0):
    from tritongemm.cli import main
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            found = main(words)
        except SystemExit as end:
            found = end.code
    assert status is None or (found or 0) == status, said.getvalue()
    return said.getvalue()
"""
INTERPRETED = """
import torch
from tritongemm.device import interpreter_device
from tritongemm.ops.plan import bind_config

def operands(m, n, k):
    return torch.randn(m, k), torch.randn(k, n), torch.full((m, n), float("nan"))

def bind(m, n, k, kernel="exercise", **words):
    problem = GemmProblem.contiguous(m, n, k, dtype="fp32", **words)
    config = KernelConfig(kernel, 32, 32, 32, num_warps=4, num_stages=2)
    return bind_config(problem, config, interpreter_device())
"""
RUN = """
found = {}
for name, check in json.load(sys.stdin).items():
    try:
        exec(check, {**globals()})
        found[name] = ""
    except BaseException:
        found[name] = traceback.format_exc()
print(json.dumps(found), file=sys.__stdout__)
sys.__stdout__.flush()
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the tree with every edit made."""
    folder = tmp_path_factory.mktemp("contributing") / "copy"
    for name in ("tritongemm", "configs/spaces", "configs/devices", "perf/suites"):
        shutil.copytree(CHECKOUT / name, folder / name,
                        ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "tests/test_layering.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
    for exercise in EXERCISES.values():
        for name, edit in exercise.edits.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(edit(path.read_text() if path.exists() else ""))
    return folder


def checked(copy: Path, common: str, checks: dict[str, str], **environment: str) -> dict[str, str]:
    csv = next(path for path in sorted((CHECKOUT / "perf" / "results").rglob("*.csv"))
               if path.read_text()[:14] == "schema_version")
    names = {"TESTS": str(CHECKOUT / "tests"), "CHECKOUT": str(CHECKOUT), "OLD_CSV": str(csv)}
    code = "\n".join(f"{name} = {value!r}" for name, value in names.items()) + common + RUN
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(checks), capture_output=True, text=True,
        cwd=copy, timeout=300, env=settings.child_environment(PYTHONPATH=str(copy), **environment))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def compiled(copy) -> dict[str, str]:
    return checked(copy, COMMON, {name: one.check for name, one in EXERCISES.items()})


@pytest.fixture(scope="module")
def interpreted(copy) -> dict[str, str]:
    return checked(copy, COMMON + INTERPRETED,
                   {name: one.interpreted for name, one in EXERCISES.items() if one.interpreted},
                   TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", EXERCISES)
def test_what_is_added_works(compiled, name):
    assert compiled[name] == "", compiled[name]


@pytest.mark.parametrize("name", [name for name, one in EXERCISES.items() if one.interpreted])
def test_what_is_added_computes(interpreted, name):
    assert interpreted[name] == "", interpreted[name]


def paragraphs() -> dict[str, str]:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## How to add\n")[2].partition("\n## ")[0]
    return {found[1]: found[2] for found in re.finditer(
        r"^\*\*(.+?)\.?\*\*(.*?)(?=^\*\*|\Z)", section, re.DOTALL | re.MULTILINE)}


def test_every_paragraph_has_an_exercise():
    named = {re.sub(r" \(.*", "", title) for title in paragraphs()}
    assert named == {exercise.paragraph for exercise in EXERCISES.values()}


@pytest.mark.parametrize("name", EXERCISES)
def test_the_paragraph_names_the_files_that_were_touched(name):
    exercise = EXERCISES[name]
    text = next(text for title, text in paragraphs().items()
                if title.startswith(exercise.paragraph))
    named = set(re.findall(r"`([\w./]+)`", text))
    general = {path: re.sub(r"\b(exercise|extra|acme-gpu-9)\b", "NAME", path)
               for path in exercise.edits}
    assert {path for path, name in general.items() if not {path, name} & named} == set()

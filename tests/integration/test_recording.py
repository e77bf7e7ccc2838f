"""``tritongemm record``: whatever way a program ends, what it multiplied is a suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.cli import main  # noqa: E402
from tritongemm.integration.record import recording  # noqa: E402
from tritongemm.measure.torch_baseline import fp32_precision  # noqa: E402
from tritongemm.records.suites import Shape, read_suite  # noqa: E402
from tritongemm.tuning.gains import products_of  # noqa: E402

ROOT = Path(tg.__file__).resolve().parent.parent


def test_problems_are_told_apart_and_counted():
    x, w = torch.randn(8, 16, dtype=torch.bfloat16), torch.randn(32, 16, dtype=torch.bfloat16)
    bias, batch = torch.randn(32, dtype=torch.bfloat16), torch.randn(3, 8, 16)
    with recording() as seen:
        for _ in range(3):
            torch.nn.functional.linear(x, w, bias)
        x @ w.t()
        torch.addmm(torch.ones(8, 32, dtype=torch.bfloat16), x, w.t(), alpha=2)
        torch.addmm(bias, x, w.t(), beta=0, alpha=2)
        torch.bmm(batch, batch.mT)
        torch.empty(8, 32, dtype=torch.bfloat16).addmm_(x, w.t(), beta=0)
        x.double() @ w.t().double()
        x[:0] @ w.t()
        with pytest.raises(RuntimeError):
            x @ w
    rows = {(s.batch, s.m, s.n, s.k, s.layout, s.dtype, s.epilogue, s.count, s.note.split(";")[0])
            for s in seen.shapes()}
    assert rows == {
        (1, 8, 32, 16, "nt", "bf16", "bias", 3, "addmm"), (1, 8, 32, 16, "nt", "bf16", "", 1, "mm"),
        (1, 8, 32, 16, "nt", "bf16", "add", 1, "addmm"),
        (1, 8, 32, 16, "nt", "bf16", "scale", 1, "addmm"),
        (1, 8, 32, 16, "nt", "bf16", "", 1, "addmm"), (3, 8, 8, 16, "nt", "fp32", "", 1, "bmm")}
    assert seen.others == 2


def test_products_under_tf32_say_so_and_others_follow_calls():
    a, half = torch.randn(8, 8), torch.randn(8, 8, dtype=torch.bfloat16)
    with recording() as seen:
        torch.mm(a, a)
        with fp32_precision("tf32"):
            torch.mm(a, a)
            torch.mm(half, half)
        with tg.fp32_compute("ieee"):
            torch.mm(a, a)
    rows = {(s.dtype, s.precision, s.count) for s in seen.shapes()}
    assert rows == {("fp32", "", 1), ("fp32", "tf32", 1), ("fp32", "ieee", 1), ("bf16", "", 1)}
    products = products_of(seen.shapes(), precision="fp16x3")
    assert {p.problem.precision for p in products} == {"fp16x3", "tf32", "ieee"}


def test_kernels_part_is_noted(products):
    with recording(min_flops=2 * 4 * 4 * 4) as seen:
        torch.mm(torch.ones(4, 4), torch.ones(4, 4))
        torch.mm(torch.ones(4, 4), torch.ones(4, 2))
    assert [s.note for s in seen.shapes()] == ["mm; 1 of 1 taken", "mm; 0 of 1 taken"]
    assert seen.flops() == (128.0 + 64.0, 128.0)
    assert tg.override_report().active == ()


def test_what_kernels_decline_when_asked_is_torchs_and_taken_down_once():
    a, b = torch.ones(4, 4), torch.ones(4, 2)  # on the CPU, where nothing is a kernel's
    with recording(min_flops=0) as seen:
        results = [torch.mm(a, b), torch.mm(a, b, out=torch.empty(4, 2)), torch.addmm(b, a, b),
                   torch.zeros(4, 2).addmm_(a, b)]
        torch.mm(a[:0], b)
    assert [x[0, 0].item() for x in results] == [4, 4, 5, 4] and seen.others == 1
    assert [s.note for s in seen.shapes()] == ["mm; 0 of 2 taken", "addmm; 0 of 2 taken"]


def test_gradients_are_seen():
    layer = torch.nn.Linear(4, 6)
    with recording() as seen:
        layer(torch.randn(5, 4, requires_grad=True)).sum().backward()
    assert {(s.m, s.n, s.k) for s in seen.shapes()} == {(5, 6, 4), (5, 4, 6), (6, 4, 5)}


PROGRAM = """
import sys, torch
torch.mm(torch.ones(4, 8), torch.ones(8, 2))
print("arguments", sys.argv[1:], __name__)
"""


def record(folder: Path, *words: str, program: str = PROGRAM) -> subprocess.CompletedProcess:
    (folder / "program.py").write_text(program, encoding="utf-8")
    return subprocess.run([sys.executable, "-m", "tritongemm", "record", "--out", "seen.csv",
                           *words], cwd=folder, capture_output=True, text=True, timeout=120,
                          env={"PATH": "", "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("words", (
    pytest.param(("program.py", "--out", "x"), id="script", marks=pytest.mark.thorough),
    pytest.param(("-m", "program", "--out", "x"), id="module")))
def test_a_program_gets_its_own_arguments(tmp_path, words):
    done = record(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "arguments ['--out', 'x'] __main__" in done.stdout
    assert read_suite(tmp_path / "seen.csv") == [
        Shape(4, 2, 8, layout="nn", dtype="fp32", note="mm; 0 of 1 taken", suite="seen")]


ENDINGS = {
    "raises": ("raise ValueError('boom')", 1, "ValueError: boom"),
    "exits": ("sys.exit(7)", 7, ""), "exits with words": ("sys.exit('no')", 1, "no"),
    "is interrupted": ("raise KeyboardInterrupt", 130, "interrupted"),
}


@pytest.mark.parametrize("name", [
    name if name in ("exits", "is interrupted") else pytest.param(name, marks=pytest.mark.thorough)
    for name in ENDINGS])
def test_however_a_program_ends_the_suite_is_written_and_its_status_kept(tmp_path, name):
    ending, status, message = ENDINGS[name]
    done = record(tmp_path, "program.py", program=PROGRAM + ending)
    assert done.returncode == status and message in done.stderr
    assert "runpy" not in done.stderr and "record.py" not in done.stderr
    assert len(read_suite(tmp_path / "seen.csv")) == 1


@pytest.mark.thorough
def test_a_program_without_products_writes_nothing(tmp_path):
    done = record(tmp_path, "program.py", program="pass")
    assert done.returncode == 0 and "no product was seen" in done.stderr
    assert not (tmp_path / "seen.csv").exists()


@pytest.mark.thorough
def test_a_program_may_change_the_folder(tmp_path):
    done = record(tmp_path, "program.py", program="import os\nos.chdir('/')" + PROGRAM)
    assert done.returncode == 0 and (tmp_path / "seen.csv").exists()


@pytest.mark.parametrize(("words", "message"), (
    (["nothing.py"], "there is no script 'nothing.py'"),
    (["--out", "{folder}", "{program}"], "is a folder"),
    (["--out", "{program}/x.csv", "{program}"], "a part of the path is a file"),
    (["--min-flops", "-1", "{program}"], "--min-flops -1.0 is not"),
    (["--min-flops", "nan", "{program}"], "--min-flops nan is not"),
), ids=("missing script", "a folder", "under a file", "negative", "not a number"))
def test_bad_input_is_refused_before_the_program_runs(tmp_path, capsys, words, message):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('it ran')", encoding="utf-8")
    words = [word.format(folder=tmp_path, program=program) for word in words]
    assert main(["record", *words]) == 2
    assert message in capsys.readouterr().err

"""The fuzzer itself, a share of its time in the thorough suite, and a planted bug."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fuzz.case import Case, View, read
from fuzz.generate import LARGE, SMALL, case_of
from fuzz.memory import GUARD, World
from fuzz.planted import PLANTED, ROOT, hunt
from tritongemm.cli.doctor import interpreter_obstacle

SEED, SECONDS = 20261126, 20
CPU = torch.device("cpu")


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_a_seed_is_a_case_and_its_repr_is_the_case(sizes):
    for seed in range(300):
        case = case_of(seed, sizes)
        # NaN is not equal to itself, so that reprs are compared.
        assert repr(case_of(seed, sizes)) == repr(case) == repr(read(repr(case)))


def test_what_is_pasted_must_be_a_case():
    with pytest.raises(ValueError, match="is not the repr of a Case"):
        read("View((1,), (1,))")


def test_memory_is_drawn_alike_and_a_write_outside_is_seen():
    views = (View((3, 4), (4, 1), 2), View((4,), (3,), special=((1, float("nan")),)))
    out = View((3,), (2,), 1)
    one, other = (World(views, "bf16", 5, CPU, out) for _ in range(2))
    assert all(torch.equal(x.nan_to_num(), y.nan_to_num())
               for x, y in zip(one.operands, other.operands))
    assert one.operands[1].isnan().tolist() == [False, True, False, False]
    assert one.operands[0].storage_offset() == GUARD + 2 and one.out.isnan().all()
    one.may_be_written(-1)
    one.out.zero_()
    assert one.changed() == ""
    one.out.as_strided((1,), (1,), one.out.storage_offset() + 1).zero_()
    assert "1 elements of operand 2's memory changed" in one.changed()
    one.operands[0][1, 2] = 9
    assert "operand 0's memory" in one.changed()


def test_planted_bugs_are_edits_of_the_package_as_it_is():
    assert len({bug.name for bug in PLANTED}) == len(PLANTED) >= 10
    for bug in PLANTED:
        text = (ROOT / "tritongemm" / bug.file).read_text(encoding="utf-8")
        assert text.count(bug.old) == bug.count, bug
        assert bug.new != bug.old


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.fuzz", "--device", "cpu", *words],
                          cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=600)


@pytest.mark.thorough
@pytest.mark.long
def test_random_calls_are_right_in_the_interpreter(tmp_path):
    if obstacle := interpreter_obstacle():
        pytest.skip(obstacle)
    out = tmp_path / "counts.json"
    done = fuzz("--seconds", str(SECONDS), "--seed", str(SEED), "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(out.read_text())["counts"]
    ran = {count["function"] for count in counts if count["outcome"] == "kernel"}
    assert {"matmul", "mm", "bmm", "addmm", "baddbmm", "linear"} <= ran, done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["K tail not masked"])
def test_a_planted_bug_is_found(name, tmp_path: Path):
    if obstacle := interpreter_obstacle():
        pytest.skip(obstacle)
    bug, = (bug for bug in PLANTED if bug.name == name)
    found = hunt(bug, tmp_path)
    assert found.verdict == "found", found


def test_the_simplest_wrong_case_keeps_what_makes_it_wrong():
    from fuzz.campaign import simplified
    from fuzz.judge import Outcome

    case = next(c for c in (case_of(seed, SMALL) for seed in range(50_000))
                if c.function == "addmm" and c.beta == 300.0 and c.warm and c.mode)

    def attempt(one: Case) -> Outcome:
        return Outcome("wrong" if one.beta == 300.0 else "kernel", "off")

    small, message = simplified(case, attempt(case), attempt)
    assert small.beta == 300.0 and message == "off"
    assert not small.warm and not small.mode and small.configs is None

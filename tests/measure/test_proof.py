"""References of a few sets, and of a sample of the rows where a problem is large."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tritongemm.measure import proof as proof_module  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.measure.proof import Proof  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402


def multiplied(problem, sets=4):
    operands = draw(problem, sets=sets)
    for one in operands:
        torch.matmul(one.a, one.b, out=one.out)
    return operands


def test_the_first_the_last_and_a_middle_set_have_references():
    operands = multiplied(GemmProblem.contiguous(8, 8, 8), sets=10)
    proof = Proof(GemmProblem.contiguous(8, 8, 8), operands, seed=0)
    assert proof.sets[:2] == [0, 9] and 0 < proof.sets[2] < 9 and proof.sampled_rows is None
    assert proof.check("torch", everywhere=True).ok


@pytest.mark.parametrize("batch", [1, 2])
def test_a_large_problem_is_checked_by_rows_with_the_first_and_the_last(monkeypatch, batch):
    problem = GemmProblem.contiguous(64, 16, 16, batch=batch)
    monkeypatch.setitem(proof_module._PRODUCTS, "cpu", 10 * 16 * 16 * batch)
    operands = multiplied(problem, sets=2)
    proof = Proof(problem, operands, seed=0)
    assert proof.sampled_rows == 10 and proof.sets == [0]
    assert proof.check("torch").ok
    kept = operands[0].out.clone()
    operands[0].out[..., -1, :] += 1
    assert not proof.check("torch").ok
    operands[0].out.copy_(kept)
    spare = next(i for i in range(64) if i not in proof._sets[0].rows)
    operands[0].out[..., spare, 3] = float("nan")  # of a row that has no reference
    assert f"{batch} outputs are NaN or were not written" in proof.check("torch").message


@pytest.mark.parametrize(("m", "rows"), [(2, 1), (5, 2), (5, 4), (100, 7)])
def test_a_sample_of_rows_is_of_its_size(m, rows):
    found = proof_module._sample(m, rows, proof_module.np.random.default_rng(0))
    assert len(set(found.tolist())) == rows and (found == sorted(found)).all()
    assert m - 1 in found and (rows == 1 or 0 in found) and found.min() >= 0


def test_outputs_without_a_reference_must_be_written_too():
    problem = GemmProblem.contiguous(8, 8, 8)
    operands = multiplied(problem, sets=10)
    proof = Proof(problem, operands, seed=0)
    spare = next(i for i in range(10) if i not in proof.sets)
    operands[spare].out[2, 2] = float("nan")
    assert proof.check("x").ok
    assert "1 outputs are NaN or were not written" in proof.check("x", everywhere=True).message


def test_only_the_sets_asked_for_are_judged():
    problem = GemmProblem.contiguous(8, 8, 8)
    operands = multiplied(problem, sets=4)
    proof = Proof(problem, operands, seed=0)
    operands[proof.sets[1]].out.zero_()
    assert proof.check("x", sets=proof.sets[:1]).ok and not proof.check("x").ok


def test_torchs_own_error_widens_the_limit():
    problem = GemmProblem.contiguous(64, 64, 64)
    operands = multiplied(problem, sets=1)
    proof = Proof(problem, operands, seed=0)
    before = proof.check("x").max_err_ratio
    operands[0].out.mul_(1.02)
    assert not proof.check("x").ok
    proof.learn_from_torch()
    assert proof.check("x").ok
    torch.matmul(operands[0].a, operands[0].b, out=operands[0].out)
    assert proof.check("x").max_err_ratio < before

"""Every program's code in small: same modules, every product by this package, results judged."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from replaced import numpy_plan  # noqa: E402

from tritongemm.bench.session import SessionSpec  # noqa: E402
from tritongemm.models import envelope, ranks  # noqa: E402
from tritongemm.models.catalog import FILES, chosen, programs  # noqa: E402
from tritongemm.models.job import ProgramJob  # noqa: E402
from tritongemm.models.program import MODES  # noqa: E402
from tritongemm.models.qwen_moe import Experts  # noqa: E402
from tritongemm.models.session import Session  # noqa: E402
from tritongemm.models.steps import Stepper  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402

PROGRAMS = programs()
#: One of each kind for the quick suite.
QUICK = {"llama-8b-decode-16", "qwen3-moe-padded", "lora-llama-8b", "dlrm-mlp", "mlp-actor",
         "pinn-schroedinger", "bert-base-tf32"}
ONE_PROCESS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)
               for name, program in PROGRAMS.items() if program.ranks == 1]


def measured(name: str, mode: str = "eager") -> dict:
    session = Session(SessionSpec("auto", ()))
    return session.measure(ProgramJob(name, (mode,), tiny=True, min_flops=0.0))


def test_the_catalog_holds_the_programs_asked_for():
    assert len(FILES) >= 12 and len(PROGRAMS) >= 19
    for program in PROGRAMS.values():
        assert set(program.modes) <= set(MODES) and program.sizes.keys() == program.tiny.keys()
        assert program.sizes.get("layers", 4) >= 4, program.name
    assert [p.name for p in chosen(["llama-8b-decode"])] == [
        f"llama-8b-decode-{batch}" for batch in (1, 16, 64)]


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_a_program_runs_on_this_package_and_is_right(name, products):
    rows = measured(name)
    ours = rows["eager", "tritongemm"]
    assert ours["status"] == "ok", ours.get("error")
    assert 0 <= ours["max_err_ratio"] <= 1 and ours["share_taken"] > 0.9
    assert "time_us_p50" not in ours and rows["eager", "torch"]["status"] == "ok"
    assert ours["m"] * ours["n"] * ours["k"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["compiled", "fused"])
@pytest.mark.parametrize("name", ["gpt2-train-50257", "llama-8b-decode-16", "qwen3-moe-padded"])
def test_a_compiled_program_is_right(name, mode, products):
    ours = measured(name, mode)[mode, "tritongemm"]
    assert ours["status"] == "ok", ours.get("error")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tensor-parallel-mlp", "tensor-parallel-dtensor", "fsdp-mlp"])
def test_ranks_measure_in_step(name):
    rows = Session(SessionSpec("cpu", ())).measure(
        ProgramJob(name, ("eager",), tiny=True, budget_s=0.1))
    ours = rows["eager", "tritongemm"]
    assert ours["status"] == "ok" and ours["time_us_p50"] > 0, ours.get("error")
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(("found", "reason"), [
    ([(True, "a", "t"), (True, "a", "t")], ""), ([(True, "a", "t"), (True, "b", "u")], ""),
    ([(True, "a", "t"), (True, "b", "t")], "the ranks' results differ"),
    ([(True, "a", "t"), (False, "a", "t")], "rank 1: off")],
    ids=["alike", "torchs-differ", "ours-differ", "one-is-wrong"])
def test_ranks_agree_on_one_verdict(found, reason, monkeypatch):
    verdict = envelope.Verdict(0.5, 0.5)
    told = [(verdict if ok else envelope.Verdict(2.0, 2.0, "off"), *rest) for ok, *rest in found]
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object",
                        lambda into, mine: into.__setitem__(slice(None), told))
    agreed = ranks.agreed(verdict, [torch.ones(2)], [1.0])
    assert reason in agreed.reason and agreed.ok == (not reason)


@pytest.mark.parametrize("name", ["mlp-actor", "sac-critics"])
def test_a_wrong_product_is_a_row_without_a_time(name, products, monkeypatch):
    def wrong(*arguments):
        plan = numpy_plan(*arguments)

        def run(a, b, c, *more):
            plan(a, b, c, *more)
            c.mul_(1.25)
        return run

    monkeypatch.setattr(kept, "make_plan", wrong)
    from tritongemm.ops import execute

    execute.clear_plans()
    try:
        ours = measured(name)["eager", "tritongemm"]
    finally:
        execute.clear_plans()
    assert ours["status"] == "wrong" and "limit" in ours["error"] or "torch's" in ours["error"]
    assert ours["max_err_ratio"] > 1 and "time_us_p50" not in ours


def test_a_mode_that_fails_says_why(products, monkeypatch):
    monkeypatch.setattr(Stepper, "step", lambda *a, **k: (_ for _ in ()).throw(
        RuntimeError("no such mode")))
    ours = measured("mlp-actor")["eager", "tritongemm"]
    assert ours["status"] == "launch" and "no such mode" in ours["error"] and ours["m"] > 0


def test_weights_are_put_back_in_place():
    stepper = Stepper(PROGRAMS["sac-critics"], PROGRAMS["sac-critics"].tiny, "cpu", 3)
    where = [p.data_ptr() for p in stepper.model.parameters()]
    first = [float(stepper.eager()) for _ in range(3)]
    stepper.reset()
    assert [float(stepper.eager()) for _ in range(3)] == first and len(set(first)) == 3
    assert [p.data_ptr() for p in stepper.model.parameters()] == where


def test_padded_experts_compute_what_the_loop_does():
    torch.manual_seed(0)
    looped, padded = Experts(8, 6, 4, 2), Experts(8, 6, 4, 2, capacity=10)
    padded.load_state_dict(looped.state_dict())
    x = torch.randn(1, 10, 8)
    torch.testing.assert_close(padded(x), looped(x))
    padded.capacity = 1  # what does not fit is dropped
    assert not torch.allclose(padded(x), looped(x))


def test_the_envelope_of_outputs():
    reference = [torch.ones(100, dtype=torch.float64)]
    theirs = [[torch.full((100,), 1.01)]]
    good = envelope.of_outputs([torch.full((100,), 1.019)], theirs, reference, 1e-7)
    bad = envelope.of_outputs([torch.full((100,), 1.021)], theirs, reference, 1e-7)
    assert good.ok and good.largest == pytest.approx(0.95, rel=1e-3)
    assert not bad.ok and "limit" in bad.reason
    one = torch.ones(100)
    one[7] = 1.03  # one bad element in a hundred is no matter of the RMS
    stray = envelope.of_outputs([one], theirs, reference, 1e-7)
    assert not stray.ok and stray.rms < 1 < stray.largest
    one[7] = math.nan
    assert not envelope.of_outputs([one], theirs, reference, 1.0).ok


def test_the_envelope_of_losses():
    theirs = [[10.0, 9.0, 8.0], [10.0, 9.1, 8.0]]
    assert envelope.of_losses([10.0, 9.19, 8.19], theirs, 5e-4).ok  # the pair sets the bound
    early = envelope.of_losses([10.1, 9.0, 8.0], theirs, 5e-4)
    assert not early.ok and "step 0" in early.reason
    assert not envelope.of_losses([math.nan, 9.0, 8.0], theirs, 5e-4).ok

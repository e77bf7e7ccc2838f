"""The fuzzer itself, a share of its time in the thorough suite, and a planted bug."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fuzz import campaign, judge, limits
from fuzz.case import Case, View, read
from fuzz.configs import Choices
from fuzz.generate import LARGE, SEEDS_OF_KINDS, SMALL, case_of
from fuzz.judge import Outcome
from fuzz.memory import GUARD, World
from fuzz.planted import PLANTED, ROOT, hunt
from tritongemm.cli.doctor import interpreter_obstacle
from tritongemm.device import representative
from tritongemm.problem import GemmProblem

SEED, SECONDS = 20261126, 20
CPU = torch.device("cpu")


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_a_seed_is_a_case_and_its_repr_is_the_case(sizes):
    for seed in range(300):
        case = case_of(seed, sizes)
        # NaN is not equal to itself, so that reprs are compared.
        assert repr(case_of(seed, sizes)) == repr(case) == repr(read(repr(case)))


def test_seeds_of_a_kind_differ_in_extents_and_values_alone():
    kinds = LARGE.kinds

    def plain(case: Case) -> Case:
        return replace(case, operands=(), out=None, values=0)

    def fixed(view: View) -> tuple:
        return (len(view.shape), [n == 1 for n in view.shape], [min(s, 1) for s in view.stride],
                view.offset, view.dtype, view.shares, view.lazy, view.special)

    for kind in range(60):
        one, other, third = (case_of(kind + i * kinds, LARGE) for i in (0, 1, 2))
        assert plain(one) == plain(other) == plain(third)
        for views in zip(one.operands, other.operands):
            assert fixed(views[0]) == fixed(views[1])
    assert any(case_of(i, LARGE).operands != case_of(i + kinds, LARGE).operands for i in range(9))
    others = [case_of(kind + SEEDS_OF_KINDS, LARGE) for kind in range(60)]
    assert sum(plain(case_of(kind, LARGE)) != plain(others[kind]) for kind in range(60)) > 40


def test_the_processes_of_a_campaign_reach_all_kinds():
    begun = {i * campaign.SEEDS_A_PROCESS % LARGE.kinds for i in range(48)}
    assert len(begun) == 48
    reached = {(i * campaign.SEEDS_A_PROCESS + j) % LARGE.kinds for i in range(48)
               for j in range(60)}
    assert len(reached) > 0.9 * LARGE.kinds


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_extents_are_divided_by_every_power_of_two_that_kernels_have_paths_for(sizes):
    seen = {n & -n for seed in range(2000) for view in case_of(seed, sizes).operands
            for n in view.shape if n}
    assert {1, 2, 4, 8, 16, 32} <= seen and (sizes is SMALL or {64, 128, 256, 1024} <= seen)


def test_a_case_draws_the_configs_that_were_recorded_for_it():
    problem = GemmProblem.contiguous(300, 200, 640, dtype="bf16", layout="nt")
    device = representative(90)
    for seed in range(20):
        recording, running = Choices(seed, recorded={}), Choices(seed, built=frozenset())
        assert recording.choose(problem, device) == running.choose(problem, device)


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


def test_a_result_has_the_dtype_of_the_memory_that_its_operands_share():
    views = (View((3, 4), (4, 1), dtype="fp16"), View((4, 2), (2, 1), shares=0))
    _, written = limits.compute_and_dtype(Case("matmul", views, "fp32"),
                                          World(views, "fp32", 5, CPU))
    assert written == torch.float16


@pytest.mark.parametrize(("precision", "k", "stride", "judged"), (
    ("ieee", 1, 1, True), ("ieee", 64, 1, True), ("ieee", 65, 1, False), ("ieee", 65, 0, False),
    ("tf32", 65, 1, False), ("tf32", 65, 0, True)))
def test_short_sums_and_equal_values_are_judged_by_their_terms(precision, k, stride, judged):
    case = Case("mm", (View((40, k), (k, 1)), View((k, 30), (30 * stride, stride))), "fp32",
                values=7, gradients=(False, True), precision=precision)
    world = World(case.operands, "fp32", 7, CPU)
    a, b = (x.double() for x in world.operands)
    grad = limits.cotangent(case, a @ b).double()
    bound = k * 2.0**-24 if precision == "ieee" else 2.0**-10 + k * 2.0**-23
    for i, truth, size, terms in ((0, a @ b, a.abs() @ b.abs(), k),
                                  (1, a.mT @ grad, a.abs().mT @ grad.abs(), 40)):
        of_sum = bound + (terms - k) * (2.0**-24 if precision == "ieee" else 2.0**-23) + 2.0**-23
        within = [limits.within_bound(case, world, i, truth + part * of_sum * size, truth, terms,
                                      1.5) for part in (0.9, 1.1)]
        # The gradient of B sums 40 terms: it is short.
        assert within == [judged or i == 1, False]
    assert not limits.within_bound(case, world, 0, a @ b, a @ b, 65, 4.1)


def test_an_outer_product_behind_a_relu_is_judged_by_its_terms():
    case = Case("linear", (View((256,), (1,)), View((24, 256), (256, 1))), "fp32", values=3,
                activation="relu", gradients=(False, True), precision="tf32")
    world = World(case.operands, "fp32", 3, CPU)
    x, weight = (t.double() for t in world.operands)
    result = torch.relu(weight @ x)
    back = limits.cotangent(case, result).double() * (result > 0)
    truth = back[:, None] * x
    bound = 2.0**-10 + 2.0**-23 + 2.0**-23

    def within(found: torch.Tensor) -> bool:
        return limits.within_bound(case, world, 1, found, truth, 1, 1.5)

    assert within(truth + 0.9 * bound * truth.abs())
    assert not within(truth + 1.1 * bound * truth.abs())
    off = (result <= 0).nonzero()[0]
    on_the_wrong_side = truth.clone()
    on_the_wrong_side[off] = 1e-6 * x
    assert not within(on_the_wrong_side)
    assert not limits.within_bound(replace(case, activation="silu"), world, 1, truth, truth, 1, 1.5)


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_a_gated_product_of_a_short_sum_is_judged_by_its_terms(activation):
    case = Case("gated", (View((64,), (0,)), View((40, 2), (2, 1)), View((64, 2), (2, 1))), "fp32",
                values=3, activation=activation, precision="tf32")
    world = World(case.operands, "fp32", 3, CPU)
    bias, x, weight = (t.double() for t in world.operands)

    def gated(x, weight):
        gate, up = (x @ weight.mT + bias).chunk(2, -1)
        return getattr(torch.nn.functional, activation)(gate) * up

    truth = gated(x, weight)
    gate, up = (x.abs() @ weight.abs().mT + bias.abs()).chunk(2, -1)
    bound = 2.0 * (2.0**-10 + 2 * 2.0**-23)

    def within(found: torch.Tensor) -> bool:
        return limits.within_bound(case, world, 0, found, truth, 2, 1.5)

    assert within(truth + 0.9 * bound * gate * up)
    assert not within(truth + 1.3 * bound * gate * up)
    one_left_out = weight.clone()
    one_left_out[40, 1] = 0.0
    assert not within(gated(x, one_left_out))
    assert not limits.within_bound(case, world, 0, truth, truth, 65, 1.5)


def test_an_out_over_d_that_torch_refuses_is_judged_by_the_plain_result(monkeypatch):
    d, a, b = View((32, 18), (18, 1)), View((32, 25), (25, 1)), View((25, 18), (18, 1))
    case = Case("addmm", (d, a, b), "fp32", out=replace(d, offset=7, shares=0), values=3,
                strict=False)
    made = ["a kernel"]
    choices = SimpleNamespace(made=made, host_only=True, taken=contextlib.nullcontext)
    call, wrong = judge._call, 0.0

    def ours_is_right(case, world, *, ours, strict=True):
        if not ours:
            return call(case, world, ours=False)
        plain = World(case.operands, case.dtype, case.values, CPU)
        world.out.copy_(call(replace(case, out=None), plain, ours=False)[0] + wrong)
        return (world.out,)

    monkeypatch.setattr(judge, "_call", ours_is_right)
    monkeypatch.setattr(World, "changed", lambda self: None)
    monkeypatch.setattr(World, "may_be_written", lambda self, which: None)
    assert not judge._run(case, CPU, choices)
    wrong = 1.0
    with pytest.raises(limits.Wrong, match="the result"):
        judge._run(case, CPU, choices)
    wrong = 0.0
    made.clear()
    with pytest.raises(limits.Wrong, match="unsupported operation"):
        judge._run(case, CPU, choices)


def test_a_product_left_out_is_wrong_beside_a_bias_of_equal_values():
    k = 4096
    case = Case("linear", (View((48,), (0,)), View((64, k), (k, 1)), View((48, k), (k, 1))), "bf16",
                values=3)
    world = World(case.operands, "bf16", 3, CPU)
    bias, x, weight = world.operands
    short = x.clone()
    short[:, 17] = 0
    wrong, right = (torch.nn.functional.linear(t.float(), weight.float(), bias.float()).bfloat16()
                    for t in (short, x))
    with pytest.raises(limits.Wrong, match="the result"):
        judge._values(case, CPU, (wrong,), (right,))


def test_an_infinity_that_a_result_rounds_to_is_no_error():
    case = Case("mm", (View((2, 1), (1, 1)), View((1, 2), (2, 1))), "fp16", values=3)
    world = World(case.operands, "fp16", 3, CPU)
    truth = torch.full((2, 2), 7e4, dtype=torch.float64)
    assert limits.within_bound(case, world, 0, truth.half(), truth, 1, 1.5)


def test_out_of_memory_is_torchs_and_cublas_without_memory_is_called_again(monkeypatch):
    plan, freed = campaign.Plan(1, 1.0, False), []
    failed = Outcome("wrong", "torch: RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED "
                              "when calling `cublasSgemm`; ours: a result of shape (2, 2)")
    outcomes = [failed, Outcome("kernel"), Outcome("wrong", "the result: ...")]
    monkeypatch.setattr(campaign, "run", lambda *_: outcomes.pop(0))
    monkeypatch.setattr(campaign, "forget_drawn", lambda: freed.append(1))
    case = case_of(1, SMALL)
    assert campaign.attempt(case, plan).kind == "kernel" and freed == [1]
    assert campaign.attempt(case, plan).kind == "wrong" and freed == [1]

    def short(*_, **__):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(campaign, "run", judge.run)
    monkeypatch.setattr(judge, "_call", short)
    assert campaign.attempt(case, plan) == Outcome("torch", "no memory")


def test_a_process_has_one_thread_and_its_part_of_a_gpus_memory(monkeypatch):
    found = []

    class Pool:
        def __init__(self, *_):
            found.append(os.environ["OPENBLAS_NUM_THREADS"])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def submit(self, work, plan, number, memory):
            found.append(memory)
            share = Future()
            share.set_result(campaign.Result())
            return share

    monkeypatch.setattr(campaign, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(campaign, "gpus_of", lambda plan: ("0", "1"))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "8")
    campaign.campaign(campaign.Plan(1, 1.0, True), 5)
    assert found == ["1"] + 5 * [0.8 / 3] and os.environ["OPENBLAS_NUM_THREADS"] == "8"


def test_planted_bugs_are_edits_of_the_package_as_it_is():
    assert len({bug.name for bug in PLANTED}) == len(PLANTED) >= 10
    for bug in PLANTED:
        text = (ROOT / "tritongemm" / bug.file).read_text(encoding="utf-8")
        assert text.count(bug.old) == bug.count, bug
        assert bug.new != bug.old


def test_an_interrupted_process_hands_over_what_it_counted(monkeypatch):
    outcomes = iter([Outcome("kernel"), Outcome("torch")])

    def attempted(case: Case, plan: campaign.Plan) -> Outcome:
        try:
            return next(outcomes)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(campaign, "attempt", attempted)
    result = campaign.campaign(campaign.Plan(SEED, 600, cuda=False, host_only=True), 1)
    assert result.total == 2 and not result.failures


@pytest.mark.parametrize("visible, gpus", [(None, ("0", "1", "2")), ("2,3", ("2", "3"))])
def test_processes_take_turns_among_the_visible_gpus(monkeypatch, visible, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    plan = campaign.Plan(SEED, 1, cuda=True)
    assert campaign.gpus_of(plan) == gpus
    assert campaign.gpus_of(replace(plan, cuda=False)) == ()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    started = multiprocessing.get_context("spawn").Value("i", len(gpus) - 1)
    seen = []
    for _ in range(2):
        campaign.begin_process(None, None, started, gpus)
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen == [gpus[-1], gpus[0]]


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
@pytest.mark.parametrize("name", ["K tail not masked",
                                  "large numbers of a long sum keep 15 bits"])
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

"""Measuring on the CPU: what is wrong gets no time, what fails keeps its reason, nothing leaks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tritongemm.errors import (  # noqa: E402
    CompileError,
    ConstraintError,
    DeviceError,
    LaunchError,
    ProblemError,
    UnsupportedError,
    UsageError,
)
from tritongemm.measure import problem_bench, torch_baseline  # noqa: E402
from tritongemm.measure.protocol import (  # noqa: E402
    CONTROL,
    TORCH,
    Contender,
    ProblemBench,
    Rounds,
    measure,
)
from tritongemm.problem import GemmProblem  # noqa: E402

PROBLEM = GemmProblem.contiguous(24, 40, 64, dtype="fp32")
FEW = Rounds(pilot=2, least=5, most=5)


def right(operands):
    return lambda: operands.out.copy_(operands.a @ operands.b)


def contender(bind, name="mine", **changes):
    return Contender(name, bind, **changes)


def measured(bind, problem=PROBLEM, **changes):
    return measure(problem, [contender(bind)], device="cpu", budget_s=0.01, **changes)


@pytest.mark.parametrize("problem", [
    PROBLEM,
    GemmProblem.contiguous(24, 40, 64, dtype="bf16", layout="nt"),
    GemmProblem.contiguous(7, 13, 5, dtype="fp16", layout="tt", batch=3),
    GemmProblem.contiguous(1, 1, 1, dtype="bf16"),
    GemmProblem.contiguous(8, 8, 0, dtype="fp32"),
    GemmProblem.contiguous(24, 40, 64, dtype="fp32", precision="tf32"),
    GemmProblem(9, 11, 13, align_a=2, align_b=4, align_c=8),
], ids=str)
def test_a_right_contender_gets_a_time_and_a_paired_ratio(problem):
    found = measured(right, problem)
    assert list(found) == [TORCH, CONTROL, "mine"]
    for one in found.values():
        assert one.ok and one.error == "" and one.timer == "host" and one.n_rounds >= 5
        assert 0 < one.time_us_p20 <= one.time_us_p50 <= one.time_us_p80
        assert one.ratio_low <= one.ratio_vs_torch <= one.ratio_high
        assert 0 <= one.max_err_ratio <= 1 and one.rms_err_ratio <= 1
    assert found[TORCH].ratio_vs_torch == 1.0  # the control is timed: near 1, at times exactly 1
    assert found[CONTROL].n_rounds == found[TORCH].n_rounds and found[CONTROL].ratio_vs_torch > 0


def test_coarse_gives_times_and_no_ratios():
    found = measure(PROBLEM, [contender(right)], device="cpu", coarse=True)
    assert list(found) == [TORCH, "mine"]
    for one in found.values():
        assert one.ok and one.time_us_p50 > 0 and one.ratio_vs_torch is None


@pytest.mark.parametrize(("torch_us", "timed"), [(1e6, True), (1e-3, False)],
                         ids=["hiccup", "slow"])
def test_a_config_is_dropped_only_after_two_slow_measurements(monkeypatch, torch_us, timed):
    """Its first look is spoilt; the second one, and torch's time, say how slow it is."""
    with ProblemBench(PROBLEM, "cpu") as bench:
        timer = bench.timer("host")
        load = timer.load

        def spoilt(*args, **kwargs):
            one = load(*args, **kwargs)
            one.estimate_us = 1e9
            return one

        monkeypatch.setattr(timer, "load", spoilt)
        monkeypatch.setattr(bench, "timer", lambda kind: timer)
        bench.torch_time_us = torch_us
        found = bench.coarse(contender(right))
    assert found.ok and (found.n_rounds > 1) is timed and found.time_us_p50 < 1e6


@pytest.mark.parametrize(("looks", "timed", "slow"), [
    ((3.0,), None, None), ((1e9, 3.0), None, None), ((1e9, 2e9), None, (1e9, "host")),
    ((690.0, 680.0), (8.3, 8.2), None), ((690.0, 680.0), (420.0, 410.0), (410.0, "event"))])
def test_a_config_is_left_untimed_only_if_its_kernel_is_slow(monkeypatch, looks, timed, slow):
    """A host that compiles on every core delays many calls in a row; a timer of the GPU decides."""
    with ProblemBench(PROBLEM, "cpu") as bench:
        seen, times = iter(looks), list(timed or ())
        bench.torch_time_us = 5.0
        monkeypatch.setattr(bench, "_seen_from_host", lambda _: next(seen))
        timer = SimpleNamespace(
            kind="event",
            load=lambda *_, **__: SimpleNamespace(estimate_us=times.pop(0)),
            run=lambda _: [times.pop(0)])
        monkeypatch.setattr(bench, "timer", lambda kind: timer)
        assert bench._beyond_hope(contender(right)) == slow
        assert not list(seen) and not times


def drops_the_tail(operands):
    return lambda: operands.out.copy_(operands.a[..., :-1] @ operands.b[..., :-1, :])


def leaves_a_hole(operands):
    def call():
        operands.out.copy_(operands.a @ operands.b)
        operands.out[-1, -1] = math.nan
    return call


def writes_past_the_end(operands):
    out = operands.out
    beyond = out.as_strided((1,), (1,), out.storage_offset() + out.numel())

    def call():
        out.copy_(operands.a @ operands.b)
        beyond.zero_()
    return call


def remembers_values(operands):
    b = operands.b.clone()
    return lambda: operands.out.copy_(operands.a @ b)


def remembers_the_result(operands):
    kept = []

    def call():
        if not kept:
            kept.append(operands.a @ operands.b)
        operands.out.copy_(kept[0])
    return call


def does_nothing(operands):
    return lambda: None


@pytest.mark.parametrize("bind", [drops_the_tail, leaves_a_hole, writes_past_the_end,
                                  remembers_values, remembers_the_result, does_nothing])
def test_a_wrong_result_has_a_reason_and_no_time(bind):
    found = measured(bind)
    mine = found["mine"]
    assert mine.status == "wrong" and mine.error.startswith("mine")
    assert mine.time_us_p50 is None and mine.ratio_vs_torch is None and mine.max_err_ratio > 1
    assert found[TORCH].ok and found[CONTROL].ok


def goes_wrong_after(good_calls):
    """Right while it is proved, wrong by the last timed replay."""
    count = [0]

    def bind(operands):
        def call():
            count[0] += 1
            operands.out.copy_(operands.a @ operands.b)
            if count[0] > good_calls:
                operands.out[0, 0] += 1
        return call
    return bind


@pytest.mark.parametrize("coarse", [True, False])
def test_the_outputs_of_the_last_timed_replay_are_checked(coarse):
    mine = measured(goes_wrong_after(8), coarse=coarse)["mine"]
    assert mine.status == "wrong" and "last timed replay" in mine.error
    assert mine.time_us_p50 is None


class OutOfResources(Exception):
    """As Triton names its own."""


@pytest.mark.parametrize("coarse", [True, False])
@pytest.mark.parametrize(("error", "status"), [
    (CompileError("ptxas said no"), "compile"), (ConstraintError("too large"), "constraint"),
    (LaunchError("no such kernel"), "launch"), (MemoryError("all gone"), "oom"),
    (OutOfResources("shared memory"), "launch"), (KeyError("what"), "launch"),
], ids=lambda v: v if isinstance(v, str) else type(v).__name__)
@pytest.mark.parametrize("when", ["bound", "called"])
def test_what_raises_keeps_its_reason_and_the_others_go_on(error, status, when, coarse):
    def bind(operands):
        def call():
            raise error
        if when == "bound":
            raise error
        return call

    found = measure(PROBLEM, [contender(bind, "broken"), contender(right)], device="cpu",
                    budget_s=0.01, coarse=coarse)
    assert found["broken"].status == status and type(error).__name__ in found["broken"].error
    assert found["mine"].ok


def test_ctrl_c_is_no_failure_of_a_contender():
    def bind(operands):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(bind)


def test_operands_that_do_not_fit_are_oom_for_everyone(monkeypatch):
    def no_memory(*_, **__):
        raise torch.OutOfMemoryError("tried to allocate everything")

    monkeypatch.setattr(problem_bench, "draw", no_memory)
    found = measured(right)
    assert {one.status for one in found.values()} == {"oom"} and "mine" in found


def test_settings_of_torch_are_as_they_were():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision, torch.is_grad_enabled()
    seen = set()

    def bind(operands):
        def call():
            seen.add((matmul.fp32_precision, torch.is_grad_enabled()))
            operands.out.copy_(operands.a @ operands.b)
        return call

    for precision, setting in (("tf32", "tf32"), ("ieee", "ieee"), ("fp16x3", "ieee")):
        seen.clear()
        measured(bind, GemmProblem.contiguous(8, 8, 8, dtype="fp32", precision=precision))
        assert seen == {(setting, False)}
    assert (matmul.fp32_precision, torch.is_grad_enabled()) == before


def test_operands_are_as_drawn_after_a_proof():
    with ProblemBench(PROBLEM, "cpu") as bench:
        index = bench.proof.sets[0]
        before = bench.operands[index].a.clone(), bench.operands[index].b.clone()
        assert bench.prove(contender(right)).ok
        assert not bench.prove(contender(remembers_values)).ok
        assert torch.equal(before[0], bench.operands[index].a)
        assert torch.equal(before[1], bench.operands[index].b)


def test_without_a_working_torch_the_others_still_have_times():
    with ProblemBench(PROBLEM, "cpu") as bench:
        bench.torch_contender = lambda name=TORCH: Contender(name, does_nothing)
        found = bench.compare([contender(right)], rounds=FEW)
    assert found[TORCH].status == "wrong"
    assert found["mine"].ok and found["mine"].time_us_p50 > 0
    assert found["mine"].ratio_vs_torch is None


def test_another_baseline_can_be_named():
    with ProblemBench(PROBLEM, "cpu") as bench:
        found = bench.compare([contender(right), contender(right, "other")], baseline="mine",
                              control=False, rounds=FEW)
    assert found["mine"].ratio_vs_torch == 1.0 and list(found) == [TORCH, "mine", "other"]


def test_host_time_of_same_and_rotating_pointers():
    with ProblemBench(PROBLEM, "cpu") as bench:
        found = bench.host_time([contender(right)], blocks=2, calls=3)
    assert list(found) == [TORCH, "mine"]
    assert all(q.p50 > 0 for pair in found.values() for q in pair)


def test_a_bench_closes_twice():
    bench = ProblemBench(PROBLEM, "cpu")
    bench.close()
    bench.close()


@pytest.mark.parametrize("coarse", [True, False])
@pytest.mark.parametrize("names", [["a", "a"], [TORCH], [CONTROL]])
def test_names_that_clash_are_refused(names, coarse):
    with pytest.raises(UsageError, match="names? of their own|are named"):
        measure(PROBLEM, [contender(right, n) for n in names], device="cpu", coarse=coarse)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    pytest.param({"baseline": "nobody"}, UsageError, "baseline 'nobody'", id="baseline"),
    pytest.param({"power": "sometimes"}, UsageError, "power='sometimes'", id="power"),
    pytest.param({"device": "meta"}, DeviceError, "'meta'", id="device-kind"),
    pytest.param({"device": "nonsense"}, DeviceError, "'nonsense'", id="device-name"),
    pytest.param({"problem": GemmProblem.contiguous(0, 8, 8)}, ProblemError, "no output",
                 id="empty"),
])
def test_what_cannot_be_measured_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        measure(**{"problem": PROBLEM, "contenders": [], "device": "cpu", **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_said():
    with pytest.raises(DeviceError, match="no CUDA device"):
        measure(PROBLEM, [], device="cuda")


def test_a_problem_that_torch_cannot_compute_is_said(monkeypatch):
    def cannot(operands):
        raise RuntimeError("not implemented for this")

    monkeypatch.setattr(torch_baseline, "product", cannot)
    with pytest.raises(UnsupportedError, match="not implemented for this"):
        measured(right)

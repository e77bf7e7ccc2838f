"""Measuring on a GPU: graphs, events, back ends, memory given back, a lost device named."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tritongemm.measure import problem_bench  # noqa: E402
from tritongemm.measure.clocks import sampler  # noqa: E402
from tritongemm.measure.environment import capture  # noqa: E402
from tritongemm.measure.event import EventTimer  # noqa: E402
from tritongemm.measure.graph import MIN_REPLAY_US, CaptureError, GraphTimer  # noqa: E402
from tritongemm.measure.protocol import (  # noqa: E402
    CONTROL,
    TORCH,
    Contender,
    PowerBlocks,
    ProblemBench,
    measure,
)
from tritongemm.problem import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu
PROBLEM = GemmProblem.contiguous(256, 256, 256, layout="nt")


def right(operands):
    return lambda: torch.matmul(operands.a, operands.b, out=operands.out)


def allocates(operands):
    def call():
        operands.out.copy_(operands.a.float() @ operands.b.float())
    return call


def waits(operands):
    def call():
        torch.matmul(operands.a, operands.b, out=operands.out)
        operands.out[0, 0].item()
    return call


def drops_the_tail(operands):
    return lambda: operands.out.copy_(operands.a[..., :-8] @ operands.b[..., :-8, :])


@pytest.fixture
def device():
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize("problem", [
    PROBLEM,
    GemmProblem.contiguous(1, 4096, 4096, layout="nt"),
    GemmProblem.contiguous(2048, 2048, 2048, dtype="fp16"),
    GemmProblem.contiguous(513, 257, 129, dtype="bf16", batch=3, layout="tt"),
    GemmProblem.contiguous(512, 512, 512, dtype="fp32"),
    GemmProblem.contiguous(512, 512, 512, dtype="fp32", precision="tf32"),
    GemmProblem.contiguous(512, 512, 512, dtype="bf16", dtype_out="fp32"),
    GemmProblem(64, 96, 100, align_a=2, align_b=4, align_c=8),
], ids=str)
def test_torch_its_control_and_a_contender_are_right_and_timed_by_graphs(problem):
    found = measure(problem, [Contender("mine", allocates)])
    for name in (TORCH, CONTROL, "mine"):
        one = found[name]
        assert one.ok and one.timer in ("graph", "blocks"), one
        assert one.time_us_p50 > 0 and one.ratio_low <= one.ratio_vs_torch <= one.ratio_high
        assert one.torch_backend in ("cublas", "cublaslt")


def test_small_problems_rotate_over_more_than_three_caches():
    with ProblemBench(PROBLEM) as bench:
        l2 = torch.cuda.get_device_properties(bench.device).L2_cache_size
        assert bench.rotation.cold and len(bench.operands) * PROBLEM.bytes() > 3 * l2
        assert bench.coarse(Contender("mine", right)).l2_state == "cold"


def test_a_large_problem_is_checked_and_timed():
    problem = GemmProblem.contiguous(16384, 16384, 16384)
    with ProblemBench(problem) as bench:
        assert bench.proof.sampled_rows is not None and len(bench.operands) == 2
        assert bench.coarse(Contender("mine", right)).ok
        assert bench.coarse(Contender("mine", drops_the_tail)).status == "wrong"


@pytest.mark.parametrize("coarse", [True, False])
def test_a_call_that_waits_is_timed_by_events(monkeypatch, coarse):
    # Nothing is beyond hope here: a wait is long, and longer while others use the device.
    monkeypatch.setattr(problem_bench, "_BEYOND_HOPE", math.inf)
    found = measure(PROBLEM, [Contender("waits", waits), Contender("mine", right),
                              Contender("eager", right, capturable=False)], coarse=coarse)
    assert found["waits"].ok and found["waits"].timer == "event", found["waits"]
    assert found["eager"].ok and found["eager"].timer == "event", found["eager"]
    assert found["mine"].ok and found["mine"].timer == "graph" == found[TORCH].timer


@pytest.mark.parametrize("coarse", [True, False])
def test_a_wrong_contender_has_no_time(coarse):
    found = measure(PROBLEM, [Contender("bad", drops_the_tail)], coarse=coarse)
    assert found["bad"].status == "wrong" and found["bad"].time_us_p50 is None
    assert found[TORCH].ok


@pytest.mark.parametrize(("cycles", "timer"), [
    (4_000_000, "event"),  # 2 ms, which may be a delay of the host
    (200_000_000, "host")])  # 100 ms
def test_a_hopeless_candidate_is_not_timed_over_a_rotation(cycles, timer):
    def slow(operands):
        def call():
            torch.cuda._sleep(cycles)
            torch.matmul(operands.a, operands.b, out=operands.out)
        return call

    with ProblemBench(PROBLEM) as bench:
        bench.torch_time_us = 5.0  # while others use the device it may be as slow as ``slow``
        found = bench.coarse(Contender("slow", slow))
    assert found.ok and found.timer == timer and found.n_rounds == 1


def test_out_of_memory_is_one_contenders_failure():
    def greedy(operands):
        return lambda: operands.out.copy_(torch.empty(2**50, device="cuda")[0])

    found = measure(PROBLEM, [Contender("greedy", greedy), Contender("mine", right)])
    assert found["greedy"].status == "oom" and found["mine"].ok


def test_replays_last_long_enough_and_cover_whole_rotations(device):
    class Stated(GraphTimer):
        """Says what a call takes, less than it can: others on the device make it look longer, and
        then fewer calls seem enough."""

        call_us = 1.0

        def run(self, order, while_busy=None):
            super().run(order, while_busy)
            return [self.call_us] * len(order)

    with ProblemBench(GemmProblem.contiguous(1, 4096, 4096, layout="nt")) as bench, \
            bench.settings():
        calls = bench.bind(Contender("mine", right))
        for expected_us in (None, 1e6, 0.01):
            timer = Stated(device)
            timed = timer.load("mine", calls, expected_us=expected_us)
            assert timed.calls % len(calls) == 0
            assert timed.calls * timer.call_us >= MIN_REPLAY_US
            assert timed.calls * GraphTimer.run(timer, [timed])[0] > MIN_REPLAY_US
            timer.clear()


def test_a_replay_writes_every_output(device):
    with ProblemBench(PROBLEM) as bench, bench.settings():
        timer = GraphTimer(device)
        timed = timer.load("mine", bench.bind(Contender("mine", right)))
        bench.operands.poison()
        timer.closing(timed, [0])
        assert bench.operands.blemishes() == (0, 0)
        timer.clear()


def test_a_failed_capture_leaves_the_timer_usable(device):
    with ProblemBench(PROBLEM) as bench, bench.settings():
        timer = GraphTimer(device)
        good = timer.load("mine", bench.bind(Contender("mine", right)))
        with pytest.raises(CaptureError, match="waits"):
            timer.load("waits", bench.bind(Contender("waits", waits)))
        assert all(t > 0 for t in timer.run([good, good]))
        torch.cuda.empty_cache()  # raises where the allocator believes a capture is on
        torch.randn(8, device=device)  # raises where the random generator believes so
        again = timer.load("again", bench.bind(Contender("again", right)))
        assert all(t > 0 for t in timer.run([again, good]))
        timer.clear()


def test_the_event_timer_agrees_with_the_graphs_on_a_long_call(device):
    problem = GemmProblem.contiguous(4096, 4096, 4096)
    with ProblemBench(problem) as bench, bench.settings():
        calls = bench.bind(Contender("mine", right))
        graph, event = GraphTimer(device), EventTimer(device)
        one, other = graph.load("mine", calls), event.load("mine", calls)
        by_graph = by_event = math.inf
        # Others on the device only add to a time, so the least of many is the call's own.
        for _ in range(20):
            by_graph = min(by_graph, *graph.run([one] * 50))
            by_event = min(by_event, *event.run([other] * 50))
            if 0.5 < by_graph / by_event < 2.0:  # the same quantity in the same unit
                break
        assert 0.5 < by_graph / by_event < 2.0
        graph.clear()


def test_blocks_give_energy_where_the_card_counts_it(device):
    found = measure(GemmProblem.contiguous(4096, 4096, 4096), [Contender("mine", right)],
                    power="always", blocks=PowerBlocks(block_s=0.2, warm_s=0.1, cycles=1))
    mine = found["mine"]
    assert mine.ok and mine.timer == "blocks" and mine.n_rounds == 2
    if sampler(device.index).energy_mj() is not None:
        assert mine.energy_mj > 0 and found[TORCH].energy_mj > 0


def test_settings_are_restored():
    matmul, prefer = torch.backends.cuda.matmul, torch.backends.cuda.preferred_blas_library
    before = matmul.fp32_precision, prefer(), torch.cuda.current_stream()
    measure(GemmProblem.contiguous(64, 64, 64, dtype="fp32", precision="tf32"),
            [Contender("mine", right), Contender("waits", waits)])
    assert (matmul.fp32_precision, prefer(), torch.cuda.current_stream()) == before


def test_memory_is_freed():
    def used():
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    measure(PROBLEM, [Contender("mine", allocates)])  # BLAS workspaces stay, once
    before = used()
    for _ in range(3):
        measure(PROBLEM, [Contender("mine", allocates)], coarse=True)
        measure(PROBLEM, [Contender("mine", allocates)], budget_s=0.1)
    assert used() <= before + 2**27  # one round's operands are more


def test_host_time_is_taken_of_same_and_rotating_pointers():
    with ProblemBench(GemmProblem.contiguous(16, 16, 16)) as bench:
        found = bench.host_time([Contender("mine", right)], blocks=3, calls=50)
    assert all(q.p50 > 0 for pair in found.values() for q in pair)


def test_the_environment_names_the_device():
    record = capture()
    assert record["device"] == torch.cuda.get_device_name() and record["arch"] >= 70


_LOST = """
import torch
from tritongemm.errors import DeviceError
from tritongemm.measure.protocol import Contender, measure
from tritongemm.problem import GemmProblem

def faults(operands):
    where = torch.full((1,), 1 << 40, device="cuda")
    return lambda: operands.out.view(-1).index_fill_(0, where, 1.0)

try:
    measure(GemmProblem.contiguous(64, 64, 64), [Contender("faults", faults)], coarse={coarse})
except DeviceError as error:
    assert "faults" in str(error), error
    print("named", flush=True)
"""


@pytest.mark.parametrize("coarse", [True, False])
def test_a_contender_that_breaks_the_device_is_named(coarse):
    done = subprocess.run([sys.executable, "-c", _LOST.format(coarse=coarse)],
                          capture_output=True, text=True, timeout=300, check=False)
    assert "named" in done.stdout, done.stderr[-2000:]

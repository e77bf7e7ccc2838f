"""Plans: made once, bounded, chosen aloud; and what is launched when one is called."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import representative, within_budget  # noqa: E402
from tritongemm.errors import CompileError, ConstraintError, DeviceError, LaunchError  # noqa: E402
from tritongemm.kernels.launch import Geometry, Pointer  # noqa: E402
from tritongemm.ops import calls, execute, native  # noqa: E402
from tritongemm.ops import plan as planning  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.ops.declined import Declined, DeclinedByChoice  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402
from tritongemm.selection.hosttime import NATIVE, PYTHON  # noqa: E402
from tritongemm.selection.policy import Choice  # noqa: E402


def call(m: int = 8, n: int = 6, k: int = 4) -> None:
    tg.matmul(torch.ones(m, k), torch.ones(k, n), strict=True)


def test_equal_calls_share_a_plan_whatever_their_values_and_pointers(plans):
    for _ in range(5):
        call()
    assert len(plans.made) == 1


@pytest.mark.parametrize(("name", "make"), [
    ("extent", lambda: (torch.ones(9, 4), torch.ones(4, 6))),
    ("dtype", lambda: (torch.ones(8, 4).half(), torch.ones(4, 6).half())),
    ("layout", lambda: (torch.ones(8, 4), torch.ones(6, 4).t())),
    ("gap", lambda: (torch.ones(8, 9)[:, :4], torch.ones(4, 6))),
    ("base", lambda: (torch.ones(33)[1:].view(8, 4), torch.ones(4, 6))),
    ("batch", lambda: (torch.ones(2, 8, 4), torch.ones(2, 4, 6)))],
    ids=lambda v: v if isinstance(v, str) else "")
def test_what_a_launch_depends_on_makes_another_plan(plans, name, make):
    call()
    tg.matmul(*make(), strict=True)
    assert len(plans.made) == 2


def test_a_folded_batch_shares_the_plan_of_its_rows(plans):
    call(8, 6, 4)
    tg.matmul(torch.ones(2, 4, 4), torch.ones(4, 6), strict=True)
    assert len(plans.made) == 1


def test_the_oldest_plan_is_dropped(plans):
    with settings.override(plan_cache_size=2):
        call(1), call(2), call(1), call(3), call(2), call(3)
        assert [problem.m for problem, _ in plans.made] == [1, 2, 3]
        call(1)
    assert [problem.m for problem, _ in plans.made] == [1, 2, 3, 1]


def test_the_numbers_of_plans_and_calls_stay_within_the_limit(plans):
    with settings.override(plan_cache_size=5):
        for m in range(1, 40):
            call(m)
            assert len(kept.plans) <= 5 and len(execute.MATMUL.hits) <= 5
            assert len(kept.plans) == min(m, 5)  # and all of it is used


def test_cleared_plans_are_made_again(plans):
    call()
    execute.clear_plans()
    call()
    assert len(plans.made) == 2


def test_threads_that_meet_make_one_plan(plans):
    barrier = threading.Barrier(8)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            barrier.wait(60)
            for m in (1, 2, 3):
                call(m)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and len(plans.made) == 3


@pytest.mark.parametrize("first", [PYTHON, NATIVE], ids=["torch", "ours"])
def test_no_answer_changes_when_the_library_is_built(plans, monkeypatch, first):
    """Else a checkpoint would multiply otherwise the second time, and save other tensors."""
    library: list = []
    monkeypatch.setattr(kept, "alone", lambda: True)
    monkeypatch.setattr(kept.native, "table", lambda: library[0] if library else None)
    monkeypatch.setattr(kept, "torch_wins", lambda problem, choice, device, path: (
        "torch's call is shorter" if path is first else None))
    x, w = torch.randn(2, 8, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    assert kept.host_path() is PYTHON
    y = checkpoint(lambda x: tg.linear(x, w).sin(), x, use_reentrant=False)
    library.append(SimpleNamespace(refuse=lambda *call: None, offer=lambda *call: None))
    for call in native.on_ready:
        call()
    assert kept.host_path() is NATIVE
    y.sum().backward()
    assert any(p.m == 16 and p.n == 6 for p, _ in plans.made) == (first is NATIVE)


def test_a_plan_keeps_no_operand_alive(plans):
    a, b = torch.ones(8, 4), torch.ones(4, 6)
    result = tg.matmul(a, b)
    seen = [weakref.ref(x) for x in (a, b, result)]
    del a, b, result
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3


def test_each_new_choice_is_logged_once(plans, logged):
    kept.log.setLevel("INFO")
    for _ in range(3):
        call()
        tg.matmul(torch.ones(8, 9)[:, :4], torch.ones(4, 6))  # other strides, another alignment
        tg.matmul(torch.ones(8, 13)[:, :4], torch.ones(4, 6))  # other strides alone: same choice
    assert len(plans.made) == 3
    lines = [text for _, text in logged.said]
    assert len(lines) == len(set(lines)) >= 1
    choice = kept.choose(plans.made[0][0], kept.interpreter_device())
    assert all(part in lines[0] for part in ("8x6x4 fp32 nn", str(choice.config), choice.source))


@pytest.mark.parametrize(("level", "shown"), [
    ("info", True), pytest.param("off", False, marks=pytest.mark.thorough),
    pytest.param("warning", False, marks=pytest.mark.thorough)])
def test_the_log_goes_to_standard_error_at_the_level_asked_for(level, shown):
    import subprocess
    import sys

    code = ("import torch, tritongemm as tg; from tritongemm.ops import plans;"
            "plans.make_plan = lambda *_: (lambda *operands: None);"
            "[tg.matmul(torch.ones(8, 4), torch.ones(4, 6)) for _ in range(3)]")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=120, env=settings.child_environment(
                              TRITONGEMM_LOG=level, TRITON_INTERPRET="1"))
    assert done.returncode == 0 and not done.stdout, done.stderr
    assert done.stderr.count("tritongemm: 8x6x4 fp32 nn -> ") == int(shown), done.stderr


H200 = representative(90)
SPLIT = KernelConfig("tiled", 16, 16, 32, num_warps=1, split_k=2)
PROBLEM = GemmProblem.contiguous(16, 24, 128, dtype="fp32")


class FakeLauncher:
    """Takes the place of the driver's launcher, and notes what it is called with."""

    calls: list = []

    def __init__(self, launch, binary, index, operands) -> None:
        self.launch, self.operands = launch, operands

    def __call__(self, addresses, stream) -> None:
        self.calls.append((self.launch.symbol, list(addresses), stream))


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A CUDA plan on CPU tensors: nothing is compiled, nothing is launched."""
    from tritongemm.kernels import driver
    from tritongemm.kernels.compile import BuildReport

    monkeypatch.setattr(driver, "Launcher", FakeLauncher)
    monkeypatch.setattr(FakeLauncher, "calls", [])
    monkeypatch.setattr(planning, "build_launches", lambda launches, arch: (
        (None,) * len(launches), BuildReport(0.0, True, 1, 0, 1)))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 1000 + index,
                        raising=False)

    monkeypatch.setattr(planning, "_scratch", lambda size, index: torch.empty(
        size, dtype=torch.uint8))

    def make():
        return planning.Plan(PROBLEM, SPLIT, H200, Geometry.contiguous(PROBLEM), 3)
    return make


def run(plan):
    a, b, c = torch.ones(16, 128), torch.ones(128, 24), torch.ones(16, 24)
    plan(a, b, c)
    return [x.data_ptr() for x in (a, b, c)]


def test_a_call_launches_in_order_on_the_current_stream_with_scratch_of_its_own(on_a_gpu):
    pointers = run(on_a_gpu())
    (first, one, stream), (second, two, _) = FakeLauncher.calls
    assert SPLIT.config_id in first and second == "tritongemm_reduce_k2" and stream == 1003
    assert one == two and one[:6] == [*pointers, 0, 1.0, 1.0]
    assert len(one) == 7 and one[6] % 16 == 0


@pytest.fixture
def scaled(on_a_gpu, monkeypatch):
    """A plan whose kernel reads two operands more: what a kernel that scales would declare."""
    def launches_of(*arguments):
        product, *rest = real(*arguments)
        more = (Pointer("scale_a", "scale_a", "fp32", 16), Pointer("offsets", "offsets", "fp32", 4))
        return (replace(product, arguments=(*product.arguments, *more)), *rest)

    real = planning.launches_of
    monkeypatch.setattr(planning, "launches_of", launches_of)
    return on_a_gpu()


def test_what_a_launch_declares_beyond_a_product_is_packed_by_its_name(scaled):
    a, b, c = torch.ones(16, 128), torch.ones(128, 24), torch.ones(16, 24)
    more = {"offsets": torch.ones(3), "scale_a": torch.ones(1)}
    assert scaled.operands == (*planning.PRODUCT, "scale_a", "offsets")
    scaled(a, b, c, **more)
    (_, one, _), (_, two, _) = FakeLauncher.calls
    assert one == two and len(one) == 9
    assert one[:8] == [a.data_ptr(), b.data_ptr(), c.data_ptr(), 0, 1.0, 1.0,
                       more["scale_a"].data_ptr(), more["offsets"].data_ptr()]


def test_a_sum_in_place_whose_later_launch_is_refused_is_an_error(on_a_gpu, monkeypatch):
    """Its addend may be overwritten, so torch cannot run it in the place of the kernel."""
    plan, launched = on_a_gpu(), FakeLauncher.__call__

    def second_is_refused(self, *arguments):
        launched(self, *arguments)
        if len(FakeLauncher.calls) % 2 == 0:
            raise LaunchError("no")

    monkeypatch.setattr(FakeLauncher, "__call__", second_is_refused)
    assert len(plan._launchers) == 2
    with pytest.raises(LaunchError, match="^no$"):
        plan.at((16, 32, 48, 64, 1.0, 1.0))
    with pytest.raises(DeviceError, match="refused launch 2 of 2 of a sum in place"):
        plan.at((16, 32, 48, 48, 1.0, 1.0))


def test_a_call_without_an_operand_that_a_launch_reads_is_refused(scaled):
    a, b, c = torch.ones(16, 128), torch.ones(128, 24), torch.ones(16, 24)
    with pytest.raises(LaunchError, match="the kernel reads 'offsets', and this call passes none"):
        scaled(a, b, c, scale_a=torch.ones(1))
    with pytest.raises(Declined, match="reads scale_a, offsets, which this call does not pass"):
        calls._at(SimpleNamespace(parts=((0, 0, 0, 0),)), scaled)
    assert FakeLauncher.calls == []


def test_strides_of_what_else_is_brought_are_part_of_the_geometry():
    a, b, c = torch.ones(16, 128), torch.ones(128, 24), torch.ones(16, 24)
    found = planning.geometry_of(a, b, c, scale_b=torch.ones(24, 4)[:, ::2], scale_a=torch.ones(1))
    assert found.view("scale_b").strides == (4, 2) and found.view("scale_a").strides == (1,)
    assert found != planning.geometry_of(a, b, c) and found.view("scale_a").align == 16
    with pytest.raises(LaunchError, match="reads 'offsets'; beside A, B, C and D this call brings "
                                          "scale_a, scale_b"):
        found.view("offsets")


def test_profile_wraps_a_launch_in_a_range_that_names_problem_and_config(on_a_gpu):
    with settings.override(profile=True):
        plan = on_a_gpu()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(plan)
    assert f"tritongemm {PROBLEM} {SPLIT}" in {event.name for event in profile.events()}


def test_without_profile_there_is_no_range(on_a_gpu):
    plan = on_a_gpu()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(plan)
    assert not [event.name for event in profile.events() if event.name.startswith("tritongemm")]


def test_an_illegal_config_makes_no_plan():
    with pytest.raises(ConstraintError, match="power_of_two"):
        planning.make_plan(PROBLEM, KernelConfig("tiled", 48, 16, 32), H200,
                           Geometry.contiguous(PROBLEM), torch.device("cuda", 0))


def test_what_replaces_a_kernel_that_does_not_compile_is_compared_with_torch_too(monkeypatch):
    choices = [Choice(SPLIT, "rule"), Choice(replace(SPLIT, kernel="simt"), "rule")]
    compared = []

    def wins(problem, choice, device, path):
        compared.append(choice)
        return "torch is faster" if choice is choices[1] else None

    def refuse(*args):
        raise CompileError("ptxas said no")

    monkeypatch.setattr(kept, "choose", lambda *_: choices[len(compared)])
    monkeypatch.setattr(kept, "torch_wins", wins)
    monkeypatch.setattr(kept, "device_of", lambda _: H200)
    monkeypatch.setattr(kept, "make_plan", refuse)
    found = kept._make(PROBLEM, Geometry.contiguous(PROBLEM), torch.device("cpu"), True, False)
    assert isinstance(found, DeclinedByChoice) and str(found) == "torch is faster"
    assert compared == choices


def test_cpu_operands_have_no_plan_unless_triton_interprets():
    with pytest.raises(LaunchError, match="kernels run on CUDA, or on the CPU under"):
        planning.make_plan(PROBLEM, SPLIT, H200, Geometry.contiguous(PROBLEM),
                           torch.device("cpu"))


@pytest.mark.parametrize(("mode", "backends", "ranks", "sharded", "is_so"), [
    ("auto", "cuda:nccl,cpu:gloo", 2, True, True), ("auto", "cuda:nccl", 2, False, False),
    ("auto", "cpu:gloo", 2, True, False), ("auto", "cuda:nccl", 1, True, False),
    ("auto", "", 1, True, False), ("off", "cuda:nccl", 2, True, False), ("on", "", 1, False, True)])
def test_launches_share_sms_with_the_collectives_of_fsdp(mode, backends, ranks, sharded, is_so,
                                                         monkeypatch):
    class Module:
        pass

    kinds = [type("FSDPLinear", (Module,), {})] if sharded else []
    group = SimpleNamespace(is_initialized=lambda: bool(backends), get_world_size=lambda: ranks,
                            get_backend_config=lambda: backends)
    monkeypatch.setattr(torch, "distributed", group)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", SimpleNamespace(FSDPModule=Module))
    torchs = type("ReplicateModule", (Module,), {})  # of torch itself: nothing is sharded
    with settings.override(concurrent=mode):
        assert kept.contended(representative(90)).contended is is_so
    with settings.override(concurrent=mode, num_sms=100):
        assert not kept.contended(within_budget(representative(90))).contended
    assert len(Module.__subclasses__()) == len([*kinds, torchs])


@pytest.mark.thorough
def test_torchs_sharded_modules_are_what_contended_looks_for():
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    try:
        sharded = fully_shard(torch.nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
        assert isinstance(sharded, FSDPModule) and type(sharded).__name__ == "FSDPLinear"
        assert "nccl" not in torch.distributed.get_backend_config()
    finally:
        torch.distributed.destroy_process_group()

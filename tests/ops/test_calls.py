"""From a key to a launch: precision, several devices, several launches, forks, what is kept."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import representative  # noqa: E402
from tritongemm.errors import LaunchError, UnsupportedError  # noqa: E402
from tritongemm.ops import calls, execute  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.ops.operands import StridedShape, form_of  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402
from tritongemm.records import failures  # noqa: E402
from tritongemm.selection import Choice  # noqa: E402


class AddressedPlan:
    """A CUDA plan by its class, that notes the addresses it is given."""

    index = 0
    problem = GemmProblem(8, 8, 8)

    def __new__(cls, index: int = 0):
        plan = object.__new__(calls.Plan)
        plan.index, plan.problem, plan.seen = index, cls.problem, []
        plan.at = plan.seen.append
        return plan


def form(shape_a, shape_b):
    return form_of(StridedShape(shape_a, torch.empty(shape_a).stride()),
                   StridedShape(shape_b, torch.empty(shape_b).stride()), two_strides=False)


@pytest.fixture
def devices(monkeypatch):
    """Two devices, of which the first is current; entering one is noted."""
    state = SimpleNamespace(count=2, current=0, entered=[])

    @contextlib.contextmanager
    def entering(index):
        state.entered.append(index)
        before, state.current = state.current, index
        yield
        state.current = before

    monkeypatch.setattr(torch.cuda, "device_count", lambda: state.count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: state.current)
    monkeypatch.setattr(torch.cuda, "device", entering)
    return state


@pytest.mark.parametrize(("count", "index", "entered"), [(1, 0, []), (2, 0, []), (2, 1, [1])])
def test_a_device_is_entered_where_it_is_not_the_current_one(devices, count, index, entered):
    devices.count = count
    plan = AddressedPlan(index)
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    key = (plan.problem, None, torch.device("cpu"))
    call = calls._fresh(form((8, 8), (8, 8)), key, plan, torch.float32)
    found = call(a, b, a.data_ptr(), b.data_ptr(), 2.0)
    assert plan.seen == [(a.data_ptr(), b.data_ptr(), found.data_ptr(), 0, 2.0, 0.0)]
    assert devices.entered == entered


def test_a_batch_of_several_strides_is_several_launches_at_offsets(devices):
    devices.count = 1
    plan = AddressedPlan()
    a, b = torch.ones(2, 1, 4, 7), torch.ones(3, 7, 5)
    shape = form(a.shape, b.shape)
    call = calls._fresh(shape, (plan.problem, None, torch.device("cpu")), plan, torch.float32)
    out = call(a, b, a.data_ptr(), b.data_ptr())
    assert [(x - a.data_ptr(), y - b.data_ptr(), z - out.data_ptr())
            for x, y, z, *_ in plan.seen] == [
        (0, 0, 0), (2 * shape.parts[1][0], 0, 2 * shape.parts[1][2])]  # the problem is bf16


def test_a_float32_call_obeys_the_precision_at_its_time(plans, monkeypatch):
    setting = ["ieee"]
    monkeypatch.setattr(execute, "precision_setting", lambda *_: setting[0])
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    for value, known in (("ieee", 1), ("tf32", 2), ("ieee", 2), ("tf32", 2)):
        setting[0] = value
        tg.matmul(a, b, strict=True)
        assert len(execute.MATMUL.forced.hits) + len(execute.MATMUL.hits) == known
    tg.matmul(a.half(), b.half())
    assert len(execute.MATMUL.hits) == 3


@pytest.mark.parametrize("setting", ["ieee", "tf32", "none"])
def test_the_precision_is_read_by_the_getter_that_never_raises(setting, monkeypatch):
    asked = []
    monkeypatch.setattr(calls, "precision_setting",
                        lambda *words: asked.append(words) or setting)
    on_cuda = SimpleNamespace(dtype=torch.float32, is_cuda=True)
    assert calls._precision_of(on_cuda) == ("tf32" if setting == "tf32" else "fp16x3")
    assert asked == [("cuda", "matmul")]
    with tg.fp32_compute("ieee"):
        assert calls._precision_of(on_cuda) == ("tf32" if setting == "tf32" else "ieee")
    assert calls._precision_of(SimpleNamespace(dtype=torch.float16, is_cuda=True)) == "ieee"


def test_a_settings_change_forgets_calls_and_plans(plans):
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    tg.matmul(a, b)
    assert execute.MATMUL.hits and len(kept.plans)
    with settings.override(log="info"):
        assert not execute.MATMUL.hits and not len(kept.plans)
        tg.matmul(a, b)
    assert not execute.MATMUL.hits


def test_a_call_made_while_settings_change_is_not_kept(plans, monkeypatch):
    real = execute.bind

    def bind(*arguments):
        found = real(*arguments)
        execute._forget_calls()  # another thread's doing
        return found

    monkeypatch.setattr(execute, "bind", bind)
    tg.matmul(torch.ones(5, 7), torch.ones(7, 3))
    assert not execute.MATMUL.hits


@pytest.mark.parametrize("changes", [execute.clear_plans, settings.reload], ids=["clear", "reload"])
def test_a_plan_made_while_another_thread_changes_settings_is_not_kept(changes, plans,
                                                                       monkeypatch):
    making, changed = threading.Event(), threading.Event()
    real = kept.make_plan

    def make_plan(*arguments):
        making.set()
        assert changed.wait(30)
        return real(*arguments)

    monkeypatch.setattr(kept, "make_plan", make_plan)
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(tg.matmul, a, b)
        assert making.wait(30)
        changes()
        changed.set()
        assert torch.equal(found.result(), a @ b)
    assert not len(kept.plans) and not execute.MATMUL.hits


def test_a_refused_launch_is_kept_for_doctor(plans, tmp_path):
    with settings.override(cache_dir=tmp_path, interpret=True):
        plans.launch_error = LaunchError("no such driver")
        tg.matmul(torch.ones(5, 7), torch.ones(7, 3))
        (one,) = failures.remembered()
    assert one.problem == "5x3x7 fp32 nn" and "no such driver" in one.reason


def test_scratch_that_does_not_fit_is_done_without(plans, monkeypatch):
    made = []

    def make_plan(problem, config, *_):
        made.append(config)

        def plan(a, b, c, *rest):
            if config.split_k > 1:
                raise torch.OutOfMemoryError("no 64 MiB")
            torch.matmul(a, b, out=c)
        return plan

    real = kept.choose

    def choose(problem, device):
        choice = real(problem, device)
        return type(choice)(type(choice.config)("tiled", 16, 16, 32, num_warps=1, split_k=4),
                            choice.source)

    monkeypatch.setattr(kept, "make_plan", make_plan)
    monkeypatch.setattr(kept, "choose", choose)
    a, b = torch.ones(16, 512), torch.ones(512, 16)
    for _ in range(2):
        assert torch.equal(tg.matmul(a, b, strict=True), a @ b)
    assert [config.split_k > 1 for config in made] == [True, False]


def test_without_memory_for_the_parts_float32_runs_on_cuda_cores_with_one_warning(
        plans, monkeypatch, logged):
    """A split product has one part of K and no padded operands, and takes scratch all the same."""
    from tritongemm.kernels.compile import launches_of
    from tritongemm.ops.plan import scratch_of

    split = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)
    made, asked = [], []

    def make_plan(problem, config, device, geometry, where):
        made.append(config)

        def plan(a, b, c, *rest):
            size = scratch_of(launches_of(problem, config, device, geometry))
            if size:
                asked.append(size)
                raise torch.OutOfMemoryError(f"no {size} bytes")
            torch.matmul(a, b, out=c)
        return plan

    monkeypatch.setattr(kept, "make_plan", make_plan)
    monkeypatch.setattr(kept, "device_of", lambda where: representative(90))
    monkeypatch.setattr(kept, "choose", lambda *_: Choice(split, "exact"))
    monkeypatch.setattr(calls, "_precision_of", lambda a: "fp16x3")
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    for _ in range(3):
        assert torch.equal(tg.matmul(a, b, strict=True), a @ b)
    first, second = made
    assert first == split and second.kernel == "simt" and len(asked) == 3
    (level, text), = logged.said
    assert level == "WARNING" and "no memory for the scratch of" in text
    assert str(split) in text and str(second) in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_knows_no_calls_and_waits_for_no_lock(plans):
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    tg.matmul(a, b)
    with execute._lock, kept.plans._lock, kept.plans._building:
        child = os.fork()
        if child == 0:
            good = not execute.MATMUL.hits and torch.equal(tg.matmul(a, b), a @ b)
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert execute.MATMUL.hits


def test_cuda_in_a_forked_child_is_torchs_to_refuse(plans, monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    problem = GemmProblem(8, 8, 8)
    with pytest.raises(execute.Declined, match="forked process; start it with the 'spawn'") as said:
        kept.plans.get((problem, None, torch.device("cuda", 0)))
    assert not said.value.lasting and not len(kept.plans)


def test_a_sparse_operand_and_one_with_no_storage_are_declined(plans):
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    for call in (lambda x: execute.product(execute.MM, x, b),
                 lambda x: execute.fused(execute.ADDMM["none"], b[0], x, b),
                 lambda x: execute.product_into(execute.MM, a, b, x)):
        assert str(call(a.to_sparse())) == "an operand is not strided, or has no storage"


@pytest.mark.parametrize("function", ["mm", "bmm", "addmm", "baddbmm"])
def test_what_is_declined_is_a_reason_and_neither_an_error_nor_torchs_result(function, plans):
    lead = (2,) if function in ("bmm", "baddbmm") else ()
    a, b = torch.ones(*lead, 5, 7), torch.ones(*lead, 7, 3)
    tensors = (torch.ones(3), a, b) if "add" in function else (a, b)
    op = {"mm": execute.MM, "bmm": execute.BMM, "addmm": execute.ADDMM["none"],
          "baddbmm": execute.BADDBMM}[function]
    run = execute.fused if "add" in function else execute.product
    torch.testing.assert_close(run(op, *tensors), getattr(torch, function)(*tensors))
    for _ in range(2):  # learnt, then known
        reason = run(op, *(x.double() for x in tensors))
        assert str(reason) == "dtypes are torch.float64 and torch.float64"
    assert isinstance(reason, execute.Declined) and reason.__traceback__ is None
    with settings.override(disable=True):
        assert str(run(op, *tensors)) == "TRITONGEMM_DISABLE is set"


def test_explain_and_problem_of_say_what_a_call_would_run(plans):
    a, b = torch.ones(2, 5, 7), torch.ones(7, 3)
    assert calls.problem_of(a, b).m == 10
    with pytest.raises(UnsupportedError, match="dtypes are"):
        calls.problem_of(a.double(), b.double())

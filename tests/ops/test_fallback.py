"""What goes to torch, and why: torch's result, torch's errors, and a reason under strict."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.errors import (  # noqa: E402
    CompileError,
    DataFileError,
    LaunchError,
    MissingDependencyError,
    UnsupportedError,
)
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.records import failures  # noqa: E402


class Mine(torch.Tensor):
    """A sub-class that nobody knows."""


def randn(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def pair(dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return randn(5, 7, dtype=dtype), randn(7, 3, dtype=dtype)


@dataclass(frozen=True)
class Case:
    name: str
    operands: Callable[[], tuple]
    reason: str

    def __str__(self) -> str:
        return self.name


DECLINED = (
    Case("float64", lambda: pair(torch.float64), "dtypes are torch.float64"),
    Case("complex", lambda: pair(torch.complex128), "dtypes are torch.complex128"),
    Case("integers", lambda: (torch.arange(6).view(2, 3), torch.arange(6).view(3, 2)), "int64"),
    Case("sub-class", lambda: (randn(5, 7).as_subclass(Mine), randn(7, 3)), "Mine and Tensor"),
    Case("meta", lambda: tuple(x.to("meta") for x in pair()), "on meta"),
    Case("devices", lambda: (randn(5, 7).to("meta"), randn(7, 3)), "devices are meta and cpu"),
    Case("sparse", lambda: (randn(5, 7).to_sparse(), randn(7, 3)), "not strided"),
    Case("conjugate", lambda: (pair(torch.complex128)[0].conj(), pair(torch.complex128)[1]),
         "complex128"),
    Case("no-rows", lambda: (randn(0, 7), randn(7, 3)), "an extent is 0"),
    Case("no-columns", lambda: (randn(5, 7), randn(7, 0)), "an extent is 0"),
    Case("empty-sum", lambda: (randn(5, 0), randn(0, 3)), "an extent is 0"),
    Case("empty-batch", lambda: (randn(0, 5, 7), randn(0, 7, 3)), "extent is 0"),
    Case("batch-of-many-strides",
         lambda: (randn(4, 1, 4, 1, 12, 7), randn(3, 1, 4, 7, 4)), "would take"),
)


def outcome(call: Callable[[], torch.Tensor]):
    """The result, or the error, and the warnings of a call, in a form to compare."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            return type(error), str(error), [str(w.message) for w in said]
    if result.layout is not torch.strided:
        result = result.to_dense()
    values = None if result.is_meta else result.detach().double().tolist() if (
        not result.is_complex()) else result.tolist()
    return (type(result), result.dtype, tuple(result.shape), result.requires_grad, values,
            [str(w.message) for w in said])


@pytest.mark.parametrize("case", DECLINED, ids=str)
def test_a_declined_call_gives_torchs_result_and_strict_gives_the_reason(case, plans):
    a, b = case.operands()
    assert outcome(lambda: tg.matmul(a, b)) == outcome(lambda: torch.matmul(a, b))
    with pytest.raises(UnsupportedError, match=f"would call torch: .*(?:{case.reason})"):
        tg.matmul(a, b, strict=True)
    with settings.override(strict=True), pytest.raises(UnsupportedError, match=case.reason):
        tg.matmul(a, b)
    assert not plans.made


def test_under_no_grad_what_requires_grad_is_ours(plans):
    a, b = pair()
    with torch.no_grad():
        assert not tg.matmul(a.requires_grad_(), b, strict=True).requires_grad
    with torch.inference_mode():
        tg.matmul(*pair(), strict=True)


def test_cpu_tensors_go_to_torch_unless_triton_interprets():
    a, b = pair()
    assert torch.equal(tg.matmul(a, b), a @ b)
    with pytest.raises(UnsupportedError, match="operands are on cpu"):
        tg.matmul(a, b, strict=True)


def test_disable_sends_every_call_to_torch(plans):
    a, b = pair()
    with settings.override(disable=True):
        assert torch.equal(tg.matmul(a, b), a @ b)
        with pytest.raises(UnsupportedError, match="TRITONGEMM_DISABLE is set"):
            tg.matmul(a, b, strict=True)
    assert not plans.made
    tg.matmul(a, b)
    assert len(plans.made) == 1


WRONG = {
    "inner-extents": lambda f: f(randn(5, 7), randn(6, 3)),
    "batches": lambda f: f(randn(2, 5, 7), randn(3, 7, 4)),
    "batch-inner-extents": lambda f: f(randn(2, 5, 7), randn(2, 6, 4)),
    "dtypes": lambda f: f(randn(5, 7), randn(7, 3, dtype=torch.bfloat16)),
    "scalar": lambda f: f(randn(5, 7), torch.tensor(2.0)),
    "vector-extents": lambda f: f(randn(6), randn(7, 3)),
    "list": lambda f: f([[1.0]], randn(1, 1)),
    "none": lambda f: f(randn(5, 7), None),
    "number": lambda f: f(randn(5, 7), 2.0),
    "out-dtype": lambda f: f(*pair(), out=torch.empty(5, 3, dtype=torch.float64)),
    "out-integer": lambda f: f(*pair(), out=torch.empty(5, 3, dtype=torch.int32)),
    "out-requires-grad": lambda f: f(*pair(), out=torch.empty(5, 3).requires_grad_()),
    "out-device": lambda f: f(*pair(), out=torch.empty(5, 3, device="meta")),
    "out-list": lambda f: f(*pair(), out=[]),
    "out-of-gradients": lambda f: f(randn(5, 7).requires_grad_(), randn(7, 3),
                                    out=torch.empty(5, 3)),
    "out-expanded": lambda f: f(*pair(), out=torch.empty(1, 1).expand(5, 3)),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_call_raises_what_torch_raises(call, plans):
    found = outcome(lambda: call(tg.matmul))
    assert found == outcome(lambda: call(torch.matmul))
    assert issubclass(found[0], Exception), "the call is not wrong"
    assert not plans.made


OUT = {
    "exact": lambda: torch.full((5, 3), float("nan")),
    "resized": lambda: torch.empty(0),
    "resized-with-a-warning": lambda: torch.empty(2, 2),
    "transposed": lambda: torch.full((3, 5), float("nan")).t(),
    "gapped": lambda: torch.full((5, 6), float("nan"))[:, ::2],
}


@pytest.mark.parametrize("make", OUT.values(), ids=OUT)
def test_out_is_written_as_torch_writes_it(make, plans):
    a, b = pair()
    mine, theirs = make(), make()
    expected = outcome(lambda: torch.matmul(a, b, out=theirs))
    found = outcome(lambda: tg.matmul(a, b, out=mine))
    assert found == expected and mine.stride() == theirs.stride()
    assert tg.matmul(a, b, out=mine) is mine


@pytest.mark.parametrize(("shape_a", "shape_b"), [
    ((2, 3, 4), (4, 0)), ((2, 0, 4), (4, 5)), ((0, 3, 4), (4, 5)), ((2, 3, 0), (0, 5)),
    ((2, 2, 3, 4), (2, 2, 4, 0)), ((0, 3, 4), (0, 4, 5)), ((3, 0), (0, 5)), ((0, 4), (4, 5)),
], ids=str)
@pytest.mark.parametrize("with_out", (False, True))
def test_empty_products_are_torchs(shape_a, shape_b, with_out, plans):
    a, b = (randn(*(extent + 1 for extent in shape))[tuple(map(slice, shape))]
            for shape in (shape_a, shape_b))  # views: their storage is not empty
    expected = torch.matmul(a, b)
    out = torch.full(expected.shape, float("nan")) if with_out else None
    assert torch.equal(tg.matmul(a, b, out=out) if with_out else tg.matmul(a, b), expected)


FAILURES = (CompileError("ptxas said no"), LaunchError("no such driver"),
            MissingDependencyError("compiling needs triton"),
            DataFileError("mm-bf16-ieee-nt.json", "is not JSON"),
            AttributeError("module 'triton.language' has no attribute 'dot'"))


@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
def test_a_plan_that_cannot_be_made_is_a_warning_once_and_then_torch(error, plans, logged):
    plans.error = error
    a, b = pair()
    for _ in range(3):
        assert torch.equal(tg.matmul(a, b), a @ b)
    assert len(plans.made) == 1
    (level, line), = logged.said
    assert level == "WARNING" and line.startswith("tritongemm: 5x3x7 fp32 nn goes to torch")
    assert str(error) in line
    with pytest.raises(UnsupportedError, match=str(error)):
        tg.matmul(a, b, strict=True)


def test_a_refused_launch_is_a_warning_once_and_then_torch_for_good(plans, logged):
    plans.launch_error = LaunchError("encoding the tensor map b_desc: CUDA error 1")
    a, b = pair()
    out = torch.full((5, 3), float("nan"))
    for _ in range(3):
        assert torch.equal(tg.matmul(a, b), a @ b)
        assert tg.matmul(a, b, out=out) is out and torch.equal(out, a @ b)
    assert len([line for _, line in logged.said if "tensor map b_desc" in line]) == len(plans.made)
    plans.launch_error = None
    with pytest.raises(UnsupportedError, match="tensor map b_desc"):
        tg.matmul(a, b, strict=True)


def test_scratch_that_does_not_fit_goes_to_torch_this_time_only(plans, logged):
    plans.launch_error = torch.OutOfMemoryError("no 64 MiB")
    a, b = pair()
    assert torch.equal(tg.matmul(a, b), a @ b)
    with pytest.raises(UnsupportedError, match="no memory for the scratch"):
        tg.matmul(a, b, strict=True)
    plans.launch_error = None
    assert torch.equal(tg.matmul(a, b, strict=True), a @ b)
    assert len(plans.made) == 2 and not logged.said  # the second one takes no scratch


@pytest.mark.parametrize("refused", ["plan", "launch"])
def test_out_over_an_operand_is_left_alone_where_its_temporary_is_refused(refused, plans):
    a, b = randn(4, 4), randn(4, 4)
    tg.mm(a, b, out=torch.empty(4, 4))  # learnt
    if refused == "plan":
        plans.error = CompileError("no more")
        kept.plans.clear()
    else:
        plans.launch_error = LaunchError("no more")
    before = a.clone()
    with pytest.raises(UnsupportedError, match="would call torch: no more"):
        tg.mm(a, b, out=a, strict=True)
    assert torch.equal(a, before)


def test_scratch_that_does_not_fit_is_torchs_where_nothing_else_can_be_planned(plans):
    plans.launch_error = torch.OutOfMemoryError("no 64 MiB")
    a, b = pair()
    tg.matmul(a, b)
    kept.plans.clear()
    plans.error = CompileError("no more")
    assert torch.equal(tg.matmul(a, b), a @ b)
    with pytest.raises(UnsupportedError, match="no more"):
        tg.matmul(a, b, strict=True)


@pytest.mark.parametrize("call", [
    lambda: tg.linear(randn(7).requires_grad_(), randn(3, 7), randn(3), strict=True),
    lambda: tg.matmul(randn(7).requires_grad_(), randn(7, 3), strict=True),
    lambda: torch.func.vmap(lambda a, b: tg.matmul(a, b, strict=True))(
        randn(2, 5, 7).requires_grad_(), randn(2, 7, 3)),
    lambda: torch.func.vmap(lambda d, a, b: tg.addmm(d, a, b, strict=True))(
        randn(2, 3).requires_grad_(), randn(2, 5, 7), randn(2, 7, 3)),
    lambda: torch.func.vmap(lambda d: tg.addmm(d, torch.ones(5, 7), torch.ones(7, 3),
                                               strict=True))(randn(2, 3).requires_grad_()),
], ids=["linear", "vector", "vmap", "vmap-sum", "vmap-input"])
def test_a_refused_plan_is_named_through_every_way_to_a_gradient(call, plans):
    plans.error = CompileError("no more")
    with pytest.raises(UnsupportedError, match="would call torch: no more"):
        call()


def test_out_counts_a_version_where_an_operand_is_negated_lazily(plans):
    a, b, out = randn(5, 7), randn(7, 3), torch.empty(5, 3)
    before = out._version
    tg.mm(a._neg_view(), b, out=out, strict=True)
    assert out._version > before and torch.equal(out, -a @ b)


def test_a_damaged_table_is_a_warning_and_then_torch(plans, monkeypatch, logged):
    def damaged(*_):
        raise DataFileError("mm-fp32.json", "is not JSON", row=3)

    monkeypatch.setattr(kept, "choose", damaged)
    a, b = pair()
    assert torch.equal(tg.matmul(a, b), a @ b)
    assert "mm-fp32.json, row 3: is not JSON" in logged.said[0][1]


def test_a_damaged_device_file_is_a_warning_and_then_torch(plans, monkeypatch, logged, tmp_path):
    def damaged(*_):
        raise DataFileError("devices/nvidia-h200.json", "is not JSON")

    monkeypatch.setattr(kept, "device_of", damaged)
    a, b = pair()
    with settings.override(interpret=True, cache_dir=tmp_path):
        for _ in range(2):
            assert torch.equal(tg.matmul(a, b), a @ b)
        (one,) = failures.remembered()
    assert len(logged.said) == 1 and "nvidia-h200.json: is not JSON" in logged.said[0][1]
    assert one.device == "cpu" and "is not JSON" in one.reason


def test_a_declined_call_keeps_no_operand_alive(plans):
    plans.error = CompileError("ptxas said no")
    a, b = pair()
    for _ in range(3):
        tg.matmul(a, b)
    seen = weakref.ref(a)
    del a
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("function", ["mm", "addmm"])
def test_a_kept_call_with_out_keeps_no_tensor_alive(function, plans):
    tensors = [randn(4, 4) for _ in range(3 if function == "addmm" else 2)]
    out = randn(4, 4)
    kept = [weakref.ref(x) for x in (*tensors, out)]
    getattr(tg, function)(*tensors, out=out)
    del tensors, out
    assert plans.made and [x() for x in kept] == [None] * len(kept)


@pytest.mark.parametrize("call", [
    lambda: torch.func.vmap(lambda a, b: tg.matmul(a, b, strict=True))(
        randn(2, 5, 7), randn(2, 7, 3)),
    lambda: torch.func.vmap(lambda d, a, b: tg.linear(a, b, d, strict=True))(
        randn(2, 3), randn(2, 5, 7), randn(2, 3, 7)),
    lambda: tg.mv(randn(5, 7).requires_grad_(), randn(7), strict=True)],
    ids=["vmap", "vmap-linear", "vector"])
def test_strict_holds_through_transforms_and_vectors(call, plans, monkeypatch):
    monkeypatch.setattr("tritongemm.ops.plans.torch_wins", lambda *_: "torch is faster")
    call()
    assert len(plans.made) == 1


def test_a_problem_that_torch_is_known_to_win_is_torchs_but_for_strict(plans, monkeypatch, logged):
    monkeypatch.setattr(kept, "torch_wins", lambda *_: "torch takes 0.80 of the time")
    kept.log.setLevel("INFO")
    a, b = torch.randn(48, 64), torch.randn(64, 32)
    assert torch.equal(tg.matmul(a, b), torch.matmul(a, b)) and plans.made == []
    assert any("0.80" in text for _, text in logged.said)
    assert torch.equal(tg.matmul(a, b, strict=True), torch.matmul(a, b)) and len(plans.made) == 1

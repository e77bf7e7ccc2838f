"""The drop-in functions beside torch's: values, out=, casts, modes and sub-classes, strictness."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.errors import UnsupportedError, UsageError  # noqa: E402
from tritongemm.ops import execute  # noqa: E402

F = torch.nn.functional


def randn(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@dataclass(frozen=True)
class Case:
    """``ours(*tensors())`` must be ``theirs(*tensors())``."""

    name: str
    ours: Callable
    theirs: Callable
    tensors: Callable[[], tuple]

    def __str__(self) -> str:
        return self.name


def case(name: str, function: str, *shapes: tuple[int, ...], home=torch, **options) -> Case:
    return Case(f"{function}-{name}",
                lambda *x, **more: getattr(tg, function)(*x, **options, **more),
                lambda *x, **more: getattr(home, function)(*x, **options, **more),
                lambda: tuple(randn(*shape) for shape in shapes))


MATMULS = tuple(case("x".join(map(str, (a, b))).replace(" ", ""), "matmul", a, b) for a, b in (
    ((7,), (7,)), ((7,), (7, 3)), ((5, 7), (7,)), ((5, 7), (7, 3)), ((2, 5, 7), (7, 3)),
    ((2, 5, 7), (7,)), ((7,), (2, 7, 3)), ((5, 7), (2, 7, 3)), ((2, 5, 7), (2, 7, 3)),
    ((2, 1, 5, 7), (3, 7, 4)), ((1, 5, 7), (4, 7, 3)), ((2, 3, 4, 5, 7), (7, 3)),
    ((2, 3, 5, 7), (3, 7, 4)), ((1, 1), (1, 1)), ((1, 9), (9, 1))))
CASES = (
    *MATMULS, case("plain", "mm", (5, 7), (7, 3)), case("plain", "bmm", (2, 5, 7), (2, 7, 3)),
    case("plain", "mv", (5, 7), (7,)), case("plain", "dot", (7,), (7,)),
    case("bias", "addmm", (3,), (5, 7), (7, 3)), case("row", "addmm", (1, 3), (5, 7), (7, 3)),
    case("column", "addmm", (5, 1), (5, 7), (7, 3)),
    case("matrix", "addmm", (5, 3), (5, 7), (7, 3)), case("number", "addmm", (), (5, 7), (7, 3)),
    case("scaled", "addmm", (5, 3), (5, 7), (7, 3), beta=0.5, alpha=-2),
    case("bias-scaled", "addmm", (3,), (5, 7), (7, 3), beta=3, alpha=0.25),
    case("beta-0", "addmm", (3,), (5, 7), (7, 3), beta=0),
    case("beta-0-scaled", "addmm", (3,), (5, 7), (7, 3), beta=0, alpha=3),
    case("batch", "baddbmm", (2, 5, 3), (2, 5, 7), (2, 7, 3)),
    case("broadcast", "baddbmm", (5, 1), (2, 5, 7), (2, 7, 3), beta=2, alpha=0.5),
    case("bias", "baddbmm", (3,), (2, 5, 7), (2, 7, 3)),
    case("matrix", "linear", (5, 7), (3, 7), home=F),
    case("bias", "linear", (5, 7), (3, 7), (3,), home=F),
    case("batches", "linear", (2, 4, 5, 7), (3, 7), (3,), home=F),
    case("vector", "linear", (7,), (3, 7), (3,), home=F),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_shapes_and_dtypes_are_torchs(case, plans):
    tensors = case.tensors()
    found, expected = case.ours(*tensors, strict=True), case.theirs(*tensors)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.is_contiguous() and len(plans.made) == 1
    close(found, expected)
    close(case.ours(*tensors), expected)


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.startswith("linear")], ids=str)
@pytest.mark.parametrize("made", ["fresh", "gapped", "transposed"])
def test_out_is_written_in_place_whatever_its_strides(case, made, plans):
    tensors = case.tensors()
    expected = case.theirs(*tensors)
    shape = expected.shape
    if made == "gapped":
        out = torch.full((*shape, 2), float("nan"))[..., 0]
    else:
        out = torch.full(shape if made == "fresh" else shape[::-1], float("nan"))
        out = out.permute(tuple(reversed(range(out.dim())))) if made == "transposed" else out
    strides = out.stride()
    assert case.ours(*tensors, out=out, strict=True) is out and out.stride() == strides
    close(out, expected)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("function", ["matmul", "mm", "bmm"])
def test_out_may_be_an_operand_and_the_result_is_as_if_it_were_not(function, index, plans):
    lead = (2,) if function == "bmm" else ()
    tensors = randn(*lead, 7, 7), randn(*lead, 7, 7) + 1
    expected = getattr(torch, function)(*tensors)
    assert getattr(tg, function)(*tensors, out=tensors[index], strict=True) is tensors[index]
    close(tensors[index], expected)


def test_an_input_may_be_the_result_in_place_and_may_overlap_it_otherwise(plans):
    a, b, c = randn(6, 7), randn(7, 6), randn(6, 6)
    expected = torch.addmm(c, a, b, beta=0.5)
    in_place = c.clone()
    tg.addmm(in_place, a, b, beta=0.5, out=in_place, strict=True)
    close(in_place, expected)
    store = torch.empty(7, 6)
    store[:6] = c
    tg.addmm(store[:6], a, b, beta=0.5, out=store[1:], strict=True)
    close(store[1:], expected)
    store[:6] = c
    row = store[2].clone()
    tg.addmm(store[2], a, b, out=store[:6], strict=True)  # a bias inside of the result
    close(store[:6], torch.addmm(row, a, b))


def test_operands_in_one_memory_with_out_between_them_are_as_if_apart(plans):
    store = randn(7, 21)
    a, out, b = store[:, :7], store[:, 7:14], store[:, 14:]
    expected = a.clone() @ b.clone()
    tg.mm(a, b, out=out, strict=True)
    close(out, expected)


@pytest.mark.parametrize("activation", [a for a in execute.ACTIVATIONS if a != "none"])
@pytest.mark.parametrize("bias", [True, False])
def test_an_activation_is_in_the_kernel(activation, bias, plans):
    x, w, b = randn(2, 5, 7), randn(3, 7), randn(3) if bias else None
    activate = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu,
                "gelu_tanh": lambda y: F.gelu(y, approximate="tanh")}[activation]
    expected = activate(F.linear(x, w, b))
    close(tg.linear(x, w, b, activation=activation, strict=True), expected)
    (problem, _), = plans.made
    assert problem.epilogue == ("bias+" if bias else "") + activation
    with settings.override(disable=True):
        close(tg.linear(x, w, b, activation=activation), expected)
    x.requires_grad_()
    close(tg.linear(x, w, b, activation=activation, strict=True), expected)
    kept = "" if activation == "relu" else "+aux"  # the gradient of relu is of its result
    assert plans.made[-1][0].epilogue == ("bias+" if bias else "") + activation + kept


def test_an_unknown_activation_is_a_usage_error(plans):
    with pytest.raises(UsageError, match="activation='tanh' is not known; use one of none, relu"):
        tg.linear(randn(5, 7), randn(3, 7), activation="tanh")


@pytest.mark.parametrize(("options", "epilogue"), [
    ({}, "bias"), ({"alpha": 2}, "bias"), ({"beta": 0}, "none"), ({"beta": 0, "alpha": 2}, "scale"),
    ({"beta": 0.0}, "none"), ({"alpha": 1.0, "beta": 1.0}, "bias")], ids=str)
def test_beta_of_0_never_reads_the_input(options, epilogue, plans):
    a, b, bias = randn(5, 7), randn(7, 3), torch.full((3,), float("nan"))
    found = tg.addmm(bias, a, b, strict=True, **options)
    assert plans.made[-1][0].epilogue == epilogue
    close(found, torch.addmm(bias, a, b, **options))
    assert bool(found.isnan().any()) == (options.get("beta", 1) != 0)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 3)], ids=str)
def test_a_row_that_repeats_is_a_bias_however_it_is_passed(shape, plans):
    bias = randn(3).expand(5, 3) if shape == (5, 3) else randn(*shape)
    tg.addmm(bias, randn(5, 7), randn(7, 3), strict=True)
    assert plans.made[-1][0].epilogue == "bias" and plans.made[-1][1].dm == 0


def test_alpha_of_0_is_torchs_for_it_hides_nan(plans):
    a, b = torch.full((5, 7), float("nan")), randn(7, 3)
    with pytest.raises(UnsupportedError, match="alpha is 0"):
        tg.addmm(randn(3), a, b, alpha=0, strict=True)
    assert torch.equal(tg.addmm(randn(3), a, b, alpha=0), torch.addmm(randn(3), a, b, alpha=0))


@pytest.mark.parametrize("value", [torch.tensor(2.0), True, 2 + 0j], ids=str)
def test_a_factor_that_is_not_a_plain_number_goes_to_torch(value, plans):
    tensors = randn(3), randn(5, 7), randn(7, 3)

    def outcome(function):
        try:
            return function(*tensors, alpha=value).tolist()
        except (TypeError, RuntimeError) as error:
            return type(error), str(error)

    assert outcome(tg.addmm) == outcome(torch.addmm) and not plans.made


#: Beyond float32, or beyond what torch reads as an integer; the last ones are 0 as float32.
FACTORS = (1e39, -1e39, 3.4028235e38, 2**64, -2**63 - 1, 10**40, -10**5000, float("inf"),
           -float("inf"), float("nan"), 1e-46, -1e-50)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("factor", FACTORS, ids=lambda x: f"{x:.3g}"
                         if abs(x) < 10**300 else "huge")
def test_a_factor_outside_of_float32_goes_to_torch(factor, dtype, warm, plans):
    nan = torch.full((5, 3), float("nan"), dtype=dtype)
    a, b = randn(5, 7).to(dtype), randn(7, 3).to(dtype)
    if warm:  # a known call with a factor of the same kind must not let it pass
        for options in ({"alpha": 0.5}, {"beta": 0.5}, {"alpha": 0.5, "beta": 0.5}):
            tg.addmm(nan, a, b, **options)
    made = len(plans.made)
    for options in ({"alpha": factor}, {"beta": factor}, {"alpha": 0.5, "beta": factor}):
        found = []
        for home in (tg, torch):
            out = torch.full((5, 3), 3.0, dtype=dtype)
            for more in ({}, {"out": out}):
                try:
                    found.append(home.addmm(nan, a, b, **options, **more).tolist())
                except (RuntimeError, OverflowError) as error:
                    found.append((type(error), str(error), out.tolist()))
        assert str(found[:2]) == str(found[2:])
    assert len(plans.made) == made


@pytest.mark.parametrize("options", [{"alpha": 1e39}, {"beta": 1e39}, {"alpha": 2**64}], ids=str)
def test_a_factor_that_float32_does_not_hold_is_torchs_where_the_input_alone_is_mapped(
        options, plans):
    ds, a, b = randn(2, 5, 3), randn(5, 7), randn(7, 3)
    found = []
    for home in (tg, torch):
        try:
            mapped = torch.func.vmap(lambda d, f=home.addmm: f(d, a, b, **options))
            found.append(mapped(ds).tolist())
        except (RuntimeError, OverflowError) as error:
            found.append((type(error), str(error)))
    assert str(found[0]) == str(found[1])


def test_factors_at_the_ends_of_float32_run_on_a_kernel(plans):
    d, a, b = randn(5, 3), randn(5, 7), randn(7, 3)
    for factor in (torch.finfo(torch.float32).max, -torch.finfo(torch.float32).tiny, 2**63 - 1):
        tg.addmm(d, a, b, alpha=factor, strict=True)
        tg.addmm(d, a, b, beta=factor, strict=True)
    assert len(plans.made) == 1


@pytest.mark.parametrize("both", [False, True])
def test_a_lazy_negative_is_resolved(both, plans):
    a, b = torch._neg_view(randn(5, 7)), randn(7, 3)
    b = torch._neg_view(b) if both else b
    close(tg.matmul(a, b, strict=True), torch.matmul(a, b))
    bias = torch._neg_view(randn(3))
    close(tg.addmm(bias, a, b, strict=True), torch.addmm(bias, a, b))
    close(tg.linear(a, b.mT, bias, strict=True), F.linear(a, b.mT, bias))
    imaginary = torch.randn(5, 7, dtype=torch.complex64).conj().imag
    close(tg.matmul(imaginary, b, strict=True), torch.matmul(imaginary, b))
    a.requires_grad_()
    tg.matmul(a, b, strict=True).sum().backward()
    close(a.grad, b.sum(1).expand(5, 7))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_autocast_casts_as_torchs_does(case, plans):
    for dtype in (torch.float32, torch.float16):
        tensors = tuple(x.to(dtype) for x in case.tensors())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = case.ours(*tensors), case.theirs(*tensors)
            assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=5e-2)


def test_autocast_leaves_float64_out_and_calls_with_out_alone(plans):
    wide = randn(5, 7, dtype=torch.float64), randn(7, 3, dtype=torch.float64)
    a, b, out = randn(5, 7), randn(7, 3), torch.empty(5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tg.matmul(*wide).dtype is torch.float64
        assert tg.matmul(a, b, out=out, strict=True).dtype is torch.float32
    with torch.autocast("cpu", enabled=False):
        assert tg.matmul(a, b, strict=True).dtype is torch.float32


def test_a_wider_result_is_written_by_the_kernel(plans):
    a, b = randn(5, 7, dtype=torch.bfloat16), randn(7, 3, dtype=torch.bfloat16)
    found = tg.mm(a, b, out_dtype=torch.float32, strict=True)
    assert found.dtype is torch.float32 and plans.made[-1][0].dtype_out == "fp32"
    with pytest.raises(UnsupportedError, match=r"the result is to be torch.float16"):
        tg.mm(a, b, torch.float16, strict=True)
    with pytest.raises(UnsupportedError, match="out_dtype= is given"):
        tg.addmm(randn(3), a, b, torch.float32, strict=True)


class Recording(torch.overrides.TorchFunctionMode):
    """Notes every function and lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


class RecordingDispatch(torch.utils._python_dispatch.TorchDispatchMode):
    """The same below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def test_function_and_dispatch_modes_see_torchs_functions(plans):
    a, b = randn(5, 7), randn(7, 3)
    tg.matmul(a, b)
    made = len(plans.made)
    with Recording() as mode:
        assert torch.equal(tg.matmul(a, b), a @ b) and torch.matmul in mode.seen
    with RecordingDispatch() as below:
        tg.addmm(randn(3), a, b)
        assert torch.ops.aten.addmm.default in below.seen
    with Recording(), pytest.raises(UnsupportedError, match="mode is active"):
        tg.matmul(a, b, strict=True)
    assert len(plans.made) == made


def test_a_default_device_does_not_send_calls_to_torch(plans):
    a, b = randn(5, 7), randn(7, 3)
    with torch.device("cpu"):
        close(tg.matmul(a, b, strict=True), a @ b)


class Logged(torch.Tensor):
    """A sub-class that keeps its kind."""

    seen: list = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(function)
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sub_class_is_asked_with_torchs_function(case, plans):
    tensors = tuple(x.as_subclass(Logged) for x in case.tensors())
    Logged.seen.clear()
    found = case.ours(*tensors)
    assert type(found) is Logged and Logged.seen and not plans.made
    with pytest.raises(UnsupportedError, match="operands are .*Logged"):
        case.ours(*tensors, strict=True)


def test_out_counts_a_version_and_a_gradient_that_kept_it_is_refused(plans):
    a, b, out, weight = randn(5, 7), randn(7, 3), randn(5, 3), randn(5, 3).requires_grad_()
    loss = (weight * out).sum()
    tg.mm(a, b, out=out)
    assert out._version == 1 and plans.made
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    tg.addmm(randn(3), a, b, out=out)
    assert out._version == 2


def test_an_inference_tensor_is_out_in_inference_mode_alone(plans):
    with torch.inference_mode():
        out = randn(5, 3)
        tg.mm(randn(5, 7), randn(7, 3), out=out)
    close(out, randn(5, 7) @ randn(7, 3))
    for given in ((), (randn(3),)):
        with pytest.raises(RuntimeError, match="outside InferenceMode"):
            (tg.addmm if given else tg.mm)(*given, randn(5, 7), randn(7, 3), out=out)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_and_lazy_zeros_are_torchs(plans):
    nested = torch.nested.nested_tensor([randn(3, 8), randn(5, 8)])
    weight, zeros = randn(4, 8), torch._efficientzerotensor((4, 8))
    for found, x in zip(tg.linear(nested, weight, randn(4)).unbind(), nested.unbind()):
        close(found, F.linear(x, weight, randn(4)))
    tg.matmul(weight, weight.mT)  # known, and of the same key
    close(tg.matmul(zeros, weight.mT), torch.zeros(4, 4))
    close(tg.addmm(torch._efficientzerotensor((4, 4)), weight, weight.mT), weight @ weight.mT)


def test_functionalize_is_torchs(plans):
    a, b = randn(5, 7), randn(7, 3)
    close(torch.func.functionalize(tg.matmul)(a, b), a @ b)
    close(torch.func.vmap(torch.func.functionalize(tg.matmul))(a[None], b[None])[0], a @ b)


def test_fake_and_meta_tensors_have_torchs_shapes(plans):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        found = tg.matmul(mode.from_tensor(randn(2, 5, 7)), mode.from_tensor(randn(7, 3)))
        assert found.shape == (2, 5, 3) and type(found).__name__ == "FakeTensor"
    assert tg.linear(torch.empty(5, 7, device="meta"), torch.empty(3, 7, device="meta")).is_meta
    assert not plans.made


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_records_torchs_function(plans):
    a, b = randn(5, 7), randn(7, 3)
    tg.matmul(a, b)
    traced = torch.jit.trace(lambda x, y: tg.matmul(x, y), (a, b))
    other = randn(9, 7)
    close(traced(other, b), other @ b)


def test_vectors_are_torchs_by_choice_and_a_kernels_when_strict(plans):
    assert torch.equal(tg.mv(randn(5, 7), randn(7)), torch.mv(randn(5, 7), randn(7)))
    assert torch.equal(tg.dot(randn(7), randn(7)), torch.dot(randn(7), randn(7)))
    assert not plans.made
    tg.mv(randn(5, 7), randn(7), strict=True)
    with settings.override(strict=True):
        tg.dot(randn(7), randn(7))
    assert [(p.m, p.n, p.k) for p, _ in plans.made] == [(5, 1, 7), (1, 1, 7)]
    with pytest.raises(UnsupportedError, match="ranks are 2 and 2"):
        tg.mv(randn(5, 7), randn(7, 1), strict=True)


def test_a_dozen_threads_with_mixed_calls_get_their_own_results(plans):
    failures: list[str] = []

    def work(seed: int) -> None:
        for i in range(60):
            case = CASES[(seed * 7 + i) % len(CASES)]
            tensors = tuple(x + seed for x in case.tensors())
            try:
                close(case.ours(*tensors), case.theirs(*tensors))
            except BaseException as error:
                failures.append(f"{case}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures[:3]


def test_a_capture_with_no_warm_plan_is_torchs_with_one_warning(plans, monkeypatch, logged):
    from tritongemm.ops import plans as kept
    from tritongemm.ops.declined import DeclinedNow

    real = kept._check_now

    def capturing(*arguments):
        kept._say_capturing()
        raise DeclinedNow("no warm plan for this problem, and a CUDA graph is being captured")

    monkeypatch.setattr(kept, "_check_now", capturing)
    a, b = randn(5, 7), randn(7, 3)
    for _ in range(3):
        assert torch.equal(tg.matmul(a, b), a @ b)
        assert torch.equal(tg.matmul(b.mT, a.mT), b.mT @ a.mT)
    assert [level for level, _ in logged.said] == ["WARNING"]
    monkeypatch.setattr(kept, "_check_now", real)
    tg.matmul(a, b, strict=True)  # afterwards it is this package's


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
@pytest.mark.parametrize("out", [False, True])
def test_torchs_older_orders_of_arguments_are_taken_with_a_warning(name, out, plans):
    shape = (2,) if name == "baddbmm" else ()
    d, a, b = randn(*shape, 5, 3), randn(*shape, 5, 7), randn(*shape, 7, 3)
    for arguments in ((2, d, a, b), (0.5, d, 3, a, b), (0, d, a, b)):
        given = {"out": torch.empty(*shape, 5, 3)} if out else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = getattr(torch, name)(*arguments)
        with pytest.warns(UserWarning, match=rf"{name}\(beta, input, ...\) is deprecated"):
            found = getattr(tg, name)(*arguments, strict=True, **given)
        torch.testing.assert_close(found, expected)
        assert not out or found is given["out"]
    assert plans.made


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_named_tensors_go_to_torch(plans):
    if not hasattr(torch.Tensor, "has_names"):  # torch 2.13 dropped them: nothing to keep
        with pytest.raises(AttributeError):
            _ = randn(5, 7).names
        return
    a, b, d = (randn(*shape).rename(*names) for shape, names in (
        ((5, 7), ("N", "C")), ((7, 3), ("C", "D")), ((5, 3), ("N", "D"))))
    assert tg.matmul(a, b).names == tg.addmm(d, a, b).names == ("N", "D")
    assert not plans.made

"""What torch rejects is rejected alike, type and text, and leaves ``out`` untouched."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def t(*shape: int, dtype=F32, device="cpu") -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def leaf(*shape: int) -> torch.Tensor:
    return t(*shape).requires_grad_()


def filled(*shape: int, dtype=F32) -> torch.Tensor:
    return torch.full(shape, 3.0, dtype=dtype) if dtype.is_floating_point else t(
        *shape, dtype=dtype)


def outs() -> dict[str, Callable[[], object]]:
    """Results of [5, 3] that cannot be written."""
    return {
        "double": partial(filled, 5, 3, dtype=F64), "half": partial(filled, 5, 3, dtype=BF16),
        "integer": partial(filled, 5, 3, dtype=torch.int32),
        "requires-grad": lambda: filled(5, 3).requires_grad_(),
        "meta": lambda: t(5, 3, device="meta"), "list": lambda: [], "number": lambda: 1.0,
        "overlapping": lambda: filled(1, 1).expand(5, 3),
        "overlapping-rows": lambda: filled(1, 3).expand(5, 3),
    }


#: function -> name -> (operands, options); every one is wrong.
WRONG: dict[str, dict[str, tuple[Callable[[], tuple], dict]]] = {
    "matmul": {
        "inner-extents": (lambda: (t(5, 7), t(6, 3)), {}),
        "vector-extents": (lambda: (t(7), t(6)), {}),
        "vector-matrix": (lambda: (t(6), t(7, 3)), {}),
        "matrix-vector": (lambda: (t(5, 7), t(6)), {}),
        "batches": (lambda: (t(2, 5, 7), t(3, 7, 4)), {}),
        "batch-extents": (lambda: (t(2, 5, 7), t(2, 6, 4)), {}),
        "batch-matrix": (lambda: (t(2, 5, 7), t(6, 4)), {}),
        "many-batches": (lambda: (t(2, 3, 5, 7), t(2, 7, 4)), {}),
        "scalar": (lambda: (t(5, 7), torch.tensor(2.0)), {}),
        "scalars": (lambda: (torch.tensor(2.0), torch.tensor(2.0)), {}),
        "dtypes": (lambda: (t(5, 7), t(7, 3, dtype=BF16)), {}),
        "dtypes-batch": (lambda: (t(2, 5, 7), t(2, 7, 3, dtype=F64)), {}),
        "integer-and-float": (lambda: (t(5, 7, dtype=torch.int32), t(7, 3)), {}),
        "list": (lambda: ([[1.0]], t(1, 1)), {}), "none": (lambda: (t(5, 7), None), {}),
        "number": (lambda: (t(5, 7), 2.0), {}), "string": (lambda: ("a", t(7, 3)), {}),
        "gradient-and-out": (lambda: (leaf(5, 7), t(7, 3)), {"out": lambda: filled(5, 3)}),
        "wrong-shapes-and-out": (lambda: (t(5, 7), t(6, 3)), {"out": lambda: filled(5, 3)}),
    },
    "mm": {
        "inner-extents": (lambda: (t(5, 7), t(6, 3)), {}),
        "vector": (lambda: (t(7), t(7, 3)), {}), "vectors": (lambda: (t(7), t(7)), {}),
        "batch": (lambda: (t(2, 5, 7), t(2, 7, 3)), {}),
        "batch-matrix": (lambda: (t(2, 5, 7), t(7, 3)), {}),
        "dtypes": (lambda: (t(5, 7), t(7, 3, dtype=F64)), {}),
        "none": (lambda: (None, t(7, 3)), {}), "number": (lambda: (t(5, 7), 3), {}),
        "out-dtype-of-doubles": (lambda: (t(5, 7, dtype=F64), t(7, 3, dtype=F64)),
                                 {"out_dtype": lambda: BF16}),
    },
    "bmm": {
        "inner-extents": (lambda: (t(2, 5, 7), t(2, 6, 3)), {}),
        "batches": (lambda: (t(2, 5, 7), t(3, 7, 3)), {}),
        "broadcast": (lambda: (t(1, 5, 7), t(3, 7, 3)), {}),
        "matrices": (lambda: (t(5, 7), t(7, 3)), {}),
        "ranks": (lambda: (t(2, 5, 7), t(7, 3)), {}),
        "four": (lambda: (t(2, 2, 5, 7), t(2, 2, 7, 3)), {}),
        "dtypes": (lambda: (t(2, 5, 7), t(2, 7, 3, dtype=BF16)), {}),
    },
    "mv": {
        "extents": (lambda: (t(5, 7), t(6)), {}), "matrix": (lambda: (t(5, 7), t(7, 3)), {}),
        "vectors": (lambda: (t(7), t(7)), {}), "batch": (lambda: (t(2, 5, 7), t(7)), {}),
        "dtypes": (lambda: (t(5, 7), t(7, dtype=F64)), {}),
    },
    "dot": {
        "extents": (lambda: (t(7), t(6)), {}), "matrices": (lambda: (t(5, 7), t(7, 3)), {}),
        "matrix": (lambda: (t(7), t(7, 3)), {}), "dtypes": (lambda: (t(7), t(7, dtype=F64)), {}),
        "scalar": (lambda: (t(), t(7)), {}),
    },
    "addmm": {
        "inner-extents": (lambda: (t(3), t(5, 7), t(6, 3)), {}),
        "input-shape": (lambda: (t(4), t(5, 7), t(7, 3)), {}),
        "input-rank": (lambda: (t(1, 5, 3), t(5, 7), t(7, 3)), {}),
        "input-dtype": (lambda: (t(3, dtype=F64), t(5, 7), t(7, 3)), {}),
        "input-shape-unread": (lambda: (t(4), t(5, 7), t(7, 3)), {"beta": lambda: 0}),
        "vector": (lambda: (t(3), t(7), t(7, 3)), {}),
        "batch": (lambda: (t(3), t(2, 5, 7), t(2, 7, 3)), {}),
        "dtypes": (lambda: (t(3), t(5, 7), t(7, 3, dtype=BF16)), {}),
        "alpha-string": (lambda: (t(3), t(5, 7), t(7, 3)), {"alpha": lambda: "2"}),
        "alpha-complex": (lambda: (t(3), t(5, 7), t(7, 3)), {"alpha": lambda: 2j}),
        "beta-none": (lambda: (t(3), t(5, 7), t(7, 3)), {"beta": lambda: None}),
        "alpha-beyond-float32": (lambda: (t(3), t(5, 7), t(7, 3)),
                                 {"alpha": lambda: 1e39}),
        "beta-beyond-float32": (lambda: (t(3), t(5, 7), t(7, 3)), {"beta": lambda: -1e39}),
        "alpha-beyond-64-bits": (lambda: (t(3), t(5, 7), t(7, 3)), {"alpha": lambda: 2**64}),
        "input-none": (lambda: (None, t(5, 7), t(7, 3)), {}),
        "older-order-too-short": (lambda: (2, t(3), t(5, 7)), {}),
        "older-order-too-long": (lambda: (2, t(3), 3, t(5, 7), t(7, 3), t(3)), {}),
        "older-order-all-tensors": (lambda: (t(3), t(3), t(5, 7), t(7, 3)), {}),
        "older-order-twice-beta": (lambda: (2, t(3), t(5, 7), t(7, 3)), {"beta": lambda: 3}),
        "older-order-with-alpha": (lambda: (2, t(3), t(5, 7), t(7, 3)), {"alpha": lambda: 3}),
        "input-number": (lambda: (2.0, t(5, 7), t(7, 3)), {}),
        "gradient-and-out": (lambda: (leaf(3), t(5, 7), t(7, 3)), {"out": lambda: filled(5, 3)}),
    },
    "baddbmm": {
        "inner-extents": (lambda: (t(3), t(2, 5, 7), t(2, 6, 3)), {}),
        "batches": (lambda: (t(3), t(2, 5, 7), t(3, 7, 3)), {}),
        "input-shape": (lambda: (t(4), t(2, 5, 7), t(2, 7, 3)), {}),
        "input-batch": (lambda: (t(3, 5, 3), t(2, 5, 7), t(2, 7, 3)), {}),
        "input-dtype": (lambda: (t(3, dtype=F64), t(2, 5, 7), t(2, 7, 3)), {}),
        "matrices": (lambda: (t(3), t(5, 7), t(7, 3)), {}),
        "beta-string": (lambda: (t(3), t(2, 5, 7), t(2, 7, 3)), {"beta": lambda: "1"}),
        "alpha-beyond-float32": (lambda: (t(3), t(2, 5, 7), t(2, 7, 3)),
                                 {"alpha": lambda: 1e39}),
        "beta-beyond-64-bits": (lambda: (t(3), t(2, 5, 7), t(2, 7, 3)),
                                {"beta": lambda: 10**40}),
    },
    "linear": {
        "inner-extents": (lambda: (t(5, 7), t(3, 6)), {}),
        "bias-extent": (lambda: (t(5, 7), t(3, 7), t(4)), {}),
        "weight-rank": (lambda: (t(5, 7), t(2, 3, 7)), {}),
        "dtypes": (lambda: (t(5, 7), t(3, 7, dtype=F64)), {}),
        "bias-dtype": (lambda: (t(5, 7), t(3, 7), t(3, dtype=F64)), {}),
        "scalar": (lambda: (t(), t(3, 7)), {}), "none": (lambda: (None, t(3, 7)), {}),
        "bias-number": (lambda: (t(5, 7), t(3, 7), 1.0), {}),
        "batch-bias": (lambda: (t(2, 5, 7), t(3, 7), t(4)), {}),
    },
}
for _function, _operands in {"matmul": lambda: (t(5, 7), t(7, 3)),
                             "mm": lambda: (t(5, 7), t(7, 3)),
                             "addmm": lambda: (t(3), t(5, 7), t(7, 3))}.items():
    WRONG[_function] |= {f"out-{name}": (_operands, {"out": make})
                         for name, make in outs().items()}
CALLS = {f"{function}-{name}": (function, *call) for function, calls in WRONG.items()
         for name, call in calls.items()}


def outcome(function: Callable, operands: Callable[[], tuple], options: dict):
    """(type, text) of the error, the warnings, and what became of ``out``."""
    made = {name: make() for name, make in options.items()}
    out = made.get("out")
    before = out.detach().clone() if isinstance(out, torch.Tensor) and not out.is_meta else None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            function(*operands(), **made)
        except Exception as error:
            found = (type(error), str(error), [str(w.message) for w in said])
        else:
            pytest.fail("the call is not wrong")
    if before is not None:
        assert torch.equal(out.detach(), before), "out was written"
    return found


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_the_error_is_torchs(call, warm, plans):
    name, operands, options = call
    home = torch.nn.functional if name == "linear" else torch
    if warm:  # a known call of the right kind must not let a wrong one pass
        tg.matmul(t(5, 7), t(7, 3))
        tg.addmm(t(3), t(5, 7), t(7, 3))
        tg.linear(t(5, 7), t(3, 7), t(3))
    made = len(plans.made)
    assert outcome(getattr(tg, name), operands, options) == outcome(getattr(home, name), operands,
                                                                    options)
    assert len(plans.made) == made


def test_there_are_at_least_sixty_wrong_calls():
    assert len(CALLS) >= 60


#: function -> shapes of samples and options: wrong for one sample, and right for a batch of all.
#: (Of some torch's vmap makes something all the same.)
WRONG_SAMPLES = {
    "mm-batches": ("mm", ((2, 4, 4), (2, 4, 4)), {}),
    "mv-matrices": ("mv", ((2, 4, 4), (4, 4)), {}),
    "dot-matrices": ("dot", ((4, 4), (4, 4)), {}),
    "bmm-many-batches": ("bmm", ((2, 2, 4, 4), (2, 2, 4, 4)), {}),
    "bmm-broadcast": ("bmm", ((1, 4, 4), (2, 4, 4)), {}),
    "addmm-batches": ("addmm", ((4, 4), (2, 4, 4), (2, 4, 4)), {}),
    "addmm-input-rank": ("addmm", ((1, 4, 4), (4, 4), (4, 4)), {}),
    "addmm-input-rows": ("addmm", ((3, 4), (1, 4), (4, 4)), {}),
    "addmm-unread-input": ("addmm", ((3, 4), (1, 4), (4, 4)), {"beta": 0}),
    "baddbmm-broadcast": ("baddbmm", ((4,), (1, 4, 4), (2, 4, 4)), {}),
    "baddbmm-matrices": ("baddbmm", ((4, 4), (4, 4), (4, 4)), {}),
    "baddbmm-input": ("baddbmm", ((3, 2, 4, 4), (2, 4, 4), (2, 4, 4)), {}),
}


@pytest.mark.parametrize("call", WRONG_SAMPLES.values(), ids=WRONG_SAMPLES)
def test_samples_that_are_wrong_one_by_one_get_torchs_answer(call, plans):
    name, shapes, options = call
    for mapped in range(1, 2**len(shapes)):
        axes = tuple(0 if mapped >> i & 1 else None for i in range(len(shapes)))
        operands = tuple(t(*shape) if at is None else t(3, *shape)
                         for shape, at in zip(shapes, axes))
        answers = []
        for home in (torch, tg):
            try:
                result = torch.func.vmap(partial(getattr(home, name), **options), axes)(*operands)
                answers.append((tuple(result.shape), result.sum().item()))
            except RuntimeError as error:
                answers.append(str(error))
        assert answers[0] == answers[1], axes
    assert not plans.made


@pytest.mark.parametrize("call", [call for call in WRONG_SAMPLES if call in (
    "mm-batches", "mv-matrices", "dot-matrices", "bmm-many-batches", "addmm-batches")])
def test_vmap_raises_for_samples_of_a_wrong_rank(call, plans):
    name, shapes, _ = WRONG_SAMPLES[call]
    with pytest.raises(RuntimeError, match="dims|shapes"):
        torch.func.vmap(getattr(tg, name))(*(t(3, *shape) for shape in shapes))


def test_an_addmm_of_a_vector_is_wrong_where_a_gradient_is_needed(plans):
    for home in (torch, tg):
        with pytest.raises(RuntimeError):
            home.addmm(t(3), leaf(7), t(7, 3), **({} if home is torch else {"strict": True}))


def without_memory() -> dict[str, Callable[[], torch.Tensor]]:
    """Results of [5, 5] at address 0."""
    def freed() -> torch.Tensor:
        x = torch.zeros(5, 5)
        x.untyped_storage().resize_(0)
        return x

    def view_of_freed() -> torch.Tensor:
        x = torch.zeros(7, 5)[2:]
        x.untyped_storage().resize_(0)
        return x

    return {"freed": freed, "view of freed": view_of_freed,
            "lazy-zeros": lambda: torch._efficientzerotensor((5, 5))}


@pytest.mark.parametrize("make", without_memory().values(), ids=without_memory())
def test_an_out_without_memory_never_reaches_a_kernel(make):
    from tritongemm.ops.declined import Declined
    from tritongemm.ops.execute import ADDMM, MM, fused, product_into

    a = t(5, 5)
    for result in (product_into(MM, a, a, make()), fused(ADDMM["none"], a, a, a, out=make())):
        assert isinstance(result, Declined) and "not in memory" in str(result)


def test_operands_in_a_freed_storage_never_reach_a_kernel():
    from tritongemm.ops.declined import Declined
    from tritongemm.ops.execute import ADDMM, MM, fused, product

    a, freed = t(5, 5), without_memory()["view of freed"]()
    for result in (product(MM, a, freed), product(MM, freed, a), fused(ADDMM["none"], freed, a, a)):
        assert isinstance(result, Declined) and "not in memory" in str(result)


@pytest.mark.parametrize("overridden", [False, True])
def test_an_out_whose_storage_was_freed_raises_as_torch_does(overridden):
    a, make = t(5, 5), without_memory()["freed"]
    with pytest.raises(RuntimeError) as torchs:
        torch.mm(a, a, out=make())
    if overridden:
        with tg.override(min_flops=0), pytest.raises(RuntimeError) as ours:
            torch.mm(a, a, out=make())
    else:
        with pytest.raises(RuntimeError) as ours:
            tg.mm(a, a, out=make())
    assert type(ours.value) is type(torchs.value) and str(ours.value) == str(torchs.value)


@pytest.mark.parametrize("call, names", [
    (lambda a: tg.linear(a, a, residual=1.0), r"linear\(\): argument 'residual'.*not float"),
    (lambda a: tg.linear(a, a, residual=[a]), r"'residual'.*not list"),
    (lambda a: tg.linear(None, a, mixed=True), r"linear\(\): argument 'input'.*not NoneType"),
    (lambda a: tg.mm(1, a, mixed=True), r"mm\(\): argument 'input'.*not int"),
    (lambda a: tg.matmul(a, "b", mixed=True), r"matmul\(\): argument 'other'.*not str"),
    (lambda a: tg.gated_linear(None, a), r"gated_linear\(\): argument 'input'.*not NoneType"),
    (lambda a: tg.gated_linear(a, None), r"gated_linear\(\): argument 'weight'.*not NoneType"),
    (lambda a: tg.mulmm("2", a, a), r"mulmm\(\): argument 'input'.*not str"),
    (lambda a: tg.mulmm(2.0, a, a, gradient_of="gelu"), r"argument 'input'.*not float")])
def test_what_is_no_tensor_is_named_where_torch_does_not_see_it(call, names):
    with pytest.raises(TypeError, match=names):
        call(t(4, 4))


def test_a_third_tensor_of_a_product_is_torchs_error():
    for ours, theirs, shape in ((tg.mm, torch.mm, (3, 3)), (tg.bmm, torch.bmm, (2, 3, 3))):
        with pytest.raises(TypeError, match="invalid combination of arguments"):
            theirs(t(*shape), t(*shape), t(*shape))
        with pytest.raises(TypeError, match="invalid combination of arguments"):
            ours(t(*shape), t(*shape), t(*shape))

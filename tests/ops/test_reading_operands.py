"""A call read as strides: whatever is folded, broadcast or cut, the product is torch's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tritongemm.ops.declined import Declined  # noqa: E402
from tritongemm.ops.operands import (  # noqa: E402
    MAX_PARTS,
    CallForm,
    StridedShape,
    form_of,
    problem_of_form,
    repeats,
    span_bytes,
)


def read(x: torch.Tensor | None) -> StridedShape | None:
    return None if x is None else StridedShape(x.shape, x.stride())


def run(form: CallForm, a, b, out, d=None) -> None:
    """What the launches of ``form`` compute, by views at the offsets of each part."""
    inner = form.inner or form.batch
    outer_a, outer_b, outer_c, outer_d = form.outer

    def view(x, rows, cols, outer, strides, offset):
        return x.as_strided((form.batch // inner, inner, rows, cols), (outer, *strides),
                            x.storage_offset() + offset)

    for pa, pb, pc, pd in form.parts:
        product = (view(a, form.m, form.k, outer_a, form.a, pa)
                   @ view(b, form.k, form.n, outer_b, form.b, pb))
        if form.d is not None:
            product = product + view(d, form.m, form.n, outer_d, form.d, pd)
        view(out, form.m, form.n, outer_c, form.c, pc).copy_(product)


@st.composite
def arranged(draw, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of ``shape`` in memory of any order, with gaps, or expanded along an axis of 1."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 2))) for _ in shape]
    whole = torch.randn([shape[i] * steps[i] for i in order], dtype=torch.float64)
    whole = whole[tuple(slice(None, None, steps[i]) for i in order)]
    return whole.permute([order.index(i) for i in range(len(shape))])


@st.composite
def products(draw):
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    batch = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 3)))]

    def lead():
        kept = batch[len(batch) - draw(st.integers(0, len(batch))):] if batch else []
        return tuple(draw(st.sampled_from((size, 1))) for size in kept)

    shape_a = draw(st.sampled_from(((*lead(), m, k), (k,))))
    shape_b = draw(st.sampled_from(((*lead(), k, n), (k,))))
    return draw(arranged(shape_a)), draw(arranged(shape_b))


@settings(deadline=None, max_examples=200)
@given(products(), st.data())
def test_every_reading_computes_what_matmul_does(operands, data):
    a, b = operands
    expected = torch.matmul(a, b)
    given_out, two = data.draw(st.booleans()), data.draw(st.booleans())
    out = data.draw(arranged(tuple(expected.shape))) if given_out else torch.empty(expected.shape,
                                                                     dtype=torch.float64)
    out.fill_(float("nan"))
    try:
        form = form_of(read(a), read(b), read(out) if given_out else None, two_strides=two)
    except Declined as reason:
        assert f"more than {MAX_PARTS}" in str(reason)
        return
    assert form.shape == tuple(expected.shape)
    run(form, a, b, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("shape_d", [(), (1,), (5,), (1, 5), (4, 1), (4, 5), (1, 1, 5), (3, 1, 5),
                                     (3, 4, 5)], ids=str)
@pytest.mark.parametrize("shape_a", [(3, 4, 7), (4, 7)], ids=str)
def test_an_input_broadcasts_with_strides_of_0(shape_a, shape_d):
    a, b, d = torch.randn(shape_a), torch.randn(7, 5), torch.randn(shape_d)
    if len(shape_d) > len(shape_a):
        with pytest.raises(Declined, match="does not broadcast"):
            form_of(read(a), read(b), None, read(d))
        return
    out = torch.empty((a @ b).shape)
    run(form_of(read(a), read(b), None, read(d)), a, b, out, d)
    torch.testing.assert_close(out, a @ b + d)


@pytest.mark.parametrize(("a", "b", "batch", "m", "parts"), [
    (torch.empty(6, 4, 7), torch.empty(7, 5), 1, 24, 1),
    (torch.empty(2, 3, 4, 7), torch.empty(7, 5), 1, 24, 1),
    (torch.empty(6, 1, 7), torch.empty(7, 5), 1, 6, 1),
    (torch.empty(6, 4, 7).transpose(0, 1), torch.empty(7, 5), 4, 6, 1),
    (torch.empty(2, 6, 7).transpose(0, 1), torch.empty(7, 5), 2, 6, 1),
    (torch.empty(6, 4, 7), torch.empty(6, 7, 5), 6, 4, 1),
    (torch.empty(2, 3, 4, 7), torch.empty(2, 3, 7, 5), 6, 4, 1),
    (torch.empty(4, 7), torch.empty(6, 7, 5), 6, 4, 1),
    (torch.empty(6, 1, 4, 7), torch.empty(3, 7, 5), 4, 6, 3),
    (torch.empty(2, 1, 4, 7), torch.empty(3, 7, 5), 3, 4, 2),
    (torch.empty(8, 1, 12, 7), torch.empty(MAX_PARTS, 7, 5), 8, 12, MAX_PARTS)],
    ids=lambda v: str(tuple(v.stride())) if isinstance(v, torch.Tensor) else "")
def test_a_batch_becomes_rows_then_a_batch_then_launches(a, b, batch, m, parts):
    form = form_of(read(a), read(b), two_strides=False)
    assert (form.batch, form.m, len(form.parts)) == (batch, m, parts)


@pytest.mark.parametrize(("a", "b", "says"), [
    ((5, 7), (6, 3), "shapes are"), ((2, 5, 7), (3, 7, 4), "shapes are"), ((), (7,), "a scalar"),
    ((5, 0), (0, 3), "an extent is 0"), ((0, 7), (7, 3), "an extent is 0"),
    ((9, 1, 12, 7), (9, 7, 4), "9 launches, more than 8")], ids=str)
def test_what_is_no_product_of_kernels_is_said(a, b, says):
    with pytest.raises(Declined, match=says):
        form_of(StridedShape(a, torch.empty(a).stride()), StridedShape(b, torch.empty(b).stride()),
                two_strides=False)


def heads(batch: int, rows: int, count: int, width: int) -> torch.Tensor:
    """Attention's operand: [batch, rows, heads, width] with the heads as a batch."""
    return torch.empty(batch, rows, count, width).transpose(1, 2)


@pytest.mark.parametrize(("a", "b", "batch", "inner", "m", "word"), [
    (torch.empty(24, 1, 30, 7), torch.empty(1, 25, 7, 5), 600, 25, 30, "ab"),
    (torch.empty(9, 1, 12, 7), torch.empty(9, 7, 4), 81, 9, 12, "ab"),
    # A's inner axis goes on from its rows.
    (torch.empty(1, 24, 30, 7), torch.empty(25, 1, 7, 5), 25, 0, 720, "none"),
    (heads(3, 10, 4, 8), heads(3, 11, 4, 8).mT, 12, 4, 10, "ab"),
    (heads(3, 10, 4, 8), torch.empty(3, 4, 8, 6), 12, 4, 10, "a"),
    (torch.empty(3, 4, 10, 8), heads(3, 8, 4, 6), 12, 4, 10, "b"),
    (torch.empty(3, 4, 10, 8), torch.empty(4, 8, 6), 12, 4, 10, "b"),
    (heads(3, 10, 4, 8), torch.empty(8, 6), 12, 4, 10, "a"),
    # Three axes, of which two go on from each other.
    (torch.empty(2, 3, 1, 10, 8), torch.empty(4, 8, 6), 24, 4, 10, "ab"),
    # Rows change places with a longer axis that B does not see: C has one stride in one order.
    (torch.empty(24, 1, 12, 7), torch.empty(9, 7, 4), 108, 12, 24, "ab")],
    ids=lambda v: str(tuple(v.stride())) if isinstance(v, torch.Tensor) else "")
def test_a_batch_of_two_axes_has_two_strides(a, b, batch, inner, m, word):
    form = form_of(read(a), read(b))
    assert (form.batch, form.inner, form.m, form.two_strides) == (batch, inner, m, word)
    assert form.parts == ((0, 0, 0, 0),)
    problem, geometry = problem_of_form(form, (0, 0, 0, 0), ("bf16",) * 3, "none", "ieee")
    assert (problem.batch, problem.two_strides, geometry.inner) == (batch, word, inner)
    assert (geometry.outer_a, geometry.outer_b, geometry.outer_c) == form.outer[:3]


def test_out_and_d_may_have_two_strides_or_take_several_launches():
    a, b, out = torch.empty(3, 4, 10, 8), torch.empty(3, 4, 8, 6), heads(3, 10, 4, 6)
    assert form_of(read(a), read(b), read(out)).two_strides == "c"
    d = heads(3, 10, 4, 6)
    form = form_of(read(a), read(b), None, read(d))
    assert (form.inner, form.two_strides, len(form.parts)) == (0, "none", 3)


def test_three_axes_that_stay_three_are_launches_or_torchs():
    def form(first, second, third):
        a = torch.empty(first, 1, third, 10, 8)
        return form_of(read(a), StridedShape((1, second, third, 8, 6), (0, 999, 48, 6, 1)))

    assert (form(2, 9, 3).inner, len(form(2, 9, 3).parts)) == (0, 6)
    with pytest.raises(Declined, match="12 launches, more than 8"):
        form(3, 9, 4)


def test_both_strides_of_a_batch_count_in_the_alignment():
    a = StridedShape((3, 4, 10, 8), (321, 80, 8, 1))
    form = form_of(a, StridedShape((3, 4, 8, 8), (256, 64, 8, 1)))
    problem = problem_of_form(form, (0, 0, 0, 0), ("bf16",) * 3, "none", "ieee")[0]
    assert (problem.two_strides, problem.align_a, problem.align_b) == ("a", 2, 16)


def test_an_axis_of_one_element_gets_the_best_stride_for_kernels():
    row, column = torch.empty(100, 33)[:1], torch.empty(33, 100)[:, :1]
    form = form_of(read(row), read(column))
    assert form.a == (0, 48, 1) and form.b[1:] == (100, 1)
    problem, _ = problem_of_form(form, (0, 0, 0, 0), ("bf16",) * 3, "none", "ieee")
    assert problem.align_a == 16 and problem.layout == "nn"


def test_one_product_has_no_batch_to_step_through():
    a, b, d = torch.empty(8, 16), torch.empty(16, 4), torch.empty(8, 4)
    form = form_of(read(a), read(b), read(d), read(d))
    assert [x[0] for x in (form.a, form.b, form.c, form.d)] == [0, 0, 0, 0]
    assert (form.batch, form.parts) == (1, ((0, 0, 0, 0),))


def test_offsets_of_several_launches_count_in_the_alignment():
    a = StridedShape((2, 1, 12, 8), (101, 0, 8, 1))
    form = form_of(a, StridedShape((3, 8, 8), (64, 8, 1)), two_strides=False)
    assert len(form.parts) == 2
    assert problem_of_form(form, (0, 0, 0, 0), ("bf16",) * 3, "none", "ieee")[0].align_a == 2
    form = form_of(StridedShape((12, 8), (8, 1)), StridedShape((2, 3, 8, 8), (202, 64, 8, 1)),
                   two_strides=False)
    assert (form.batch, len(form.parts)) == (3, 2)
    problem, _ = problem_of_form(form, (0, 0, 0, 0), ("bf16",) * 3, "none", "ieee")
    assert (problem.align_a, problem.align_b, problem.align_c) == (16, 4, 16)


def test_extents_beyond_32_bits_are_declined():
    with pytest.raises(Declined, match="does not fit 32 bits"):
        form_of(StridedShape((2**31, 1), (1, 1)), StridedShape((1, 1), (1, 1)))


def test_a_span_ends_with_the_last_element_and_a_stride_of_0_repeats():
    x = torch.empty(100)[3:].as_strided((3, 4), (20, 2))
    assert span_bytes(read(x), 4) == (2 * 20 + 3 * 2 + 1) * 4
    assert not repeats(read(x)) and repeats(read(torch.empty(1, 4).expand(3, 4)))
    assert not repeats(read(torch.empty(1, 4)))

"""Operand sets: the problem's layout and alignment hold, draws differ, strays are seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tritongemm.errors import ProblemError  # noqa: E402
from tritongemm.formats import Format, register_format, remove_format  # noqa: E402
from tritongemm.measure.operands import MOST_SETS, draw, sets_for  # noqa: E402
from tritongemm.problem import GemmProblem, divisor_of  # noqa: E402


def aligned_to(tensor, leading: int) -> int:
    """The alignment in bytes of a tensor's base, leading and batch strides."""
    size = tensor.element_size()
    value = tensor.data_ptr() | leading * size
    if tensor.dim() == 3:
        value |= tensor.stride(0) * size
    return divisor_of(value)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 3])
def test_shapes_and_strides_follow_the_layout(layout, batch):
    one = draw(GemmProblem.contiguous(8, 16, 24, batch=batch, layout=layout))[0]
    lead = () if batch == 1 else (batch,)
    assert one.a.shape == (*lead, 8, 24) and one.b.shape == (*lead, 24, 16)
    assert one.out.shape == (*lead, 8, 16) and one.out.is_contiguous()
    assert one.a.stride()[-2:] == ((24, 1) if layout[0] == "n" else (1, 8))
    assert one.b.stride()[-2:] == ((16, 1) if layout[1] == "n" else (1, 24))


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 20), n=st.integers(1, 20), k=st.integers(1, 20), batch=st.integers(1, 3),
       layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
       align=st.tuples(*[st.sampled_from([2, 4, 8, 16])] * 3))
def test_every_set_has_exactly_the_alignment_that_the_problem_states(m, n, k, batch, layout, align):
    problem = GemmProblem(m, n, k, batch, layout=layout, align_a=align[0], align_b=align[1],
                          align_c=align[2])
    for one in draw(problem, sets=2):
        found = (aligned_to(one.a, one.a.stride(-2 if layout[0] == "n" else -1)),
                 aligned_to(one.b, one.b.stride(-2 if layout[1] == "n" else -1)),
                 aligned_to(one.out, one.out.stride(-2)))
        assert found == align


def test_a_seed_draws_the_same_and_each_set_is_a_draw_of_its_own():
    problem = GemmProblem.contiguous(32, 32, 32)
    first, again, other = (draw(problem, sets=2, seed=s) for s in (1, 1, 2))
    assert torch.equal(first[0].a, again[0].a) and torch.equal(first[1].b, again[1].b)
    assert not torch.equal(first[0].a, first[1].a)
    assert not torch.equal(first[0].a, other[0].a)


def bytes_drawn(x, generator):
    x.random_(-9, 10, generator=generator)


@pytest.fixture
def byte():
    """A format without NaN, known inside the test only."""
    yield register_format(Format("tst8", 8, "int8", "i8", 0.0, "s8", poison=-128,
                                 draw=bytes_drawn))
    remove_format("tst8")


def test_a_format_is_drawn_and_poisoned_in_its_own_way(byte):
    drawn = draw(GemmProblem.contiguous(24, 16, 40, dtype="tst8"), sets=2)
    one = drawn[1]
    assert one.a.dtype is one.out.dtype is torch.int8
    assert one.a.abs().max() == 9 and one.b.unique().numel() == 19
    assert drawn.blemishes() == (2 * 24 * 16, 0)
    one.out.zero_()
    drawn[0].out[3, 5] = 1
    drawn[0].out.as_strided((1,), (1,), 24 * 16 + 1).zero_()  # behind the output
    assert drawn.blemishes() == (24 * 16 - 1, 1)
    drawn.poison()
    assert drawn.blemishes() == (2 * 24 * 16, 0)


def test_scales_groups_and_packed_formats_are_not_drawn():
    plain = GemmProblem.contiguous(8, 16, 32)
    for changes in ({"scale_a": "row"}, {"grouping": "m2"}):
        with pytest.raises(ProblemError, match="with scales and grouped problems cannot be drawn"):
            draw(replace(plain, **changes))
    register_format(Format("tst4", 4, "uint8", "u8", 0.0, packed=2))
    try:
        with pytest.raises(ProblemError, match="tst4 packs 2 elements into one of torch's"):
            draw(replace(plain, dtype_b="tst4"))
    finally:
        remove_format("tst4")


def test_inputs_are_normal_and_outputs_poisoned():
    one = draw(GemmProblem.contiguous(256, 256, 256, dtype="fp32"))[0]
    assert abs(one.a.mean()) < 0.05 and abs(one.b.std() - 1) < 0.05
    assert one.out.isnan().all()


def test_what_is_left_unwritten_or_written_outside_is_counted():
    operands = draw(GemmProblem.contiguous(4, 6, 8), sets=3)
    for one in operands:
        one.out.zero_()
    assert operands.blemishes() == (0, 0)
    operands.poison()
    for one in operands:
        one.out[:3].zero_()
    assert operands.blemishes() == (3 * 6, 0)
    operands.poison()
    one = operands[1]
    one.out.as_strided((5, 6), (6, 1), one.out.storage_offset()).zero_()  # a row too many
    assert operands.blemishes() == (2 * 24, 6)


@pytest.mark.parametrize("most", [1, 5, 24, 100, 10_000])
def test_a_count_in_pieces_misses_none(most, monkeypatch):
    monkeypatch.setattr("tritongemm.measure.operands._COUNTED", most)
    operands = draw(GemmProblem(5, 7, 8, batch=3, align_c=2), sets=4)
    for one in operands:
        one.out.zero_()
    assert operands.blemishes() == (0, 0)
    operands[3].out[2, 4, 6] = operands[0].out[0, 0, 0] = float("nan")
    assert operands.blemishes() == (2, 0)


def test_what_lies_around_the_inputs_is_nan():
    one = draw(GemmProblem(5, 7, 3, dtype_a="fp32", dtype_b="fp32", dtype_out="fp32"))[0]
    assert one.a.stride(0) == 4  # 12 bytes a row do not keep 16-byte alignment
    row_and_gap = one.a.as_strided((5, 4), (4, 1), one.a.storage_offset())
    assert row_and_gap[:, 3].isnan().all() and row_and_gap[:, :3].isfinite().all()


@settings(deadline=None)
@given(side=st.integers(1, 20_000), l2=st.integers(2**20, 2**28),
       free=st.none() | st.integers(0, 2**38))
def test_sets_exceed_24_times_the_cache_and_say_warm_up_to_three_times(side, l2, free):
    problem = GemmProblem.contiguous(side, side, side)
    rotation = sets_for(problem, l2, free_bytes=free)
    assert 1 <= rotation.sets <= MOST_SETS
    assert rotation.cold == (rotation.sets * problem.bytes() > 3 * l2)
    if free is None:
        assert rotation.sets >= 2
        assert rotation.sets * problem.bytes() > 24 * l2 or rotation.sets == MOST_SETS
    elif rotation.sets > 1:
        assert rotation.sets * problem.bytes() <= free // 2
    if rotation.sets > 2:
        assert (rotation.sets - 1) * problem.bytes() <= 24 * l2  # no more than needed


@pytest.mark.parametrize(("problem", "sets", "message"), [
    pytest.param(GemmProblem.contiguous(4, 4, 4), 0, "sets=0", id="no-sets"),
    pytest.param(GemmProblem(4, 4, 4, align_a=1), 1, "align_a=1", id="below-an-element"),
])
def test_what_cannot_be_drawn_is_refused(problem, sets, message):
    with pytest.raises(ProblemError, match=message):
        draw(problem, sets=sets)


def test_an_empty_k_draws_empty_operands():
    one = draw(GemmProblem.contiguous(4, 5, 0))[0]
    assert one.a.shape == (4, 0) and one.b.shape == (0, 5)

"""Which products wait under ``tritongemm.override`` before they are judged."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from replaced import declined, taken  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm.ops import execute, native  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.ops.declined import DeclinedNow  # noqa: E402
from tritongemm.ops.sights import ONE_OF_MANY, SEEN_TOO_LITTLE, seen  # noqa: E402
from tritongemm.selection.hosttime import EARLY_SIGHTS  # noqa: E402

A, B = torch.randn(6, 5), torch.randn(5, 7)


def test_small_products_are_torchs_until_they_were_repeated(products):
    calls = {"mm": lambda: torch.mm(A, B), "mm.out": lambda: torch.mm(A, B, out=torch.empty(6, 7)),
             "addmm": lambda: torch.addmm(A[:, :1], A, B)}
    for name, call in calls.items():
        tg.override_report(clear=True)
        with tg.override():
            for _ in range(EARLY_SIGHTS + 2):
                torch.testing.assert_close(call(), call())
        assert taken() == {name: 2 * EARLY_SIGHTS + 4 - (EARLY_SIGHTS - 1)}
        assert declined() == {SEEN_TOO_LITTLE: EARLY_SIGHTS - 1}


def test_under_batch_invariance_no_product_waits(products):
    with tg.override(), tg.batch_invariant():
        first = torch.mm(A, B)
        assert torch.equal(torch.mm(A, B), first)
    assert taken() == {"mm": 2} and declined() == {}


def test_a_small_product_that_was_decided_stays_so_when_the_dispatcher_is_ready(products):
    """The program may be about to capture a CUDA graph."""
    with tg.override():
        for _ in range(EARLY_SIGHTS):
            torch.mm(A, B)
        assert taken() == {"mm": 1}
        for forget in native.on_ready:
            forget()
        torch.mm(A, B)
    assert taken() == {"mm": 2}


def test_a_large_product_is_decided_at_its_first_call(products, monkeypatch):
    monkeypatch.setattr(seen, "patience", seen.patience._replace(products=6 * 7 * 5))
    with tg.override():
        torch.mm(A, B)
        torch.mm(A[:5], B)
    assert taken() == {"mm": 1} and declined() == {SEEN_TOO_LITTLE: 1}


@pytest.fixture
def many_sizes(products, monkeypatch):
    """Every product is large, two of them are judged at once, and a later one is torch's three
    times."""
    monkeypatch.setattr(seen, "patience", seen.patience._replace(products=0))
    for name, value in {"LARGE_PRODUCTS": 0, "FIRST_SELECTIONS": 2,
                        "calls_first": lambda *_: 3}.items():
        monkeypatch.setattr(f"tritongemm.ops.sights.{name}", value)
    yield
    execute.clear_plans()


@pytest.mark.parametrize("call", [
    lambda m: torch.mm(A[:m], B), lambda m: torch.mm(A[:m], B, out=torch.empty(m, 7)),
    lambda m: torch.addmm(A[:m, :1], A[:m], B)], ids=["mm", "mm.out", "addmm"])
def test_of_ever_new_sizes_only_the_first_are_decided_at_once(many_sizes, call):
    with tg.override():
        for m in (6, 5, 4, 3, 4, 4):
            torch.testing.assert_close(call(m), call(m))
    assert declined() == {ONE_OF_MANY: 3 + 2}  # of m = 4, which is decided then, and of 3
    assert sum(taken().values()) == 4 + 3


def test_calls_that_nothing_is_selected_for_do_not_count(many_sizes, monkeypatch):
    """Those of a capture without warm plans."""
    def capturing(where):
        raise DeclinedNow("captured")

    with tg.override():
        with monkeypatch.context() as during:
            during.setattr(kept, "_check_now", capturing)
            for _ in range(5):
                torch.mm(A[:5], B)
        torch.mm(A[:4], B)
        torch.mm(A[:3], B)
    assert taken() == {"mm": 2} and declined() == {"captured": 5}


def test_calls_of_one_problem_wait_each_for_themselves(many_sizes):
    wide = torch.empty(4, 9)[:, :5].copy_(A[:4])
    with tg.override():
        for a in (A[:6], A[:5], A[:4], wide, A[:4], A[:4], A[:4], wide, wide):
            torch.testing.assert_close(torch.mm(a, B), a.double().mm(B.double()).float())
    assert declined()[ONE_OF_MANY] == 3 + 3 and taken() == {"mm": 2 + 1}


def test_many_sizes_do_not_make_others_wait(many_sizes):
    with tg.override():
        for m in (6, 5, 4):
            torch.mm(A[:m], B)
        tg.mm(A[:4], B)
        with tg.batch_invariant():
            torch.mm(A[:3], B)
    with tg.override(strict=True):
        torch.mm(A[:2], B)
    assert declined() == {ONE_OF_MANY: 1} and taken() == {"mm": 4}


def test_a_call_of_the_package_itself_does_not_wait(products):
    with tg.override():
        tg.mm(A, B)
        torch.mm(A, B)  # the plan is there
    assert taken() == {"mm": 1} and not declined()

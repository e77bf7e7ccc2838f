"""Blocks that ask for a mode: they may overlap and end in any order."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack

import pytest

pytest.importorskip("torch")

import tritongemm as tg
from tritongemm import settings
from tritongemm.errors import UsageError


def in_force() -> tuple[int | None, bool, str]:
    now = settings.current()
    return now.num_sms, now.batch_invariant, now.fp32


def test_coroutines_that_overlap_leave_nothing_behind():
    seen = []

    async def budget():
        with tg.sm_budget(7):
            await asyncio.sleep(0.02)

    async def invariant():
        await asyncio.sleep(0.01)
        with tg.batch_invariant():
            await asyncio.sleep(0.03)
            seen.append(in_force())

    async def both():
        await asyncio.gather(budget(), invariant())

    before = in_force()
    asyncio.run(both())
    assert seen == [(None, True, "split")] and in_force() == before


@pytest.mark.parametrize("ask", [lambda: tg.batch_invariant(),
                                 lambda: settings.override(batch_invariant=True)],
                         ids=["block", "override"])
def test_an_interruption_on_entry_leaves_nothing_behind(monkeypatch, ask):
    def interrupted():
        if settings.current().batch_invariant:
            raise KeyboardInterrupt

    before = in_force()
    settings.when_changed(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), ask():
            raise AssertionError("entered")
        assert in_force() == before
    finally:
        settings._listeners.remove(interrupted)


def test_the_smallest_budget_and_any_invariance_hold_whatever_ends_first():
    first, second = ExitStack(), ExitStack()
    first.enter_context(tg.sm_budget(7))
    first.enter_context(tg.batch_invariant())
    second.enter_context(tg.sm_budget(100))
    second.enter_context(tg.batch_invariant(False))
    assert in_force()[:2] == (7, True)
    first.close()
    assert in_force()[:2] == (100, False)
    second.close()
    assert in_force()[:2] == (None, False)


def test_the_fp32_mode_that_was_entered_last_holds():
    with tg.fp32_compute("ieee"):
        assert in_force()[2] == "ieee"
        with tg.fp32_compute("split"):
            assert in_force()[2] == "split"
        assert in_force()[2] == "ieee"
    assert in_force()[2] == "split"


def test_a_block_stands_in_place_of_the_environment_and_ends_with_an_error():
    with settings.override(num_sms=5, fp32="ieee"):
        with pytest.raises(RuntimeError), tg.sm_budget(100), tg.fp32_compute("split"):
            assert in_force() == (100, False, "split")
            raise RuntimeError
        assert in_force() == (5, False, "ieee")


def test_another_setting_may_change_inside_a_block():
    with tg.sm_budget(9):
        with settings.override(policy="own"):
            assert settings.current().policy == "own" and in_force()[0] == 9
        assert settings.current().policy == "auto" and in_force()[0] == 9


def test_blocks_of_many_threads_leave_nothing_behind():
    def work(number):
        for _ in range(20):
            with tg.sm_budget(number), tg.batch_invariant():
                assert settings.current().batch_invariant
                assert settings.current().num_sms <= number

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_force() == (None, False, "split")


@pytest.mark.parametrize("enabled", [1, "yes", None, len], ids=str)
def test_batch_invariance_is_on_or_off(enabled):
    with pytest.raises(UsageError, match="neither True nor False"):
        tg.batch_invariant(enabled)


def test_a_decorator_without_brackets_is_named():
    for block in (tg.batch_invariant, tg.override):
        with pytest.raises(UsageError, match=rf"@{block.__name__}\(\)"):
            @block
            def function():
                raise AssertionError


@pytest.mark.parametrize("mode", ["fast", "", None, "IEEE"])
def test_an_unknown_fp32_mode_is_named(mode):
    with pytest.raises(UsageError, match="use one of split, ieee"), tg.fp32_compute(mode):
        pass


def test_an_unknown_value_of_the_variable_is_named(monkeypatch):
    monkeypatch.setenv("TRITONGEMM_FP32", "fp16x4")
    with pytest.raises(UsageError, match="TRITONGEMM_FP32='fp16x4'"):
        settings.reload()
    monkeypatch.delenv("TRITONGEMM_FP32")
    settings.reload()

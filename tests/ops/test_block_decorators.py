"""Blocks as decorators: functions, generators, coroutines and asynchronous generators."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

pytest.importorskip("torch")

import tritongemm as tg
from tritongemm import settings
from tritongemm.integration import override as overriding

#: A block -> whether it holds.
BLOCKS = {
    "override": (lambda: tg.override("mm"), lambda: bool(overriding._active)),
    "sm_budget": (lambda: tg.sm_budget(7), lambda: settings.current().num_sms == 7),
    "batch_invariant": (tg.batch_invariant, lambda: settings.current().batch_invariant),
    "fp32_compute": (lambda: tg.fp32_compute("ieee"), lambda: settings.current().fp32 == "ieee"),
}


@pytest.fixture(params=BLOCKS)
def block(request):
    """(the block, whether it holds), which it does not before and afterwards."""
    make, holds = BLOCKS[request.param]
    assert not holds()
    yield make(), holds
    assert not holds()


def test_a_plain_function_is_inside_the_block(block):
    block, holds = block

    @block
    def body(x: int) -> tuple[bool, int]:
        """Its text."""
        return holds(), x

    assert body(3) == (True, 3) == body(x=3) and body.__doc__ == "Its text."
    assert list(inspect.signature(body).parameters) == ["x"]


def test_one_decorated_function_runs_in_several_threads(block):
    block, holds = block
    both = threading.Barrier(2)
    seen = []

    @block
    def body() -> None:
        both.wait(60)
        seen.append(holds())

    threads = [threading.Thread(target=body) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [True, True]


def test_a_generator_is_inside_while_its_body_runs(block):
    block, holds = block
    seen = []

    @block
    def body(first: int):
        try:
            got = yield first, holds()
            try:
                yield got, holds()
            except KeyError as error:
                yield error.args, holds()
            return "end"
        finally:
            seen.append(holds())

    assert inspect.isgeneratorfunction(body)
    one, other = body(1), body(2)
    assert next(one) == (1, True) and not holds()
    assert next(other) == (2, True) and not holds()
    assert one.send("sent") == ("sent", True) and not holds()
    other.close()
    assert seen == [True] and not holds()
    assert one.throw(KeyError("thrown")) == (("thrown",), True) and not holds()
    with pytest.raises(StopIteration) as ended:
        next(one)
    assert ended.value.value == "end" and seen == [True, True]


def test_an_error_of_a_generator_ends_the_block(block):
    block, holds = block

    @block
    def body():
        yield
        raise ValueError("mine")

    one = body()
    next(one)
    with pytest.raises(ValueError, match="mine"):
        next(one)
    assert not holds()


def test_coroutines_that_interleave_are_inside_while_their_bodies_run(block):
    block, holds = block
    seen = []

    @block
    async def body(first: float, then: float) -> str:
        for seconds in (first, then):
            assert holds()
            await asyncio.sleep(seconds)
        seen.append(holds())
        return "end"

    async def outside() -> list[bool]:
        held = []
        for _ in range(6):
            held.append(holds())
            await asyncio.sleep(0.005)
        return held

    async def all_of_them():
        return await asyncio.gather(body(0.0, 0.02), body(0.01, 0.01), outside())

    assert inspect.iscoroutinefunction(body)
    assert asyncio.run(all_of_them()) == ["end", "end", [False] * 6]
    assert seen == [True, True]


def test_a_cancelled_coroutine_cleans_up_inside(block):
    block, holds = block
    seen = []

    @block
    async def body() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            seen.append(holds())

    async def cancel() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert seen == [True]


def test_asynchronous_generators_that_interleave(block):
    block, holds = block
    ended = []

    @block
    async def body(count: int):
        try:
            for i in range(count):
                await asyncio.sleep(0)
                try:
                    yield i, holds()
                except KeyError:
                    yield "caught", holds()
        finally:
            await asyncio.sleep(0)
            ended.append(holds())

    async def both() -> None:
        one, other = body(2), body(5)
        for i in range(2):
            assert await anext(one) == (i, True) and not holds()
            assert await anext(other) == (i, True) and not holds()
        assert await other.athrow(KeyError()) == ("caught", True) and not holds()
        await other.aclose()
        assert ended == [True] and not holds()
        assert [item async for item in one] == [] and ended == [True, True]

    assert inspect.isasyncgenfunction(body)
    asyncio.run(both())

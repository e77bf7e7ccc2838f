"""``with`` blocks and decorators for process-wide settings.

A decorated generator, coroutine or asynchronous generator is inside the block while its body runs,
from each resumption to the next ``yield`` or ``await`` that suspends it. Code that runs between is
outside. (``contextlib.ContextDecorator`` would hold the block only while the function is called,
before its body starts.)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import ContextDecorator
from typing import Any


class Block(ContextDecorator):
    """A ``with`` block that may be entered repeatedly, from several threads, and left in any
    order."""

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, *error: object) -> None:
        raise NotImplementedError

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:  # type: ignore[override]
        """``function``, whose body runs inside the block."""
        if inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                return await _Resumed(self, function(*args, **kwargs))
            return coroutine
        if inspect.isasyncgenfunction(function):
            @functools.wraps(function)
            async def asynchronous(*args: Any, **kwargs: Any) -> Any:
                body = function(*args, **kwargs)
                step = body.asend(None)
                try:
                    while True:
                        try:
                            item = await _Resumed(self, step)
                        except StopAsyncIteration:
                            return
                        try:
                            step = body.asend((yield item))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = body.athrow(error)
                finally:
                    await _Resumed(self, body.aclose())
            return asynchronous
        if inspect.isgeneratorfunction(function):
            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                return (yield from _resumed(self, function(*args, **kwargs)))
            return generator
        return super().__call__(function)


class _Resumed:
    """An awaitable whose every step runs inside a block."""

    def __init__(self, block: Block, awaitable: Awaitable[Any]) -> None:
        self._block, self._awaitable = block, awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        return _resumed(self._block, self._awaitable.__await__())


def _resumed(block: Block, body: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """``body``; every step of it runs inside ``block``."""
    step: Callable[[], Any] = functools.partial(body.send, None)
    while True:
        with block:
            try:
                item = step()
            except StopIteration as end:
                return end.value
        try:
            step = functools.partial(body.send, (yield item))
        except GeneratorExit:
            with block:
                body.close()
            raise
        except BaseException as error:
            step = functools.partial(body.throw, error)

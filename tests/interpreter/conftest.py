"""Spares Triton's interpreter what it does again for every call: these tests take two thirds of
the time.

It computes what it computed. Kernels are run as they are, with the same operations on the same
values; only the order in which ``tl.reduce`` combines them is another, as it is on a GPU.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="session")
def _a_quicker_interpreter():
    try:
        from triton.runtime import interpreter
    except ImportError:  # every test here is skipped with the reason
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        _patch_the_language_once_a_kernel(patch, interpreter)
        patch.setattr(interpreter, "_get_np_dtype", _by_name(interpreter._get_np_dtype))
        patch.setattr(interpreter.ReduceOps, "generic_reduce", _halves(
            interpreter.ReduceOps.generic_reduce))
        yield


def _patch_the_language_once_a_kernel(patch, interpreter) -> None:
    """Every call of a device function puts the interpreter's functions into ``triton.language``,
    where its kernel has put them: it looks at some 500 names, and finds nothing to do."""
    put, run, done = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    def once(function):
        module = id(function.__globals__)
        if module not in done:
            done.add(module)
            return put(function)
        return None  # a device function's call does not look at it

    @functools.wraps(run)
    def kernel(self, *args, **kwargs):
        done.clear()
        try:
            return run(self, *args, **kwargs)
        finally:
            done.clear()

    patch.setattr(interpreter, "_patch_lang", once)
    patch.setattr(interpreter.GridExecutor, "__call__", kernel)


def _by_name(np_dtype):
    """Remembers what each call makes a table of all types for."""
    known = {}

    def of(kind):
        name = kind.scalar.name
        if name not in known:
            known[name] = np_dtype(kind)
        return known[name]

    return of


def _halves(one_by_one):
    """Combines the halves of an axis as blocks, where the interpreter combines its elements one by
    one in Python."""

    def reduce(self, inputs):
        axis = self.axis
        if axis is None or (size := inputs[0].handle.data.shape[axis]) & (size - 1):
            return one_by_one(self, inputs)
        values = [x.handle.data for x in inputs]
        while size > 1:
            size //= 2
            halves = [self.to_tensor(half, x.dtype) for part in (0, 1)
                      for half, x in zip((np.split(v, 2, axis)[part] for v in values), inputs,
                                         strict=True)]
            found = self.combine_fn.fn(*halves)
            values = [x.handle.data for x in (found if isinstance(found, tuple) else (found,))]
        return [self.to_tensor(v if self.keep_dims else v.squeeze(axis), x.dtype)
                for v, x in zip(values, inputs, strict=True)]

    return reduce

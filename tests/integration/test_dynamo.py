"""Dynamo compiles the public functions and nothing else of this package, however it meets them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch._dynamo.utils import (  # noqa: E402
    clear_compilation_metrics,
    counters,
    get_compilation_metrics,
)
from torch.func import grad, jacrev, jvp, vjp, vmap  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm.ops import execute, native  # noqa: E402

PACKAGE = Path(tg.__file__).parent
PUBLIC = {"matmul", "mm"}
A, B = torch.randn(8, 24), torch.randn(24, 16)


def compiled(function: Callable) -> Callable:
    return torch.compile(function, backend="aot_eager")


def inside(a, b):
    with tg.override(min_flops=0):
        return a @ b


@tg.override(min_flops=0)
def decorated(a, b):
    return a @ b


def budget(a, b):
    with tg.sm_budget(9), tg.batch_invariant():
        return tg.mm(a, b)


def broken(a, b):
    torch._dynamo.graph_break()
    return tg.mm(a, b)


def around(a, b):
    with tg.override(min_flops=0):
        return compiled(lambda a, b: a @ b)(a, b)


#: name -> (call, its result)
CALLS: dict[str, tuple[Callable, Callable]] = {
    **{f.__name__: (lambda f=f: compiled(f)(A, B), lambda: A @ B)
       for f in (inside, decorated, budget, broken)},
    "around": (lambda: around(A, B), lambda: A @ B),
    "grad": (lambda: grad(lambda x: compiled(tg.matmul)(x, B).sin().sum())(A),
             lambda: (A @ B).cos() @ B.t()),
    "vjp": (lambda: vjp(compiled(tg.matmul), A, B)[1](torch.ones(8, 16))[1],
            lambda: A.t() @ torch.ones(8, 16)),
    "jvp": (lambda: jvp(lambda x: compiled(tg.matmul)(x, B), (A,), (A,))[1], lambda: A @ B),
    "jacrev": (lambda: jacrev(lambda x: compiled(tg.matmul)(x, B).sum())(A),
               lambda: torch.ones(8, 16) @ B.t()),
    "vmap": (lambda: vmap(lambda x: compiled(tg.matmul)(x, B))(A[None])[0], lambda: A @ B),
}


@pytest.mark.parametrize("call", [lambda: tg.mm(A, B), lambda: tg.linear(A, B.t(), A[0, :16]),
                                  lambda: tg.addmm(A[:, :16], A, B)], ids=["mm", "linear", "addmm"])
def test_a_native_dispatcher_that_comes_later_compiles_nothing_again(call, products, monkeypatch):
    torch._dynamo.reset()
    counter = CompileCounter()
    run = torch.compile(call, backend=counter, fullgraph=True)
    run()
    monkeypatch.setattr(native, "run", lambda *operands: None)
    run()
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_this_package_is_compiled_but_the_public_functions(name, products):
    call, expected = CALLS[name]
    torch._dynamo.reset()
    execute.clear_plans()
    clear_compilation_metrics()
    counters.clear()
    found = call()
    torch.testing.assert_close(found, expected(), rtol=1e-4, atol=1e-4)
    frames = [(Path(m.co_filename), m.co_name) for m in get_compilation_metrics()]
    assert frames
    assert not [(path.name, name) for path, name in frames
                if PACKAGE in path.parents and name not in PUBLIC]
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_torchs_older_orders_of_arguments_compile_without_a_break(name):
    batch = (2,) if name == "baddbmm" else ()
    d, a, b = torch.randn(*batch, 8, 16), A.expand(*batch, 8, 24), B.expand(*batch, 24, 16)
    found = torch.compile(lambda d, a, b: getattr(tg, name)(0.5, d, 2, a, b), backend="eager",
                          fullgraph=True)(d, a, b)
    torch.testing.assert_close(found, 0.5 * d + 2 * (a @ b))

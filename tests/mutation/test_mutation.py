"""The mistakes that are made, and that every accepted one is still there to be made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tritongemm
from mutation.operators import compiles, mutants_of

PACKAGE = Path(tritongemm.__file__).resolve().parent
ACCEPTED = json.loads((Path(__file__).parent / "accepted.json").read_text("utf-8"))


@pytest.mark.parametrize("source, expected", [
    ("x = a < b", {"x = a <= b"}),
    ("x = a not in (b)", {"x = a in (b)"}),
    ("x = a and b and c", {"x = a or b and c", "x = a and b or c"}),
    ("x = not a", {"x = a"}),
    ("x = -a + b", {"x = +a + b", "x = -a - b"}),
    ("x = a[1]", {"x = a[2]", "x = a[0]"}),
    ("x = f(a, b.c)", set()),
    ("x = f('é', a, b)", set()),
    ("é = f(a, b)", {"é = f(b, a)"}),
    ("def f(a=True): return a, 2", {
        "def f(a=False): return a, 2", "def f(a=True): return None",
        "def f(a=True): return a, 3", "def f(a=True): return a, 1"}),
    ("raise E(1)", {"pass"}),
    ("if a: b()", {"if not (a): b()", "if a: pass"}),
    ("x: Literal[1] = 'a' + b", set()),
    ("x = f'{a + 1}'", set()),
    ("@triton.jit\ndef f(): return 1", set()),
], ids=range(15))
def test_each_operator_makes_one_edit(source, expected):
    text = source.encode()
    found = [one.of(text).decode() for one in mutants_of("x.py", text)]
    assert set(found) == expected and len(found) == len(expected)
    assert all(compiles(x.encode()) for x in found)


def test_every_accepted_mistake_can_still_be_made_and_has_a_reason():
    for one in ACCEPTED:
        text = " ".join((PACKAGE / one["file"]).read_text("utf-8").split())
        assert one["before"] in text, one
        assert one["before"] != one["after"] and len(one["reason"]) > 10, one

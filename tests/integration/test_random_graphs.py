"""The graph pass on random graphs of products and what follows them: values and gradients are those
of the program as it is written."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ops"))

import faked  # noqa: E402

from tritongemm.integration import fused_gates  # noqa: E402
from tritongemm.integration import inductor as made  # noqa: E402

plans = faked.plans  # a fixture
F = torch.nn.functional
#: Extents that meet often, so that most values can be combined.
ROWS, COLUMNS = 6, (8, 12)
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh,
               "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
STEPS = 9


class Program:
    """A straight line of random steps, each on earlier values; it is the same each time it runs.

    Args:
        seed: of the steps.
        batch: whether rows are two axes.
    """

    def __init__(self, seed: int, batch: bool) -> None:
        rng = random.Random(seed)
        self.rows = (2, ROWS // 2) if batch else (ROWS,)
        self.weights = [torch.randn(n, k, generator=torch.Generator().manual_seed(seed + n + k))
                        / k**0.5 for n in COLUMNS for k in COLUMNS]
        self.vectors = [torch.linspace(-1, 1, n) for n in COLUMNS]
        self.column = torch.linspace(0.5, 1.5, ROWS).reshape(*self.rows, 1)
        self.inputs = [torch.randn(*self.rows, n, generator=torch.Generator().manual_seed(seed + n))
                       for n in COLUMNS]
        self.widths = list(COLUMNS)  # of the values so far
        self.steps: list[tuple[Callable, tuple[int, ...]]] = []
        while len(self.steps) < STEPS:
            self._draw(rng)
        self.results = sorted({len(self.widths) - 1, rng.randrange(2, len(self.widths))})

    def _draw(self, rng: random.Random) -> None:
        last = len(self.widths) - 1
        at = last if rng.random() < 0.7 else rng.randrange(last + 1)
        width = self.widths[at]
        like = [i for i, n in enumerate(self.widths) if n == width]
        kind = rng.choice(("product",) * 9 + ("activation",) * 4 + ("combine",) * 3 + (
            "vector", "vector", "column", "number", "gate", "twice", "norm", "sum", "dtype"))
        if kind == "product":
            self._product(rng, at, width)
        elif kind == "activation":
            self._add(rng.choice(list(ACTIVATIONS.values())), at)
        elif kind == "combine":
            operation = rng.choice((torch.add, torch.mul, torch.mul, torch.sub))
            self._add(operation, at, rng.choice(like))
        elif kind == "vector":
            vector, operation = self.vectors[COLUMNS.index(width)], rng.choice((torch.add,
                                                                                torch.mul))
            self._add(lambda x: operation(x, vector), at)
        elif kind == "column":
            self._add(lambda x: x * self.column.to(x.dtype), at)
        elif kind == "number":
            number = rng.choice((0.5, -2.0, 0.125))
            self._add(lambda x: x * number, at)
        elif kind == "gate":
            activate, other = rng.choice(list(ACTIVATIONS.values())), rng.choice(like)
            self._add(lambda x, y: activate(x) * y, at, other)
        elif kind == "twice":  # a value that is read again, transposed and back
            self._add(lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2) + x, at)
        elif kind == "norm":
            self._add(lambda x: F.layer_norm(x, (width,)), at)
        elif kind == "sum":
            self._add(lambda x: x - x.mean(-1, keepdim=True), at)
        else:
            self._add(lambda x: x.double().float() * 1.5, at)

    def _product(self, rng: random.Random, at: int, width: int) -> None:
        column = rng.randrange(len(COLUMNS))
        weight = self.weights[column * len(COLUMNS) + COLUMNS.index(width)]
        bias = self.vectors[column] if rng.random() < 0.3 else None
        how = rng.random()
        if how < 0.2:  # both halves of one weight
            both, activate = torch.cat((weight, weight.flip(0))), rng.choice(
                list(ACTIVATIONS.values()))
            first = rng.random() < 0.5

            with_bias = torch.linspace(-1, 1, len(both)) if bias is not None else None

            def halves(x: torch.Tensor) -> torch.Tensor:
                one, other = F.linear(x, both, with_bias).chunk(2, -1)
                return activate(one) * other if first else one * activate(other)
            self._add(halves, at, width=COLUMNS[column])
        elif how < 0.4:
            self._add(lambda x: x @ weight.t(), at, width=COLUMNS[column])
        else:
            self._add(lambda x: F.linear(x, weight, bias), at, width=COLUMNS[column])

    def _add(self, step: Callable, *at: int, width: int = 0) -> None:
        self.steps.append((step, at))
        self.widths.append(width or self.widths[at[0]])

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for step, at in self.steps:
            values.append(step(*(values[i] for i in at)))
        return tuple(values[i] for i in self.results)


def leaves(program: Program, gradient: bool) -> list[torch.Tensor]:
    return [x.clone().requires_grad_(gradient) for x in program.inputs]


@pytest.mark.parametrize("gradient", (False, True), ids=("inference", "training"))
@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=pytest.mark.thorough if seed > 15 else ()) for seed in range(36)])
def test_a_random_graph_keeps_its_values_and_gradients(seed, gradient, plans, monkeypatch):
    monkeypatch.setattr(fused_gates, "faster_apart", lambda *a, **k: None)
    program = Program(seed, batch=seed % 3 == 0)
    torch._dynamo.reset()
    run = torch.compile(program.__call__, backend=made.backend_without_codegen(aux=True),
                        fullgraph=True, dynamic=seed % 5 == 4)
    mine, theirs = leaves(program, gradient), leaves(program, gradient)
    found, wanted = run(*mine), program(*theirs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    if gradient:
        for results in (found, wanted):
            sum((x * x.detach().cos()).sum() for x in results).backward()
        for one, other in zip(mine, theirs, strict=True):
            if other.grad is None:
                assert one.grad is None or not one.grad.any()
            else:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)


def test_the_graphs_have_what_the_pass_fuses(plans, monkeypatch):
    monkeypatch.setattr(fused_gates, "faster_apart", lambda *a, **k: None)
    for seed in range(20):
        program = Program(seed, batch=False)
        torch._dynamo.reset()
        run = torch.compile(program.__call__, backend=made.backend_without_codegen(aux=True))
        inputs = leaves(program, True)
        sum(x.sum() for x in run(*inputs)).backward()
    words = {word for problem, _ in plans.made for word in problem.epilogue.split("+")}
    assert words & {"mul", "gain"} and words & {"bias", "add"}
    assert any(word.startswith("d") for word in words), words

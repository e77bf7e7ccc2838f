"""A model under ``tritongemm.override``, its products by real kernels in Triton's interpreter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tritongemm as tg

pytestmark = pytest.mark.interpreter


class Model(torch.nn.Module):
    """An embedding, attention by bmm, and two layers, one of which is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 16)
        self.mixed = torch.nn.Linear(16, 48)
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        q, k, v = self.mixed(x).chunk(3, -1)
        x = x + torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)
        return torch.nn.functional.gelu(self.layer(x)) @ self.embedding.weight.t()


def losses(steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    model, words = Model(), torch.randint(20, (2, 9))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(words)[:, :-1].flatten(0, 1),
                                                 words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_model_trains_as_on_torch():
    tg.override_report(clear=True)
    expected = losses()
    with tg.override(min_flops=0, strict=True):
        found = losses()
    report = tg.override_report()
    # Forward: three layers and two bmm; backward: two products of each. A layer's input of three
    # axes folds into mm or addmm.
    assert report.taken == 3 * 15 and report.declined == 0
    assert found == pytest.approx(expected, rel=1e-4)
    assert losses() == expected  # torch is back


def test_autocast_casts_before_the_override():
    tg.override_report(clear=True)
    a, b = torch.randn(20, 24), torch.randn(24, 28)
    with torch.autocast("cpu", torch.bfloat16):
        expected = a @ b
        with tg.override(min_flops=0):
            found = a @ b
    assert found.dtype == torch.bfloat16 and tg.override_report().taken == 1
    torch.testing.assert_close(found, expected)


def test_transforms_come_down_to_the_override():
    a, b = torch.randn(3, 5, 6), torch.randn(6, 4)

    def results() -> tuple:
        return (torch.func.vmap(torch.mm, (0, None))(a, b),
                torch.func.jacrev(lambda x: torch.mm(x, b))(a[0]),
                torch.func.jvp(lambda x: torch.mm(x, b), (a[0],), (a[1],)))

    expected = results()
    tg.override_report(clear=True)
    with tg.override(min_flops=0):
        found = results()
    assert tg.override_report().taken >= 4
    torch.testing.assert_close(found, expected)


def test_out_may_be_an_operand():
    a = torch.randn(16, 16)
    expected, cubed = a @ a, a.clone()
    with tg.override(min_flops=0):
        torch.mm(cubed, cubed, out=cubed)
        summed = a.clone().addmm_(a, a, beta=2)
    torch.testing.assert_close(cubed, expected)
    torch.testing.assert_close(summed, 2 * a + expected)


def test_nan_of_an_input_times_zero_is_not_seen():
    a = torch.randn(16, 16)
    with tg.override(min_flops=0):
        result = torch.addmm(torch.full((16,), float("nan")), a, a, beta=0)
    torch.testing.assert_close(result, a @ a)


def test_compiled_code_is_overridden():
    a = torch.randn(16, 16)
    compiled = torch.compile(lambda x: torch.mm(x, x).relu(), backend="aot_eager", fullgraph=True)
    tg.override_report(clear=True)
    with tg.override(min_flops=0):
        found = compiled(a)
    assert tg.override_report().taken == 1
    torch.testing.assert_close(found, (a @ a).relu())


def test_threads_multiply_under_overrides_of_their_own():
    a, b = torch.randn(17, 18), torch.randn(18, 19)
    expected = a @ b

    def multiply() -> list[torch.Tensor]:
        with tg.override(min_flops=0):
            return [torch.mm(a, b) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        found = [result for done in [pool.submit(multiply) for _ in range(8)]
                 for result in done.result()]
    torch.testing.assert_close(found, [expected] * 40)
    assert tg.override_report().active == ()

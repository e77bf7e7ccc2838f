"""Problems with an epilogue: what is drawn, what proves it, and torch's own ways of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tritongemm.measure import numerics  # noqa: E402
from tritongemm.measure.contender import Contender  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.measure.proof import Proof  # noqa: E402
from tritongemm.measure.protocol import measure  # noqa: E402
from tritongemm.measure.torch_baseline import TorchBaseline, product  # noqa: E402
from tritongemm.measure.torch_epilogue import (  # noqa: E402
    ACTIVATIONS,
    factor_of,
    linear_part,
    torch_ways,
)
from tritongemm.problem import (  # noqa: E402
    EPILOGUES,
    FACTORS,
    PLAIN_EPILOGUES,
    GemmProblem,
    epilogue_of,
)

CPU = torch.device("cpu")


def problem(epilogue: str, m: int = 24, n: int = 40, k: int = 32, **more) -> GemmProblem:
    return GemmProblem.contiguous(m, n, k, epilogue=epilogue, **more)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("epilogue", PLAIN_EPILOGUES)
def test_d_is_drawn_where_the_epilogue_reads_one(epilogue, batch):
    first, second = draw(problem(epilogue, batch=batch, dtype_out="fp32"), sets=2)
    kind = epilogue_of(epilogue)
    addend = kind.addend
    if addend in ("none", "scale"):
        assert first.d is None
    else:
        assert first.d.shape == ((40,) if kind.has_vector else first.out.shape)
        assert first.d.dtype == torch.float32 and first.d.isfinite().all()
        assert not torch.equal(first.d, second.d)
    assert (first.alpha == 1.0) == (addend != "scale")
    assert len(first.arguments) == (6 if addend != "none" else 3)


@pytest.mark.parametrize("align", [2, 4, 8, 16])
def test_a_matrix_d_is_aligned_as_c_is(align):
    wanted = GemmProblem(8, 40, 8, align_c=align, epilogue="add")
    one = draw(wanted)[0]
    assert one.d.stride() == one.out.stride()
    assert one.d.data_ptr() % 16 == one.out.data_ptr() % 16


@pytest.mark.parametrize(("epilogue", "batch"), [
    (e, batch) for e, kind in EPILOGUES.items() for batch in ((1,) if kind.gated else (1, 3))])
def test_every_implementation_of_torch_matches_float64(epilogue, batch):
    wanted = problem(epilogue, dtype="fp32", batch=batch)
    for name, bind in torch_ways(wanted, product).items():
        if name == "addmm_activation" and epilogue.endswith("gelu_tanh"):
            continue  # on the host this one is of the error function
        operands = draw(wanted)
        bind(operands[0])()
        report = Proof(wanted, operands, 0).check(name)
        assert report.ok, report.message


def test_the_implementations_are_those_of_torch():
    def ways(epilogue, **more):
        return set(torch_ways(problem(epilogue, **more), product))

    assert ways("none") == {""} and ways("relu") == {"unfused"}
    assert ways("scale") == ways("add+gelu") == ways("bias+gelu") == {"unfused", "addmm"}
    assert ways("bias+relu") == ways("bias+gelu_tanh") == {"unfused", "addmm", "addmm_activation"}
    assert ways("bias+relu", batch=2) == {"unfused", "addmm"}
    assert ways("bias", dtype_out="fp32") == ways("gain") == ways("dgelu") == {"unfused"}


def test_the_baseline_has_a_back_end_for_each_implementation():
    assert TorchBaseline(problem("none"), CPU).back_ends == ("",)
    assert TorchBaseline(problem("bias"), CPU).back_ends == ("unfused", "addmm")


def test_rows_of_the_reference_take_their_rows_of_d():
    wanted, rows = problem("add", batch=2), torch.tensor([0, 5, 23])
    one = draw(wanted)[0]
    whole = linear_part(numerics.reference(one.a, one.b), one)
    part = linear_part(numerics.reference(one.a, one.b, rows), one, rows)
    assert torch.equal(whole[:, rows], part)


def contender(change) -> Contender:
    """Right but for ``change(operands, x)``, where x is the sum before the activation."""
    def bind(operands):
        def run():
            x = operands.alpha * (operands.a.double() @ operands.b.double())
            if operands.d is not None:
                x = x + operands.beta * operands.d.double()
            operands.out.copy_(change(operands, x))
        return run
    return Contender("mine", bind)


WRONG = {
    "no-activation": lambda operands, x: x,
    "another-gelu": lambda operands, x: torch.where(x > 0, x, 0),
    "no-d": lambda operands, x: ACTIVATIONS["gelu"](x - operands.d.double()),
    "d-twice": lambda operands, x: ACTIVATIONS["gelu"](x + operands.d.double()),
    "added-after": lambda operands, x: ACTIVATIONS["gelu"](x - operands.d) + operands.d,
}


@pytest.mark.parametrize("epilogue", ["bias+gelu", "add+gelu"])
def test_a_right_epilogue_passes_and_a_wrong_one_does_not(epilogue):
    wanted = problem(epilogue, 64, 64, 64)
    right = contender(lambda operands, x: ACTIVATIONS["gelu"](x))
    found = measure(wanted, [right], device="cpu", coarse=True)
    assert found["mine"].status == "ok" and found["torch"].torch_backend in ("unfused", "addmm")
    for name, change in WRONG.items():
        found = measure(wanted, [contender(change)], device="cpu", coarse=True)
        assert found["mine"].status == "wrong", name


@pytest.mark.parametrize("epilogue", FACTORS)
def test_a_right_factor_passes_and_a_wrong_one_does_not(epilogue):
    wanted, kind = problem(epilogue, 64, 64, 64), epilogue_of(epilogue)

    def mine(factor):
        def bind(operands):
            def run():
                product = operands.a.double() @ operands.b.double()
                operands.out.copy_(product * factor(operands.d.double()))
            return run
        return Contender("mine", bind)

    factor = factor_of(kind)
    assert measure(wanted, [mine(factor)], device="cpu")["mine"].status == "ok"
    for wrong in (lambda d: 1.0, lambda d: factor(-d), lambda d: 1.05 * factor(d)):
        found = measure(wanted, [mine(wrong)], device="cpu", coarse=True)
        assert found["mine"].status == "wrong"


@pytest.mark.parametrize("epilogue", ("gain", "mul"))
def test_a_factor_that_was_kept_from_an_earlier_call_is_seen(epilogue):
    def bind(operands):
        kept = operands.d.double()

        def run():
            operands.out.copy_(operands.a.double() @ operands.b.double() * kept)
        return run

    found = measure(problem(epilogue, 64, 64, 64), [Contender("mine", bind)], device="cpu")
    assert found["mine"].status == "wrong" and "changed in place" in found["mine"].error


def test_a_bias_that_was_kept_from_an_earlier_call_is_seen():
    def bind(operands):
        kept = operands.d.clone()

        def run():
            operands.out.copy_(operands.a.double() @ operands.b.double() + kept.double())
        return run

    found = measure(problem("bias", 64, 64, 64), [Contender("mine", bind)], device="cpu")
    assert found["mine"].status == "wrong" and "changed in place" in found["mine"].error

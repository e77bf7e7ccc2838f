"""complex64 products by interpreted kernels, against complex128: values, conjugates, gradients."""

from __future__ import annotations

import itertools

import pytest
import torch

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.errors import UnsupportedError
from tritongemm.kernels.complex_product import complex_launches
from tritongemm.kernels.interpret import interpret
from tritongemm.ops.plan import geometry_of
from tritongemm.problem import LAYOUTS, GemmProblem

pytestmark = pytest.mark.interpreter
F = torch.nn.functional
CONJUGATES = tuple(itertools.product((False, True), repeat=2))


def stored(rows: int, cols: int, letter: str = "n", batch: tuple[int, ...] = (),
           gap: int = 0) -> torch.Tensor:
    """Normal values [..., rows, cols], stored by ``letter`` with ``gap`` elements behind a row; of
    letter ``s`` with a stride of 2 along either axis."""
    generator = torch.Generator().manual_seed(rows * cols + gap)
    if letter == "s":
        return torch.randn(*batch, 2 * rows, 2 * cols, dtype=torch.complex64,
                           generator=generator)[..., ::2, ::2]
    outer, inner = (cols, rows) if letter == "t" else (rows, cols)
    x = torch.randn(*batch, outer, inner + gap, dtype=torch.complex64,
                    generator=generator)[..., :inner]
    return x.mT if letter == "t" else x


def near(found: torch.Tensor, expected: torch.Tensor, inner: int) -> None:
    """Within a few roundings of sums of 2 * ``inner`` real products."""
    assert found.dtype == torch.complex64 and found.shape == expected.shape
    size = max(1.0, expected.abs().max().item())
    assert (found - expected).abs().max().item() <= 4 * 2.0**-23 * (2 * inner)**0.5 * size


def wide(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x.to(torch.complex128) for x in tensors]


@pytest.mark.parametrize(("conj_a", "conj_b"), CONJUGATES)
@pytest.mark.parametrize("layout", (*LAYOUTS, "ss"))
def test_layouts_and_lazy_conjugates(layout, conj_a, conj_b):
    a, b = stored(33, 40, layout[0]), stored(40, 17, layout[1], gap=3)
    a, b = a.conj() if conj_a else a, b.conj() if conj_b else b
    near(tg.mm(a, b, strict=True), torch.mm(*wide(a, b)), 40)


@pytest.mark.parametrize(("shape_a", "shape_b"), (
    ((3, 9, 24), (3, 24, 17)), ((2, 1, 9, 24), (3, 24, 17)), ((9, 24), (3, 24, 17)),
    ((2, 3, 9, 24), (24, 17)), ((3, 9, 24), (1, 24, 17)), ((1, 24), (24, 1)), ((9, 1), (1, 7)),
    ((1, 5), (5, 7)), ((9, 24), (24,)), ((24,), (24, 7))))
def test_batches_that_broadcast_and_single_rows_and_columns(shape_a, shape_b):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(x, dtype=torch.complex64, generator=generator) for x in (shape_a, shape_b))
    near(tg.matmul(a, b.conj(), strict=True), torch.matmul(*wide(a, b.conj())), 24)


def test_adjoints_of_a_batch_and_an_out():
    a, b, out = stored(9, 24, "n", (3,)), stored(17, 24, "n", (3,)), stored(9, 17, "n", (3,), 2)
    near(tg.bmm(a, b.mH, out=out, strict=True), torch.bmm(*wide(a, b.mH)), 24)
    near(tg.bmm(a.mH, a, strict=True), torch.bmm(*wide(a.mH, a)), 24)


def test_sums_scaled_by_real_numbers():
    a, b, d, bias = stored(9, 24), stored(24, 17, "t"), stored(9, 17), stored(1, 17)[0]
    near(tg.addmm(d, a.conj(), b, beta=-0.5, alpha=1.5, strict=True),
         torch.addmm(*wide(d, a.conj(), b), beta=-0.5, alpha=1.5), 24)
    near(tg.linear(a, b.mT, bias, strict=True), F.linear(*wide(a, b.mT, bias)), 24)


def test_what_its_kernels_do_not_take_is_torchs():
    a, b, d = stored(9, 24), stored(24, 17), stored(9, 17)
    for add, more in ((d.conj(), {}), (d, {"alpha": 1j}), (stored(9, 1), {})):
        assert torch.equal(tg.addmm(add, a, b, **more), torch.addmm(add, a, b, **more))
    gaps = stored(17, 9).mT
    with pytest.raises(UnsupportedError, match="rows of the result have gaps"):
        tg.mm(a, b, out=gaps, strict=True)
    with pytest.raises(UnsupportedError, match="complex128"):
        tg.mm(*wide(a, b), strict=True)
    with pytest.raises(RuntimeError):
        tg.mm(a, b.real, strict=False)


@pytest.mark.parametrize(("ours", "theirs", "shapes"), (
    (tg.mm, torch.mm, ((9, 24), (24, 17))), (tg.bmm, torch.bmm, ((3, 9, 24), (3, 24, 17))),
    (tg.matmul, torch.matmul, ((9, 24), (3, 24, 17))),
    (tg.linear, F.linear, ((2, 9, 24), (17, 24))),
    (lambda a, b, **o: tg.matmul(a, b.mH, **o), lambda a, b: a @ b.mH, ((2, 9, 24), (17, 24)))),
    ids=("mm", "bmm", "broadcast", "linear", "adjoint"))
def test_gradients_are_torchs(ours, theirs, shapes):
    tensors = [stored(*s[-2:], batch=s[:-2]).requires_grad_() for s in shapes]
    twins = [x.detach().to(torch.complex128).requires_grad_() for x in tensors]
    found, expected = ours(*tensors, strict=True), theirs(*twins)
    grad = stored(*found.shape[-2:], batch=found.shape[:-2], gap=1)
    found.backward(grad)
    expected.backward(grad.to(torch.complex128))
    for x, y in zip(tensors, twins):
        near(x.grad, y.grad, 24 * 3)


def test_second_derivatives_and_tangents_are_torchs():
    a, b = stored(5, 6).requires_grad_(), stored(6, 4).requires_grad_()
    twins = [x.detach().to(torch.complex128).requires_grad_() for x in (a, b)]
    found = []
    for multiply, x, y in ((tg.mm, a, b), (torch.mm, *twins)):
        grad, = torch.autograd.grad(multiply(x, y).abs().square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.abs().square().sum(), (x, y)))
    for one, other in zip(*found):
        assert torch.allclose(one.to(other.dtype), other, rtol=1e-4)
    tangents = stored(5, 6, gap=1), stored(6, 4, gap=1)
    found = [torch.func.jvp(multiply, x, y)[1] for multiply, x, y in (
        (tg.mm, (a.detach(), b.detach()), tangents),
        (torch.mm, tuple(x.detach() for x in twins), tuple(wide(*tangents))))]
    near(*found, 12)


def test_under_override_conjugates_are_read_in_place():
    a, b = stored(9, 24), stored(17, 24)
    tg.override_report(clear=True)
    with tg.override(min_flops=0):
        found = a @ b.mH
        summed = torch.addmm(found, a, b.mH)
    report = tg.override_report(clear=True)
    assert report.taken == 2 and report.declined == 0
    near(found, torch.mm(*wide(a, b.mH)), 24)
    near(summed, 2 * torch.mm(*wide(a, b.mH)), 24)


def test_infinities_and_nan_are_where_torchs_are():
    a, b = stored(40, 64), stored(64, 33)
    for i, value in enumerate((complex("inf"), complex(0, float("inf")), complex("nan"),
                               complex(2.0**90, 2.0**-120))):
        a[3 * i + 1, 5 * i] = value
        b[7 * i + 2, 2 * i + 1] = value
    found, expected = (torch.view_as_real(x) for x in (
        tg.mm(a, b, strict=True),
        torch.complex(a.real.double() @ b.real.double() - a.imag.double() @ b.imag.double(),
                      a.real.double() @ b.imag.double() + a.imag.double() @ b.real.double())))
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    assert found.isnan().any() and found.isfinite().any()


@pytest.mark.parametrize("layout", ("nn", "nt", "tn"))
@pytest.mark.parametrize(("conj_a", "conj_b"), CONJUGATES)
def test_arranged_operands_are_those_of_the_documented_product(layout, conj_a, conj_b):
    """The launches before the float32 product, by bits: signs, order, batches, NaN."""
    config = KernelConfig("tiled", 16, 16, 16, num_warps=1)
    a, b = stored(5, 40, layout[0], (2,)), stored(40, 70, layout[1], (2,))
    a[0, 0, 0] = complex(float("nan"), -0.0)
    b[1, 3, 4] = complex(-0.0, float("inf"))
    c = torch.zeros(2, 5, 70, dtype=torch.complex64)
    seen = [x.conj() if flag else x for x, flag in ((a, conj_a), (b, conj_b))]
    problem = GemmProblem(5, 70, 40, 2, "c64", "c64", "c64", layout, 8, 8, 16)
    launches = complex_launches(problem, config, interpreter_device(), geometry_of(*seen, c))
    arranging = [x for x in launches if x.function == "arrange_complex"]
    assert len(arranging) == (2 if layout[0] == "t" else 1)
    scratch = torch.full((launches[0].scratch_bytes // 4,), 7.0)
    for launch in arranging:
        interpret(launch, {"a": seen[0], "b": seen[1], "c": c, "scratch": scratch})

    def at(launch, shape):
        target, = (x for x in launch.arguments if x.name == "target")
        lead, matrix = (2 * x.value for x in launch.arguments if x.name in ("lead", "matrix"))
        return scratch[target.offset // 4:].as_strided(shape, (matrix, lead, 1))

    sign_a, sign_b = -1.0 if conj_a else 1.0, -1.0 if conj_b else 1.0
    r, i = b.real, sign_b * b.imag
    # [2k, 2n], [2k, 2n + 1] and [2k + 1, 2n], [2k + 1, 2n + 1]
    expected = torch.stack((torch.stack((r, i), -1), sign_a * torch.stack((-i, r), -1)), -3)
    expected = expected.reshape(2, 80, 140)
    found = at(arranging[0], (2, 80, 140)) if layout[1] == "n" else at(
        arranging[0], (2, 140, 80)).mT
    bits = [x.contiguous().view(torch.int32) for x in (found, expected)]
    assert torch.equal(*bits)
    if layout[0] == "t":
        found = at(arranging[1], (2, 5, 80)).contiguous()
        expected = torch.view_as_real(a.contiguous()).flatten(-2)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.thorough
def test_compiled_calls_and_their_gradients():
    a, b = stored(9, 24).requires_grad_(), stored(17, 24).requires_grad_()
    compiled = torch.compile(lambda x, y: tg.matmul(x, y.mH), backend="aot_eager", fullgraph=True)
    found = compiled(a, b)
    grad = stored(9, 17, gap=1)
    found.backward(grad)
    near(found.detach(), torch.mm(*wide(a.detach(), b.detach().mH)), 24)
    near(a.grad, torch.mm(*wide(grad, b.detach())), 17)
    near(b.grad, torch.mm(*wide(grad.mH, a.detach())), 9)


@pytest.mark.parametrize("which", ("x", "w", "residual", "none"))
def test_a_layer_with_a_residual_is_composed(which):
    """Its gradients have the adjoints, lazy conjugates count, and a bias may have gaps."""
    tensors = {"x": stored(33, 40), "w": stored(17, 40), "residual": stored(33, 17)}
    bias = stored(2, 17)[0].repeat_interleave(2)[::2]
    given = {name: (x.conj() if name == which else x).detach().requires_grad_()
             for name, x in tensors.items()}
    expected = {name: x.detach().resolve_conj().to(torch.complex128).requires_grad_()
                for name, x in given.items()}
    found = tg.linear(given["x"], given["w"], bias, residual=given["residual"])
    wanted = F.linear(expected["x"], expected["w"], bias.to(torch.complex128)
                      ) + expected["residual"]
    near(found, wanted, 40)
    found.abs().square().sum().backward()
    wanted.abs().square().sum().backward()
    for name, x in given.items():
        near(x.grad / 8, expected[name].grad / 8, 40)

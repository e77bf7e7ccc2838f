"""The host rungs, run for real."""

import builtins
import sys

import pytest

from tritongemm.baselines import HOST_RUNGS, host_gemm
from tritongemm.errors import MissingDependencyError, ProblemError, UsageError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def numba():
    return pytest.importorskip("numba")


SIZES = [(1, 1, 1), (3, 5, 7), (33, 257, 65), (64, 256, 64), (101, 300, 131), (0, 4, 3), (4, 0, 3),
         (5, 6, 0)]


@pytest.mark.parametrize("name", HOST_RUNGS)
def test_host_rung_agrees_with_float64(numba, name):
    generator = torch.Generator().manual_seed(7)
    for m, n, k in SIZES:
        a, b, c = (torch.randn(*s, generator=generator) for s in ((m, k), (k, n), (m, n)))
        for alpha, beta in ((1.0, 0.0), (0.0, 0.0), (-1.37, 0.61), (1.0, 1.0), (0.0, 2.0)):
            out = torch.full((m, n), float("nan")) if beta == 0 else c.clone()
            assert host_gemm(name, a, b, out=out, alpha=alpha, beta=beta) is out
            want = alpha * (a.double() @ b.double())
            if beta:
                want += beta * c.double()
            limit = 8 * 2.0**-23 * (abs(alpha) * max(k, 1) ** 0.5 + abs(beta)) * 4
            assert out.shape == want.shape
            if out.numel():
                assert (out.double() - want).abs().max().item() <= limit


@pytest.mark.parametrize("name", HOST_RUNGS)
def test_host_rung_takes_fp64_and_keeps_nan(numba, name):
    a, b = torch.randn(5, 6, dtype=torch.float64), torch.randn(6, 7, dtype=torch.float64)
    assert torch.allclose(host_gemm(name, a, b), a @ b, rtol=1e-13, atol=1e-13)
    a[2, 3] = float("nan")
    assert torch.equal(host_gemm(name, a, b).isnan(), (a @ b).isnan())


def test_unknown_host_rung_lists_the_known_ones():
    with pytest.raises(UsageError, match="'cpu_fast'.*cpu_naive"):
        host_gemm("cpu_fast", torch.ones(1, 1), torch.ones(1, 1))


def test_missing_numba_names_the_install_command(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "numba":
            raise ModuleNotFoundError("No module named 'numba'", name="numba")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "tritongemm.baselines.host.cpu_naive", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"numba.*'\.\[cpu\]'"):
        host_gemm("cpu_naive", torch.ones(1, 1), torch.ones(1, 1))


@pytest.mark.parametrize("a, b, more, error, said", [
    (torch.ones(2, 3), torch.ones(4, 2), {}, ProblemError, "make no product"),
    (torch.ones(3), torch.ones(3, 2), {}, ProblemError, "make no product"),
    (torch.ones(2, 3).half(), torch.ones(3, 2).half(), {}, ProblemError, "fp32 or fp64"),
    (torch.ones(2, 3), torch.ones(3, 2).double(), {}, ProblemError, "one dtype"),
    (torch.ones(3, 2).t(), torch.ones(3, 2), {}, UsageError, "a has strides"),
    (torch.ones(2, 3), torch.ones(3, 2), {"beta": 1.0}, UsageError, "needs out"),
    (torch.ones(2, 3), torch.ones(3, 2), {"out": torch.ones(3, 2)}, ProblemError, "expected"),
    (torch.ones(2, 3, device="meta"), torch.ones(3, 2), {}, UsageError, "is on meta"),
])
def test_host_rung_refuses_bad_operands(numba, a, b, more, error, said):
    with pytest.raises(error, match=said):
        host_gemm("cpu_naive", a, b, **more)

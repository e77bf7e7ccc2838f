"""Providers of other packages, with fakes in their place: a package that is missing, what a package
has no product for, and what it is called with."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

torch = pytest.importorskip("torch")

from tritongemm.bench.providers import load  # noqa: E402
from tritongemm.bench.session import Job, Session  # noqa: E402
from tritongemm.bench.target import HOST, Target  # noqa: E402
from tritongemm.device import device_named  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

RIVALS = ("cublaslt-tuned", "deep_gemm", "flag_gems", "triton_kernels", "quack")
GPU = Target("cuda", device_named("nvidia-h100-80gb-hbm3"), "cuda:0")
CPU = Target("cpu", HOST, "cpu")


class Matmul:
    """nvmath's, as far as the provider uses it."""

    tuned = 0
    plans: list = []

    def __init__(self, a, b, *, c, beta, options):
        assert beta == 0.0 and options.inplace
        self.a, self.b, self.c = a, b, c
        self.algorithms = []

    def plan(self, preferences=None, algorithms=None):
        assert (preferences is None) != (algorithms is None)
        assert preferences is None or preferences.limit > 100  # more than the heuristics' usual 8
        Matmul.plans.append(algorithms)
        self.algorithms = list(algorithms or ["slow", "fast"])

    def autotune(self, iterations, prune):
        Matmul.tuned += 1
        self.algorithms = ["fast"][:prune]

    def execute(self, algorithm):
        assert algorithm == "fast"
        self.c.copy_(self.a @ self.b)


class Options:
    def __init__(self, inplace=None, limit=8):
        self.inplace, self.limit = inplace, limit


def stored(letters):
    """DeepGEMM's functions take operands as they lie in memory."""
    def gemm(a, b, out):
        assert a.is_contiguous() and b.is_contiguous()
        out.copy_((a.mT if letters[0] == "t" else a) @ (b.mT if letters[1] == "t" else b))
    return gemm


def into(a, b, *, out):
    out.copy_(a @ b)


#: Dotted module -> its contents.
FAKES = {
    "nvmath.linalg.advanced": {"Matmul": Matmul, "MatmulOptions": Options,
                               "MatmulPlanPreferences": Options},
    "deep_gemm": {f"bf16_gemm_{letters}": stored(letters) for letters in ("nn", "nt", "tn", "tt")},
    "flag_gems.runtime.backend._nvidia.hopper.ops.mm": {"mm_out": into},
    "triton_kernels.matmul": {"matmul": lambda a, b, bias, *, c: c.copy_(a @ b)},
    "quack.gemm_interface": {"gemm": into},
}


@pytest.fixture
def installed(monkeypatch):
    """Every package, as a fake."""
    Matmul.tuned, Matmul.plans = 0, []
    for path, contents in FAKES.items():
        parts = path.split(".")
        for i in range(len(parts)):
            name = ".".join(parts[:i + 1])
            module = types.ModuleType(name)
            module.__spec__, module.__path__ = ModuleSpec(name, None), []
            vars(module).update(contents if i + 1 == len(parts) else {})
            monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", RIVALS)
def test_a_missing_package_is_named_with_the_command(name, monkeypatch):
    provider = load(name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    reason = provider.available(GPU)
    assert f"{provider.package} is not installed" in reason and "pip install " in reason
    assert "CUDA device" in provider.available(CPU)


@pytest.mark.parametrize("cuda, extra", [("13.0", "cu13"), ("12.8", "cu12"), (None, "cu12")])
def test_the_command_names_the_extra_of_torchs_cuda(cuda, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert f"'nvmath-python[{extra}]'" in load("cublaslt-tuned").available(GPU)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("name", RIVALS)
def test_it_computes_the_product_of_each_operand_set(name, layout, installed):
    problem = GemmProblem.contiguous(24, 16, 32, layout=layout)
    provider = load(name)
    assert provider.available(GPU) is None and provider.build(problem, GPU) is None
    prepared = provider.prepare(problem, GPU)
    operands = draw(problem, sets=2, seed=0, device="cpu")
    for one in (operands[0], operands[1]):
        one.out.fill_(float("nan"))
        prepared.contender.bind(one)()
        torch.testing.assert_close(one.out, one.a @ one.b)
    assert prepared.contender.name == name and prepared.columns["kernel"] == provider.package


def test_candidates_are_timed_once_a_problem(installed):
    problem = GemmProblem.contiguous(8, 8, 8)
    bind = load("cublaslt-tuned").prepare(problem, GPU).contender.bind
    operands = draw(problem, sets=3, seed=0, device="cpu")
    for i in range(3):
        bind(operands[i])()
    assert Matmul.tuned == 1 and Matmul.plans == [None, ["fast"], ["fast"]]


@pytest.mark.parametrize(("changes", "words"), [
    ({"dtype": "fp64"}, "fp64"), ({"dtype_out": "fp32"}, "fp32"), ({"batch": 2}, "batch=2"),
    ({"epilogue": "relu"}, "relu"), ({"scale_a": "row"}, "scales")], ids=str)
@pytest.mark.parametrize("name", RIVALS)
def test_what_it_has_no_product_for_is_a_row_that_says_so(name, changes, words, installed):
    problem = GemmProblem.contiguous(16, 16, 16, **changes)
    with pytest.raises(UnsupportedError, match=f"not supported by {name}: .*{words}"):
        load(name).prepare(problem, GPU)


def test_limits_of_one_package(installed):
    with pytest.raises(UnsupportedError, match="multiples of 16 bytes"):
        load("deep_gemm").prepare(GemmProblem.contiguous(16, 17, 16), GPU)
    with pytest.raises(UnsupportedError, match="fp16"):
        load("deep_gemm").prepare(GemmProblem.contiguous(16, 16, 16, dtype="fp16"), GPU)
    with pytest.raises(UnsupportedError, match="precision tf32"):
        load("cublaslt-tuned").prepare(
            GemmProblem.contiguous(16, 16, 16, dtype="fp32", precision="tf32"), GPU)


def test_the_session_goes_on_without_it(installed, monkeypatch):
    """A refused problem is one row of status ``constraint``, beside the others' rows."""
    session = object.__new__(Session)
    session.target = Target("interpreter", GPU.spec, "cpu")
    session._providers = {name: load(name) for name in ("torch", "deep_gemm", "quack")}
    problem = GemmProblem.contiguous(16, 16, 16, dtype="fp16")
    rows = session.measure(Job(problem, ("deep_gemm", "quack")))
    assert rows["deep_gemm"]["status"] == "constraint"
    assert "not supported by deep_gemm" in rows["deep_gemm"]["error"]
    assert rows["quack"]["status"] == rows["torch"]["status"] == "ok"

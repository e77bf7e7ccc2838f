"""Providers by name, and what each says where it cannot run."""

import pytest

from tritongemm import selection
from tritongemm.bench.providers import PROVIDERS, check_names, load
from tritongemm.bench.target import HOST, Target, resolve
from tritongemm.device import device_named
from tritongemm.errors import DeviceError, UnsupportedError, UsageError
from tritongemm.problem import GemmProblem

CPU = Target("cpu", HOST, "cpu")


def test_the_baseline_comes_first_and_once():
    assert check_names(("tritongemm", "torch", "tritongemm")) == ("torch", "tritongemm")
    assert check_names(()) == ("torch",)


@pytest.mark.parametrize("name", ["Torch", "cublas", ""])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(UsageError, match="use some of torch, tritongemm"):
        check_names((name,))


@pytest.mark.parametrize(("name", "says"), [
    ("no_such_package.x:Y", "cannot be loaded"), ("outside_provider:Nothing", "cannot be loaded"),
    ("outside_provider:Partial", "has no available, build, prepare"), ("nonsense", "not known"),
])
def test_a_provider_that_is_none_is_refused(name, says):
    with pytest.raises(UsageError, match=says):
        load(name)


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_every_provider_loads_under_its_own_name(name):
    pytest.importorskip("torch")
    assert load(name).name == name


@pytest.mark.parametrize(("name", "says"), [
    ("tritongemm", "TRITON_INTERPRET=1"), ("inductor", "CUDA device"),
])
def test_device_providers_say_why_they_cannot_run_on_the_host(name, says):
    pytest.importorskip("torch")
    assert says in load(name).available(CPU)


def test_the_host_provider_says_why_it_cannot_run_on_a_device():
    pytest.importorskip("torch")
    target = Target("cuda", device_named("nvidia-h200"), "cuda:0")
    assert "--device cpu" in load("numpy_blocked").available(target)


def test_the_public_calls_row_says_where_torch_is_taken_and_the_other_providers_never_does(
        monkeypatch):
    pytest.importorskip("torch")
    target = Target("cuda", device_named("nvidia-h200"), "cuda:0")
    problem = GemmProblem.contiguous(1024, 1024, 1024, layout="nt")
    ours = load("tritongemm-auto").prepare(problem, target).columns
    monkeypatch.setattr(selection, "torch_wins", lambda *_: "torch is faster")
    torchs = load("tritongemm-auto").prepare(problem, target).columns
    assert ours["selection_source"] != "torch" and ours["config_id"]
    assert torchs == {"kernel": "torch (faster)", "selection_source": "torch"}
    config = load("tritongemm").build(problem, target)
    assert config is not None and config.config_id == ours["config_id"]


@pytest.mark.parametrize(("m", "n", "k", "block"), [
    (1, 1, 1, 4), (5, 7, 3, 4), (8, 8, 8, 4), (9, 1, 17, 4), (3, 3, 0, 4), (300, 5, 2, 256),
])
def test_the_blocked_product_is_the_product(m, n, k, block):
    np = pytest.importorskip("numpy")
    from tritongemm.bench.providers.numpy_blocked import multiply

    rng = np.random.default_rng(m)
    a, b = rng.integers(-9, 9, (m, k)).astype("f4"), rng.integers(-9, 9, (k, n)).astype("f4")
    out = np.full((m, n), np.nan, "f4")
    multiply(a, b, out, block)
    assert np.array_equal(out, a @ b)


def test_numpy_declines_what_it_has_no_arithmetic_for():
    pytest.importorskip("torch")
    with pytest.raises(UnsupportedError, match="bfloat16"):
        load("numpy_blocked").prepare(GemmProblem.contiguous(8, 8, 8), CPU)


def test_a_device_that_is_not_there_is_refused():
    pytest.importorskip("torch")
    with pytest.raises(DeviceError):
        resolve("cuda:99")


@pytest.mark.parametrize("text", ["gpu", "cuda:x", "cuda:-1", "mps", ""])
def test_an_unknown_device_is_refused(text):
    with pytest.raises(UsageError, match="use auto, cuda, cuda:INDEX or cpu"):
        resolve(text)


def test_without_a_gpu_the_way_out_is_named():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError, match="--device cpu .* TRITON_INTERPRET=1"):
        resolve("auto")

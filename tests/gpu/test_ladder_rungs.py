"""The ladder's Triton rungs on a GPU, against float64."""

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tritongemm.device import cuda_device  # noqa: E402
from tritongemm.kernels.ladder import RUNG_SPECS  # noqa: E402
from tritongemm.ladder.triton_rung import TritonRung  # noqa: E402
from tritongemm.measure.numerics import check, reference  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu
_draw = random.Random(11)
SHAPES = [tuple(_draw.randint(1, 300) for _ in range(3)) for _ in range(6)] + [
    (1, 1, 1), (512, 512, 512), (1000, 1000, 1000), (1022, 1022, 1022), (129, 257, 4097)]


def run(name, shape, dtype, layout="nn", **changes):
    problem = GemmProblem.contiguous(*shape, dtype=dtype, layout=layout)
    device = cuda_device(torch.cuda.current_device())
    spec = RUNG_SPECS[name]
    config = replace(spec.default(problem, device), **changes)
    if spec.supports(problem, device) is not None:
        return
    one = draw(problem, sets=1, seed=7, device=torch.device("cuda"))[0]
    one.out.fill_(float("nan"))
    bind_config(problem, config, device)(one.a, one.b, one.out)
    report = check(one.out, one.a, one.b, reference(one.a, one.b))
    assert report.ok, f"{config} at {shape}: {report.message}"


@pytest.mark.parametrize("name", RUNG_SPECS)
@pytest.mark.parametrize("dtype, layout", [("fp32", "nn"), ("bf16", "nn"), ("fp16", "nt")])
def test_rung_matches_float64(name, dtype, layout):
    for shape in SHAPES:
        run(name, shape, dtype, layout)


@pytest.mark.parametrize("name", RUNG_SPECS)
@pytest.mark.parametrize("alpha, beta", [(0.0, 0.0), (1.0, 1.0), (-1.37, 0.61), (0.0, 1.0)])
def test_alpha_and_beta_scale_the_product_and_c(name, alpha, beta):
    device = cuda_device(torch.cuda.current_device())
    for shape, dtype in (((512, 512, 512), "bf16"), ((136, 264, 72), "fp16"),
                         ((97, 131, 45), "fp32")):
        problem = GemmProblem.contiguous(*shape, dtype=dtype)
        if RUNG_SPECS[name].supports(problem, device) is not None:
            continue
        one = draw(problem, sets=1, seed=7, device=torch.device("cuda"))[0]
        start = torch.full_like(one.out, float("nan")) if beta == 0 else torch.randn_like(one.out)
        out = start.clone()
        TritonRung(problem, RUNG_SPECS[name].default(problem, device), device)(
            one.a, one.b, out, alpha, beta)
        addend = beta * start.double() if beta else None
        want = alpha * reference(one.a, one.b)
        report = check(out, one.a, one.b, want if addend is None else want + addend,
                       alpha=alpha, addend=addend)
        assert report.ok, f"{shape} {dtype}: {report.message}"


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_any_number_of_stages_is_right(stages):
    run("triton_pipelined", (700, 800, 900), "bf16", num_stages=stages)


def test_stream_k_gives_the_same_bits_every_time():
    problem = GemmProblem.contiguous(1000, 1100, 1200)
    device = cuda_device(torch.cuda.current_device())
    bound = bind_config(problem, RUNG_SPECS["triton_stream_k"].default(problem, device), device)
    one = draw(problem, sets=1, seed=7, device=torch.device("cuda"))[0]
    bound(one.a, one.b, one.out)
    first = one.out.clone()
    for _ in range(5):
        bound(one.a, one.b, one.out)
        assert torch.equal(one.out, first)

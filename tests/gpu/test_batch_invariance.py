"""Under batch invariance a row of the result has the same bits however many rows there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import spec_named, violation  # noqa: E402
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu

ROWS = (1, 7, 64, 300, 4096)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("n, k", [(4096, 4096), (1024, 8192), (1024, 32768), (4100, 1028),
                                  (1001, 4097)])
@pytest.mark.parametrize("transposed", [False, True], ids=["nn", "nt"])
def test_the_first_rows_are_bit_identical_for_any_number_of_rows(dtype, n, k, transposed):
    generator = torch.Generator("cuda").manual_seed(n * k)
    a = torch.randn(max(ROWS), k, device="cuda", generator=generator).to(dtype)
    shape = (n, k) if transposed else (k, n)
    b = torch.randn(*shape, device="cuda", generator=generator).to(dtype)
    b = b.t() if transposed else b
    with tg.batch_invariant():
        results = {m: tg.matmul(a[:m], b, strict=True) for m in ROWS}
    whole = results[max(ROWS)]
    for m, found in results.items():
        assert torch.equal(found, whole[:m]), f"{m} rows"


@pytest.mark.parametrize("n, k", [(4096, 4096), (1024, 8192), (1001, 4097)])
@pytest.mark.parametrize("transposed", [False, True], ids=["nn", "nt"])
def test_under_tf32_too(n, k, transposed, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    a = torch.randn(max(ROWS), k, device="cuda")
    b = torch.randn(n, k, device="cuda").t() if transposed else torch.randn(k, n, device="cuda")
    with tg.batch_invariant():
        results = {m: tg.matmul(a[:m], b, strict=True) for m in ROWS}
    for m, found in results.items():
        assert torch.equal(found, results[max(ROWS)][:m]), f"{m} rows"


SCALED = KernelConfig("scaled_product", 128, 256, 64, num_warps=8, num_stages=4)
SPLIT = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(("precision", "configs"), (
    ("tf32", (SCALED, replace(SCALED, block_n=96, cluster_m=2),
              replace(SCALED, block_m=64, block_n=128, pingpong=1),
              replace(SCALED, block_m=256, block_n=128))),
    ("fp16x3", (SPLIT, replace(SPLIT, block_n=96), replace(SPLIT, block_n=64),
                replace(SPLIT, block_m=64, block_n=64, num_warps=4)))), ids=("tf32", "fp16x3"))
def test_configs_of_scaled_operands_add_in_one_order(precision, configs, layout):
    """Also beside rows and columns that the guard computes, by products and by multiply-adds; with
    1,100 rows in larger tiles."""
    device, spec = current_device(), spec_named(configs[0].kernel)
    if spec.supports(GemmProblem.contiguous(64, 64, 64, dtype="fp32", precision=precision),
                     device) is not None:
        pytest.skip("needs sm_90")
    n, k = 512, 1000
    a, b = torch.randn(1100, k, device="cuda"), torch.randn(k, n, device="cuda")
    a[40, 3], b[5, 7], b[9, 11] = 2.0**-70, 2.0**-140, float("inf")
    b = b.T.contiguous().T if layout == "nt" else b
    whole, order, compared = None, None, 0
    for m in (1100, 300, 130):
        problem = GemmProblem.contiguous(m, n, k, dtype="fp32", layout=layout, precision=precision)
        for config in configs:
            if violation(problem, config, device) is None:
                order = order or spec.sum_order(problem, config, device)
                assert spec.sum_order(problem, config, device) == order
                out = torch.full((m, n), float("nan"), device="cuda")
                bind_config(problem, config, device)(a[:m], b, out)
                whole = out if whole is None else whole
                assert torch.equal(out, whole[:m]), (m, config)
                compared += 1
    assert compared > 8


def test_a_row_is_the_same_wherever_it_stands():
    a = torch.randn(300, 2048, device="cuda").bfloat16()
    b = torch.randn(2048, 1024, device="cuda").bfloat16()
    with tg.batch_invariant():
        whole = tg.matmul(a, b, strict=True)
        for row in (0, 1, 63, 64, 299):
            alone = tg.matmul(a[row:row + 1].clone(), b, strict=True)
            assert torch.equal(alone[0], whole[row]), row


def test_an_sm_budget_changes_nothing_but_the_time():
    a = torch.randn(1000, 512, device="cuda").bfloat16()
    b = torch.randn(512, 2048, device="cuda").bfloat16()
    exact = a.double() @ b.double()
    for budget in (1, 13, 100):
        with tg.sm_budget(budget):
            error = (tg.matmul(a, b, strict=True).double() - exact).abs().max()
        assert error < 0.02 * exact.abs().max()


@pytest.mark.parametrize("n, k", [(512, 1024), (256, 16384)])
def test_a_product_has_the_same_bits_alone_and_in_a_batch(n, k):
    a = torch.randn(5, 70, k, device="cuda").bfloat16()
    b = torch.randn(5, n, k, device="cuda").bfloat16().mT
    with tg.batch_invariant():
        whole = tg.matmul(a, b, strict=True)
        for one in range(5):
            alone = tg.matmul(a[one, :9], b[one], strict=True)
            assert torch.equal(alone, whole[one, :9]), one


def test_a_budget_of_sms_changes_no_bit():
    a = torch.randn(1000, 4096, device="cuda").bfloat16()
    b = torch.randn(2112, 4096, device="cuda").bfloat16().t()
    with tg.batch_invariant():
        whole = tg.matmul(a, b, strict=True)
        for budget in (13, 100):
            with tg.sm_budget(budget):
                assert torch.equal(tg.matmul(a[:300], b, strict=True), whole[:300]), budget

"""What compute-sanitizer watches: rungs and kernels on small odd problems, guard bands checked.

    python tests/sanitizer/workload.py NAME ...

Operands come from the CPU and results are judged there, so that hardly anything but the kernels
themselves runs under the tool.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from tritongemm.baselines import CUDA_RUNGS
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem

#: Empty, single, odd, and just past tiles of 32, 64 and 128; for float4 also aligned ones.
SIZES = ((1, 1, 1), (37, 131, 45), (132, 260, 36), (129, 7, 67), (5, 4, 0))
#: By kernel, and a part of its launches that some tools cannot see: (m, n, k), dtype, layout, what
#: is changed in the default config.
KERNELS: dict[str, tuple[tuple[tuple[int, int, int], str, str, dict[str, int]], ...]] = {
    "tiled": (((37, 131, 45), "bf16", "nt", {}), ((129, 7, 67), "fp32", "nn", {}),
              ((64, 72, 264), "fp16", "tn", {}),
              ((70, 66, 200), "fp32", "nn", {"split_k": 3, "block_m": 32, "block_n": 32,
                                             "num_warps": 4})),
    "persistent_tma": (((136, 264, 72), "bf16", "nn", {}), ((200, 72, 136), "fp16", "tt", {})),
    "warp_specialized": (((136, 264, 72), "bf16", "nt", {}), ((200, 136, 264), "fp16", "tn", {}),
                         ((136, 200, 520), "bf16", "nn", {"split_k": 2}),
                         ((127, 129, 65), "bf16", "nn", {"pad_operands": 1}),
                         ((200, 136, 264), "fp16", "tn", {"block_n": 96}),
                         ((140, 331, 1101), "bf16", "nt", {"pad_operands": 1}),
                         ((77, 134, 520), "fp16", "nt", {"pingpong": 1}),
                         ((200, 264, 136), "bf16", "nt", {"swap_ab": 2}),
                         ((140, 331, 1101), "bf16", "nn", {"swap_ab": 2, "pad_operands": 1})),
    "warp_specialized_clusters": (
        ((136, 200, 520), "bf16", "nt", {"cluster_k": 4, "num_stages": 4}),
        ((136, 201, 520), "bf16", "nt", {"cluster_k": 2, "num_stages": 4}),
        ((264, 264, 520), "bf16", "nt", {"cluster_m": 2, "cluster_n": 2, "num_stages": 4}),
        ((392, 201, 520), "fp16", "nn", {"cluster_m": 2, "block_n": 128, "num_stages": 4})),
    "gemv": (((1, 131, 45), "bf16", "nt", {}), ((5, 136, 264), "fp16", "nn", {}),
             ((3, 77, 520), "bf16", "nt", {"num_stages": 3, "block_k": 128, "split_k": 2}),
             ((140, 2, 67), "fp32", "tn", {}), ((200, 8, 256), "bf16", "nn", {})),
    "skinny": (((1, 131, 40), "bf16", "nt", {}), ((9, 136, 520), "fp16", "nt", {}),
               ((5, 77, 1032), "bf16", "nt", {"block_n": 64, "num_warps": 8, "split_k": 3}),
               ((140, 17, 264), "fp16", "nt", {}),
               ((200, 32, 776), "bf16", "nt", {"split_k": 2})),
    "split_product": (((136, 200, 520), "fp32", "nn", {}), ((127, 129, 65), "fp32", "nt", {}),
                      ((200, 77, 264), "fp32", "tt", {"split_k": 2})),
    "scaled_product": (((136, 200, 520), "fp32", "nn", {}), ((127, 129, 65), "fp32", "nt", {}),
                       ((200, 77, 264), "fp32", "tt", {"split_k": 2}),
                       ((77, 134, 520), "fp32", "tn", {"pingpong": 1})),
    "scaled_product_clusters": (
        ((264, 264, 520), "fp32", "nn", {"cluster_m": 2, "cluster_n": 2, "num_stages": 4}),),
    "tiled_bf16x6": (((136, 200, 520), "fp32", "nn", {}), ((27, 129, 65), "fp32", "nt", {}),
                     ((200, 77, 264), "fp32", "tt", {"split_k": 2})),
    "simt": (((136, 200, 520), "fp32", "nn", {}), ((127, 129, 65), "fp32", "nt", {}),
             ((200, 77, 264), "fp32", "tt", {"split_k": 2})),
}
#: The precision of kernels that take no other.
PRECISIONS = {"split_product": "fp16x3", "tiled_bf16x6": "fp16x3", "scaled_product": "tf32",
              "scaled_product_clusters": "tf32"}
BAND = 1024


def cases(name: str, device: DeviceSpec) -> Iterator[tuple[GemmProblem, KernelConfig]]:
    """The problems and configs of a rung or kernel."""
    if name in CUDA_RUNGS:
        for config in CUDA_RUNGS[name].variants:
            for m, n, k in SIZES:
                yield GemmProblem.contiguous(m, n, k, dtype="fp32"), config
        return
    spec = SPECS[name.removesuffix("_clusters")]
    for size, dtype, layout, changes in KERNELS[name]:
        problem = GemmProblem.contiguous(*size, dtype=dtype, layout=layout,
                                         precision=PRECISIONS.get(name, "ieee"))
        yield problem, replace(spec.default(problem, device), **changes)


def wrong(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str:
    """Runs one case between guard bands; "" or what is wrong with it."""
    import torch

    from tritongemm.baselines.cuda.gemm import bind_cuda
    from tritongemm.measure.numerics import check, reference
    from tritongemm.measure.operands import draw
    from tritongemm.ops.plan import bind_config

    m, n = problem.m, problem.n
    one = draw(problem, sets=1, seed=m + n + problem.k, device=torch.device("cpu"))[0]
    band = torch.full((m * n + 2 * BAND,), 7.0, dtype=one.out.dtype).cuda()
    bind = bind_cuda if config.kernel in CUDA_RUNGS else bind_config
    bind(problem, config, device)(one.a.cuda(), one.b.cuda(), band[BAND:BAND + m * n].view(m, n))
    band = band.cpu()
    if not (bool((band[:BAND] == 7).all()) and bool((band[BAND + m * n:] == 7).all())):
        return "wrote outside C"
    report = check(band[BAND:BAND + m * n].view(m, n), one.a, one.b, reference(one.a, one.b),
                   precision=problem.precision)
    return "" if report.ok else report.message


def main(names: list[str]) -> int:
    from tritongemm.device import current_device

    device, bad = current_device(), 0
    for name in names:
        for problem, config in cases(name, device):
            print(f"{config} {problem}", flush=True)  # the last of them is what a crash is about
            reason = wrong(problem, config, device)
            if reason:
                print(f"    {reason}")
                bad += 1
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)

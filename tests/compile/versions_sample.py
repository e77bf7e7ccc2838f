"""Compiles a sample of every shipped kernel with the Triton of this process; prints what fails.

Where that tests as much, a case is one of a table or of another test: the installed Triton compiles
it once for all of them.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import CompileError
from tritongemm.kernels import SPECS, violation
from tritongemm.kernels.compile import compile_launch, launches_of
from tritongemm.kernels.parse_once import jit_functions
from tritongemm.kernels.triton_version import triton_version
from tritongemm.problem import LAYOUTS, GemmProblem


def hopper(*tile: int, **others: int) -> KernelConfig:
    """A config of the Gluon kernel."""
    return KernelConfig("warp_specialized", *tile, 64, **others)


def cases():
    """(architecture, problem, config): every kernel, and every way through the Gluon kernel."""
    def problem(m=1024, n=1024, k=1024, **more):
        return GemmProblem.contiguous(m, n, k, **{"layout": "nt", **more})

    for layout in LAYOUTS:
        yield 90, problem(layout=layout), hopper(128, 256, num_warps=8, num_stages=4,
                                                 epilogue_subtile=2)
    yield 90, problem(), hopper(128, 128, num_warps=8, num_stages=6, group_m=4)
    yield 90, problem(16), hopper(64, 16, num_warps=4, num_stages=8, swap_ab=1, split_k=4)
    yield 90, problem(999, 1001, 1003), hopper(128, 128, num_warps=8, num_stages=6, pingpong=1,
                                               pad_operands=1, dependent_launch=0)
    yield 90, problem(n=1002), hopper(64, 128, num_warps=4, num_stages=4)
    yield 90, problem(epilogue="bias+gelu"), hopper(192, 64, num_warps=12, num_stages=4)
    yield 90, problem(epilogue="add", dtype="fp16"), hopper(64, 64, num_warps=4, num_stages=6)
    yield 90, problem(batch=3), hopper(128, 64, num_warps=8, num_stages=4)
    yield 90, problem(), hopper(128, 192, num_warps=8, num_stages=4)
    yield 90, problem(layout="nn"), hopper(128, 128, num_warps=8, num_stages=4, cluster_k=4)
    yield 90, problem(batch=3), hopper(192, 192, num_warps=12, num_stages=3, cluster_n=4,
                                       epilogue_subtile=2)
    yield 90, problem(), hopper(128, 128, num_warps=8, num_stages=3, cluster_m=2, cluster_n=2)
    yield 90, problem(n=1002), hopper(128, 144, num_warps=8, num_stages=4, swap_ab=2)
    for precision, layout, stages in (("fp16x3", "nn", 3), ("tf32", "nt", 4)):
        yield 90, problem(dtype="fp32", layout=layout, precision=precision), KernelConfig(
            "split_product", 128, 128, 64, num_warps=8, num_stages=stages)
    yield 90, problem(dtype="fp32", layout="tn", precision="tf32"), KernelConfig(
        "scaled_product", 128, 256, 64, num_warps=8, num_stages=4, cluster_m=2)
    yield 90, problem(dtype="fp32", precision="tf32"), replace(
        hopper(128, 256, num_warps=8, num_stages=4), block_k=32)
    yield 90, problem(dtype="fp32", layout="nn", precision="tf32"), replace(
        hopper(128, 160, num_warps=8, num_stages=4, swap_ab=1), block_k=32)
    for arch in (80, 89, 90, 100):
        yield arch, problem(64, 300, 1000, dtype="fp32", precision="fp16x3"), KernelConfig(
            "tiled_bf16x6", 32, 64, 32, num_warps=2, num_stages=4, split_k=4)
    for arch in (80, 89, 90, 100):
        yield arch, problem(999, 1001, 1003, dtype="fp32", layout="nt"), KernelConfig(
            "simt", 64, 128, 32, num_warps=4, num_stages=2, split_k=2, thread_m=8, thread_n=8)
    for arch in (90, 100):
        yield arch, problem(), KernelConfig("persistent_tma", 128, 128, 64, num_warps=8,
                                            num_stages=3)
    for arch in (80, 90, 100):
        yield arch, problem(3, 4096, 4096), KernelConfig("gemv", 4, 16, 256, num_stages=2)
        yield arch, problem(1000, 2, 998, epilogue="bias+gelu"), KernelConfig(
            "gemv", 2, 16, 256, num_stages=3, swap_ab=1)
        yield arch, problem(8, layout="nn"), KernelConfig("gemv", 8, 64, 64, num_stages=3,
                                                          split_k=2)
    yield 90, problem(5, 4096, 4096), KernelConfig("skinny", 8, 16, 256, num_stages=3)
    yield 90, problem(1000, 17, 1032, epilogue="bias+gelu", dtype="fp16"), KernelConfig(
        "skinny", 32, 16, 256, num_stages=2, swap_ab=1)
    yield 90, problem(16, 1000, 4096, batch=3), KernelConfig("skinny", 16, 64, 256, num_warps=8,
                                                             num_stages=3, split_k=2)
    for arch in (80, 89, 90, 100):
        yield arch, problem(999, 1001, 1003, layout="nn"), KernelConfig(
            "tiled", 64, 64, 64, num_warps=4, num_stages=3, split_k=2)
        yield arch, problem(dtype="fp32", layout="nn"), KernelConfig(
            "tiled", 64, 64, 16, num_warps=4, num_stages=2)


def main(wanted: str) -> int:
    """0 where everything compiled with Triton ``wanted``."""
    if triton_version() != wanted:
        print(f"this process has Triton {triton_version()}, not {wanted}")
        return 2
    wrong, seen = [], set()
    for arch, problem, config in cases():
        device = representative(arch)
        broken = violation(problem, config, device)
        if broken is not None:
            wrong.append(f"{config} for {problem} on sm_{arch}: {broken.message}")
            continue
        seen.add(config.kernel)
        for launch in launches_of(problem, config, device):
            try:
                compile_launch(launch, arch)
            except CompileError as error:
                wrong.append(f"{problem}: {error}")
    wrong += [f"{name} was not compiled" for name in sorted(set(SPECS) - seen)]
    # What compiling changed would be there for the next kernel (``kernels.parse_once``).
    wrong += [f"the tree of {function} was changed"
              for function in jit_functions("tritongemm.kernels.device")
              if ast.dump(function.parse()) != ast.dump(ast.parse(function.src))]
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Peak memory of a call, of torch's function and of this package's, in MB beyond the operands.

`scratch` is the scratch memory of the chosen kernels during the call. The goal: never above torch's
peak plus that scratch.

    python perf/bench_memory.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

import tritongemm as tg
from tritongemm import settings
from tritongemm.device import current_device
from tritongemm.errors import DeviceError
from tritongemm.kernels.compile import launches_of
from tritongemm.measure.memory import peak_bytes
from tritongemm.problem import GemmProblem
from tritongemm.selection import choose

#: torch's allocator rounds sizes up to multiples of this many bytes.
ROUND = 512


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def product(m: int, n: int, k: int, layout: str = "nt", epilogue: str = "none") -> GemmProblem:
    return GemmProblem.contiguous(m, n, k, layout=layout, epilogue=epilogue)


def cases() -> dict[str, tuple[list[GemmProblem], Callable[[object], torch.Tensor]]]:
    """Name -> its products, and the call, which takes the module whose functions it uses."""
    def matmul(m: int, n: int, k: int):
        a, b = random(m, k), random(n, k)
        return [product(m, n, k)], lambda home: home.matmul(a, b.T)

    x, w, bias = random(4096, 4096), random(11008, 4096), random(11008)
    y, z = random(8, 8, 512, 512), random(8, 1, 512, 512)
    leaf, weight = random(2048, 1024).requires_grad_(), random(4096, 1024).requires_grad_()

    def linear(home, *operands):
        return (torch.nn.functional if home is torch else home).linear(*operands)

    def step(home):
        leaf.grad = weight.grad = None
        out = linear(home, leaf, weight)
        out.backward(out.detach())
        return out

    backward = [product(2048, 4096, 1024), product(2048, 1024, 4096, "nn"),
                product(4096, 1024, 2048, "tn")]
    return {
        "matmul": matmul(4096, 4096, 4096), "matmul, unaligned": matmul(4095, 4097, 4099),
        "matmul, long K": matmul(256, 256, 32768), "matmul, one row": matmul(1, 8192, 8192),
        "linear, bias": ([product(4096, 11008, 4096, epilogue="bias")],
                         lambda home: linear(home, x, w, bias)),
        "matmul, a batch broadcast": ([], lambda home: home.matmul(y, z)),
        "linear and its gradients": (backward, step)}


def scratch(problems: list[GemmProblem]) -> int:
    device = current_device()
    return max((launch.scratch_bytes for problem in problems
                for launch in launches_of(problem, choose(problem, device).config, device)),
               default=0)


def main() -> int:
    try:
        current_device()
    except DeviceError as error:
        sys.exit(f"bench_memory.py: {error}")
    over = 0
    print(f"{'':<28}{'torch':>10}{'tg':>10}{'scratch':>10}  MB, {torch.cuda.get_device_name()}")
    for name, (problems, call) in cases().items():
        theirs = peak_bytes(lambda call=call: call(torch))
        with settings.override(policy="own"):
            ours, room = peak_bytes(lambda call=call: call(tg)), scratch(problems)
        mark = "" if ours <= theirs + -(-room // ROUND) * ROUND else "  OVER"
        over += bool(mark)
        print(f"{name:<28}{theirs / 1e6:>10.2f}{ours / 1e6:>10.2f}{room / 1e6:>10.2f}{mark}")
    return over


if __name__ == "__main__":
    sys.exit(main())

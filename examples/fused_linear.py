"""A linear layer with bias and GELU in one kernel, compared with torch's separate passes.

torch rounds to fp16 after the product, after the bias and after the activation. The fused kernel
applies bias and activation to the float32 sum and rounds once.
"""

import os

import torch
from torch.nn import functional

import tritongemm as tg

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    raise SystemExit("there is no GPU; TRITON_INTERPRET=1 runs this in Triton's interpreter")
on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
rows, width, inner = (512, 4096, 16384) if on_gpu else (32, 64, 96)

torch.manual_seed(0)
x = torch.randn(rows, width, device=device, dtype=torch.float16)
w = torch.randn(inner, width, device=device, dtype=torch.float16) / width**0.5
bias = torch.randn(inner, device=device, dtype=torch.float16)

fused = tg.linear(x, w, bias, activation="gelu", strict=True)
separate = functional.gelu((x @ w.t()) + bias)
reference = functional.gelu(x.double() @ w.double().t() + bias.double())


def rms_error(found: torch.Tensor) -> float:
    """Root mean square of the error, over that of the reference."""
    return ((found.double() - reference).norm() / reference.norm()).item()


print(f"fused    {rms_error(fused):.2e}")
print(f"separate {rms_error(separate):.2e}")
assert rms_error(fused) <= rms_error(separate)

if on_gpu:
    def microseconds(call) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(10):
            call()
        start.record()
        for _ in range(100):
            call()
        end.record()
        torch.cuda.synchronize()
        return 10 * start.elapsed_time(end)

    # A first impression only: one warm set of operands, providers one after the other.
    # `tritongemm bench` measures by the protocol.
    print(f"fused    {microseconds(lambda: tg.linear(x, w, bias, activation='gelu')):.1f} us")
    print(f"separate {microseconds(lambda: functional.gelu((x @ w.t()) + bias)):.1f} us")

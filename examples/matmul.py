"""Multiply two matrices, check the result, and print what ran.

    python examples/matmul.py                       # on a GPU
    TRITON_INTERPRET=1 python examples/matmul.py    # on a CPU, in Triton's interpreter
"""

import os

import torch

import tritongemm as tg

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    raise SystemExit("there is no GPU; TRITON_INTERPRET=1 runs this in Triton's interpreter")
on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
m, n, k = (4096, 11008, 4096) if on_gpu else (48, 80, 64)

a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
w = torch.randn(n, k, device=device, dtype=torch.bfloat16)

# strict=True raises where a call would go to torch, so this proves that a kernel ran.
c = tg.matmul(a, w.t(), strict=True)

rows = min(m, 256)  # a float64 product of all rows takes long
reference = a[:rows].double() @ w.double().t()
error = (c[:rows].double() - reference).abs().max() / reference.abs().max()
print(f"{m}x{n}x{k} bf16 on {device}: largest error {error:.1e} of the largest output")
assert error < 1e-2

if on_gpu:
    print(tg.explain(a, w.t()))

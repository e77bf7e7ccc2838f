"""Train a small model under tg.override() and print which calls ran on tritongemm's kernels."""

import os

import torch
from torch.nn import functional

import tritongemm as tg

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    raise SystemExit("there is no GPU; TRITON_INTERPRET=1 runs this in Triton's interpreter")
on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
width, batch, steps = (2048, 4096, 20) if on_gpu else (32, 16, 3)


def train() -> list[float]:
    """The losses of a few steps from fixed weights and data."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                                torch.nn.Linear(4 * width, width)).to(device)
    data = torch.randn(batch, width, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        with torch.autocast(device, torch.bfloat16):
            loss = functional.mse_loss(model(data), data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


with_torch = train()
# By default a small product is torch's until it was repeated; the CPU's sizes are all small.
with tg.override(min_flops=None if on_gpu else 0):
    with_kernels = train()

report = tg.override_report()
print(report)
print("torch     ", " ".join(f"{loss:.4f}" for loss in with_torch))
print("tritongemm", " ".join(f"{loss:.4f}" for loss in with_kernels))
assert report.taken > 0
assert abs(with_torch[-1] - with_kernels[-1]) < 0.01 * with_torch[-1]

"""First calls from a pack alone: an empty cache, no Triton to import, and the right results."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tritongemm import settings  # noqa: E402
from tritongemm.cubins import building, choosing  # noqa: E402
from tritongemm.device import cuda_device, device_named  # noqa: E402
from tritongemm.errors import DeviceError  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu

#: M, N, K, dtype, layout: tiles, few rows, one row, unaligned, deep K, the other type.
PROBLEMS = ((4096, 4096, 4096, "bf16", "nt"), (16, 6144, 4096, "bf16", "nt"),
            (1, 4096, 4096, "bf16", "nt"), (333, 777, 555, "bf16", "nn"),
            (64, 64, 16384, "bf16", "nn"), (1024, 1024, 1024, "fp16", "tn"),
            (2048, 1024, 512, "bf16", "tt"))

CHILD = """
import json, sys
sys.modules["triton"] = None
import torch
import tritongemm as tg
found = []
for m, n, k, dtype, layout in json.loads(sys.argv[1]):
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    a = torch.randn(m, k, device="cuda", dtype=kind)
    b = torch.randn(k, n, device="cuda", dtype=kind)
    a = a.t().contiguous().t() if layout[0] == "t" else a
    b = b.t().contiguous().t() if layout[1] == "t" else b
    wanted = a.double() @ b.double()
    error = ((tg.matmul(a, b, strict=True).double() - wanted).abs().max() / wanted.abs().max())
    found.append(error.item())
assert not [x for x in sys.modules if x.startswith("triton.")]
print(json.dumps(found))
"""


def test_a_pack_alone_serves_first_calls(tmp_path):
    device = cuda_device(torch.cuda.current_device())
    try:
        device_named(device.slug)
    except DeviceError:
        pytest.skip(f"{device.slug} is not in configs/devices")
    with settings.override(policy="own"):
        wanted = [choosing.chosen(GemmProblem.contiguous(m, n, k, dtype=dtype, layout=layout),
                                  device) for m, n, k, dtype, layout in PROBLEMS]
        built = building.build(wanted, wanted, tmp_path / "out", device.arch, max_bytes=10**8,
                               workers=4)
    assert built.failed == () and built.served.share == 1.0
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(PROBLEMS)], capture_output=True, text=True,
        timeout=300, check=False, env=settings.child_environment(
            TRITONGEMM_CUBINS=str(built.pack.folder), TRITONGEMM_CACHE_DIR=str(cache),
            TRITONGEMM_POLICY="own"))
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout.splitlines()[-1])
    assert len(errors) == len(PROBLEMS) and max(errors) < 0.01, errors
    assert not (cache / "binaries").exists()

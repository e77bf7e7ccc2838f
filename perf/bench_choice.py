"""Host time in milliseconds of the model's choice for a shape without a tuned row: the first of a
process, the first of a kind (divisors, layout, types), then others of that kind.

    python perf/bench_choice.py [DEVICE]     (a slug of configs/devices; no GPU needed)
"""

from __future__ import annotations

import statistics
import sys
import time

from tritongemm.device import device_named
from tritongemm.problem import LAYOUTS, GemmProblem
from tritongemm.selection import invariance
from tritongemm.selection.policy import by_model

_OTHERS = 20


def main() -> None:
    """Prints one line for each layout."""
    device = device_named(sys.argv[1] if len(sys.argv) > 1 else "nvidia-h200")

    def took(m: int, layout: str, choose=by_model, n: int = 4096, k: int = 4096) -> float:
        problem = GemmProblem.contiguous(m, n, k, layout=layout)
        start = time.perf_counter()
        choose(problem, device)
        return 1e3 * (time.perf_counter() - start)

    print(f"first of a process {took(1000, 'nt'):8.1f} ms, its reading of the calibration with it")
    for layout in LAYOUTS:
        first = took(1024, layout)
        others = [took(1024 + 128 * i, layout) for i in range(1, _OTHERS)]
        print(f"{layout}: first {first:8.1f} ms, others {statistics.median(others):6.1f} ms")
    print(f"unaligned: first {took(1001, 'nt', n=4097, k=4099):8.1f} ms, "
          f"others {took(1003, 'nt', n=4097, k=4099):6.1f} ms")
    print(f"batch invariance {took(512, 'nt', invariance.sum_class):8.1f} ms")


if __name__ == "__main__":
    main()

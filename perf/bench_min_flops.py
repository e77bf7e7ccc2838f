"""From which size on an overridden product is not slower: what `min_flops` of `override` is for.

A chain of products of one size, as a model of small layers runs them, from the first call to the
end of the last kernel: torch alone, and under `tritongemm.override(min_flops=0)`, in turns. The
package's default (`tritongemm.integration.override.DEFAULT_MIN_FLOPS`) should lie at or above the
least size from which no larger one is slower.

    python perf/bench_min_flops.py [--sizes 32,64,128] [--layers 200] [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

import tritongemm as tg
from tritongemm.device import current_device
from tritongemm.errors import DeviceError
from tritongemm.integration.override import DEFAULT_MIN_FLOPS

SIZES = "32,64,96,128,192,256,320,384,512,640,768,1024"
#: A ratio nearer to 1 is a tie.
TIE = 0.01


def chain(size: int, layers: int) -> float:
    """Microseconds a product, from the first call to the end of the last kernel."""
    x, w = (torch.randn(size, size, device="cuda").bfloat16() / size ** 0.5 for _ in range(2))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(layers):
        x = torch.mm(x, w)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / layers * 1e6


def measured(size: int, layers: int, rounds: int) -> tuple[float, float]:
    """(torch alone, under the override), medians of rounds in turns; the first is not counted."""
    times: list[tuple[float, float]] = []
    for i in range(rounds + 1):
        def alone() -> float:
            return chain(size, layers)

        def under() -> float:
            with tg.override(min_flops=0):
                return chain(size, layers)

        one, other = (alone(), under()) if i % 2 else (under(), alone())[::-1]
        times.append((one, other))
    return tuple(statistics.median(column) for column in zip(*times[1:], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES, help="M = N = K, separated by commas")
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    try:
        current_device()
    except DeviceError as error:
        sys.exit(f"bench_min_flops.py: {error}")
    print(f"us a product in a chain of {args.layers}, bf16, {torch.cuda.get_device_name()}\n"
          f"{'size':>6}{'torch':>9}{'override':>10}{'speed':>8}")
    slowest = 0
    for size in map(int, args.sizes.split(",")):
        alone, under = measured(size, args.layers, args.rounds)
        print(f"{size:>6}{alone:>9.2f}{under:>10.2f}{alone / under:>8.3f}", flush=True)
        if alone / under < 1 - TIE:
            slowest = size
    print(f"the largest that is slower: {slowest or 'none'}; the default leaves products below "
          f"{(DEFAULT_MIN_FLOPS / 2) ** (1 / 3):.0f} cubed to torch")


if __name__ == "__main__":
    main()

"""The size from which an overridden product is not slower, which sets the default of `min_flops`.

A chain of products of one size, as a model of small layers runs them, from the first call to the
end of the last kernel: torch alone, and under `tritongemm.override(min_flops=0)`, in turns
(tritongemm.measure.host; medians). The package's default
(`tritongemm.integration.override.DEFAULT_MIN_FLOPS`) should lie at or above the least size from
which no larger one is slower.

    python perf/bench_min_flops.py [--sizes 32,64,128] [--layers 200] [--rounds 15]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch

import tritongemm as tg
from tritongemm.device import current_device
from tritongemm.errors import DeviceError
from tritongemm.integration.override import DEFAULT_MIN_FLOPS
from tritongemm.measure.host import host_time_us

SIZES = "32,64,96,128,192,256,320,384,512,640,768,1024"
#: Ratios closer to 1 than this are ties.
TIE = 0.01


def chain(size: int, layers: int) -> Callable[[], None]:
    """A call that multiplies ``layers`` times and waits for the last kernel."""
    start, w = (torch.randn(size, size, device="cuda").bfloat16() / size ** 0.5 for _ in range(2))

    def run() -> None:
        x = start
        for _ in range(layers):
            x = torch.mm(x, w)
        torch.cuda.synchronize()

    return run


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
        run = chain(size, args.layers)
        found = host_time_us({"torch": run, "override": run}, blocks=args.rounds, calls=1,
                             contexts={"override": lambda: tg.override(min_flops=0)})
        alone, under = (found[name].p50 / args.layers for name in ("torch", "override"))
        print(f"{size:>6}{alone:>9.2f}{under:>10.2f}{alone / under:>8.3f}", flush=True)
        if alone / under < 1 - TIE:
            slowest = size
    print(f"the largest that is slower: {slowest or 'none'}; the default leaves products below "
          f"{(DEFAULT_MIN_FLOPS / 2) ** (1 / 3):.0f} cubed to torch")


if __name__ == "__main__":
    main()

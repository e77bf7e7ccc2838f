"""Whether torch or this package runs a small product faster, and whether the decision is right.

A chain of products of one size, as a model of small layers runs them, from the first call to the
end of the last kernel; medians of interleaved rounds (tritongemm.measure.host). By each path of
repeated calls (the native dispatcher, the Python path) three ways alternate: torch without an
override, every product by this package, and every product passed on to torch by an override. In
CUDA graphs the first two alternate.

`decision` is that of an override (tritongemm.selection.torch_wins), which a captured graph keeps.
It is wrong where the other way was faster by more than 3 %. `predicted`: the two times that it
compares; float32 products also need a measurement that favours ours on the GPU.

    python perf/bench_min_flops.py [--sizes 32,64] [--dtypes bf16,fp32] [--layers 200] [--rounds 15]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import torch

import tritongemm as tg
from tritongemm import settings
from tritongemm.device import DeviceSpec, current_device
from tritongemm.errors import DeviceError
from tritongemm.measure.host import host_time_us
from tritongemm.ops import native
from tritongemm.ops.calls import problem_of
from tritongemm.ops.plans import host_path
from tritongemm.problem import GemmProblem
from tritongemm.selection import choose, torch_wins
from tritongemm.selection.decision import TORCH_WINS, sides
from tritongemm.selection.hosttime import NATIVE, PYTHON, HostPath

SIZES = "32,64,96,128,192,256,320,384,512,640,768,1024,1280,1536"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: Ratios closer to 1 are ties.
TIE = 1 - TORCH_WINS
OURS = {"min_flops": 0.0}
PASSED_ON = {"min_flops": 1e18}


class Chain:
    """``layers`` dependent products of ``size`` cubed."""

    def __init__(self, size: int, dtype: torch.dtype, layers: int) -> None:
        self.start, self.w = (torch.randn(size, size, device="cuda").to(dtype) / size ** 0.5
                              for _ in range(2))
        self.layers = layers

    def issue(self) -> None:
        """Issues the products."""
        x = self.start
        for _ in range(self.layers):
            x = torch.mm(x, self.w)

    def run(self) -> None:
        """Issues them and waits for the last kernel."""
        self.issue()
        torch.cuda.synchronize()

    def captured(self) -> Callable[[], None]:
        """A call that replays the chain as a CUDA graph."""
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.issue()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.issue()

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return replay


def eager(chain: Chain, rounds: int) -> tuple[float, float, float]:
    """Microseconds a product: torch without an override, ours, passed on to torch."""
    found = host_time_us(
        dict.fromkeys(("torch", "ours", "passed on"), chain.run), blocks=rounds, calls=1,
        contexts={"ours": lambda: tg.override(**OURS),
                  "passed on": lambda: tg.override(**PASSED_ON)})
    alone, ours, passed_on = (found[name].p50 / chain.layers
                              for name in ("torch", "ours", "passed on"))
    return alone, ours, passed_on


def replayed(chain: Chain, rounds: int) -> tuple[float, float, float]:
    """The same of replays; nothing is passed on there."""
    theirs = chain.captured()
    with tg.override(**OURS):
        own = chain.captured()
    found = host_time_us({"torch": theirs, "ours": own}, blocks=rounds, calls=1)
    alone, ours = (found[name].p50 / chain.layers for name in ("torch", "ours"))
    return alone, ours, alone


def paths() -> Iterator[tuple[HostPath, bool]]:
    """The path of repeated calls that is in force, one after the other; whether graphs are
    measured, with the last one."""
    for mode in ("on", "off"):
        with settings.override(native=mode, policy="own"):
            if mode == "on" and native.table() is None:
                print("there is no native dispatcher; build it: tritongemm native")
                continue
            yield host_path(), False
    with settings.override(policy="own"):
        yield host_path(), True


def decided(problem: GemmProblem, device: DeviceSpec, path: HostPath) -> tuple[bool, str]:
    """(whether torch is to run ``problem``, the times that this follows from)."""
    choice = choose(problem, device)
    reason = torch_wins(problem, choice, device, path)
    torchs, ours = sides(problem, choice, device, path)
    return reason is not None, f"torch {torchs}, ours {ours}"


def main() -> None:
    """Measures, prints one line for each path, dtype and size, and counts what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES, help="M = N = K, separated by commas")
    parser.add_argument("--dtypes", default="bf16,fp32", help="of bf16, fp16, fp32")
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    try:
        device = current_device()
    except DeviceError as error:
        sys.exit(f"bench_min_flops.py: {error}")
    chains = [Chain(int(size), DTYPES[dtype], args.layers)
              for dtype in args.dtypes.split(",") for size in args.sizes.split(",")]
    problems = [problem_of(chain.start, chain.w) for chain in chains]
    decisions = {(path.name, problem): decided(problem, device, path)
                 for path in (NATIVE, PYTHON) for problem in problems}
    print(f"us a product in a chain of {args.layers}, {torch.cuda.get_device_name()}, "
          f"torch {torch.__version__}\n{'path':<11}{'dtype':>6}{'size':>6}{'torch':>9}{'ours':>9}"
          f"{'passed on':>11}{'ratio':>7}  decision")
    wrong = count = 0
    for path, captured in paths():
        name = "CUDA graph" if captured else path.name
        for chain, problem in zip(chains, problems, strict=True):
            measure = replayed if captured else eager
            alone, ours, passed_on = measure(chain, args.rounds)
            to_torch, predicted = decisions[path.name, problem]
            taken, left = (passed_on, ours) if to_torch else (ours, passed_on)
            right = taken <= (1 + TIE) * left
            count, wrong = count + 1, wrong + (not right)
            print(f"{name:<11}{problem.dtype_a:>6}{problem.m:>6}{alone:>9.2f}{ours:>9.2f}"
                  f"{passed_on:>11.2f}{alone / taken:>7.3f}  {'torch' if to_torch else 'ours'}, "
                  f"{'right' if right else 'WRONG'}; predicted: {predicted}", flush=True)
    print(f"{wrong} of {count} decisions are wrong by more than {100 * TIE:.0f} %")


if __name__ == "__main__":
    main()

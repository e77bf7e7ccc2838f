"""How far an estimate from measured neighbours tells that a float32 product is faster than torch's.

    python perf/float32_evidence.py [--device nvidia-h100-80gb-hbm3]

Needs no GPU. Each problem of the device's calibration whose ratio to torch was measured is left
out, with those of the same extents, and its ratio is estimated from the rest as selection does
(``selection/neighbours.py``). The rule that uses it is ``selection/decision.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tritongemm.device import DeviceSpec, device_named  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402
from tritongemm.selection.model import model_for  # noqa: E402
from tritongemm.selection.neighbours import Neighbours  # noqa: E402

LEAST = (1.1, 1.2)


def left_out(device: DeviceSpec, precision: str) -> Iterator[tuple[float, float, float]]:
    """(measured ratio, estimate from all layouts, from the same one) of each problem."""
    asked = GemmProblem.contiguous(512, 512, 512, dtype="fp32", layout="nt", precision=precision)
    section = model_for(asked, device).section
    known = [x for x in (section.neighbours if section else ()) if x.vs_torch is not None]
    for one in known:
        p = one.problem
        rest = Neighbours([x for x in known if (x.problem.batch, x.problem.m, x.problem.n,
                                                x.problem.k) != (p.batch, p.m, p.n, p.k)])
        yield one.vs_torch, rest.vs_torch(p)[0], rest.vs_torch(p, alike=True)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="nvidia-h100-80gb-hbm3")
    device = device_named(parser.parse_args().device)
    found = [x for precision in ("fp16x3", "tf32") for x in left_out(device, precision)]
    print(f"{len(found)} problems\n\n| neighbours | estimate from | problems | faster than torch | "
          "below 0.97 | least |\n|---|---:|---:|---:|---:|---:|")
    for which, name in ((1, "of all layouts"), (2, "of the same layout and alignment")):
        for least in LEAST:
            taken = [x[0] for x in found if x[which] >= least]
            print(f"| {name} | {least} | {len(taken)} | {sum(x >= 1 for x in taken)} | "
                  f"{sum(x < 0.97 for x in taken)} | {min(taken, default=0.0):.3f} |")


if __name__ == "__main__":
    main()

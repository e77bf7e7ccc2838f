"""How far an estimate from measured neighbours tells that a float32 product is faster than torch's.

    python perf/float32_evidence.py [--device nvidia-h100-80gb-hbm3]

Needs no GPU. Each problem of the device's calibration whose ratio to torch was measured is left
out, with those of the same extents, or with all of its layout, and a lower bound of its ratio comes
from the rest as selection makes it (``selection/neighbours.py``). The rule that uses it is in
``selection/decision.py``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tritongemm.device import DeviceSpec, device_named  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402
from tritongemm.selection.model import model_for  # noqa: E402
from tritongemm.selection.neighbours import Neighbours  # noqa: E402

#: Lower bounds from which a product would run here.
LEAST = (1.0, 1.03, 1.06, 1.1)


def left_out(device: DeviceSpec, precision: str, layouts: bool) -> Iterator[tuple[float, float]]:
    """(measured ratio, lower bound by the others) of each problem; ``layouts``: without any of its
    layout."""
    asked = GemmProblem.contiguous(512, 512, 512, dtype="fp32", layout="nt", precision=precision)
    section = model_for(asked, device).section
    known = [x for x in (section.neighbours if section else ()) if x.vs_torch is not None]
    for one in known:
        p = one.problem
        rest = Neighbours([x for x in known if (x.problem.batch, x.problem.m, x.problem.n,
                                                x.problem.k) != (p.batch, p.m, p.n, p.k)
                           and not (layouts and x.problem.layout == p.layout)])
        bound = rest.bound(p)
        yield one.vs_torch, 0.0 if bound is None else bound.lower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="nvidia-h100-80gb-hbm3")
    device = device_named(parser.parse_args().device)
    print("| precision | without | problems | bound | run here | below 0.97 | least | "
          "at least 1.1, but torch's |\n|---|---|---:|---:|---:|---:|---:|---:|")
    for precision, layouts in itertools.product(("fp16x3", "tf32"), (False, True)):
        found = list(left_out(device, precision, layouts))
        without = "its layout" if layouts else "its extents"
        for least in LEAST:
            taken = [ratio for ratio, bound in found if bound >= least]
            left = [ratio for ratio, bound in found if bound < least and ratio >= 1.1]
            print(f"| {precision} | {without} | {len(found)} | {least} | {len(taken)} | "
                  f"{sum(x < 0.97 for x in taken)} | {min(taken, default=0.0):.3f} | {len(left)} |")


if __name__ == "__main__":
    main()

"""Whether `auto` runs here what was measured faster here: the decision of every row of a CSV.

    python perf/decisions.py FILE.csv [--path native|python|graph]

Compares `tritongemm.selection.torch_wins`, with the tables and calibrations as they are now, with
the measured ratio of each row of the provider `tritongemm`. Prints, by suite, layout and precision:
the products that run here, the lowest ratio of them, how many are below 0.97, and how many that
are at least 10 % faster than torch go to torch. Those below 0.97 follow, one a line. The rows may
be of other configs than today's choice.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from tritongemm.device import device_named
from tritongemm.errors import TritonGemmError
from tritongemm.records.columns import problem_of
from tritongemm.records.rows import read_rows
from tritongemm.selection import choose, torch_wins
from tritongemm.selection.decision import TORCH_WINS
from tritongemm.selection.hosttime import GRAPH, NATIVE, PYTHON

PATHS = {"native": NATIVE, "python": PYTHON, "graph": GRAPH}
#: A gain that is worth reporting where it is left to torch.
GAIN = 1.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, metavar="FILE.csv")
    parser.add_argument("--path", choices=PATHS, default="native",
                        help="how the host calls (default %(default)s)")
    args = parser.parse_args()
    groups: dict[tuple[str, str, str], list[tuple[float, bool, str]]] = defaultdict(list)
    try:
        for row in read_rows(args.csv):
            if row["provider"] != "tritongemm" or not row["ratio_vs_torch"]:
                continue
            problem, device = problem_of(row), device_named(str(row["device"]))
            runs = torch_wins(problem, choose(problem, device), device, PATHS[args.path]) is None
            groups[str(row["suite"]), problem.layout, problem.precision].append(
                (float(row["ratio_vs_torch"]), runs, str(problem)))
    except (OSError, TritonGemmError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'suite':<16}{'layout':<8}{'precision':<10}{'rows':>6}{'run here':>10}{'lowest':>9}"
          f"{'below':>8}{'gains left':>12}")
    slower = []
    for (suite, layout, precision), rows in sorted(groups.items()):
        here = [ratio for ratio, runs, _ in rows if runs]
        worse = sorted((ratio, name) for ratio, runs, name in rows if runs and ratio < TORCH_WINS)
        left = sum(ratio >= GAIN for ratio, runs, _ in rows if not runs)
        slower += worse
        print(f"{suite:<16}{layout:<8}{precision:<10}{len(rows):>6}{len(here):>10}"
              f"{f'{min(here):.3f}' if here else '-':>9}{len(worse):>8}{left:>12}")
    for ratio, name in slower:
        print(f"slower and run here: {name} {ratio:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

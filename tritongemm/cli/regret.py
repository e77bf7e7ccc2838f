"""``tritongemm regret``: what choosing without measuring costs, over journals or on fresh shapes.

With journals: leave-one-out over their problems, with ``--with-sibling`` of a device that learns
beside another, or with ``--shipped`` the choices of the shipped calibration. With ``--fresh SEED``:
shapes drawn from the seed are swept, and the fastest configs measured again beside the selection's
choice.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.errors import UsageError

if TYPE_CHECKING:
    from tritongemm.calibration.regret import Regret

_WORST_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="*", metavar="JOURNAL",
                        help="journals of full sweeps, of one device")
    parser.add_argument("--device", metavar="SLUG",
                        help="use only what this device measured, e.g. nvidia-h200")
    parser.add_argument("--folds", type=int, metavar="N",
                        help="leave out N parts of the problems in turn instead of one problem "
                             "at a time (half an hour for thousands of problems, else days)")
    parser.add_argument("--shipped", action="store_true",
                        help="judge the calibration that serves the device, its own or its "
                             "sibling's, instead: for journals that it was not made from")
    parser.add_argument("--with-sibling", action="store_true",
                        help="judge what `calibrate --with-sibling` makes for --device: journals "
                             "of both")
    parser.add_argument("--out", type=file_argument, metavar="CSV", help="write one row a problem")
    fresh = parser.add_argument_group(
        "fresh shapes", "bf16 nt, each side log-uniform 128 to 8192, every other one aligned")
    fresh.add_argument("--fresh", type=int, metavar="SEED",
                       help="draw shapes from this seed and measure them (needs a GPU)")
    fresh.add_argument("--count", type=int, default=60, metavar="N",
                       help="shapes (default %(default)s)")
    fresh.add_argument("--top", type=int, default=48, metavar="N",
                       help="configs of a shape: the best by estimate, beside the best of each "
                            "class and --random others (default %(default)s)")
    fresh.add_argument("--random", type=int, default=12, metavar="N",
                       help="configs of a shape drawn from the rest (default %(default)s)")
    fresh.add_argument("--journal", metavar="FILE.jsonl", default="regret.jsonl",
                       help="the two runs' journals are named after it, -wide and -again "
                            "(default %(default)s)")
    fresh.add_argument("--budget", type=float, metavar="SECONDS", help="stop after that long")
    fresh.add_argument("--resume", action="store_true",
                       help="go on with the journals: repeat nothing that was measured")
    fresh.add_argument("--judge-only", action="store_true",
                       help="measure nothing: judge what the journals hold (no GPU needed)")
    fresh.add_argument("--plan", action="store_true",
                       help="say what would be measured, and for how long (no GPU needed)")
    fresh.add_argument("--at-least", type=float, metavar="SHARE",
                       help="exit with 1 where the mean share of the best is below this")
    fresh.add_argument("--worst", type=float, metavar="SHARE",
                       help="exit with 1 where a share of the best is below this")


def run(args: argparse.Namespace) -> int:
    """Prints the shares of the best speed that the model and the nearest row reach."""
    if args.out:
        check_file(args.out)
    from tritongemm.calibration.regret import regret, regret_with_sibling, shipped, write_csv

    if args.shipped and (args.fresh is not None or args.folds is not None):
        raise UsageError("--shipped judges what is shipped on journals; leave out "
                         + ("--fresh" if args.fresh is not None else "--folds"))
    if args.with_sibling and (args.shipped or args.fresh is not None or args.device is None):
        raise UsageError("--with-sibling leaves problems out of journals of two devices: it goes "
                         "with --device, without --shipped and --fresh")
    if args.fresh is not None:
        if args.journals:
            raise UsageError("--fresh measures shapes of its own; leave the journals away")
        found = _fresh(args)
        if found is None:
            return 0
        print("best time / chosen time, in the rounds of the second run")
    elif args.journals and args.shipped:
        found = shipped(args.journals, args.device)
        print("best time / chosen time, by the calibration as it is shipped")
    elif args.journals:
        found = (regret_with_sibling if args.with_sibling else regret)(
            args.journals, args.device, args.folds)
        print("best time / chosen time, each problem left out of what its choice was made from")
    else:
        raise UsageError("name journals of full sweeps, or give --fresh SEED")
    _show(found)
    if args.out:
        print(f"wrote {write_csv(args.out, found)}")
    return _status(found, args.at_least, args.worst)


def _show(found: Sequence[Regret]) -> None:
    from tritongemm.calibration.regret import summaries

    print(f"{'problems':<18}{'count':>6}{'model':>9}{'worst':>8}{'nearest':>10}{'worst':>8}")
    for kind, (model, nearest) in summaries(found).items():
        print(f"{kind:<18}{model.count:>6}{model.mean:>9.4f}{model.worst:>8.3f}"
              + (f"{nearest.mean:>10.4f}{nearest.worst:>8.3f}" if nearest.count else ""))
    judged = [(share, one) for one in found if (share := one.share(one.model)) is not None]
    print("worst choices of the model:")
    for share, one in sorted(judged, key=lambda x: x[0])[:_WORST_SHOWN]:
        if one.model is not None:
            print(f"  {share:.3f}  {one.problem}: {one.model.config} {one.model.time_us:.2f} us; "
                  f"best {one.best.config} {one.best.time_us:.2f} us")


def _fresh(args: argparse.Namespace) -> list[Regret] | None:
    """Draws and measures; None where only the plan was asked for."""
    from tritongemm.calibration import fresh_regret
    from tritongemm.cli.sweep import progress_of
    from tritongemm.device import current_device, device_named

    device = device_named(args.device) if args.device else current_device()
    problems = fresh_regret.drawn_for(device, args.fresh, args.count)
    wide = fresh_regret.Wide(args.fresh, args.top, at_random=args.random)
    if args.plan:
        plan = fresh_regret.forecast(problems, device, wide)
        print(f"{plan.shapes} shapes, {plan.configs} configs, {plan.binaries} binaries to compile "
              f"where the store does not have them; about {plan.seconds:.0f} s of an H200 beside")
        return None
    if not args.judge_only:
        fresh_regret.measure(problems, args.journal, wide=wide, budget_s=args.budget,
                             resume=args.resume, seed=args.fresh,
                             progress=lambda: progress_of(plain=True))
    found = fresh_regret.judge(problems, args.journal, device)
    if len(found) < len(problems):
        print(f"{len(problems) - len(found)} of {len(problems)} shapes were not measured to the "
              "end; go on with --resume")
    return found


def _status(found: Sequence[Regret], at_least: float | None, worst: float | None) -> int:
    shares = [share for one in found if (share := one.share(one.model)) is not None]
    if not shares:
        return 0 if at_least is None and worst is None else 1
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    return int((at_least is not None and mean < at_least)
               or (worst is not None and min(shares) < worst))

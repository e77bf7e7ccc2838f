"""``tritongemm regret``: how fast the configs are that selection chooses for unmeasured problems.

The figure is the time of the best measured config over that of the chosen one. With journals: the
choice for each problem by a model that has not seen its timings (``--with-sibling``: a model that
is trained on another device too), or with ``--shipped`` by the shipped calibration. With
``--fresh SEED``: sweeps shapes drawn from the seed, then measures the fastest configs and the
selection's choice again in the same rounds.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.options import add_count, add_seconds, only_with
from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.cli.where import add_device_name, or_named
from tritongemm.errors import UsageError

if TYPE_CHECKING:
    from tritongemm.calibration.regret import Regret
    from tritongemm.device import DeviceSpec
    from tritongemm.problem import GemmProblem

_WORST_SHOWN = 8
_JOURNAL = Path("regret.jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="*", metavar="JOURNAL",
                        help="sweep journals or packed journals (.npz), of one device; they should "
                             "come from sweeps of all configs")
    add_device_name(parser, "use only the timings of this device, e.g. nvidia-h200; with --plan "
                            "and --judge-only the GPU that fresh shapes are for")
    add_count(parser, "--folds", least=2,
              help="N-fold cross-validation instead of leaving out one problem at a "
                   "time; for thousands of problems, 5 folds take half an hour, "
                   "single ones days")
    parser.add_argument("--shipped", action="store_true",
                        help="fit nothing: evaluate the calibration that the device uses, its own "
                             "or its sibling's; give journals that it was not fitted to")
    parser.add_argument("--with-sibling", action="store_true",
                        help="evaluate what `calibrate --with-sibling` fits for --device-name; "
                             "give journals of both devices")
    parser.add_argument("--out", type=file_argument, metavar="CSV",
                        help="write one row for each problem to this file")
    fresh = parser.add_argument_group(
        "fresh shapes", "bf16, layout nt; M, N and K are log-uniform from 128 to 8192, in "
                        "every other shape multiples of 8. None was tuned or calibrated with")
    fresh.add_argument("--fresh", type=int, metavar="SEED",
                       help="draw shapes with this seed and measure them (needs a GPU)")
    fresh.add_argument("--family", metavar="SUITE",
                       help="draw shapes of the kind of this suite instead, as `bench --fresh` "
                            "does, in the suite's own layouts where it has them")
    add_count(fresh, "--count", help="number of shapes (default 60)")
    add_count(fresh, "--top",
              help="configs for each shape that the model ranks first; the best of "
                   "each tile class and --random others are added (default 48)")
    add_count(fresh, "--random", least=0,
              help="configs for each shape drawn from all others (default 12)")
    fresh.add_argument("--journal", type=file_argument, metavar="FILE.jsonl",
                       help="base name of the journals of the two runs: FILE-wide.jsonl and "
                            f"FILE-again.jsonl (default {_JOURNAL})")
    add_seconds(fresh, "--budget", help="stop measuring after this long")
    fresh.add_argument("--resume", action="store_true",
                       help="continue the journals; skip what they already have")
    fresh.add_argument("--judge-only", action="store_true",
                       help="measure nothing: evaluate what the journals hold (needs no GPU)")
    fresh.add_argument("--plan", action="store_true",
                       help="measure nothing: print what would be measured and an estimate of "
                            "the time (needs no GPU)")
    fresh.add_argument("--at-least", type=float, metavar="SHARE",
                       help="exit with status 1 if the mean of best time / chosen time is below "
                            "this, e.g. 0.95")
    fresh.add_argument("--worst", type=float, metavar="SHARE",
                       help="exit with status 1 if best time / chosen time of any shape is below "
                            "this, e.g. 0.8")


def run(args: argparse.Namespace) -> int:
    """Prints best time / chosen time of the model's choices and of the nearest tuned rows."""
    if args.out:
        check_file(args.out)
    from tritongemm.calibration.regret import regret, regret_with_sibling, shipped, write_csv

    if args.shipped and (args.fresh is not None or args.folds is not None):
        raise UsageError("--shipped evaluates the shipped calibration on journals; leave out "
                         + ("--fresh" if args.fresh is not None else "--folds"))
    if args.with_sibling and (args.shipped or args.fresh is not None or args.device_name is None):
        raise UsageError("--with-sibling needs --device-name and journals of two devices, and "
                         "cannot be combined with --shipped or --fresh")
    if args.fresh is None:
        only_with("--fresh", {f"--{name.replace('_', '-')}": getattr(args, name) for name in (
            "family", "count", "top", "random", "journal", "budget", "resume", "judge_only",
            "plan")})
    if args.fresh is not None:
        if args.journals:
            raise UsageError("--fresh measures its own shapes; leave out the journals")
        found = _fresh(args)
        if found is None:
            return 0
        print("best time / chosen time, measured in the rounds of the second run")
    elif args.journals and args.shipped:
        found = shipped(args.journals, args.device_name)
        print("best time / chosen time; the shipped calibration chooses")
    elif args.journals:
        found = (regret_with_sibling if args.with_sibling else regret)(
            args.journals, args.device_name, args.folds)
        print("best time / chosen time; each problem's timings are left out of the model that "
              "chooses for it")
    else:
        raise UsageError("name sweep journals, or give --fresh SEED")
    _show(found)
    if args.out:
        print(f"wrote {write_csv(args.out, found)}")
    return _status(found, args.at_least, args.worst)


def _show(found: Sequence[Regret]) -> None:
    from tritongemm.calibration.regret import summaries

    print(f"{'problems':<18}{'count':>6}{'model':>9}{'worst':>8}{'nearest':>10}{'worst':>8}")
    for kind, (model, nearest) in summaries(found).items():
        print(f"{kind:<18}{model.count:>6}{model.mean:>9.4f}{model.worst:>8.3f}"
              + (f"{nearest.mean:>10.4f}{nearest.worst:>8.3f}" if nearest.count else "")
              + (f" of {nearest.count}" if 0 < nearest.count < model.count else ""))
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

    defaults = {"count": fresh_regret.SHAPES, "top": fresh_regret.TOP,
                "random": fresh_regret.RANDOM}
    counts = {name: default if (given := getattr(args, name)) is None else given
              for name, default in defaults.items()}
    journal = args.journal or _JOURNAL
    for path in fresh_regret.journals(journal):
        check_file(path)
    if args.device_name:
        device = device_named(args.device_name)
    else:
        with or_named("plan or judge") if args.plan or args.judge_only else nullcontext():
            device = current_device()
    problems = _drawn(args.fresh, args.family, counts["count"], device)
    wide = fresh_regret.Wide(args.fresh, counts["top"], at_random=counts["random"])
    if args.plan:
        plan = fresh_regret.forecast(problems, device, wide)
        print(f"{plan.shapes} shapes, {plan.configs} configs, {plan.binaries} binaries to compile "
              f"unless cached; about {plan.seconds:.0f} s of measuring on an H200, and compiling")
        return None
    if not args.judge_only:
        fresh_regret.measure(problems, journal, wide=wide, budget_s=args.budget,
                             resume=args.resume, seed=args.fresh,
                             progress=lambda: progress_of(plain=True))
    found = fresh_regret.judge(problems, journal, device)
    if len(found) < len(problems):
        print(f"{len(problems) - len(found)} of {len(problems)} shapes are not measured yet; "
              "continue with --resume")
    return found


def _drawn(seed: int, family: str | None, count: int, device: DeviceSpec) -> list[GemmProblem]:
    """The problems of --fresh, --family and --count.

    Raises:
        UsageError: an unknown family or one without that many such shapes.
    """
    from tritongemm.bench.fresh import draw_up_to
    from tritongemm.calibration.fresh_regret import draw, unmeasured

    if family is None:
        return list(itertools.islice(unmeasured(draw(seed), device), count))
    problems, number = [], count
    while len(problems) < count:  # those that were measured are left out, so more are drawn
        number *= 2
        shapes = draw_up_to(family, seed, number)
        problems = [*itertools.islice(unmeasured((x.problem(layout="nt") for x in shapes), device),
                                      count)]
        if len(shapes) < number:
            break
    if len(problems) < count:
        raise UsageError(f"family {family!r} has no more than {len(problems)} such shapes; "
                         "ask for fewer with --count")
    return problems


def _status(found: Sequence[Regret], at_least: float | None, worst: float | None) -> int:
    shares = [share for one in found if (share := one.share(one.model)) is not None]
    if not shares:
        return 0 if at_least is None and worst is None else 1
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    return int((at_least is not None and mean < at_least)
               or (worst is not None and min(shares) < worst))

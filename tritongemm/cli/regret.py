"""``tritongemm regret``: what choosing without measuring costs, leave-one-out over journals."""

from __future__ import annotations

import argparse

_WORST_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="+", metavar="JOURNAL",
                        help="journals of full sweeps, of one device")
    parser.add_argument("--device", metavar="SLUG",
                        help="use only what this device measured, e.g. nvidia-h200")
    parser.add_argument("--folds", type=int, metavar="N",
                        help="leave out N parts of the problems in turn instead of one problem "
                             "at a time (faster)")
    parser.add_argument("--out", metavar="CSV", help="write one row a problem")


def run(args: argparse.Namespace) -> int:
    """Prints the shares of the best speed that the model and the nearest row reach."""
    from tritongemm.tuning.regret import regret, summaries, write_csv

    found = regret(args.journals, args.device, args.folds)
    print("best time / chosen time, each problem left out of what its choice was made from")
    print(f"{'problems':<18}{'count':>6}{'model':>9}{'worst':>8}{'nearest':>10}{'worst':>8}")
    for kind, (model, nearest) in summaries(found).items():
        print(f"{kind:<18}{model.count:>6}{model.mean:>9.4f}{model.worst:>8.3f}"
              f"{nearest.mean:>10.4f}{nearest.worst:>8.3f}")
    judged = [(share, one) for one in found if (share := one.share(one.model)) is not None]
    print("worst choices of the model:")
    for share, one in sorted(judged, key=lambda x: x[0])[:_WORST_SHOWN]:
        if one.model is not None:
            print(f"  {share:.3f}  {one.problem}: {one.model.config} {one.model.time_us:.2f} us; "
                  f"best {one.best.config} {one.best.time_us:.2f} us")
    if args.out:
        print(f"wrote {write_csv(args.out, found)}")
    return 0

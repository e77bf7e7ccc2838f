"""``tritongemm calibrate``: fits the selection's model to the timings of sweep journals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.errors import UsageError
from tritongemm.problem import DTYPES

if TYPE_CHECKING:
    from tritongemm.device import DeviceSpec
    from tritongemm.records.calibration import Calibration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="*", metavar="JOURNAL",
                        help="journals that `tritongemm sweep` wrote, or packed journals "
                             "(.npz); all of one device, or with --with-sibling of two")
    parser.add_argument("--device", metavar="SLUG",
                        help="use only the timings of this device, e.g. nvidia-h200")
    parser.add_argument("--with-sibling", action="store_true",
                        help="for a device with few timings: keep the constants of its sibling "
                             "(another GPU of the architecture), or its own where it is "
                             "calibrated, and train the network on the timings of both")
    parser.add_argument("--out", type=file_argument, metavar="PATH",
                        help="write the calibration to this file (default: "
                             "configs/calibration/<device>.json, or where the constants are "
                             "the sibling's <device>-and-<sibling>.json)")


    quick = parser.add_argument_group("measuring too")
    quick.add_argument("--quick", action="store_true",
                       help="for a GPU that was never measured: sweep a spread of problems and "
                            "configs on it, then fit; no JOURNAL is given")
    quick.add_argument("--budget", type=float, metavar="SECONDS",
                       help="with --quick: for everything (default 480)")
    quick.add_argument("--journal", type=file_argument, metavar="FILE.jsonl",
                       help="with --quick: the sweep's journal (default quick-RUN.jsonl)")
    quick.add_argument("--cuda-device", type=int, default=0, metavar="INDEX",
                       help="with --quick: the GPU (default %(default)s)")
    quick.add_argument("--dtype", choices=tuple(DTYPES), default="bf16",
                       help="with --quick: dtype of the problems (default %(default)s)")
    quick.add_argument("--plain", action="store_true",
                       help="with --quick: print lines instead of the live display")


def run(args: argparse.Namespace) -> int:
    """Fits, trains and writes, and prints how well the model predicts its own timings."""
    if args.out:
        check_file(args.out)
    if args.quick:
        path, calibration = _quick(args)
    elif not args.journals:
        raise UsageError("no journal is given; name those that `tritongemm sweep` wrote, or "
                         "--quick to measure now")
    elif args.with_sibling:
        from tritongemm.calibration.transfer import calibrate_with_sibling

        if args.device is None:
            raise UsageError("--with-sibling: name the device that it is for with --device")
        path, calibration = calibrate_with_sibling(args.journals, args.device, args.out)
    else:
        from tritongemm.calibration.calibrate import calibrate

        path, calibration = calibrate(args.journals, args.device, args.out)
    for section in calibration.sections:
        print(f"{'+'.join(section.units)}: {section.problems} problems, {section.results} timings, "
              f"rms log error {section.rms_log_error:.3f} near the best")
    print(f"wrote {path}")
    return 0


def _quick(args: argparse.Namespace) -> tuple[Path, Calibration]:
    """Measures and fits. A calibration that was made of more is not replaced."""
    if args.journals or args.with_sibling or args.device:
        raise UsageError("--quick measures by itself: give no JOURNAL, --device or "
                         "--with-sibling; its journal may be among those of a later `calibrate`")
    from tritongemm.calibration.quick import BUDGET_S, quick, remember
    from tritongemm.cli.sweep import progress_of
    from tritongemm.device import cuda_device
    from tritongemm.records.run import new_run_id

    device = cuda_device(args.cuda_device)
    if args.out is None:
        _check_not_calibrated(device)
    if (path := remember(device)) is not None:
        print(f"wrote {path} with the driver's limits. With peaks and bandwidth from the datasheet "
              "in it, fit again: `tritongemm calibrate` on the journal")
    journal = args.journal or f"quick-{new_run_id()}.jsonl"
    check_file(journal)
    found = quick(journal, budget_s=BUDGET_S if args.budget is None else args.budget,
                  dtype=args.dtype, path=args.out, devices=(args.cuda_device,),
                  progress=progress_of(args.plain))
    print(f"{found.sweep.measured} configs of {len(found.sweep.winners)} problems measured in "
          f"{found.sweep.wall_s:.0f} s on {found.sweep.device}; journal: {journal}")
    return found.path, found.calibration


def _check_not_calibrated(device: DeviceSpec) -> None:
    from tritongemm.records.calibration import find_calibration
    from tritongemm.selection.sibling import sibling_of

    sibling = sibling_of(device)
    known = find_calibration(device.slug) or (
        sibling and find_calibration(device.slug, sibling.slug))
    if known:
        raise UsageError(f"{device.slug} has a calibration: {known}. --quick would replace what "
                         "was made of more measurements; write elsewhere with --out PATH")
    if sibling:
        print(f"until now the model of {sibling.slug} has served {device.slug}; "
              "`tritongemm regret --shipped` on journals of your shapes tells which is better")

"""``tritongemm calibrate``: fits the selection's model to the timings of sweep journals."""

from __future__ import annotations

import argparse

from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="+", metavar="JOURNAL",
                        help="journals that `tritongemm sweep` wrote, or packed journals "
                             "(.npz); all of one device, or with --with-sibling of two")
    parser.add_argument("--device", metavar="SLUG",
                        help="use only the timings of this device, e.g. nvidia-h200")
    parser.add_argument("--with-sibling", action="store_true",
                        help="for a device with few timings: keep the constants of its sibling "
                             "(another GPU of the architecture) and train the network on the "
                             "timings of both")
    parser.add_argument("--out", type=file_argument, metavar="PATH",
                        help="write the calibration to this file (default: "
                             "configs/calibration/<device>.json, or "
                             "<device>-and-<sibling>.json)")


def run(args: argparse.Namespace) -> int:
    """Fits, trains and writes, and prints how well the model predicts its own timings."""
    if args.out:
        check_file(args.out)
    if args.with_sibling:
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

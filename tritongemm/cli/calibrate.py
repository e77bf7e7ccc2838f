"""``tritongemm calibrate``: sweep journals -> constants and networks of the selection's model."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="+", metavar="JOURNAL",
                        help="journals that `tritongemm sweep` wrote, of one device")
    parser.add_argument("--device", metavar="SLUG",
                        help="use only what this device measured, e.g. nvidia-h200")
    parser.add_argument("--out", metavar="PATH",
                        help="the file to write (default: configs/calibration/<device>.json)")


def run(args: argparse.Namespace) -> int:
    """Fits, trains, writes, and says how well the model describes what it was made of."""
    from tritongemm.tuning.calibrate import calibrate

    path, calibration = calibrate(args.journals, args.device, args.out)
    for section in calibration.sections:
        print(f"{'+'.join(section.units)}: {section.problems} problems, {section.results} timings, "
              f"rms log error {section.rms_log_error:.3f} near the best")
    print(f"wrote {path}")
    return 0

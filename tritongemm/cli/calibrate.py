"""``tritongemm calibrate``: fits the selection's model to the timings of sweep journals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.options import add_seconds, only_with
from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.cli.shapes import PRECISION_OF_CALLS
from tritongemm.cli.where import add_device_name
from tritongemm.errors import UsageError
from tritongemm.problem import PRECISIONS

if TYPE_CHECKING:
    from tritongemm.device import DeviceSpec
    from tritongemm.records.calibration import Calibration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("journals", nargs="*", metavar="JOURNAL",
                        help="journals that `tritongemm sweep` wrote, or packed journals "
                             "(.npz); all of one device, or with --with-sibling of two")
    add_device_name(parser, "use only the timings of this device, e.g. nvidia-h200")
    parser.add_argument("--with-sibling", action="store_true",
                        help="for a device with few timings: keep the constants of its sibling "
                             "(another GPU of the architecture), or its own where it is "
                             "calibrated, and train the network on the timings of both")
    parser.add_argument("--out", type=file_argument, metavar="PATH",
                        help="write the calibration to this file (default: "
                             "calibration/<device>.json, or where the constants are the sibling's "
                             "<device>-and-<sibling>.json, in TRITONGEMM_CONFIG_DIR, else configs/ "
                             "of a checkout, else your own folder; `tritongemm doctor` names it)")

    quick = parser.add_argument_group("measuring too")
    quick.add_argument("--quick", action="store_true",
                       help="for a GPU that was never measured: sweep a spread of problems and "
                            "configs on it, then fit; no JOURNAL is given")
    add_seconds(quick, "--budget", help="with --quick: for everything (default 480)")
    quick.add_argument("--journal", type=file_argument, metavar="FILE.jsonl",
                       help="with --quick: the sweep's journal (default quick-RUN.jsonl)")
    quick.add_argument("--cuda-device", type=int, metavar="INDEX",
                       help="with --quick: the GPU (default 0)")
    quick.add_argument("--dtype", choices=("bf16", "fp16", "fp32"),
                       help="with --quick: dtype of the problems (default bf16); bf16 serves fp16 "
                            "too")
    quick.add_argument("--precision", choices=PRECISIONS,
                       help=f"with --quick: precision of fp32 problems (default "
                            f"{PRECISION_OF_CALLS})")
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
    else:
        only_with("--quick", {"--budget": args.budget, "--journal": args.journal,
                              "--cuda-device": args.cuda_device, "--dtype": args.dtype,
                              "--precision": args.precision, "--plain": args.plain})
        path, calibration = _of_journals(args)
    for section in calibration.sections:
        print(f"{'+'.join(section.units)}: {section.problems} problems, {section.results} timings, "
              f"rms log error {section.rms_log_error:.3f} near the best")
    print(f"wrote {path}")
    return 0


def _of_journals(args: argparse.Namespace) -> tuple[Path, Calibration]:
    if args.with_sibling:
        from tritongemm.calibration.transfer import calibrate_with_sibling

        if args.device_name is None:
            raise UsageError("--with-sibling: name the device that it is for with --device-name")
        return calibrate_with_sibling(args.journals, args.device_name, args.out)
    from tritongemm.calibration.calibrate import calibrate

    return calibrate(args.journals, args.device_name, args.out)


def _quick(args: argparse.Namespace) -> tuple[Path, Calibration]:
    """Measures and fits. A calibration that was made of more is not replaced."""
    if args.journals or args.with_sibling or args.device_name:
        raise UsageError("--quick measures by itself: give no JOURNAL, --device-name or "
                         "--with-sibling; its journal may be among those of a later `calibrate`")
    from tritongemm.calibration.quick import BUDGET_S, quick, quick_problems, remember
    from tritongemm.cli.sweep import progress_of
    from tritongemm.device import cuda_device
    from tritongemm.records.run import new_run_id

    device = cuda_device(args.cuda_device or 0)
    if device.arch < 80:
        raise UsageError(f"{device.name} is {device.sm}; kernels need sm_80 or later, and calls go "
                         "to torch")
    problems = quick_problems(args.dtype or "bf16", precision=args.precision)
    if args.out is None:
        _check_not_calibrated(device, problems[0].unit)
    if (path := remember(device)) is not None:
        print(f"wrote {path} with the driver's limits. With peaks and bandwidth from the datasheet "
              "in it, fit again: `tritongemm calibrate` on the journal")
    journal = args.journal or f"quick-{new_run_id()}.jsonl"
    check_file(journal)
    found = quick(journal, budget_s=BUDGET_S if args.budget is None else args.budget,
                  problems=problems, path=args.out, devices=(args.cuda_device or 0,),
                  progress=progress_of(args.plain))
    print(f"{found.sweep.measured} configs of {len(found.sweep.winners)} problems measured in "
          f"{found.sweep.wall_s:.0f} s on {found.sweep.device}; journal: {journal}")
    return found.path, found.calibration


def _check_not_calibrated(device: DeviceSpec, unit: str) -> None:
    from tritongemm.records.calibration import find_calibration, read_calibration
    from tritongemm.selection.sibling import sibling_of

    sibling = sibling_of(device)
    for known in (find_calibration(device.slug),
                  sibling and find_calibration(device.slug, sibling.slug)):
        if known and read_calibration(known).section(unit):
            raise UsageError(f"{device.slug} has a calibration for {unit}: {known}. --quick would "
                             "replace what was made of more measurements; write elsewhere with "
                             "--out PATH")
    if sibling:
        print(f"until now the model of {sibling.slug} has served {device.slug}; "
              "`tritongemm regret --shipped` on journals of your shapes tells which is better")

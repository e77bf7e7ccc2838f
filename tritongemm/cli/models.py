"""``tritongemm models``: whole programs of published sizes under override against torch."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from tritongemm.cli.options import add_count, add_number, add_seconds, joined_tags
from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.errors import UsageError

DEFAULT_OUT = Path("results/models.csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("programs", nargs="*", metavar="PROGRAM",
                        help="names, or the beginning of names (default: all; --list shows them)")
    parser.add_argument("--modes", metavar="LIST", help="a comma list of eager, compiled, fused "
                        "(torch.compile with this package's graph pass) and graph (CUDA graphs) "
                        "(default: all that a program can run in)")
    parser.add_argument("--tiny", action="store_true",
                        help="small sizes, to try every program's code without a GPU; times mean "
                             "nothing")
    parser.add_argument("--device", default="auto", metavar="NAME",
                        help="as for bench: cuda, cuda:INDEX or cpu (default %(default)s)")
    add_count(parser, "--processes", default=1,
              help="measure everything in N fresh processes and keep the median rows "
                   "(default 1; published figures use 3)")
    add_count(parser, "--seed", least=0, metavar="SEED", default=0,
              help="seed of weights, inputs and orders")
    add_seconds(parser, "--budget", default=10.0,
                help="time of one program's rounds in one mode (default %(default)g)")
    add_seconds(parser, "--timeout", least=1, default=1800.0,
                help="end the process of a mode that takes longer (default %(default)g)")
    add_number(parser, "--min-flops", lambda value: 0 <= value < math.inf,
               "is not a number of at least 0", metavar="FLOPS",
               help="as for tritongemm.override (default: its own; 0 with --tiny)")
    parser.add_argument("--out", type=file_argument, default=DEFAULT_OUT, metavar="FILE.csv",
                        help="append rows to this CSV (default %(default)s)")
    parser.add_argument("--tag", default="", metavar="WORD", help="a word of your own in each row")
    parser.add_argument("--list", action="store_true", help="list the programs, and exit")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 where a result was wrong, a mode failed or the control left its limit."""
    from tritongemm.models.catalog import chosen

    programs = chosen(args.programs)
    if args.list:
        for program in programs:
            print(f"{program.name:<26}{program.what} ({', '.join(program.modes)})")
        return 0
    check_file(args.out)
    from tritongemm.models.runner import ModelsPlan, measure_programs

    report = measure_programs(ModelsPlan(
        programs, args.out, _modes(args.modes), joined_tags([args.tag]), args.tiny,
        args.processes, args.seed, args.budget, args.timeout, args.device, args.min_flops), _line)
    return _summary(report, args.tiny)


def _modes(text: str | None) -> tuple[str, ...]:
    from tritongemm.models.program import MODES

    if text is None:
        return MODES
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in words:
        if word not in MODES:
            raise UsageError(f"mode {word!r} is not known; use some of {', '.join(MODES)}")
    if not words:
        raise UsageError(f"--modes names nothing; use some of {', '.join(MODES)}")
    return words


def _line(event) -> None:
    rows = {row["provider"]: row for row in event.rows}
    width = len(str(event.total))
    text = event.message or _of_rows(rows)
    print(f"[{event.done:>{width}}/{event.total}] {event.program:<26}{event.mode:<10}{text}",
          flush=True)


def _of_rows(rows: dict) -> str:
    """``torch 5.61 ms  1.034x (1.030-1.037)  98 % taken``."""
    from tritongemm.models.runner import OURS
    from tritongemm.records.control import BASELINE

    ours = rows[OURS]
    if ours["status"] != "ok":
        return f"{ours['status']}: {str(ours.get('error') or '')[:200]}"
    share = ours.get("share_taken")
    taken = "" if share is None else f"  {100 * share:.0f} % taken"
    if ours.get("time_us_p50") is None:
        return f"right (error {ours['max_err_ratio']:.2f} of its limit){taken}"
    return (f"torch {rows[BASELINE]['time_us_p50'] / 1000:.4g} ms  {ours['ratio_vs_torch']:.3f}x "
            f"({ours['ratio_low']:.3f}-{ours['ratio_high']:.3f}){taken}")


def _summary(report, tiny: bool = False) -> int:
    """The table, a line a program, a column a mode; then means and what went wrong."""
    from tritongemm.models.program import MODES
    from tritongemm.models.runner import OURS

    ours = [row for row in report.rows if row["provider"] == OURS]
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in ours)]
    print("\ntorch's time / tritongemm's: above 1 is faster than torch")
    print(f"{'program':<26}" + "".join(f"{mode:>10}" for mode in modes))
    for program in dict.fromkeys(row["program"] for row in ours):
        cells = {row["mode"]: _cell(row) for row in ours if row["program"] == program}
        print(f"{program:<26}" + "".join(f"{cells.get(mode, '-'):>10}" for mode in modes))
    means = []
    for mode in modes:
        ratios = [row["ratio_vs_torch"] for row in ours
                  if row["mode"] == mode and row.get("ratio_vs_torch") is not None]
        means.append(f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}" if ratios else "-")
    print(f"{'geometric mean':<26}" + "".join(f"{text:>10}" for text in means))
    print(f"{len(report.rows)} rows appended to {report.out}")
    for program, mode, reason in report.left_out:
        print(f"  ! {program} {mode} was left out: {reason}")
    bad = report.failed or any(row["status"] != "ok" for row in ours) or not ours
    if report.control.mean_ratio is not None:
        if not report.control.void:
            print(f"torch against torch {report.control.mean_ratio:.4f}, within its limit")
        elif tiny:
            print("times of --tiny sizes mean nothing")
        else:
            print(f"VOID: {report.control.reason}")
            bad = True
    return int(bad)


def _cell(row) -> str:
    if row["status"] != "ok":
        return str(row["status"])
    ratio = row.get("ratio_vs_torch")
    return "right" if ratio is None else f"{ratio:.3f}"

"""``python -m tests.fuzz``: random calls of every function, in Triton's interpreter or on a GPU.

Exit status 1 where a case was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="after preparing (60)")
    parser.add_argument("--procs", type=int, default=1,
                        help="processes (1); a GPU has room for 14")
    parser.add_argument("--seed", type=int, default=1,
                        help="the first; each process begins 1,000,343 later than the last (1)")
    parser.add_argument("--cases", type=int, help="cases of a process at most")
    parser.add_argument("--case", help="one case alone: its seed, or its repr")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto",
                        help="cpu: Triton's interpreter (auto: a GPU where there is one)")
    parser.add_argument("--precision", choices=("ieee", "fp16x3", "tf32"), default="",
                        help="float32 alone, at this precision (all dtypes)")
    parser.add_argument("--host-only", action="store_true",
                        help="no kernel runs, torch multiplies: tries the host's code, faster")
    parser.add_argument("--binaries", type=int, default=2000,
                        help="on a GPU: built first, at most so many (2000); 0: as they are met")
    parser.add_argument("--stop", type=int, default=20, help="wrong cases that end a process (20)")
    parser.add_argument("--as-found", action="store_true", help="wrong cases are not simplified")
    parser.add_argument("--out", help="JSON file for counts and wrong cases")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Runs what the command line asks for."""
    options = arguments(words)
    import torch

    cuda = options.device == "cuda" or options.device == "auto" and torch.cuda.is_available()
    if not cuda:
        # Before the kernels are loaded, here and in the processes that are started.
        os.environ["TRITON_INTERPRET"] = "1"
    from . import campaign
    from .case import read

    plan = campaign.Plan(options.seed, options.seconds, cuda, options.host_only,
                         stop=options.stop, most=options.cases, as_found=options.as_found,
                         precision=options.precision)
    if options.case is not None:
        if not cuda:
            campaign.round_to_nearest()
        case = (plan.case(int(options.case)) if options.case.lstrip("-").isdigit()
                else read(options.case))
        outcome = campaign.attempt(case, plan)
        print(case)
        print(outcome.kind, outcome.message, *map(str, outcome.made))
        return outcome.kind == "wrong"
    if cuda and options.binaries:
        try:
            plan = campaign.prepare(plan, options.binaries)
        except KeyboardInterrupt:
            print("interrupted while binaries were built: no case was tried", file=sys.stderr)
            return 130
        print(f"{len(plan.built or ())} binaries are built", flush=True)
    result = campaign.campaign(plan, options.procs)
    print(result.table())
    print(f"{result.total} cases in {result.seconds:.0f} s, {len(result.failures)} wrong, "
          f"from seed {options.seed} in {options.procs} processes")
    for seed, message, case in result.failures:
        print(f"\nseed {seed}: {message}\n  {case}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"seed": options.seed, "processes": options.procs,
                       "precision": options.precision,
                       "device": torch.cuda.get_device_name() if cuda else "interpreter",
                       "torch": torch.__version__, **result.to_json()}, file, indent=1)
    return bool(result.failures)


if __name__ == "__main__":
    sys.exit(main())

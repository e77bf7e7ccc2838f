"""``python -m tests.mutation``: makes small mistakes in a copy of the package, one at a time, and
says which no test notices. Run by hand, not in CI. Needs ``coverage``.

Exit status 1 where one that ``accepted.json`` does not explain survives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .operators import Mutant, compiles, mutants_of
from .trial import Lines, Outcome, planted, run

ROOT = Path(__file__).resolve().parents[2]
#: What is mutated, below the package: host code alone.
AREAS = ("problem.py", "epilogues.py", "scales.py", "config.py", "records", "selection", "tuning",
         "report", "ops", "kernels")
#: The tests that may notice.
TESTS = ("records", "report", "selection", "kernels", "ops", "tuning", "calibration", "cli",
         "bench", "test_formats.py", "test_activations.py")


def main(words: list[str]) -> int:
    """Tries a sample, prints a line for each survivor and a table by area."""
    args = _arguments(words)
    folder = Path(args.folder or tempfile.mkdtemp(prefix="mutation-copy-"))
    copy = folder / "copy"
    if not copy.exists():
        _copy(copy)
    if not (folder / "lines.json").exists():
        _cover(copy, folder / "lines.json")
    lines = Lines(folder / "lines.json")
    _preload()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # the copy is put right again
    out = folder / f"sample-{args.seed}.jsonl"
    if args.again and out.exists():
        kept = [json.dumps(r) for r in _read(out) if r["verdict"] != "survived"]
        out.replace(out.with_suffix(".before"))
        out.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    done = {(r["name"], r["after"]) for r in _read(out)}
    end = time.monotonic() + 60 * args.minutes
    for mutant in sample(copy, args.sample, args.seed, args.only):
        before, after = texts(copy, mutant)
        if (mutant.name, after) in done:
            continue
        if time.monotonic() > end:
            break
        outcome = attempt(copy, lines, mutant, args.seconds)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": mutant.name, "kind": mutant.kind, "file": mutant.file,
                                   "before": before, "after": after, **asdict(outcome)}) + "\n")
        if args.verbose or outcome.verdict == "survived":
            print(f"{outcome.verdict:<9}{outcome.seconds:>6.1f} s  {mutant.name}  "
                  f"{outcome.test}", flush=True)
    return report(copy, _read(out), lines)


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="mutants (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="which (default 0)")
    parser.add_argument("--minutes", type=float, default=45, help="start none after (default 45)")
    parser.add_argument("--seconds", type=float, default=10,
                        help="of tests a mutant, twice: of its own folder and of others "
                        "(default 10)")
    parser.add_argument("--again", action="store_true",
                        help="try once more those that survived, with more --seconds")
    parser.add_argument("--only", metavar="FILE[:LINE]", action="append", default=[],
                        help="of these files or lines alone, e.g. report/compare.py:225")
    parser.add_argument("--folder", help="keeps the copy, what covers what, and the outcomes; "
                        "a second run with it goes on where the first ended")
    parser.add_argument("--verbose", action="store_true", help="print the killed ones too")
    return parser.parse_args(words)


def files() -> Iterator[str]:
    """The modules that are mutated, below the package."""
    package = ROOT / "tritongemm"
    for area in AREAS:
        paths = [package / area] if area.endswith(".py") else sorted((package / area).glob("*.py"))
        yield from (path.relative_to(package).as_posix() for path in paths)


def sample(copy: Path, count: int, seed: int, only: list[str]) -> Iterator[Mutant]:
    """At most ``count`` of all mutants, drawn at random, one a line at most; with ``only`` all of
    those files or lines."""
    package = copy / "tritongemm"
    sources = {file: (package / file).read_bytes() for file in files()
               if not only or any(one.split(":")[0] == file for one in only)}
    found = [one for file, source in sources.items() for one in mutants_of(file, source)]
    if only:
        found = [x for x in found if any(one in (x.file, f"{x.file}:{x.line}") for one in only)]
    random.Random(seed).shuffle(found)
    lines: set[tuple[str, int]] = set()
    taken = 0
    for one in found:
        if (taken < count and (only or (one.file, one.line) not in lines)
                and compiles(one.of(sources[one.file]))):
            lines.add((one.file, one.line))
            taken += 1
            yield one


def attempt(copy: Path, lines: Lines, mutant: Mutant, seconds: float) -> Outcome:
    """Plants it and runs the tests that cover its statement, the quickest, which take ``seconds``
    together; first those of its own folder, then as many of all others."""
    source = (copy / "tritongemm" / mutant.file).read_bytes()
    covering, own = lines.of_line(mutant, source), lines.of_folder(mutant)
    tried: set[int] = set()
    took, count = 0.0, 0
    with planted(copy, mutant):
        for tests in (covering & own or own, covering):
            chosen = lines.cheapest(tests - tried, seconds)
            if not chosen:
                continue
            tried.update(chosen)
            spent = sum(lines.seconds[i] for i in chosen)
            outcome = run(copy, [lines.tests[i] for i in chosen], 20 + 3 * spent)
            took, count = took + outcome.seconds, count + outcome.tests
            if outcome.verdict != "survived":
                return outcome
    return Outcome("survived", seconds=took, tests=count)


def texts(copy: Path, mutant: Mutant) -> tuple[str, str]:
    """The lines that it touches, before and after, without their indentation."""
    source = (copy / "tritongemm" / mutant.file).read_bytes()
    begin = source.rfind(b"\n", 0, mutant.start) + 1
    end = source.find(b"\n", mutant.end)
    before = source[begin:end].decode()
    after = (source[begin:mutant.start] + mutant.new.encode() + source[mutant.end:end]).decode()
    return " ".join(before.split()), " ".join(after.split())


def report(copy: Path, records: list[dict], lines: Lines) -> int:
    """Prints the table, whose share leaves out accepted ones; first it runs the tests that killed
    on the copy without a mistake."""
    killers = sorted({r["test"] for r in records if r["test"] in set(lines.tests)})
    known = dict(zip(lines.tests, lines.seconds))
    false: set[str] = set()
    while killers:
        outcome = run(copy, [x for x in killers if x not in false],
                      60 + 3 * sum(known[x] for x in killers))
        if outcome.verdict == "survived":
            break
        if outcome.test not in killers or outcome.test in false:
            print(f"the tests that killed cannot be run again: {outcome}")
            break
        false.add(outcome.test)
    accepted = {(x["file"], x["before"], x["after"]): x["reason"]
                for x in json.loads((Path(__file__).parent / "accepted.json").read_text("utf-8"))}
    count, open_ones = Counter[tuple[str, str]](), 0
    for one in records:
        verdict, area = one["verdict"], one["file"].split("/")[0]
        if verdict == "killed" and one["test"] in false:
            verdict = "void"
        if verdict == "survived":
            reason = accepted.get((one["file"], one["before"], one["after"]))
            verdict = "accepted" if reason else verdict
            open_ones += not reason
            if not reason:
                print(f"{one['name']}\n    {one['before']}\n    {one['after']}")
        count[area, verdict] += 1
        count["all", verdict] += 1
    verdicts = ("killed", "timeout", "survived", "accepted", "void")
    print(f"{'area':<12}" + "".join(f"{x:>10}" for x in verdicts) + f"{'killed %':>10}")
    for area in (*AREAS, "all"):
        numbers = [count[area, verdict] for verdict in verdicts]
        if whole := sum(numbers[:3]):
            print(f"{area:<12}" + "".join(f"{x:>10}" for x in numbers)
                  + f"{100 * sum(numbers[:2]) / whole:>10.1f}")
    for name in sorted(false):
        print(f"fails without a mistake as well: {name}")
    return bool(open_ones)


def _read(file: Path) -> list[dict]:
    return [json.loads(x) for x in file.read_text("utf-8").splitlines()] if file.exists() else []


def _copy(copy: Path) -> None:
    """What git tracks, and new files, as they stand in the checkout."""
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)


def _cover(copy: Path, out: Path) -> None:
    """Runs the tests once, to see what each one runs. Tests that fail are left out."""
    there = [f"tests/{name}" for name in TESTS]
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
                    "tests.mutation.covering", *there], cwd=copy, check=False,
                   env={**os.environ, "MUTATION_LINES": str(out), "PYTHONPATH": os.pathsep.join(
                       [str(copy), os.environ.get("PYTHONPATH", "")])})


def _preload() -> None:
    """What the children would each import; the package is not among it. A home of no one: what
    reads it while it is imported finds no settings of a user's."""
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
        before = os.environ.get("HOME")
        stack.callback(lambda: os.environ.update(HOME=before) if before else None)
        os.environ.update(HOME=home, OMP_NUM_THREADS="1")
        import hypothesis  # noqa: F401
        import numpy  # noqa: F401
        import pandas  # noqa: F401
        import rich.console  # noqa: F401
        import torch  # noqa: F401
        import triton  # noqa: F401


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

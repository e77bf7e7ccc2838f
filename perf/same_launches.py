"""Whether two versions of the package launch the same: field by field, and binary by binary.

Draws random pairs of a problem and a config, derives their launches with the package of this
checkout, and writes every field of every launch to a file. No GPU is needed. The config of a pair
is drawn from the shipped spaces and tuned tables (of a Triton rung of the ladder: its default), and
is never chosen by selection, so a change to selection changes nothing here.

    python perf/same_launches.py --write before.jsonl --count 2000 --cubins 300
    ... change the package ...
    python perf/same_launches.py --write after.jsonl --pairs before.jsonl --cubins 300
    python perf/same_launches.py --compare before.jsonl after.jsonl

or, with another checkout beside this one, all three at once::

    python perf/same_launches.py --against ../before --cubins 300

``--cubins COUNT`` also compiles so many of the distinct sm_90 launches, in a seeded order, and
records a digest of the machine code (the sections ``.text*`` of the cubin, compiled without line
numbers), registers, spills, shared memory and warps. Digests are compared by pair and launch, so
equal symbols with other code are found. ``--kernel NAME`` (repeatable) compiles launches of that
kernel only.

``--rename OLD=NEW`` (repeatable) replaces a whole string of the first file, wherever it stands: a
module, a function, the name of an argument or of a constant. ``--ignore NAME`` (repeatable) leaves
out a field of that name, such as one that only one of the versions has.

The other checkout runs its own copy of this script where it has one, because the script follows
the package's interface. Exit status: 0 all the same, 1 differences, 2 wrong use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields, is_dataclass, replace
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Problems drawn for a config before another config is tried.
TRIES = 400
#: Of 20 configs: this many from the tuned tables, this many defaults of a rung.
FROM_TABLES, FROM_RUNGS = 4, 1
#: Differences that are printed; the summary counts all.
SHOWN = 40


# --- drawing -------------------------------------------------------------------------------------

class Configs:
    """Draws configs: a kernel and a product of its space's axes at random, then each value."""

    def __init__(self, rng: random.Random):
        from tritongemm import settings
        from tritongemm.kernels import SPECS
        from tritongemm.records.spaces import load_space
        from tritongemm.records.tables import read_table

        self.rng = rng
        self.products = {kernel: load_space(kernel).products for kernel in SPECS}
        # The Hopper kernel has most branches: as many draws as the others together.
        self.kernels = [*SPECS] + ["warp_specialized"] * (len(SPECS) - 2)
        self.tuned = [(row.config, row.problem(table.header)) for path in sorted(
            (settings.config_root() / "tuned").glob("*/*.json")) for table in (read_table(path),)
            for row in table.rows.values()]

    def draw(self):
        """A config, and the problem of its row where it is a tuned one."""
        from tritongemm.config import KernelConfig

        if self.rng.randrange(20) < FROM_TABLES:
            return self.rng.choice(self.tuned)
        kernel = self.rng.choice(self.kernels)
        product = self.rng.choice(self.products[kernel])
        values = {name: self.rng.choice(axis) for name, axis in sorted(product.axes.items())}
        return KernelConfig(kernel, **values), None


def drawn_problem(rng: random.Random):
    """A problem of any layout, dtype, alignment, epilogue and batch."""
    from tritongemm.epilogues import EPILOGUES, PLAIN_EPILOGUES
    from tritongemm.problem import LAYOUTS, GemmProblem, dtype_of

    dtype = rng.choice(("bf16", "bf16", "fp16", "fp32"))
    unit = rng.choice((1, 2, 4, 8, 64))
    extents = [unit * max(1, int(2 ** rng.uniform(0, 13) / unit)) for _ in range(3)]
    if (kind := rng.random()) < 0.25:
        extents[rng.randrange(2)] = rng.randint(1, 32)
    elif kind < 0.3:
        extents[rng.randrange(3)] = 2 ** rng.randint(14, 17)
    epilogue = "none" if rng.random() < 0.5 else rng.choice(
        tuple(PLAIN_EPILOGUES if rng.random() < 0.6 else EPILOGUES))
    if EPILOGUES[epilogue].gated:  # B holds two halves
        extents[1] *= 2
    problem = GemmProblem.contiguous(
        *extents, batch=rng.choice((1, 1, 1, 3, 17)) if EPILOGUES[epilogue].plain else 1,
        dtype=dtype, layout=rng.choice(LAYOUTS), epilogue=epilogue,
        dtype_out=rng.choice((dtype, dtype, "fp32")) if EPILOGUES[epilogue].plain else dtype,
        precision=rng.choice(("ieee", "tf32", "fp16x3")) if dtype == "fp32" else "ieee")
    for name, of in (("align_a", problem.dtype_a), ("align_b", problem.dtype_b),
                     ("align_c", problem.dtype_out)):
        if rng.random() < 0.12:
            least = dtype_of(of).itemsize
            problem = replace(problem, **{name: min(
                getattr(problem, name), rng.choice([x for x in (2, 4, 8) if x >= least]))})
    return problem


def drawn_strides(rng: random.Random, problem) -> dict[str, int] | None:
    """Strides of operands with gaps of whole 16 bytes between rows, or None: without gaps."""
    from tritongemm.epilogues import EPILOGUES
    from tritongemm.kernels.launch import Geometry

    # Further epilogues read operands whose strides are not drawn.
    if rng.random() < 0.75 or not EPILOGUES[problem.epilogue].plain:
        return None
    strides = asdict(Geometry.contiguous(problem))
    # No kernel that is drawn reads another operand or a complex or mixed one, no problem has two
    # strides along its batch.
    for name in ("others", "inner", "outer_a", "outer_b", "outer_c", "conjugated", "stored_a"):
        del strides[name]
    for operand, outer in (("a", ("am", "ak")), ("b", ("bk", "bn")), ("c", ("cm",))):
        gap = 16 * rng.randrange(4)
        for name in outer:
            if strides[name] != 1:
                strides[name] += gap
                strides[operand + "b"] += gap * max(problem.m, problem.n, problem.k)
    return strides


def drawn_pairs(count: int, seed: int) -> Iterator[dict]:
    """``count`` legal pairs as JSON objects: problem, config, device, strides."""
    from tritongemm.device import known_devices
    from tritongemm.kernels import spec_named
    from tritongemm.kernels.ladder import RUNG_SPECS
    from tritongemm.records.codec import config_to_json, problem_to_json

    rng = random.Random(seed)
    configs, devices = Configs(rng), list(known_devices().values())
    while count:
        if rng.randrange(20) < FROM_RUNGS:
            spec, config, problem = rng.choice([*RUNG_SPECS.values()]), None, None
        else:
            config, problem = configs.draw()
            spec = spec_named(config.kernel)
        # Half of what sm_90 can run is drawn for it.
        device = rng.choice([x for x in devices if x.arch in spec.archs and (
            x.arch == 90 or 90 not in spec.archs or rng.random() < 0.5)])
        for _ in range(TRIES):
            if problem is None:
                problem = drawn_problem(rng)
            tried = config or spec.default(problem, device)
            if spec.violation(problem, tried, device) is None:
                yield {"problem": problem_to_json(problem), "config": config_to_json(tried),
                       "device": device.slug, "strides": drawn_strides(rng, problem)}
                count -= 1
                break
            problem = None


# --- launches as JSON ----------------------------------------------------------------------------

def launches_of(pair: dict) -> tuple:
    """What the package launches for a pair. Raises its error where it refuses the pair."""
    from tritongemm.device import device_named
    from tritongemm.kernels import spec_named
    from tritongemm.kernels.launch import Geometry
    from tritongemm.records.codec import config_from_json, problem_from_json

    problem, config = problem_from_json(pair["problem"]), config_from_json(pair["config"])
    device, spec = device_named(pair["device"]), spec_named(config.kernel)
    spec.require(problem, config, device)
    strides = pair["strides"]
    geometry = Geometry.contiguous(problem) if strides is None else Geometry(**strides)
    return spec.launches(problem, config, device, geometry)


def as_json(value: object) -> object:
    """A launch, or what it holds, with every field named. Pairs of a name and a value, such as
    constants, become an object, so that their order does not count and a new one shows as one."""
    if is_dataclass(value):
        return {"is": type(value).__name__,
                **{f.name: as_json(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, (tuple, list)):
        if value and all(isinstance(x, (tuple, list)) and len(x) == 2 and isinstance(x[0], str)
                         for x in value):
            return {name: as_json(x) for name, x in value}
        return [as_json(x) for x in value]
    if isinstance(value, dict):
        return {str(name): as_json(x) for name, x in value.items()}
    return value


def described(pair: dict) -> list | str:
    """The launches of a pair as JSON, or why the package refuses it."""
    from tritongemm.errors import TritonGemmError

    try:
        return [{**as_json(x), "all_constants": as_json(x.all_constants()),
                 "static_key": as_json(x.static_key())} for x in launches_of(pair)]
    except TritonGemmError as error:
        return f"{type(error).__name__}: {error}"


# --- cubins --------------------------------------------------------------------------------------

def code_digest(cubin: bytes) -> str:
    """A digest of the sections ``.text*`` of a cubin (64-bit little-endian ELF)."""
    start, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    found = hashlib.sha256()
    texts = 0
    for name, _, _, _, offset, length in headers:
        at = headers[names][4] + name
        if cubin[at:cubin.index(b"\0", at)].startswith(b".text"):
            found.update(cubin[offset:offset + length])
            texts += 1
    if not texts:
        raise ValueError("this cubin has no section .text")
    return found.hexdigest()[:16]


def compiled(pair: dict, index: int) -> dict:
    """What one launch of a pair compiles to for sm_90."""
    from tritongemm.errors import CompileError
    from tritongemm.kernels.compile import compile_launch

    launch = launches_of(pair)[index]
    try:
        binary = compile_launch(launch, 90)
    except CompileError as error:
        return {"symbol": launch.symbol, "error": str(error)}
    return {"symbol": binary.symbol, "code": code_digest(binary.cubin),
            "registers": binary.registers, "spills": binary.spills,
            "shared_bytes": binary.shared_bytes, "num_warps": binary.num_warps}


def wanted_cubins(rows: list[dict], count: int, seed: int, kernels: list[str]
                  ) -> list[tuple[int, int]]:
    """(row, launch) of ``count`` distinct sm_90 binaries, in a seeded order."""
    from tritongemm.device import device_named

    every = [(row, index) for row, x in enumerate(rows) if isinstance(x["launches"], list)
             and device_named(x["pair"]["device"]).arch == 90
             and (not kernels or x["pair"]["config"]["kernel"] in kernels)
             for index in range(len(x["launches"]))]
    random.Random(seed).shuffle(every)
    seen, chosen = set(), []
    for row, index in every:
        key = json.dumps(rows[row]["launches"][index]["static_key"], sort_keys=True)
        if key not in seen and len(chosen) < count:
            seen.add(key)
            chosen.append((row, index))
    return chosen


def write(options: argparse.Namespace, path: Path) -> None:
    """One line a pair: the pair, its launches, and what was compiled of them."""
    if options.pairs:
        pairs = [x["pair"] for x in read(options.pairs)]
    else:
        pairs = list(drawn_pairs(options.count, options.seed))
    rows = [{"pair": pair, "launches": described(pair)} for pair in pairs]
    chosen = wanted_cubins(rows, options.cubins, options.seed, options.kernel)
    if chosen:
        with tempfile.TemporaryDirectory() as cache:
            # Read by Triton when the workers import it. Its own cache would be filled for nothing.
            os.environ.update(TRITON_DISABLE_LINE_INFO="1", TRITON_CACHE_DIR=cache)
            with ProcessPoolExecutor(options.jobs, get_context("spawn"), import_package,
                                     (str(options.root),)) as pool:
                done = pool.map(compiled, [pairs[row] for row, _ in chosen],
                                [index for _, index in chosen])
                for (row, index), result in zip(chosen, done):
                    rows[row].setdefault("cubins", {})[str(index)] = result
    with open(path, "w") as file:
        file.writelines(json.dumps(x, sort_keys=True) + "\n" for x in rows)
    kernels = Counter(x["pair"]["config"]["kernel"] for x in rows)
    launches = sum(len(x["launches"]) for x in rows if isinstance(x["launches"], list))
    print(f"{path}: {len(rows)} pairs, {launches} launches, "
          f"{len(chosen)} cubins; {', '.join(f'{k} {n}' for k, n in sorted(kernels.items()))}")


def read(path: Path) -> list[dict]:
    with open(path) as file:
        return [json.loads(line) for line in file]


# --- comparing -----------------------------------------------------------------------------------

def renamed(value: object, names: dict[str, str]) -> object:
    """``value`` with every string that is a key of ``names`` replaced."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [renamed(x, names) for x in value]
    if isinstance(value, dict):
        return {names.get(k, k): renamed(x, names) for k, x in value.items()}
    return value


def differences(old: object, new: object, ignored: set[str], path: str = "") -> Iterator[tuple]:
    """(path, old, new) of every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new} - ignored):
            yield from differences(old.get(name, "absent"), new.get(name, "absent"), ignored,
                                   f"{path}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (x, y) in enumerate(zip(old, new)):
            yield from differences(x, y, ignored, f"{path}[{index}]")
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def compare(old: list[dict], new: list[dict], names: dict[str, str], ignored: set[str]) -> int:
    """Prints what differs; 0 where nothing does."""
    if [x["pair"] for x in old] != [x["pair"] for x in new]:
        print("the files hold different pairs: write the second with --pairs FIRST")
        return 2
    kinds: Counter = Counter()
    pairs = launches = cubins = missing = 0
    shown = 0
    for before, after in zip(old, new):
        found = list(differences(renamed(before["launches"], names), after["launches"], ignored,
                                 "launches"))
        ours, theirs = before.get("cubins", {}), after.get("cubins", {})
        both = sorted(set(ours) & set(theirs))
        missing += len(set(ours) ^ set(theirs))
        for index in both:
            found += differences(ours[index], theirs[index], ignored, f"cubins[{index}]")
        pairs += bool(found)
        launches += len(after["launches"]) if isinstance(after["launches"], list) else 0
        cubins += len(both)
        for path, x, y in found:
            kinds["".join(c for c in path if not c.isdigit())] += 1
            if shown < SHOWN:
                shown += 1
                config = after["pair"]["config"]
                print(f"{config['kernel']} for {after['pair']['problem']}, {path}: "
                      f"{str(x)[:200]} -> {str(y)[:200]}")
    for kind, times in kinds.most_common():
        print(f"{times:6} differ in {kind}")
    print(f"{len(old)} pairs with {launches} launches and {cubins} cubins compared; {pairs} pairs "
          f"differ" + (f"; {missing} cubins only in one file" if missing else ""))
    return int(bool(pairs))


def against(options: argparse.Namespace) -> int:
    """Compares this checkout with the one at ``options.against``."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.jsonl"), Path(folder, "after.jsonl")
        other = options.against.resolve()
        script = other / "perf" / Path(__file__).name
        command = [sys.executable, str(script if script.exists() else Path(__file__).resolve()),
                   "--write", str(before), "--root", str(other), "--count", str(options.count),
                   "--seed", str(options.seed), "--cubins", str(options.cubins),
                   "--jobs", str(options.jobs), *(f"--kernel={x}" for x in options.kernel)]
        if options.pairs:
            command += ["--pairs", str(options.pairs)]
        subprocess.run(command, check=True)
        options.pairs = before
        write(options, after)
        return compare(read(before), read(after), options.rename, options.ignore)


def import_package(root: str) -> None:
    """Makes ``root``'s package the one that is imported, in this process."""
    sys.path.insert(0, root)
    import tritongemm

    if Path(tritongemm.__file__).resolve().parents[1] != Path(root):
        sys.exit(f"tritongemm was imported from {tritongemm.__file__}, not from {root}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", type=Path, metavar="FILE", help="write launches to FILE")
    mode.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"))
    mode.add_argument("--against", type=Path, metavar="PATH", help="compare with this checkout")
    parser.add_argument("--count", type=int, default=2000, help="pairs to draw (2000)")
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="take the pairs of FILE")
    parser.add_argument("--cubins", type=int, default=0, metavar="COUNT",
                        help="binaries to compile for sm_90 (0)")
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME",
                        help="compile launches of this kernel only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1,
                        help="processes that compile")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if any("=" not in x for x in options.rename):
        parser.error("--rename takes OLD=NEW")
    options.rename = dict(x.split("=", 1) for x in options.rename)
    options.ignore = set(options.ignore)
    if options.compare:
        return compare(*map(read, options.compare), options.rename, options.ignore)
    options.root = options.root.resolve()
    import_package(str(options.root))
    if options.against:
        return against(options)
    write(options, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())

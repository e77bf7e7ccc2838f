"""Faults of files that a call, a command or a publication reads and writes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.problem import GemmProblem

from . import Seen, clear, fault, refused
from .of_sweeps import file_faults

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "nvidia-h200"
PROBLEM = GemmProblem.contiguous(4096, 11008, 4096, layout="nt")
TABLE = f"tuned/{DEVICE}/mm-bf16-ieee-nt.json"


def _configs(folder: Path, name: str) -> Path:
    """A folder of tables with a copy of one shipped file: the copy."""
    to = folder / "configs" / name
    to.parent.mkdir(parents=True)
    if (ROOT / "configs" / name).exists():
        shutil.copy(ROOT / "configs" / name, to)
    os.environ["TRITONGEMM_CONFIG_DIR"] = str(folder / "configs")
    settings.reload()
    return to


def _chosen() -> Seen:
    """What selection makes of the problem: it must choose a kernel."""
    from tritongemm import selection

    try:
        choice = selection.choose(PROBLEM, device_named(DEVICE))
    except Exception as error:
        return Seen(f"no choice: {type(error).__name__}: {error}"[:150], False)
    return Seen(f"{choice.source}: {choice.config.config_id}", True)


@fault("a tuned table is cut off")
def table_cut(folder: Path) -> Seen:
    path = _configs(folder, TABLE)
    path.write_bytes(path.read_bytes()[:2000])
    return _chosen()


@fault("a tuned row has a parameter that this version does not know")
def table_newer(folder: Path) -> Seen:
    path = _configs(folder, TABLE)
    table = json.loads(path.read_text())
    table["rows"][0]["config"]["of_a_newer_version"] = 1
    path.write_text(json.dumps(table))
    return _chosen()


@fault("a table's header names another device, dtype and layout")
def table_elsewhere(folder: Path) -> Seen:
    path = _configs(folder, TABLE)
    table = json.loads(path.read_text())
    table.update(device="nvidia-a100-sxm4-80gb", arch=80, dtype_a="fp32", dtype_b="fp32",
                 dtype_out="fp32", layout="tt")
    path.write_text(json.dumps(table))
    seen = _chosen()
    return Seen(seen.what, seen.healed and not seen.what.startswith("exact"))


@fault("a calibration is damaged")
def calibration_damaged(folder: Path) -> Seen:
    path = _configs(folder, f"calibration/{DEVICE}.json")
    path.write_text(path.read_text()[:500])
    return _chosen()


@fault("a device file has a peak of the wrong type")
def device_file_damaged(folder: Path) -> Seen:
    path = _configs(folder, f"devices/{DEVICE}.json")
    device = json.loads(path.read_text())
    device["peak_tflops"] = [1]
    path.write_text(json.dumps(device))
    seen = refused(lambda: device_named(DEVICE))
    return seen if seen.healed or not seen.what.startswith("accepted") else _chosen()


@fault("a device file is a FIFO")
def device_file_fifo(folder: Path) -> Seen:
    path = _configs(folder, "devices/zzz.json")
    os.mkfifo(path)
    return _chosen()


@fault("a table is a symbolic link, and is published over")
def table_linked(folder: Path) -> Seen:
    from test_tuned_tables import HEADER, row

    from tritongemm.records.tables import TunedTable, read_table, write_table

    real, link = folder / "real.json", folder / "table.json"
    write_table(real, TunedTable(HEADER, {row().key: row()}))
    link.symlink_to(real)
    write_table(link, TunedTable(HEADER, {r.key: r for r in (row(), row(2048))}))
    kept = len(read_table(real).rows)
    return Seen(f"{'still a link' if link.is_symlink() else 'now a file'}; the file behind it has "
                f"{kept} rows", link.is_symlink() and kept == 2, 2 - kept)


@fault("no space while a table is written")
def table_disk_full(folder: Path) -> Seen:
    from test_tuned_tables import HEADER, row

    from tritongemm.records.tables import TunedTable, read_table, write_table

    path = folder / "table.json"
    write_table(path, TunedTable(HEADER, {row().key: row()}))
    with pytest.MonkeyPatch.context() as patch:
        file_faults.full_disk(patch, after=10)
        seen = refused(lambda: write_table(path, TunedTable(HEADER, {
            r.key: r for r in (row(), row(2048))})))
    lost = 1 - len(read_table(path).rows)
    left = [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]
    return Seen(seen.what + (f"; left {left}" if left else ""),
                seen.healed and not lost and not left, lost)


@fault("what a resumed tuning chose before is a FIFO")
def choices_fifo(folder: Path) -> Seen:
    from tritongemm.tuning.gains import read_choices

    os.mkfifo(folder / "choices.json")
    return refused(lambda: read_choices(folder / "choices.json", []))


@fault("what a resumed tuning chose before is nested without end")
def choices_deep(folder: Path) -> Seen:
    from tritongemm.tuning.gains import read_choices

    path = folder / "choices.json"
    path.write_text('{"a":' * 20_000)
    return refused(lambda: read_choices(path, []))


@fault("failures.jsonl is a symbolic link to a large file")
def failures_linked(folder: Path) -> Seen:
    from tritongemm.records.failures import path, remember

    victim = folder / "victim"
    victim.write_bytes(b"x" * 300_000)
    path().parent.mkdir(parents=True)
    path().symlink_to(victim)
    remember("d", "p", "r")
    left = victim.stat().st_size
    return Seen(f"the file behind it has {left} of 300000 bytes", left == 300_000)


@fault("failures.jsonl is a FIFO")
def failures_fifo(folder: Path) -> Seen:
    from tritongemm.records.failures import path, remember, remembered

    path().parent.mkdir(parents=True)
    os.mkfifo(path())
    remember("d", "p", "r")
    return Seen(f"nothing is written; {len(remembered())} are read", True)


@fault("the cache cannot be written")
def cache_read_only(folder: Path) -> Seen:
    from tritongemm.records.failures import remember

    with pytest.MonkeyPatch.context() as patch:  # root ignores modes
        file_faults.refusing_open(patch)
        remember("d", "p", "r")
    return Seen("the record is lost, the call goes on", True)


@fault("the cache folder is of a user that does not exist")
def no_home(folder: Path) -> Seen:
    os.environ["TRITONGEMM_CACHE_DIR"] = "~nouser/x"
    os.environ.pop("HOME", None)

    def ask() -> object:
        settings.reload()
        return settings.cache_root()

    return refused(ask)


def _stored(folder: Path, damage) -> Seen:
    """A compiled kernel that was damaged: a miss, and replaced."""
    from tritongemm.kernels import compile as compiling
    from tritongemm.kernels.compile import Binary, binary_key, build_launches, store_path

    def compile_launch(launch, arch):
        return Binary(launch.symbol, b"\x7fELF\n" + b"code" * 1000, 4, 1, 1234, 56, 0, (), ())

    compiling.compile_launch = compile_launch  # in this process alone, which ends here
    device = device_named(DEVICE)
    launches = compiling.launches_of(GemmProblem.contiguous(128, 128, 128),
                                     KernelConfig("tiled", 64, 64, 32), device)
    whole, _ = build_launches(launches, device.arch)
    path = store_path(binary_key(launches[0], device.arch))
    raw = path.read_bytes()
    path.write_bytes(damage(raw))
    again, report = build_launches(launches, device.arch)
    right = again == whole and path.read_bytes() == raw
    return Seen(f"{'a hit' if report.cached else 'compiled again'}; "
                f"{'right' if right else 'the damaged code is used'}", right)


@fault("a compiled kernel is cut off")
def binary_cut(folder: Path) -> Seen:
    return _stored(folder, lambda raw: raw[:-1500])


@fault("one bit of a compiled kernel is flipped")
def binary_bit(folder: Path) -> Seen:
    return _stored(folder, lambda raw: raw[:-900] + bytes([raw[-900] ^ 1]) + raw[-899:])


@fault("a compiled kernel is empty")
def binary_empty(folder: Path) -> Seen:
    return _stored(folder, lambda raw: b"")


@fault("a CSV row has a number beyond 64 bits")
def csv_huge_number(folder: Path) -> Seen:
    from tritongemm.report.load import load

    source = next(path for path in sorted((ROOT / "perf" / "results" / DEVICE).glob("*.csv"))
                  if b"registers" in path.read_bytes()[:2000])
    lines = source.read_text().splitlines()
    cells = lines[1].split(",")
    cells[lines[0].split(",").index("registers")] = str(2**63)
    path = folder / "rows.csv"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:20]]) + "\n")
    try:
        found = load([path])
    except Exception as error:
        return Seen(f"{type(error).__name__}: {error}"[:150], clear(error))
    return Seen(f"{len(found.rows)} rows are read", True)

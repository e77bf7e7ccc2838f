"""Faults of a sweep: its workers, its compilers, its journal and the sweep itself."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from . import Seen, fault, refused

TESTS = Path(__file__).resolve().parents[1]
for _folder in ("tuning", "records"):
    if str(TESTS / _folder) not in sys.path:
        sys.path.append(str(TESTS / _folder))

import fakes  # noqa: E402
import file_faults  # noqa: E402

from tritongemm.records.journal import read_journal  # noqa: E402

CONFIGS = [fakes.config(n) for n in (1, 2, 3, 4)]
BAD = CONFIGS[1]


def rows(journal: Path) -> dict[str, str]:
    """config -> status of the quick timings on record."""
    from tritongemm.records.codec import config_from_json

    return {config_from_json(r["config"]).config_id: r["status"] for r in read_journal(journal)
            if r["kind"] == "result" and r["stage"] != "final"}


def _swept(folder: Path, status: str, **options: object) -> Seen:
    """A sweep in which one config goes wrong: the others are on record, and it with its kind."""
    configs = options.pop("configs", CONFIGS)
    fakes.run(folder / "j.jsonl", configs, **options)
    found = rows(folder / "j.jsonl")
    lost = len(configs) - len(found)
    bad = [name for name, kind in found.items() if kind == status]
    others = sum(kind == "ok" for kind in found.values())
    return Seen(f"{others} measured, {len(bad)} recorded as {status}",
                not lost and len(bad) == 1 and others == len(configs) - 1, lost)


def _measuring(folder: Path, what: str, status: str, **options: object) -> Seen:
    return _swept(folder, status, behaviour={f"coarse *:{BAD.config_id}": what}, **options)


@fault("SIGKILL ends the measuring process")
def worker_killed(folder: Path) -> Seen:
    return _measuring(folder, "kill", "died")


@fault("the measuring process exits")
def worker_exits(folder: Path) -> Seen:
    return _measuring(folder, "exit", "died")


@fault("a kernel hangs")
def worker_hangs(folder: Path) -> Seen:
    return _measuring(folder, "hang", "timeout", per_config_timeout_s=0.5)


@fault("the CUDA context is lost")
def context_lost(folder: Path) -> Seen:
    return _measuring(folder, "sticky", "died")


@fault("the driver refuses a launch")
def launch_refused(folder: Path) -> Seen:
    return _measuring(folder, "raise", "launch")


@fault("a kernel's result is wrong")
def wrong_result(folder: Path) -> Seen:
    return _measuring(folder, "wrong", "wrong")


@fault("no memory for operands")
def no_memory(folder: Path) -> Seen:
    return _measuring(folder, "oom", "oom")


@fault("the compiler ends its process")
def compiler_dies(folder: Path) -> Seen:
    configs = [*CONFIGS[:3], fakes.config(4, group_m=fakes.DIES)]
    return _swept(folder, "died", configs=configs)


@fault("the compiler refuses a config")
def compiler_refuses(folder: Path) -> Seen:
    configs = [*CONFIGS[:3], fakes.config(4, group_m=fakes.REFUSED)]
    return _swept(folder, "compile", configs=configs)


@fault("no space for a row of the journal")
def disk_full(folder: Path) -> Seen:
    journal = folder / "j.jsonl"
    fakes.run(journal, CONFIGS[:2])
    before = rows(journal)
    with pytest.MonkeyPatch.context() as patch:
        file_faults.full_disk(patch, after=100)
        seen = refused(lambda: fakes.run(journal, CONFIGS, resume=True))
    fakes.run(journal, CONFIGS, resume=True)
    after = rows(journal)
    lost = len(set(before) - set(after)) + len(CONFIGS) - len(after)
    return Seen(seen.what, seen.healed and not lost, lost)


@fault("the journal ends amid a line")
def journal_torn(folder: Path) -> Seen:
    journal = folder / "j.jsonl"
    fakes.run(journal, CONFIGS[:2])
    with open(journal, "ab") as file:
        file.write(b'{"kind": "result", "prob')
    fakes.run(journal, CONFIGS, resume=True)
    lost = len(CONFIGS) - len(rows(journal))
    return Seen(f"resumed; {len(rows(journal))} rows", not lost, lost)


@fault("bytes amid the journal are damaged")
def journal_damaged(folder: Path) -> Seen:
    journal = folder / "j.jsonl"
    fakes.run(journal, CONFIGS[:2])
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[1] = b"\xff" * 20 + b"\n"
    journal.write_bytes(b"".join(lines))
    seen = refused(lambda: fakes.run(journal, CONFIGS, resume=True))
    lost = not journal.read_bytes().startswith(b"".join(lines))
    return Seen(seen.what, seen.healed and not lost, int(lost))


@fault("the journal's name is a FIFO")
def journal_fifo(folder: Path) -> Seen:
    os.mkfifo(folder / "j.jsonl")
    return refused(lambda: fakes.run(folder / "j.jsonl", CONFIGS))


@fault("the journal is removed while the sweep runs")
def journal_removed(folder: Path) -> Seen:
    journal = folder / "j.jsonl"
    pid = os.fork()
    if not pid:
        try:
            fakes.run(journal, [fakes.config(n) for n in range(1, 9)], log=folder / "log",
                      each_s=0.1)
        except BaseException as error:
            (folder / "error").write_text(f"{type(error).__name__}: {error}")
            os._exit(1)
        os._exit(0)
    wait_for(lambda: journal.exists() and len(journal.read_bytes().splitlines()) > 3)
    journal.unlink()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    kept = len(rows(journal)) if journal.exists() else 0
    said = (folder / "error").read_text() if (folder / "error").exists() else f"exit {code}"
    return Seen(f"{said[:100]}; {kept} of 8 rows", kept == 8 or code != 0, 8 - kept)


def wait_for(condition, limit_s: float = 300.0) -> None:
    """Waits for a condition. Raises TimeoutError."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the sweep did not begin")
        time.sleep(0.02)


@fault("the sweep itself is killed, then resumed")
def sweep_killed(folder: Path) -> Seen:
    journal, configs = folder / "j.jsonl", [fakes.config(n) for n in range(1, 9)]
    pid = os.fork()
    if not pid:
        fakes.run(journal, configs, each_s=0.1)
        os._exit(0)
    wait_for(lambda: journal.exists() and len(journal.read_bytes().splitlines()) > 4)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    before = rows(journal)
    fakes.run(journal, configs, resume=True)
    after = rows(journal)
    lost = len(set(before) - set(after)) + len(configs) - len(after)
    return Seen(f"{len(before)} rows before, {len(after)} after", not lost, lost)

"""Workers that misbehave on purpose, for child processes: what they do is told by a table.

A behaviour is looked up by "stage size:config_id", "stage *:config_id" and "open size". Every child
imports this module, so what a child does not need (numpy, selection, the sweep) is imported where
it is used.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, device_named
from tritongemm.errors import CompileError, DeviceError, LaunchError
from tritongemm.problem import GemmProblem
from tritongemm.workers.messages import Outcome

if TYPE_CHECKING:
    from tritongemm.tuning.candidates import Candidates
    from tritongemm.tuning.sweep import SweepReport
    from tritongemm.tuning.sweep_journal import RowSink

MEASURER, BUILDER = "fakes:Measurer", "fakes:Builder"
#: The builder's behaviour is the config's group_m.
REFUSED, HANGS, DIES, SLOW = 101, 102, 103, 104


def config(number: int, group_m: int = 8) -> KernelConfig:
    """The ``number``-th config; a lower one is faster."""
    return KernelConfig("tiled", 16 * number, 64, 32, group_m=group_m)


def problem(size: int = 64) -> GemmProblem:
    """``size`` cubed, bf16 nn."""
    return GemmProblem.contiguous(size, size, size)


def size_of(one: GemmProblem) -> str:
    return f"{one.m}x{one.n}x{one.k}"


class CandidateList:
    """The same configs for every problem."""

    def __init__(self, configs: Sequence[KernelConfig]) -> None:
        self._configs = tuple(configs)

    def __call__(self, problem: GemmProblem, device: DeviceSpec) -> Candidates:
        from tritongemm.tuning.candidates import Candidates, PruneReport

        count = len(self._configs)
        return Candidates(self._configs, PruneReport(considered=count, kept=count))


def time_us(one: KernelConfig) -> float:
    return float(one.block_m)


def behave(what: str) -> Outcome | None:
    """Does what ``what`` says; an outcome where it ends normally."""
    if what == "hang":
        time.sleep(600)
    elif what == "exit":
        print("last words of /home/somebody/secret/file.py", file=sys.stderr, flush=True)
        os._exit(3)
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "raise":
        raise LaunchError("too many resources\n asked for")
    elif what == "unexpected":
        raise ZeroDivisionError("a slip in the measurer")
    elif what == "sticky":
        raise DeviceError("an illegal memory access was encountered")
    elif what == "wrong":
        return Outcome("wrong", "off by 3 limits", {"max_err_ratio": 3.0})
    elif what == "full":
        raise CompileError("writing the binary failed") from OSError(errno.ENOSPC, "disk full")
    elif what == "oom":
        raise MemoryError("no memory for operands")
    elif what.startswith("slow"):
        time.sleep(float(what[4:]))
    else:
        raise AssertionError(what)
    return None


class Measurer:
    """Measures nothing: a config's time is its block_m, torch's is 100 us.

    Args:
        behaviour: see the module.
        log: one line is appended for each begun config, over all processes.
        devices, environment, refuse: told by :meth:`info`.
        drivers: of each device, if they differ.
    """

    def __init__(self, index: int | None, seed: int, behaviour: dict[str, str] | None = None,
                 log: str = "", devices: int = 1, environment: str = "fake",
                 refuse: Sequence[int] = (), each_s: float = 0.0,
                 drivers: Sequence[str] = ()) -> None:
        if index in refuse:
            raise DeviceError(f"no CUDA device {index}")
        self._index, self._behaviour, self._log = index, behaviour or {}, log
        self._devices, self._environment, self._each_s = devices, environment, each_s
        self._driver = drivers[index] if drivers else "1"

    def info(self) -> dict[str, object]:
        return {"device": device_named("nvidia-h200"), "device_count": self._devices,
                "environment": {"torch": "2.13.0", "triton": "3.7.1", "driver": self._driver},
                "fingerprint": self._environment + self._driver.removeprefix("1")}

    def _note(self, *words: object) -> None:
        if self._log:
            descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
            os.close(descriptor)

    def open(self, problem: GemmProblem) -> dict[str, object]:
        self._note("open", size_of(problem), self._index)
        what = self._behaviour.get(f"open {size_of(problem)}", "")
        if what:
            behave(what)
        return {"torch_us": 100.0}

    def _does(self, stage: str, problem: GemmProblem, config: KernelConfig) -> Outcome:
        self._note(stage, f"{size_of(problem)}:{config.config_id}", self._index)
        if self._each_s:
            time.sleep(self._each_s)
        what = (self._behaviour.get(f"{stage} {size_of(problem)}:{config.config_id}")
                or self._behaviour.get(f"{stage} *:{config.config_id}", ""))
        outcome = behave(what) if what else None
        return outcome or Outcome("ok", values={"time_us": time_us(config)})

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        return self._does("coarse", problem, config)

    def together(self, problem: GemmProblem, configs: Sequence[KernelConfig]) -> list[Outcome]:
        found = [self._does("final", problem, config) for config in configs]
        return [Outcome("ok", values={
            "time_us": o.values["time_us"], "ratio_vs_torch": 100 / o.values["time_us"],
            "ratio_low": 99 / o.values["time_us"], "ratio_high": 101 / o.values["time_us"]})
            if o.ok else o for o in found]


class ModelMeasurer(Measurer):
    """A config's time is the model's prediction, off by a factor of the config's own."""

    @staticmethod
    def times(problem: GemmProblem, configs: Sequence[KernelConfig]) -> list[float]:
        """Microseconds."""
        from tritongemm.selection.columns import Columns
        from tritongemm.selection.model import model_for

        predicted = model_for(problem, device_named("nvidia-h200")).times(problem,
                                                                          Columns(configs))
        return [float(time_us) * random.Random(config.config_id).uniform(0.95, 1.05)
                for time_us, config in zip(predicted, configs, strict=True)]

    def _does(self, stage: str, problem: GemmProblem, config: KernelConfig) -> Outcome:
        found = super()._does(stage, problem, config)
        if not found.ok:
            return found
        return Outcome("ok", values={"time_us": self.times(problem, [config])[0]})


class Builder:
    """Builds nothing."""

    def __init__(self, device: DeviceSpec) -> None:
        self._device = device

    def info(self) -> dict[str, object]:
        return {}

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        if config.group_m == REFUSED:
            raise CompileError("the assembler gave up in /tmp/somewhere/kernel.ptx")
        if config.group_m == HANGS:
            time.sleep(600)
        if config.group_m == DIES:
            os._exit(9)
        if config.group_m == SLOW:
            time.sleep(0.3)
        return Outcome("ok", values={"compile_s": 0.5, "registers": 40})


class SharedBuilder(Builder):
    """Configs that differ in num_stages only share a build."""

    @staticmethod
    def key(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str:
        return f"{config.block_m}"

    @staticmethod
    def stored(key: str) -> bool:
        return key == "16"


class RefusingBuilder(Builder):
    """Says while it is asked for a config's key that there can be no binary."""

    @staticmethod
    def key(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str:
        if config.group_m == REFUSED:
            raise CompileError("no launch")
        return config.config_id

    @staticmethod
    def stored(key: str) -> bool:
        return True


class NoBuilder:
    """Cannot start."""

    def __init__(self, device: DeviceSpec) -> None:
        raise ImportError("No module named 'triton'")


def run(journal: Path | str | RowSink, configs: Sequence[KernelConfig], *,
        problems: Sequence[GemmProblem] = (), **options: object) -> SweepReport:
    """A sweep over fakes: ``measurer_arguments`` are gathered from the options it knows."""
    from tritongemm.tuning.sweep import sweep

    ours = {name: options.pop(name) for name in
            ("behaviour", "log", "devices_there", "environment", "refuse", "each_s",
             "drivers")
            if name in options}
    if "devices_there" in ours:
        ours["devices"] = ours.pop("devices_there")
    settings = {"compile_workers": 1, "per_config_timeout_s": 30.0, "measurer": MEASURER,
                "builder": BUILDER, **options}
    return sweep(problems or [problem()], journal, candidates=CandidateList(configs),
                 measurer_arguments={k: str(v) if k == "log" else v for k, v in ours.items()},
                 **settings)


def wait_for_file(variable: str) -> None:
    """Waits for the file that the environment ``variable`` names, if it does."""
    gate = os.environ.get(variable)
    while gate and not os.path.exists(gate):
        time.sleep(0.02)


class PlacedMeasurer(Measurer):
    """What the environment says: FAKE_DEVICE, FAKE_DRIVER, and FAKE_REFUSES where there is no GPU.
    FAKE_GATE: a file that problems above 96 cubed wait for; FAKE_FINAL_GATE: one that all finalists
    wait for. Times are numpy's, as real ones are."""

    def __init__(self, index: int | None, seed: int, **arguments: object) -> None:
        if os.environ.get("FAKE_REFUSES"):
            raise DeviceError("torch sees no CUDA device")
        super().__init__(index, seed, **arguments)

    def info(self) -> dict[str, object]:
        device = device_named(os.environ.get("FAKE_DEVICE", "nvidia-h200"))
        driver = os.environ.get("FAKE_DRIVER", "1")
        return {"device": device, "device_count": 1,
                "environment": {"torch": "2.13.0", "triton": "3.7.1", "driver": driver},
                "fingerprint": f"{device.slug} {driver}"}

    def open(self, problem: GemmProblem) -> dict[str, object]:
        if problem.m > 96:
            wait_for_file("FAKE_GATE")
        return super().open(problem)

    def together(self, problem: GemmProblem, configs: Sequence[KernelConfig]) -> list[Outcome]:
        wait_for_file("FAKE_FINAL_GATE")
        return super().together(problem, configs)

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        import numpy

        found = super().one(problem, config)
        return Outcome("ok", values={"time_us": numpy.float64(found.values["time_us"])})

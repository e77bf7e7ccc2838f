"""The measuring process: measures one program at a time, in every mode and with every provider.

Torch and this package run the same module on the same inputs. A time is the wall time of a step,
from an idle device to an idle device, so that it includes host time, as for a user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import tritongemm as tg
from tritongemm.bench import target
from tritongemm.bench.session import Hello, SessionSpec
from tritongemm.errors import DeviceError, UnsupportedError
from tritongemm.integration.record import recording
from tritongemm.measure import environment
from tritongemm.measure.contender import Measurement
from tritongemm.measure.host import HostTimer
from tritongemm.measure.rounds import Comparison, Rounds, compare
from tritongemm.measure.torch_baseline import available_libraries, blas_library, fp32_precision
from tritongemm.models import envelope, ranks
from tritongemm.models.catalog import programs
from tritongemm.models.job import ProgramJob
from tritongemm.models.program import Program
from tritongemm.models.steps import Stepper
from tritongemm.records.columns import problem_columns
from tritongemm.records.control import BASELINE, CONTROL

OURS = "tritongemm"
#: Columns of the rows of a job, by (mode, provider).
Columns = dict[tuple[str, str], dict[str, object]]
#: Least wall time of one item of a round, microseconds, so that a synchronisation takes under 1 %
#: of it.
ITEM_US = 20_000.0
#: Warm-up steps before timing or capture: plans, libraries' heuristics, compilers.
WARM_STEPS = 3
#: Steps whose losses are compared.
LOSS_STEPS = {False: 8, True: 3}
#: Rounds that decide between torch's libraries.
_CHOICE = Rounds(pilot=2, least=5, most=5, least_in_budget=3)


@dataclass(frozen=True)
class _Result:
    """One mode: times of the providers, errors of this package's results, memory."""

    times: Comparison | None
    library: str
    error: envelope.Verdict
    peaks: dict[str, int]


class Session:
    """Measures programs on one target."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.target = target.resolve(spec.device, "`tritongemm models --tiny --device cpu` runs "
                                     "every program's code on the CPU in small sizes")
        record = environment.capture()
        if self.target.kind == "interpreter":
            record = {**record, "device": self.target.spec.slug}
        elif self.target.kind == "cpu":
            record = {**record, "device": "cpu"}
        self.hello = Hello(self.target.spec, self.target.timed, record,
                           environment.fingerprint(record))

    def measure(self, job: ProgramJob) -> Columns:
        """The rows of ``job``. A mode that fails has one row with the reason; a program that cannot
        run at all has one row without a problem.

        Raises:
            DeviceError: the device is lost; this process must be replaced.
        """
        program = programs()[job.program]
        if program.ranks > 1 and not job.port:
            try:
                return self._lead(program, job)
            except UnsupportedError as error:
                return {(job.modes[0], OURS): _fields(Measurement.failed(error))}
        if program.ranks == 1:
            return self._measure(program, job, None)
        with ranks.joined(job.rank, program.ranks, job.port, self.target.kind == "cuda"):
            return self._measure(program, job, ranks.SharedTimer)

    def _lead(self, program: Program, job: ProgramJob) -> Columns:
        """Measures with the other ranks, which run the same job synchronously."""
        if self.target.kind == "cuda" and torch.cuda.device_count() < program.ranks:
            raise UnsupportedError(f"{program.name} needs {program.ranks} GPUs; torch sees "
                                   f"{torch.cuda.device_count()}")
        job = replace(job, port=ranks.free_port())
        with ranks.followers(program.ranks, self.target, job):
            return self.measure(job)

    def _measure(self, program: Program, job: ProgramJob,
                 timer: Callable[..., HostTimer] | None) -> Columns:
        columns: Columns = {}
        sizes = program.tiny if job.tiny else program.sizes
        with fp32_precision(program.precision):
            try:
                stepper = Stepper(program, sizes, self.target.torch_device, job.seed)
                run = _Run(program, job, stepper, self.target, timer or HostTimer)
            except DeviceError:
                raise
            except Exception as error:  # for example out of memory: no product is known
                self._check_device(error)
                return {(job.modes[0], OURS): _fields(Measurement.failed(error))}
            for mode in (m for m in program.modes if m in job.modes):
                if mode == "graph" and self.target.kind != "cuda":
                    continue
                try:
                    columns.update(run.columns(mode))
                except DeviceError:
                    raise
                except Exception as error:  # reported in the mode's row
                    self._check_device(error)
                    columns[mode, OURS] = {**run.problem, **_fields(Measurement.failed(error))}
                stepper.forget()
        return columns

    def _check_device(self, error: Exception) -> None:
        if self.target.kind != "cuda":
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise DeviceError(f"the device is lost: {error}") from lost


class _Run:
    """One program, mode after mode."""

    def __init__(self, program: Program, job: ProgramJob, stepper: Stepper,
                 where: target.Target, timer: Callable[..., HostTimer]) -> None:
        self.program, self.job, self.stepper, self.target = program, job, stepper, where
        self.cuda = where.kind == "cuda"
        self.timer = timer
        self.libraries = available_libraries(torch.device(where.torch_device))
        with recording(job.min_flops) as seen:  # eager mode: all modes run the same products
            stepper.eager()
        flops, taken = seen.flops()
        self.share = taken / flops if flops else None
        shapes = sorted(seen.shapes(), key=lambda s: -s.batch * s.m * s.n * s.k)
        if not shapes:
            raise UnsupportedError(f"{program.name} makes no matrix product that a suite can hold")
        self.problem: dict[str, object] = dict(problem_columns(shapes[0].problem(
            precision=program.precision)))

    def columns(self, mode: str) -> Columns:
        """Rows of one mode: torch, its control and this package."""
        result = self._mode(mode)
        found: Columns = {}
        for name in (BASELINE, CONTROL, OURS):
            row: dict[str, object] = {**self.problem, "torch_backend": result.library}
            if name == OURS:
                row.update(share_taken=self.share, max_err_ratio=result.error.largest,
                           rms_err_ratio=result.error.rms)
                if not result.error.ok:
                    found[mode, name] = {**row, "status": "wrong", "error": result.error.reason}
                    continue
            if name in result.peaks:
                row["peak_bytes"] = result.peaks[name]
            found[mode, name] = {**row, "status": "ok", **_times(result, name)}
        return found

    def _mode(self, mode: str) -> _Result:
        """Checks the results of one mode, then times it."""
        made = self._steps(mode)
        verdict = self._judge(made)
        # In a graph, the checked graph itself is replayed; otherwise the same functions are called.
        peaks = self._peaks(made) if self.cuda and mode != "graph" else {}
        if not self.target.timed or not verdict.ok:
            return _Result(None, "", verdict, peaks)
        timer = self.timer(drain=torch.cuda.synchronize if self.cuda else None, least_us=ITEM_US)
        libraries = [name for name in made if name != OURS]
        loaded = {name: timer.load(name, [one.call], context=one.context)
                  for name, one in made.items()}
        best = libraries[0]
        if len(libraries) > 1:
            choice = compare([loaded[name] for name in libraries], timer, baseline=best,
                             seed=self.job.seed, rounds=_CHOICE)
            best = min(libraries, key=lambda name: choice.time_us(name).p50)
        names = {BASELINE: loaded[best], CONTROL: loaded[best], OURS: loaded[OURS]}
        times = compare([replace(item, name=name) for name, item in names.items()], timer,
                        baseline=BASELINE, seed=self.job.seed,
                        rounds=Rounds(budget_s=self.job.budget_s))
        return _Result(times, "" if best == BASELINE else best, verdict, peaks)

    # -- what is run ------------------------------------------------------------------------------

    def _steps(self, mode: str) -> dict[str, _Step]:
        """Warmed-up steps: with each of torch's libraries (``torch`` if there is only one), then
        ours."""
        steps: dict[str, _Step] = {}
        for name in (*(library or BASELINE for library in self.libraries), OURS):
            context = self._context(name)
            with context():
                if mode == "graph":
                    call, read = self.stepper.captured(WARM_STEPS)
                    # A replay needs no context.
                    steps[name] = _Step(call, read, contextlib.nullcontext)
                    continue
                call = self.stepper.step(mode, ours=name == OURS)
                for _ in range(WARM_STEPS):
                    call()
            steps[name] = _Step(call, call, context)
        return steps

    def _context(self, name: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
        if name == OURS:
            return lambda: tg.override(min_flops=self.job.min_flops)
        return lambda: blas_library("" if name == BASELINE else name)

    def _judge(self, made: dict[str, _Step]) -> envelope.Verdict:
        """Compares this package's results with those of torch's libraries."""
        theirs = [name for name in made if name != OURS]
        if self.program.training:
            losses = {}
            for name, one in made.items():
                self.stepper.reset()
                with one.context():
                    losses[name] = [float(one.read()) for _ in range(LOSS_STEPS[self.job.tiny])]
            floor = envelope.LOSS_FLOOR["bf16" if self.program.autocast else self.program.dtype]
            return self._agreed(envelope.of_losses(
                losses[OURS], [losses[name] for name in theirs], floor), losses)
        outputs = {}
        for name, one in made.items():
            with one.context():
                outputs[name] = [x.detach().clone() for x in _tensors(one.read())]
        reference = _tensors(self.stepper.reference())
        eps = envelope.rounding(self.program.dtype, self.program.precision)
        return self._agreed(envelope.of_outputs(
            outputs[OURS], [outputs[name] for name in theirs], reference, eps), outputs)

    def _agreed(self, verdict: envelope.Verdict, results: dict[str, list]) -> envelope.Verdict:
        """The verdict of all ranks: one that went on alone would wait for the others."""
        if self.program.ranks == 1:
            return verdict
        return ranks.agreed(verdict, results[OURS], [x for name, found in results.items()
                                                     if name != OURS for x in found])

    def _peaks(self, made: dict[str, _Step]) -> dict[str, int]:
        """The peak memory of one step in bytes, by provider."""
        peaks = {}
        for name, one in made.items():
            with one.context():
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                one.call()
                torch.cuda.synchronize()
                peaks[OURS if name == OURS else BASELINE] = torch.cuda.max_memory_allocated()
        return peaks


@dataclass(frozen=True)
class _Step:
    """A step: ``call`` runs it, ``read`` runs it and returns its loss or output."""

    call: Callable[[], object]
    read: Callable[[], object]
    context: Callable[[], contextlib.AbstractContextManager[object]]


def _tensors(result: object) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)  # type: ignore[call-overload]


def _times(result: _Result, name: str) -> dict[str, object]:
    if result.times is None:
        return {}
    quantiles, ratio = result.times.time_us(name), result.times.ratio(name)
    return {"time_us_p50": quantiles.p50, "time_us_p20": quantiles.p20,
            "time_us_p80": quantiles.p80, "ratio_vs_torch": ratio.value, "ratio_low": ratio.low,
            "ratio_high": ratio.high, "n_rounds": result.times.n_rounds, "timer": "host"}


def _fields(measurement: Measurement) -> dict[str, object]:
    return {"status": measurement.status, "error": measurement.error}


def open_session(spec: SessionSpec) -> Session:
    """The opener for :class:`tritongemm.bench.measuring.MeasuringProcess`."""
    return Session(spec)

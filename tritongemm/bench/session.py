"""The session inside the measuring process: prepares providers, measures them, returns columns.

The parent process imports neither torch nor triton. It opens a session by name in a worker
(:mod:`tritongemm.bench.measuring`) and sends it one problem at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from tritongemm.bench import providers, target
from tritongemm.bench.providers import Prepared
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import DeviceError, TritonGemmError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.control import BASELINE
from tritongemm.workers.child import resolve

if TYPE_CHECKING:
    from tritongemm.measure.contender import Measurement

#: Calls longer than this fill the GPU's queue, and the host then waits for the queue.
HOST_TIME_BELOW_US = 4.0

#: Provider -> columns of its row.
Columns = dict[str, dict[str, object]]


@dataclass(frozen=True)
class SessionSpec:
    """Arguments of a session: the target's name and the provider names, the baseline first."""

    device: str
    providers: tuple[str, ...]


@dataclass(frozen=True)
class Hello:
    """The description that an opened session returns.

    Attributes:
        device: limits and peaks.
        timed: whether rows will have times; the interpreter's have none.
        environment: the environment for ``runs.json``.
        fingerprint: rows of equal fingerprints are comparable.
    """

    device: DeviceSpec
    timed: bool
    environment: dict[str, object]
    fingerprint: str


@dataclass(frozen=True)
class Job:
    """One problem, and the providers to measure on it besides the baseline.

    Attributes:
        budget_s: device time for the rounds; None: the protocol's own.
        host_time: whether the host's time of a call is measured too, where the device is done
            with a call in less than :data:`HOST_TIME_BELOW_US`.
    """

    problem: GemmProblem
    providers: tuple[str, ...]
    seed: int = 0
    budget_s: float | None = None
    host_time: bool = False


class Session:
    """Measures jobs on one target."""

    def __init__(self, spec: SessionSpec) -> None:
        from tritongemm.measure import environment

        self.target = target.resolve(spec.device)
        # A provider of another package keeps the name under which it was requested.
        self._providers = {name: providers.load(name) for name in spec.providers}
        for name, provider in self._providers.items():
            reason = provider.available(self.target)
            if reason is not None:
                raise UsageError(f"provider {name!r} cannot run on {self.target.spec.name}: "
                                 f"{reason}")
        record = environment.capture()
        if not self.target.timed:
            record = {**record, "device": self.target.spec.slug}
        elif self.target.kind == "cpu":
            record = {**record, "device": "cpu"}
        self.hello = Hello(self.target.spec, self.target.timed, record,
                           environment.fingerprint(record))

    def builds(self, problems: Sequence[GemmProblem]) -> list[tuple[GemmProblem, KernelConfig]]:
        """The builds that other processes can compile in advance. Problems that a provider refuses
        are left out; their rows state the reason."""
        wanted: dict[tuple[GemmProblem, KernelConfig], None] = {}
        for problem in problems:
            for provider in self._providers.values():
                try:
                    config = provider.build(problem, self.target)
                except TritonGemmError:
                    continue
                if config is not None:
                    wanted[problem, config] = None
        return list(wanted)

    def measure(self, job: Job) -> Columns:
        """Columns of the baseline, of the control and of every provider of ``job``.

        Raises:
            DeviceError: the device is lost; this process must be replaced.
        """
        from tritongemm.measure.contender import Measurement

        ready: dict[str, Prepared] = {}
        measured: dict[str, Measurement] = {}
        for name in job.providers:
            try:
                prepared = self._providers[name].prepare(job.problem, self.target)
            except DeviceError:
                raise
            except Exception as error:  # becomes the row's status and reason
                measured[name] = Measurement.failed(error)
            else:
                contender = replace(prepared.contender, name=name)
                ready[name] = Prepared(contender, prepared.columns)
        measured.update(self._run(job, ready))
        host_us = self._host_times(job, ready, measured) if job.host_time else {}
        return {name: {**(ready[name].columns if name in ready else {}), **_columns(one),
                       **({"host_us_p50": host_us[name]} if name in host_us else {})}
                for name, one in measured.items()}

    def _run(self, job: Job, ready: dict[str, Prepared]) -> dict[str, Measurement]:
        from tritongemm.measure.contender import Measurement

        try:
            if not self.target.timed:
                return self._prove(job, ready)
            from tritongemm.measure.protocol import measure

            return measure(job.problem, [one.contender for one in ready.values()], seed=job.seed,
                           budget_s=job.budget_s, device=self.target.torch_device)
        except DeviceError:
            raise
        except Exception as error:  # no provider can: every row has the reason
            failed = Measurement.failed(error)
            return {name: failed for name in (BASELINE, *ready)}

    def _host_times(self, job: Job, ready: dict[str, Prepared],
                    measured: dict[str, Measurement]) -> dict[str, float]:
        """Median host time of a call by provider, rotating over two operand sets; empty where
        the device would be waited for."""
        times = [one.time_us_p50 for one in measured.values() if one.time_us_p50 is not None]
        if self.target.kind != "cuda" or not times or max(times) > HOST_TIME_BELOW_US:
            return {}
        import torch

        from tritongemm.measure.host import host_time_us, rotating
        from tritongemm.measure.operands import draw

        sets = draw(job.problem, sets=2, seed=job.seed, device=self.target.torch_device)
        baseline = self._providers[BASELINE].prepare(job.problem, self.target)
        calls = {name: rotating([one.contender.bind(operands) for operands in sets])
                 for name, one in {BASELINE: baseline, **ready}.items()
                 if name in measured and measured[name].ok}
        found = host_time_us(calls, drain=torch.cuda.synchronize, seed=job.seed)
        return {name: quantiles.p50 for name, quantiles in found.items()}

    def _prove(self, job: Job, ready: dict[str, Prepared]) -> dict[str, Measurement]:
        """Each provider's result against the float64 reference, and no time."""
        from tritongemm.measure.contender import Measurement
        from tritongemm.measure.operands import draw
        from tritongemm.measure.proof import Proof

        operands = draw(job.problem, sets=1, seed=job.seed, device=self.target.torch_device)
        proof = Proof(job.problem, operands, job.seed)
        baseline = self._providers[BASELINE].prepare(job.problem, self.target)
        found = {}
        for name, prepared in {BASELINE: baseline, **ready}.items():
            operands.poison()
            try:
                with prepared.contender.context():
                    prepared.contender.bind(operands[0])()
            except Exception as error:  # the row's status and reason
                found[name] = Measurement.failed(error)
                continue
            report = proof.check(name, everywhere=True)
            found[name] = Measurement(
                "ok" if report.ok else "wrong", report.message,
                max_err_ratio=report.max_err_ratio, rms_err_ratio=report.rms_err_ratio)
        return found


def _columns(measurement: Measurement) -> dict[str, object]:
    """The fields of a measurement become columns of the same names; fields that were not measured
    are left out."""
    values = {f.name: getattr(measurement, f.name) for f in fields(measurement)}
    return {name: value for name, value in values.items() if value is not None and value != ""}


def open_session(spec: SessionSpec) -> Session:
    """The default session of the bench."""
    return Session(spec)


class SessionServer:
    """What the measuring process serves (``workers/child.py``): the session that ``opener``, a
    ``module:function``, opens."""

    def __init__(self, spec: SessionSpec, opener: str) -> None:
        self._session: Session = resolve(opener)(spec)  # type: ignore[operator]

    def info(self) -> Hello:
        """What the session says of itself."""
        return self._session.hello

    def builds(self, problems: Sequence[GemmProblem]) -> list[tuple[GemmProblem, KernelConfig]]:
        """See :meth:`Session.builds`."""
        return self._session.builds(problems)

    def measure(self, job: Job) -> Columns:
        """See :meth:`Session.measure`."""
        return self._session.measure(job)

"""Chooses the config for a problem: :func:`choose`.

The first of these that has an answer: the problem's tuned row, the twin's row, the sibling's row,
the calibrated model, the nearest legal row, the rule default. The twin is the same problem in the
other 16-bit type. The sibling is another device of the architecture, whose measurements serve where
this one has none (``sibling.py``).

The model answers only for what its calibration covers. For other formats, compute modes or kernels
the rule decides, and the choice's note says ``not calibrated``.

A damaged table, calibration or space, and a tuned row that this release cannot use, are left out
with one warning each: what comes next decides, and the call stays with these kernels.

Two settings change the order. Under a budget of SMs tuned rows are ignored, and configs that keep
to the budget come before others. Under batch invariance ``invariance.py`` chooses.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import INTERPRETER, DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import SPECS, violation
from tritongemm.problem import GemmProblem
from tritongemm.records.tables import TunedRow, TunedTable, key_of, layers_for, read_layers
from tritongemm.selection import invariance as invariance
from tritongemm.selection import shipped as shipped
from tritongemm.selection.columns import Columns, kind_of
from tritongemm.selection.model import Model, forget, model_for, not_calibrated
from tritongemm.selection.sibling import with_rows_for
from tritongemm.selection.work import keeps_to_the_budget

#: The largest distance of a row that may serve another problem: the sum over batch, m, n and k of
#: |log2| of the ratios. Two extents four times as long are 4.
NEAREST_LIMIT = 4.0
#: Families whose first member is predicted to take more than this many times the fastest one's are
#: skipped: times within a family differ by less.
_HOPEFUL = 1.5
#: Of the configs predicted within this factor of the least time, the one that the calibration lists
#: first is chosen, so that similar problems share binaries: 71 for 136 M of one N and K, 87 without
#: (perf/results/nvidia-h200/exploratory/learned.txt).
AS_GOOD = 1.01
_TWINS = {"bf16": "fp16", "fp16": "bf16"}
#: Below this share of our time torch's kernel is taken instead, where the policy allows it: nearer
#: to 1 an estimate is wrong as often as right (leave-one-out, 200 problems of an H200).
TORCH_WINS = 0.97
#: Microseconds of the host that a call handed to torch takes at least under an override: 17.9, 4.9
#: more than one of ours, in perf/results/nvidia-h200/host-time.txt. A program cannot run such calls
#: any faster, so a shorter kernel counts as that long; but in CUDA graphs, which the plans of a
#: call know nothing of, it is not.
HANDED_OVER_US = 16.0


@dataclass(frozen=True)
class Choice:
    """A config and where it came from.

    Attributes:
        config: what to launch.
        source: ``exact``, ``twin``, ``sibling``, ``model``, ``nearest``, ``rule`` or
            ``invariant``.
        row: the tuned row behind it, where there is one.
        note: one line for ``explain`` and the log.
        predicted_us: by the model, where that made the choice.
        vs_torch: torch's time over ours: as measured with the exact row or the twin's, else as
            measured problems near by have it; None: not known, or only on a sibling.
        evidence: of float32, the same without regard to the epilogue, and of a sibling too; None:
            nothing was measured.
    """

    config: KernelConfig
    source: str
    row: TunedRow | None = None
    note: str = ""
    predicted_us: float | None = None
    vs_torch: float | None = None
    evidence: float | None = None

    @property
    def time_us(self) -> float | None:
        """Microseconds of ours, as measured with the row, be it on a sibling, else as predicted."""
        return self.predicted_us if self.row is None else self.row.time_us


@functools.lru_cache(maxsize=256)
def _table(layers: tuple[tuple[Path, int, int], ...], arch: int) -> TunedTable | None:
    """The table of ``layers`` (:func:`layers_for`), read once for each set of files: what is read
    while a file is replaced does not stand for the new one. None where none of them can be used."""
    return read_layers([path for path, *_ in layers], arch)


def reload() -> None:
    """Clears all that was read or cached, so that new tables, spaces and calibrations are read."""
    _table.cache_clear()
    shipped.forget()
    invariance.forget()
    forget()
    settings.changed()


def table_for(problem: GemmProblem, device: DeviceSpec) -> TunedTable | None:
    """The tuned table of ``problem`` on ``device``: the user's rows over the shipped ones. None
    where there is none."""
    layers = layers_for(problem, device.slug)
    return _table(tuple(layers), device.arch) if layers else None


def tables_for(problem: GemmProblem, device: DeviceSpec) -> list[TunedTable]:
    """The tables whose rows say what is fast for ``problem`` on ``device``: its own, then its
    sibling's, where they are shipped."""
    found = (table_for(problem, where) for where in _devices(problem, device))
    return [table for table in found if table is not None]


def choose(problem: GemmProblem, device: DeviceSpec) -> Choice:
    """The config for ``problem``. Never measures.

    Raises:
        UnsupportedError: no kernel of this package runs it; the message names each one's reason.
    """
    if settings.current().batch_invariant:
        config, note = invariance.config_for(problem, device)
        return Choice(config, "invariant", None, note)
    for source, measured, where in () if device.spare_sms else _measured(problem, device):
        row = tuned_row(problem, measured, device, where)
        if row is not None:
            note = f"tuned row of run {row.run_id}"
            if measured is not problem:
                note += f", measured in {measured.dtype_a}"
            if where is not device:
                note += f", measured on {where.name}"
            return Choice(row.config, source, row, note + _without(problem, row),
                          vs_torch=_of_the_same(problem, row) if where is device else None,
                          evidence=row.vs_torch)
    best = by_model(problem, device)
    if best is not None:
        return best
    near = None if device.spare_sms else nearest(problem, device)
    if near is not None:
        distance, row, where = near
        note = f"tuned for {row.batch}x{row.m}x{row.n}x{row.k}, {distance:.2f} away"
        if where is not device:
            note += f", measured on {where.name}"
        return Choice(row.config, "nearest", row, note + _without(problem, row))
    config, note = default_config(problem, device), "rule default"
    if reason := not_calibrated(problem, config, device):
        note += f"; not calibrated: {reason}"
    return Choice(config, "rule", None, note)


def _devices(problem: GemmProblem, device: DeviceSpec) -> list[DeviceSpec]:
    """The devices whose rows say what is fast on ``device``: itself, then its sibling."""
    sibling = with_rows_for(device, problem.unit)
    return [device] if sibling is None else [device, sibling]


def _measured(problem: GemmProblem,
              device: DeviceSpec) -> Iterator[tuple[str, GemmProblem, DeviceSpec]]:
    """(source, problem, device) of the rows that answer ``problem``, the best first."""
    twin = twin_of(problem)
    for where in _devices(problem, device):
        yield "exact" if where is device else "sibling", problem, where
        if twin is not None:
            yield "twin" if where is device else "sibling", twin, where


def twin_of(problem: GemmProblem) -> GemmProblem | None:
    """The problem in the other type of 16 bits, or None: the instructions run both at one rate, and
    every kernel moves the same bytes."""
    if problem.dtype_a not in _TWINS:
        return None
    a, b, out = (_TWINS.get(x, x) for x in (problem.dtype_a, problem.dtype_b, problem.dtype_out))
    return replace(problem, dtype_a=a, dtype_b=b, dtype_out=out)


def tuned_row(problem: GemmProblem, measured: GemmProblem, device: DeviceSpec,
              where: DeviceSpec) -> TunedRow | None:
    """The row of ``measured`` on the device ``where``, or of it without its epilogue, if its config
    suits ``problem`` on ``device``."""
    table = table_for(measured, where)
    for row in _exact_rows(measured, table) if table is not None else ():
        if violation(problem, row.config, device) is None:
            return row
    return None


def _of_the_same(problem: GemmProblem, row: TunedRow) -> float | None:
    """Torch's time over ours, where the row was measured with this epilogue: a fused one costs us
    nothing, torch often a pass of its own."""
    return row.vs_torch if row.epilogue == problem.epilogue else None


def torch_wins(problem: GemmProblem, choice: Choice, device: DeviceSpec) -> str | None:
    """Why torch's kernel should run ``problem`` instead of ``choice``; None where ours should.

    Only under the policy ``auto``. 16-bit products go to torch where torch was measured to be
    faster, for this problem, its twin or problems near it, and by more than handing the call over
    costs. Float32 and TF32 products go to torch unless a measurement shows that ours is at least
    as fast. Never under a budget of SMs or batch invariance, which torch does not keep.
    """
    current = settings.current()
    if current.policy != "auto" or current.batch_invariant or current.num_sms is not None:
        return None
    if problem.dtype_a == "fp32" and device.slug != INTERPRETER:
        return _torch_wins_float32(problem, choice, device)
    if (choice.vs_torch is None or choice.time_us is None
            or max(choice.vs_torch, HANDED_OVER_US / choice.time_us) >= TORCH_WINS):
        return None
    where = {"exact": "here", "twin": "in the other type of 16 bits"}.get(
        choice.source, "at measured problems near by")
    return f"torch's kernel takes {choice.vs_torch:.2f} of the time of ours {where}"


#: cuBLAS reaches at most this share of the peak rate of float32 and of TF32 (52 of 67 and 395 of
#: 494 TFLOP/s at 4096 cubed on an H100).
_TORCH_SHARE = 0.8
#: What torch's time over ours must be at least for float32, by where it was measured: for the
#: problem itself, for it on a sibling, or for problems near it.
_FLOAT32_LEAST = {"exact": 1.0, "sibling": 1.1, "model": 1.1}


def _torch_floor_us(problem: GemmProblem, device: DeviceSpec) -> float:
    """The least time that torch's product of float32 operands may take, microseconds; infinity
    where the device's peak rates are not on record."""
    peak = device.peak_tflops.get("tf32" if problem.precision == "tf32" else "fp32")
    if not peak or not device.memory_gbps:
        return math.inf
    return max(problem.flops() / (1e6 * _TORCH_SHARE * peak),
               problem.bytes() / (1e3 * device.memory_gbps))


def _torch_wins_float32(problem: GemmProblem, choice: Choice, device: DeviceSpec) -> str | None:
    """The same for float32 operands, which need evidence that ours is as fast.

    The IEEE kernels are 0.3 to 1.4 times as fast as torch's, by layout and size, so that for
    precision ``ieee`` only a row of this very problem on this device counts. Split products, which
    are ahead by more, may be judged by a sibling's row and by problems near by, with a margin;
    of the latter the predicted time must also be below what torch may reach at best.
    What the host saves on a call that stays here does not count.
    """
    kind = "TF32" if problem.precision == "tf32" else "float32"
    least = _FLOAT32_LEAST.get(choice.source)
    if least is None or choice.evidence is None or (
            problem.precision == "ieee" and choice.source != "exact"):
        return f"no measurement shows that the {kind} kernel chosen here is as fast as torch's"
    floor_us = _torch_floor_us(problem, device)
    if choice.source == "model" and choice.predicted_us is not None and (
            choice.predicted_us > floor_us):
        return (f"the {kind} kernel chosen here is predicted to take {choice.predicted_us:.1f} us, "
                f"torch's no less than {floor_us:.1f} us")
    if choice.evidence < least:
        where = "here" if choice.source == "exact" else (
            "on another GPU of this architecture" if choice.source == "sibling"
            else "at measured problems near by")
        return f"torch's {kind} kernel takes {choice.evidence:.2f} of the time of ours {where}"
    return None


def _exact_rows(problem: GemmProblem, table: TunedTable) -> list[TunedRow]:
    """The row of ``problem``, and the one without its epilogue: the product decides the config."""
    asked = dict.fromkeys((problem, replace(problem, epilogue="none")))
    return [table.rows[key_of(p)] for p in asked if key_of(p) in table.rows]


def _without(problem: GemmProblem, row: TunedRow) -> str:
    """What a choice says of a row that was measured without the problem's epilogue."""
    return "" if row.epilogue == problem.epilogue else f", without {problem.epilogue}"


def by_model(problem: GemmProblem, device: DeviceSpec) -> Choice | None:
    """The legal candidate with the least predicted time; of those within :data:`AS_GOOD` of it, the
    one that the calibration lists first.

    None where no calibration of ``device`` or its sibling covers the problem, or none of the
    candidates is legal.
    """
    model = model_for(problem, device)
    work = problem.batch * problem.m * problem.n * problem.k
    if model.section is None or not 0 < work < 2**63:  # the counts of larger ones overflow
        return None
    among = shipped.candidates_of(model, problem, device)
    if not len(among.columns):
        return None
    firsts = np.flatnonzero(np.diff(among.family, prepend=-1))  # of each family
    # What the kind of a problem decides is worked out for all candidates once a second problem of
    # the kind comes; for the first one, which a program may wait for, only of those that are asked.
    again = among.columns.seen(kind_of(problem))
    times_of = functools.partial(model.times, problem, among.columns) if again else (
        lambda index: model.times(problem, among.columns.take(index)))
    first_us = times_of(firsts)
    hopeful = first_us[among.family] <= _HOPEFUL * first_us.min()
    for some in map(np.flatnonzero, (hopeful, ~hopeful)):  # these only where no hopeful is legal
        times = times_of(some)
        legal = ((float(times[i]), config) for i in np.argsort(times, kind="stable")
                 if violation(problem, config := among.columns.config(some[i]), device) is None
                 and keeps_to_the_budget(problem, config, device))  # few are asked
        if (first := next(legal, None)) is not None:
            as_good = itertools.takewhile(lambda x: x[0] <= AS_GOOD * first[0], legal)
            total_us, config = min((first, *as_good), key=lambda x: model.place(x[1]))
            return _chosen(problem, device, config, model, total_us)
    return None


def expected_gain(problem: GemmProblem, device: DeviceSpec) -> float | None:
    """The speed-up that the model expects of its best candidate over the problem's tuned row.

    The row's time is the smaller of its measured and its predicted time, since cards and models
    differ from one day to the next; for a sibling's row, the predicted time. None where the problem
    has no row of either, or no calibration covers it.
    """
    rows = [(table.rows[key_of(problem)], where) for where in _devices(problem, device)
            if (table := table_for(problem, where)) is not None and key_of(problem) in table.rows]
    best = by_model(problem, device) if rows else None
    if best is None or best.predicted_us is None:
        return None
    row, where = rows[0]
    own_us = model_for(problem, device).estimate(problem, row.config).total_us
    return (min(row.time_us, own_us) if where is device else own_us) / best.predicted_us


def _chosen(problem: GemmProblem, device: DeviceSpec, config: KernelConfig, model: Model,
            total_us: float) -> Choice:
    """The choice of a calibrated model."""
    assert model.section is not None
    note = (f"predicted {total_us:.2f} us, calibrated by {model.section.results} timings "
            f"of {model.section.problems} problems")
    elsewhere = model.where != device.name
    if elsewhere:
        note += f" on {model.where}"
    ratio = evidence = None
    if model.neighbours is not None:  # measured without epilogues
        p = model.neighbours.nearest(problem, 1)[0].neighbour.problem
        note += f", the nearest {p.m}x{p.n}x{p.k}"
        estimated, support = model.neighbours.vs_torch(problem)
        evidence = estimated if support else None
        ratio = evidence if not elsewhere and problem.epilogue == "none" else None
    return Choice(config, "model", None, note, total_us, ratio, evidence)


def distance(problem: GemmProblem, row: TunedRow) -> float:
    """Sum of |log2| of the ratios of batch, m, n, k; 1 more a differing alignment."""
    total = 0.0
    for mine, other in ((problem.m, row.m), (problem.n, row.n), (problem.k, row.k),
                        (problem.batch, row.batch)):
        total += abs(math.log2(max(mine, 1) / max(other, 1)))
    for mine, other in ((problem.align_a, row.align_a), (problem.align_b, row.align_b),
                        (problem.align_c, row.align_c)):
        total += 1.0 if mine != other else 0.0
    return total


def nearest(problem: GemmProblem,
            device: DeviceSpec) -> tuple[float, TunedRow, DeviceSpec] | None:
    """(distance, row, its device) of the closest row of the device's tables and its sibling's, of
    two as close the device's own; None: none within :data:`NEAREST_LIMIT`."""
    found = []
    for where in _devices(problem, device):
        table = table_for(problem, where)
        near = nearest_row(problem, device, table) if table is not None else None
        if near is not None:
            found.append((*near, where))
    return min(found, key=lambda x: x[0], default=None)


def nearest_row(problem: GemmProblem, device: DeviceSpec,
                table: TunedTable) -> tuple[float, TunedRow] | None:
    """(distance, row) of the closest row whose config is legal here, of two as close the one with
    the problem's epilogue, then by the table's order; None: none within :data:`NEAREST_LIMIT`."""
    rows = ((distance(problem, row), row.epilogue != problem.epilogue, index, row)
            for index, row in enumerate(table.rows.values())
            if row.epilogue in (problem.epilogue, "none"))
    for far, _, _, row in sorted(rows, key=lambda x: x[:3]):
        if far > NEAREST_LIMIT:
            return None
        if violation(problem, row.config, device) is None:
            return far, row
    return None


def default_config(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """The best estimate among the kernels' own defaults that are legal.

    Raises:
        UnsupportedError: none is legal.
    """
    legal, reasons = [], []
    for spec in SPECS.values():
        if not spec.by_rule:
            continue
        broken = spec.supports(problem, device)
        if broken is None:  # else there may be no default
            config = spec.default(problem, device)
            broken = spec.violation(problem, config, device)
        if broken is None:
            legal.append(config)
        else:
            reasons.append(f"{spec.name}: {broken.message}")
    if not legal:
        raise UnsupportedError(f"no kernel runs {problem} on {device.name}: "
                               + "; ".join(reasons))
    legal = [c for c in legal if keeps_to_the_budget(problem, c, device)] or legal
    model = model_for(problem, device)
    return legal[int(model.times(problem, Columns(legal)).argmin())]


def candidates(problem: GemmProblem, device: DeviceSpec,
               top: int | None = None) -> list[KernelConfig]:
    """The legal configs of every shipped space, the most promising by estimate first."""
    legal = [c for c in shipped.configs(problem) if violation(problem, c, device) is None]
    return by_promise(problem, device, legal)[:top]


def by_promise(problem: GemmProblem, device: DeviceSpec,
               configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """``configs``, the most promising by estimate first."""
    listed = list(configs)
    model = model_for(problem, device)
    times = model.times(problem, Columns(listed)).tolist()
    return [config for _, config in sorted(zip(times, listed, strict=True),
                                           key=lambda x: (x[0], x[1].config_id))]

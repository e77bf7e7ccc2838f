"""Chooses the config for a problem: :func:`choose`.

The first of these that applies decides: the problem's tuned row, the twin's row, the sibling's row,
    the calibrated model, the nearest legal row, the rule default. The twin is the same problem in
    the other 16-bit type. The sibling is another device of the same architecture, whose
    measurements are used where this device has none (``sibling.py``). A sibling's float32 row gives
    way where the model, with timings of this device, expects much more (:data:`_OUTDONE`).

The model decides only what its calibration covers. For other formats, compute modes or kernels the
rule decides, and the choice's note says ``not calibrated``.

A damaged table, calibration or space, or a tuned row that this release cannot use, is skipped with
one warning. The next source decides, and the call still runs on this package's kernels.

Two settings change the order. Under a budget of SMs tuned rows are ignored, and configs that keep
to the budget come before others. Under batch invariance ``invariance.py`` names a class of configs,
and tuned rows and the model choose within it. A third one, ``TRITONGEMM_FP32=ieee``, rules out
kernels that multiply scaled copies under TF32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import SPECS, violation
from tritongemm.kernels.complex_product import float32_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.tables import TunedRow, TunedTable, key_of, layers_for, read_layers
from tritongemm.selection import invariance as invariance
from tritongemm.selection import shipped as shipped
from tritongemm.selection.columns import Columns, kind_of
from tritongemm.selection.fastest import fastest
from tritongemm.selection.invariance import SumClass
from tritongemm.selection.model import Model, forget, model_for, not_calibrated
from tritongemm.selection.neighbours import Bound
from tritongemm.selection.sibling import with_rows_for
from tritongemm.selection.work import keeps_to_the_budget

#: The largest distance at which a row is used for another problem: the sum over batch, m, n and k
#: of |log2(ratio)|. Two extents that are four times as long make a distance of 4.
NEAREST_LIMIT = 4.0
#: A family is skipped if its first member's predicted time is more than this many times the
#: shortest first member's: times within a family differ by less.
_HOPEFUL = 1.5
_TWINS = {"bf16": "fp16", "fp16": "bf16"}
#: A sibling's float32 row is not used where the model, with timings of this device, expects another
#: config to be this many times as fast: sweeps of the two devices may have had different kernels
#: (an H100's under TF32 had no ``scaled_product``). With a fifth of the problems left out, it does
#: so on an H200 for 37 of 759 products at fp16x3 and 76 of 196 under TF32 that have rows of an
#: H100; its configs are 1.35 and 1.14 times as fast in the mean, 0.58 and 1.01 times at least. Of
#: 999 and 264 problems whose row is the best config that was measured, it errs for 4, by 1.28 in
#: the mean, and for one, by 1.15 (perf/sibling_rows.py).
_OUTDONE, _OUTDONE_UNDER_TF32 = 1.2, 1.1


@dataclass(frozen=True)
class Choice:
    """A config and where it came from.

    Attributes:
        config: what to launch.
        source: ``exact``, ``twin``, ``sibling``, ``model``, ``nearest``, ``rule`` or
            ``invariant``, whose note says what chose within the class.
        row: the tuned row behind it, where there is one.
        note: one line for ``explain`` and the log.
        predicted_us: the model's prediction, if the model made the choice.
        vs_torch: torch's time / ours: measured with the exact row or the twin's, else estimated
            from neighbouring measured problems. None if unknown, or known only on a sibling.
        evidence: for float32, the same ratio for any epilogue, as measured on this device: a row's,
            else a lower bound by measured problems near by. None if nothing was measured.
        of_sibling: for float32, what was measured on the sibling: its row's ratio, or the lower
            bound. None for a row of this device.
        expected: where there is no row of this device, the mean that belongs to the larger of
            these two, for any epilogue.
        own: ``evidence`` is not a bound, but was measured on this device for this problem, and
            outdoes whatever was measured on the sibling.
    """

    config: KernelConfig
    source: str
    row: TunedRow | None = None
    note: str = ""
    predicted_us: float | None = None
    vs_torch: float | None = None
    evidence: float | None = None
    of_sibling: float | None = None
    expected: float | None = None
    own: bool = False

    @property
    def time_us(self) -> float | None:
        """The time of our kernel in microseconds: measured with the row (on a sibling too), else
        predicted."""
        return self.predicted_us if self.row is None else self.row.time_us


@functools.lru_cache(maxsize=256)
def _table(layers: tuple[tuple[Path, int, int], ...], arch: int) -> TunedTable | None:
    """The table of ``layers`` (:func:`layers_for`), cached by inode and time of change, so
    that a replaced file is read again. None if none of the files can be used."""
    return read_layers([path for path, *_ in layers], arch)


def reload() -> None:
    """Clears all caches, so that new tables, spaces and calibrations are read."""
    _table.cache_clear()
    shipped.forget()
    invariance.forget()
    forget()
    settings.changed()


def table_for(problem: GemmProblem, device: DeviceSpec) -> TunedTable | None:
    """The tuned table of ``problem`` on ``device``; a user's row overrides a shipped one. None if
    there is none."""
    layers = layers_for(problem, device.slug)
    return _table(tuple(layers), device.arch) if layers else None


def tables_for(problem: GemmProblem, device: DeviceSpec) -> list[TunedTable]:
    """The tables to look in for ``problem`` on ``device``: the device's own, then its sibling's;
    those that exist."""
    found = (table_for(problem, where) for where in _devices(problem, device))
    return [table for table in found if table is not None]


def choose(problem: GemmProblem, device: DeviceSpec) -> Choice:
    """The config for ``problem``. Does not measure. A complex problem gets the config of its
    float32 product.

    Raises:
        UnsupportedError: no kernel of this package runs it; the message gives each kernel's reason.
            Or the choice multiplies scaled copies, which ``TRITONGEMM_FP32=ieee`` rules out.
    """
    if problem.a.format.real:
        real = float32_problem(problem)
        choice = choose(real, device)
        return replace(choice, row=None, predicted_us=choice.time_us,
                       note=f"as {real}: {choice.note}")
    choice = _choose(problem, device)
    if (problem.precision == "tf32" and SPECS[choice.config.kernel].guarded
            and settings.current().fp32 == "ieee"):
        raise UnsupportedError(
            f"{choice.config.kernel} multiplies scaled copies of the operands, which "
            "TRITONGEMM_FP32=ieee and fp32_compute('ieee') rule out")
    return choice


def _choose(problem: GemmProblem, device: DeviceSpec) -> Choice:
    if settings.current().batch_invariant:
        return _of_a_class(problem, device, invariance.sum_class(problem, device))
    best = _by_row(problem, device) or by_model(problem, device)
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


def _of_a_class(problem: GemmProblem, device: DeviceSpec, alike: SumClass) -> Choice:
    """The choice among configs that sum as every M does: a tuned row's, the model's, or the one
    that serves every M."""
    best = None
    if alike.order is not None:
        best = _by_row(problem, device, alike) or by_model(problem, device, alike)
    if best is None:
        return Choice(alike.config, "invariant", None, str(alike))
    return replace(best, source="invariant", note=f"{alike}; {best.note}", vs_torch=None,
                   evidence=None, of_sibling=None, expected=None, own=False)


def _by_row(problem: GemmProblem, device: DeviceSpec, alike: SumClass | None = None
            ) -> Choice | None:
    """The config of the problem's tuned row, its twin's or its sibling's, or what outdoes the
    latter; with ``alike``, the row's if it belongs to the class. None under a budget of SMs."""
    for source, measured, where in () if device.spare_sms else _measured(problem, device):
        row = tuned_row(problem, measured, device, where)
        if row is None or alike is not None and not alike.holds(problem, row.config, device):
            continue
        note = f"tuned row of run {row.run_id}"
        if measured is not problem:
            note += f", measured in {measured.dtype_a}"
        if where is not device:
            note += f", measured on {where.name}"
        choice = Choice(row.config, source, row, note + _without(problem, row))
        if where is device:
            return replace(choice, vs_torch=_of_the_same(problem, row), evidence=row.vs_torch)
        if problem.dtype_a == "fp32" and alike is None:  # of 16 bits this was not examined
            return _beside_a_sibling(problem, choice, row.vs_torch, device)
        return choice
    return None


def _beside_a_sibling(problem: GemmProblem, choice: Choice, vs_torch: float | None,
                      device: DeviceSpec) -> Choice:
    """``choice``, a sibling's float32 row with torch's time over ours there, and what is known of
    that ratio on the device; or the model's choice, if it expects that to be :data:`_OUTDONE` times
    as fast."""
    of_sibling = None if vs_torch is None else Bound(vs_torch, vs_torch)
    model = model_for(problem, device)
    if not model.here:
        return _with_evidence(choice, None, of_sibling)
    best, share = by_model(problem, device), 1.0
    if best is not None and best.predicted_us is not None:
        share = best.predicted_us / model.estimate(problem, choice.config).total_us
        outdone = _OUTDONE_UNDER_TF32 if problem.precision == "tf32" else _OUTDONE
        if outdone * share <= 1:
            return best
    here = None if model.neighbours is None else model.neighbours.bound(problem)
    # What was measured near by are the best configs; for the problem itself mostly the row's.
    if here is not None and share < 1 and not here.own:
        here = Bound(share * here.mean, share * here.lower)
    return _with_evidence(choice, here, of_sibling)


def _with_evidence(choice: Choice, here: Bound | None, of_sibling: Bound | None) -> Choice:
    """``choice`` with torch's time over ours, as far as measurements on the device and on its
    sibling tell."""
    own = here is not None and here.own
    of_sibling = None if own else of_sibling
    evidence, other = (None if b is None else b.lower for b in (here, of_sibling))
    known = [b for b in (here, of_sibling) if b is not None]
    return replace(choice, evidence=evidence, of_sibling=other, own=own,
                   expected=max(known, key=lambda b: b.lower).mean if known else None)


def _devices(problem: GemmProblem, device: DeviceSpec) -> list[DeviceSpec]:
    """The devices whose rows are used on ``device``: itself, then its sibling."""
    sibling = with_rows_for(device, problem.unit)
    return [device] if sibling is None else [device, sibling]


def _measured(problem: GemmProblem,
              device: DeviceSpec) -> Iterator[tuple[str, GemmProblem, DeviceSpec]]:
    """(source, problem, device) of the rows that may be used for ``problem``, most reliable
    first."""
    twin = twin_of(problem)
    for where in _devices(problem, device):
        yield "exact" if where is device else "sibling", problem, where
        if twin is not None:
            yield "twin" if where is device else "sibling", twin, where


def has_row(problem: GemmProblem, device: DeviceSpec) -> bool:
    """Whether a tuned row decides ``problem``: its own, its twin's or its sibling's. Takes a small
    part of the time of :func:`choose` for a problem without one."""
    if problem.a.format.real:
        problem = float32_problem(problem)
    return not device.spare_sms and any(
        tuned_row(problem, measured, device, where) is not None
        for _, measured, where in _measured(problem, device))


def twin_of(problem: GemmProblem) -> GemmProblem | None:
    """The problem in the other 16-bit type, or None if its type is not one of the two. Tensor cores
    run both at the same rate, and every kernel moves the same bytes."""
    if problem.dtype_a not in _TWINS:
        return None
    a, b, out = (_TWINS.get(x, x) for x in (problem.dtype_a, problem.dtype_b, problem.dtype_out))
    return replace(problem, dtype_a=a, dtype_b=b, dtype_out=out)


def tuned_row(problem: GemmProblem, measured: GemmProblem, device: DeviceSpec,
              where: DeviceSpec) -> TunedRow | None:
    """The row of ``measured`` on the device ``where``, with or without its epilogue, if its config
    is legal for ``problem`` on ``device``."""
    table = table_for(measured, where)
    for row in _exact_rows(measured, table) if table is not None else ():
        if violation(problem, row.config, device) is None:
            return row
    return None


def _of_the_same(problem: GemmProblem, row: TunedRow) -> float | None:
    """Torch's time / ours, if the row was measured with this epilogue: a fused epilogue costs our
    kernel nothing, while torch often needs a separate pass."""
    return row.vs_torch if row.epilogue == problem.epilogue else None


def _exact_rows(problem: GemmProblem, table: TunedTable) -> list[TunedRow]:
    """The row of ``problem``, then the row of the same product without its epilogue."""
    asked = dict.fromkeys((problem, replace(problem, epilogue="none")))
    return [table.rows[key_of(p)] for p in asked if key_of(p) in table.rows]


def _without(problem: GemmProblem, row: TunedRow) -> str:
    """The part of a choice's note that says that the row was measured without the problem's
    epilogue."""
    return "" if row.epilogue == problem.epilogue else f", without {problem.epilogue}"


def by_model(problem: GemmProblem, device: DeviceSpec,
             alike: SumClass | None = None) -> Choice | None:
    """The :func:`fastest` candidate, with ``alike`` of those of the class.

    None if no calibration of ``device`` or its sibling covers the problem, or no candidate is
    legal.
    """
    model = model_for(problem, device)
    work = problem.batch * problem.m * problem.n * problem.k
    if model.section is None or not 0 < work < 2**63:  # counts of larger problems overflow
        return None
    among = shipped.candidates_of(model, problem, device)
    if not len(among.columns):
        return None
    firsts = np.flatnonzero(np.diff(among.family, prepend=-1))  # the first config of each family
    # What the kind of a problem decides is computed for all candidates once a second problem of the
    # kind comes; for the first one, which a program may wait for, only for those that are asked.
    again = among.columns.seen(kind_of(problem))
    times_of = functools.partial(model.times, problem, among.columns) if again else (
        lambda index: model.times(problem, among.columns.take(index)))
    first_us = times_of(firsts)
    if alike is not None:  # the members of a family sum alike
        first_us[[not alike.holds(problem, among.columns.config(i), device)
                  for i in firsts.tolist()]] = np.inf
    asked = first_us[among.family] < np.inf
    hopeful = asked & (first_us[among.family] <= _HOPEFUL * first_us.min())
    others = asked & ~hopeful
    for some in map(np.flatnonzero, (hopeful, others)):  # the others only where none is legal
        found = fastest(problem, device, model, among.columns, some, times_of(some))
        if found is not None:
            total_us, config = found
            return _chosen(problem, device, config, model, total_us)
    return None


def expected_gain(problem: GemmProblem, device: DeviceSpec) -> float | None:
    """The speed-up that the model expects of its best candidate over the problem's tuned row.

    The row's time is the smaller of its measured and its predicted time, because cards vary from
    run to run and models change; for a sibling's row it is the predicted time. None if neither
    device has a row of the problem, or no calibration covers it.
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
    """The :class:`Choice` of ``config`` by a calibrated model, with its note."""
    assert model.section is not None
    note = (f"predicted {total_us:.2f} us, calibrated by {model.section.results} timings "
            f"of {model.section.problems} problems")
    elsewhere = model.where != device.name
    if elsewhere:
        note += f" on {model.where}"
    if model.neighbours is None:
        return Choice(config, "model", None, note, total_us)
    p = model.neighbours.nearest(problem, 1)[0].neighbour.problem
    choice = Choice(config, "model", None, f"{note}, the nearest {p.m}x{p.n}x{p.k}", total_us)
    if problem.dtype_a == "fp32":
        choice = _with_evidence(choice, *model.bounds(problem))
    else:
        estimated, support = model.neighbours.vs_torch(problem)
        choice = replace(choice, expected=estimated if support else None)
    if elsewhere or problem.epilogue != "none":  # neighbours were measured without epilogues
        return choice
    return replace(choice, vs_torch=choice.expected)


def distance(problem: GemmProblem, row: TunedRow) -> float:
    """Sum of |log2(ratio)| over batch, m, n and k, plus 1 for each alignment that differs."""
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
    """(distance, row, its device) of the closest row in the tables of the device and its sibling;
    the device's own wins a tie. None if none is within :data:`NEAREST_LIMIT`."""
    found = []
    for where in _devices(problem, device):
        table = table_for(problem, where)
        near = nearest_row(problem, device, table) if table is not None else None
        if near is not None:
            found.append((*near, where))
    return min(found, key=lambda x: x[0], default=None)


def nearest_row(problem: GemmProblem, device: DeviceSpec,
                table: TunedTable) -> tuple[float, TunedRow] | None:
    """(distance, row) of the closest row whose config is legal here. A tie goes to the row with the
    problem's epilogue, then to the first in the table. None if none is within
    :data:`NEAREST_LIMIT`."""
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
    """The legal config with the least estimate among the kernels' default configs.

    Raises:
        UnsupportedError: none is legal.
    """
    legal, reasons = [], []
    for spec in SPECS.values():
        if not spec.by_rule:
            continue
        broken = spec.supports(problem, device)
        if broken is None:  # a kernel that cannot run the problem may have no default
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
    """The legal configs of every shipped space, sorted by estimated time."""
    legal = [c for c in shipped.configs(problem) if violation(problem, c, device) is None]
    return by_promise(problem, device, legal)[:top]


def by_promise(problem: GemmProblem, device: DeviceSpec,
               configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """``configs``, sorted by estimated time."""
    listed = list(configs)
    model = model_for(problem, device)
    times = model.times(problem, Columns(listed)).tolist()
    return [config for _, config in sorted(zip(times, listed, strict=True),
                                           key=lambda x: (x[0], x[1].config_id))]

"""The cache of plans: one for each problem, geometry and device, bounded in number."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections import OrderedDict
from dataclasses import replace
from itertools import chain, product

import torch

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, cuda_device, interpreter_device, within_budget
from tritongemm.errors import CompileError, LaunchError, TritonGemmError, UnsupportedError
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.ops import native
from tritongemm.ops.declined import Declined, DeclinedAtFirst, DeclinedByChoice, DeclinedNow
from tritongemm.ops.plan import InterpretedPlan, Plan, make_plan, scratch_of
from tritongemm.ops.sights import ONE_OF_MANY, Selections
from tritongemm.problem import GemmProblem
from tritongemm.records.failures import remember
from tritongemm.selection import candidates, choose, sum_class, torch_wins
from tritongemm.selection.hosttime import NATIVE, PYTHON, HostPath
from tritongemm.selection.mixed import torch_wins_converting
from tritongemm.selection.policy import Choice

log = logging.getLogger("tritongemm")

AnyPlan = Plan | InterpretedPlan
Key = tuple[GemmProblem, Geometry, torch.device]


class Plans:
    """An LRU cache of plans, keyed by everything that a launch depends on.

    A problem for which no plan can be made is cached too, with the reason.
    """

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple, AnyPlan | Declined] = OrderedDict()
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._selections = Selections()

    def get(self, key: Key, *, scratch: bool = True, forced: bool = False,
            patient: bool = False) -> AnyPlan:
        """The plan of ``key``. ``scratch=False``: a plan that needs no scratch memory.
        ``forced=True``: a plan even if torch's kernel is known to be faster. ``patient=True``: none
        yet for one of many large products (:class:`~tritongemm.ops.sights.Selections`).

        Raises:
            Declined: no kernel supports the problem, none could be built, or none may be built now.
        """
        place = (*key, scratch, forced)
        with self._lock:
            known = self._plans  # a clear() meanwhile also drops what is added to this table
            found = known.get(place)
            if found is not None:
                known.move_to_end(place)
        if found is None:
            with self._building:  # one compile at a time; a waiting thread then finds the plan
                found = known.get(place)
                if found is None:
                    _check_now(key[2])
                    if patient and (calls := self._wait(place, key[0], key[2])):
                        raise DeclinedAtFirst(ONE_OF_MANY, calls)
                    found = _make(*key, scratch, forced)
                    self._keep(known, place, found)
        if isinstance(found, Declined):
            raise found.fresh()
        return found

    def _wait(self, place: tuple, problem: GemmProblem, where: torch.device) -> int:
        """How many calls go to torch before a plan is made for them."""
        if settings.current().batch_invariant:  # see execute.py
            return 0
        try:
            return self._selections.wait(place, problem, device_of(where))
        except Exception:  # the making of the plan meets it again, and says what it is
            return 0

    def refuse(self, key: Key, error: LaunchError) -> Declined:
        """Sends ``key`` to torch from now on, because the driver refused the launch. Logs it
        once."""
        reason = str(error)  # a stored log record must not keep the error's frames alive
        _warn(key[0], reason)
        remember(device_of(key[2]).slug, str(key[0]), reason)
        for ways in product((True, False), repeat=2):
            self._keep(self._plans, (*key, *ways), Declined(reason))
        return Declined(reason)

    def _keep(self, known: OrderedDict, place: tuple, plan: AnyPlan | Declined) -> None:
        """Adds a plan, and drops the least recently used ones over the limit."""
        with self._lock:
            known[place] = plan
            while len(known) > settings.current().plan_cache_size:
                known.popitem(last=False)

    def clear(self) -> None:
        """Drops all plans; large products count from the start again."""
        self._plans = OrderedDict()
        self._selections = Selections()

    def after_fork(self) -> None:
        """Starts empty, with new locks, in a child process: the parent's locks may be held."""
        self.__init__()  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._plans)


plans = Plans()


def alone() -> bool:
    """Whether there is only one device, which is then always the current one."""
    return torch.cuda.device_count() == 1


def host_path() -> HostPath:
    """The path of repeated calls; the native dispatcher knows only one device. What was decided
    by the Python path stays when a library is built: a training step that is run again for its
    gradients must multiply as the first time."""
    return NATIVE if native.table() is not None and alone() else PYTHON


def device_of(where: torch.device) -> DeviceSpec:
    """The :class:`DeviceSpec` of a tensor's device, with the number of SMs that the budget
    allows."""
    if where.type != "cuda":
        return interpreter_device()
    return within_budget(
        cuda_device(torch.cuda.current_device() if where.index is None else where.index))


def contended(device: DeviceSpec) -> DeviceSpec:
    """``device`` as launches are to see it: whether NCCL's kernels hold some of its SMs while
    products run. Selection takes the device as it is. A budget of SMs bounds every launch, so a
    device within one is not contended."""
    mode = settings.current().concurrent
    if device.spare_sms or mode == "off" or mode == "auto" and not _overlaps_collectives():
        return device
    return replace(device, contended=True)


def _overlaps_collectives() -> bool:
    """Whether modules are sharded by FSDP2, which gathers and reduces beside products, over NCCL.
    Collectives that products wait for, as those of tensor parallelism, hold no SM meanwhile."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    module = getattr(fsdp, "FSDPModule", None)  # None too while another thread imports it
    if module is None or not any(
            kind.__name__.startswith("FSDP")  # fully_shard makes FSDPName for each class Name
            for kind in module.__subclasses__()):
        return False
    distributed = torch.distributed
    return (distributed.is_initialized() and distributed.get_world_size() > 1
            and "nccl" in str(distributed.get_backend_config()))


def _won_by_torch(problem: GemmProblem, geometry: Geometry, choice: Choice, device: DeviceSpec,
                  forced: bool) -> DeclinedByChoice | None:
    """That torch's kernel runs ``problem`` instead of ``choice``, as the log says then; None: ours
    does, as wherever it is ``forced``."""
    wins = torch_wins_converting if geometry.stored_a else torch_wins
    faster = None if forced else wins(problem, choice, device, host_path())
    if faster is None:
        return None
    _say(str(problem), device.slug, "torch", choice.source, faster)
    return DeclinedByChoice(faster)


def _check_now(where: torch.device) -> None:
    """Raises :class:`DeclinedNow` where no plan can be made for a device at the moment."""
    if where.type != "cuda":
        return
    if torch.cuda._is_in_bad_fork():
        raise DeclinedNow("CUDA cannot be used in a forked process; start it with the 'spawn' "
                          "method")
    if torch.cuda.is_current_stream_capturing():
        _say_capturing()
        raise DeclinedNow("no warm plan for this problem, and a CUDA graph is being captured")


def _make(problem: GemmProblem, geometry: Geometry, where: torch.device,
          scratch: bool, forced: bool) -> AnyPlan | Declined:
    slug = str(where)
    try:
        device = device_of(where)
        slug = device.slug
        choice = choose(problem, device)
        if (declined := _won_by_torch(problem, geometry, choice, device, forced)) is not None:
            return declined
        config = choice.config
        if not scratch:
            config = _without_scratch(problem, device, geometry, choice.config)
        try:
            plan = make_plan(problem, config, contended(device), geometry, where)
        except CompileError:  # if this disabled a kernel, another one is selected now
            again = choose(problem, device)
            if again.config.kernel == config.kernel or not scratch:
                raise
            if (declined := _won_by_torch(problem, geometry, again, device, forced)) is not None:
                return declined
            choice, config = again, again.config
            plan = make_plan(problem, config, contended(device), geometry, where)
    except UnsupportedError as error:
        return Declined(str(error))
    except Exception as error:  # no compiler, a damaged table, an unknown Triton: torch still works
        reason = str(error)
        if not isinstance(error, TritonGemmError):
            reason = f"{type(error).__name__}: {reason}"
        _warn(problem, reason)
        remember(slug, str(problem), reason)
        return Declined(reason)
    if scratch:
        _say(str(problem), slug, str(config), choice.source, choice.note)
    return plan


def _without_scratch(problem: GemmProblem, device: DeviceSpec, geometry: Geometry,
                     config: KernelConfig) -> KernelConfig:
    """The config with the least estimate that needs no scratch: no split K, no copies of operands,
    no split float32 operands (these then run on CUDA cores); under batch invariance of the same
    class. Complex operands, which are arranged in scratch, go to torch. Raises UnsupportedError."""
    if problem.a.format.real:
        log.warning("tritongemm: %s: there is no memory for the scratch of %s; calls that find "
                    "none go to torch", problem, config)
        raise UnsupportedError("there is no memory for the scratch of this call")
    others = candidates(problem, device)
    if settings.current().batch_invariant:
        alike = sum_class(problem, device)
        others = [alike.config, *(c for c in others if alike.holds(problem, c, device))]
    for other in chain([config], others):
        try:
            launches = launches_of(problem, other, device, geometry)
        except UnsupportedError:  # of an A in 16 bits
            continue
        if not scratch_of(launches):
            if other != config:
                log.warning("tritongemm: %s: there is no memory for the scratch of %s; calls that "
                            "find none run %s", problem, config, other)
            return other
    raise UnsupportedError("there is no memory for the scratch of this call")


def _warn(problem: GemmProblem, reason: str) -> None:
    log.warning("tritongemm: %s goes to torch: %s", problem, reason)


@functools.cache
def _say_capturing() -> None:
    log.warning("tritongemm: a CUDA graph captures a problem that has no warm plan; it is captured "
                "with torch's kernel. Call it once before the capture")


@functools.lru_cache(maxsize=4096)
def _say(problem: str, device: str, config: str, source: str, note: str) -> None:
    """Logs a choice the first time; the same choice for other strides is not logged again."""
    log.info("tritongemm: %s -> %s (%s; %s)", problem, config, source, note)


def forget() -> None:
    """Drops every plan, and the record of what was logged."""
    plans.clear()
    _say.cache_clear()
    _say_capturing.cache_clear()


settings.when_changed(forget)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=plans.after_fork)

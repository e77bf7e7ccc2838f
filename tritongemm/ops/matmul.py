"""``tritongemm.matmul``: torch.matmul's rules for 2-D and batched operands, the rest to torch."""

from __future__ import annotations

import functools
import logging
import threading
from collections import OrderedDict
from typing import NamedTuple

import torch

from tritongemm import settings
from tritongemm.device import DeviceSpec, cuda_device, interpreter_device
from tritongemm.errors import LaunchError, TritonGemmError, UnsupportedError
from tritongemm.kernels.launch import Geometry
from tritongemm.ops.plan import InterpretedPlan, Plan, geometry_of, make_plan, strides_of
from tritongemm.problem import GemmProblem, alignment
from tritongemm.selection import choose

log = logging.getLogger("tritongemm")

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class Declined(Exception):
    """A call that goes to torch, with the reason. Never leaves this package."""


def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None,
           strict: bool = False) -> torch.Tensor:
    """A @ B as ``torch.matmul(a, b, out=out)``, by this package's kernels where they can.

    Args:
        a: [M, K] or [..., M, K].
        b: [K, N] or [..., K, N].
        out: where the result goes, as torch takes it.
        strict: raise, naming the reason, instead of calling torch. Also TRITONGEMM_STRICT=1.

    Raises:
        UnsupportedError: only when strict. Whatever torch raises for wrong arguments.
    """
    try:
        return _run(_prepare(a, b, out), a, out)
    except Declined as reason:
        if strict or settings.current().strict:
            raise UnsupportedError(f"tritongemm.matmul would call torch: {reason}") from None
        return torch.matmul(a, b) if out is None else torch.matmul(a, b, out=out)


def problem_of(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> GemmProblem:
    """The :class:`GemmProblem` of A [M, K] or [batch, M, K] and B alike.

    Raises:
        UnsupportedError: operands that no kernel of this package takes.
    """
    try:
        x, y = _operands(a, b)
        return _problem(x, y, out)
    except Declined as reason:
        raise UnsupportedError(str(reason)) from None


def _operands(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B as two matrices or two batches of matrices, without copies. Raises Declined."""
    if type(a) is not torch.Tensor and type(a) is not torch.nn.Parameter or (
            type(b) is not torch.Tensor and type(b) is not torch.nn.Parameter):
        raise Declined(f"operands are {type(a).__name__} and {type(b).__name__}")
    if a.dtype not in _NAMES or a.dtype != b.dtype:
        raise Declined(f"dtypes are {a.dtype} and {b.dtype}")
    if a.device != b.device:
        raise Declined(f"devices are {a.device} and {b.device}")
    if a.is_cuda:
        pass
    elif not (a.device.type == "cpu" and settings.current().interpret):
        raise Declined(f"operands are on {a.device}")
    if a.layout is not torch.strided or b.layout is not torch.strided:
        raise Declined("an operand is not strided")
    if a.is_conj() or b.is_conj() or a.is_neg() or b.is_neg():
        raise Declined("an operand has a lazy conj or neg bit")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise Declined("an operand requires grad")
    if torch.is_autocast_enabled(a.device.type):
        raise Declined("autocast is on")
    if a.dim() < 2 or b.dim() < 2:
        raise Declined(f"ranks are {a.dim()} and {b.dim()}")
    if a.shape[-1] != b.shape[-2]:
        raise Declined(f"shapes are {tuple(a.shape)} and {tuple(b.shape)}")
    if a.dim() == 2 and b.dim() == 2:
        return a, b
    if b.dim() == 2:  # fold the batch into M, as torch does
        rows = _folded(a)
        if rows is None:
            raise Declined("the batch of A cannot be folded into its rows without a copy")
        return rows, b
    return _batched(a, b)


def _folded(a: torch.Tensor) -> torch.Tensor | None:
    """A [..., M, K] as [rows, K] without a copy, or None."""
    try:
        return a.view(-1, a.shape[-1])
    except RuntimeError:  # view says that the strides do not allow it
        return None


def _batched(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two [batch, ...] views; a broadcast batch has stride 0 and is not copied."""
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise Declined(f"batches are {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])}") from None
    flat = []
    for x in (a, b):
        wide = x.expand(*batch, *x.shape[-2:])
        try:
            flat.append(wide.view(-1, *x.shape[-2:]))
        except RuntimeError:
            raise Declined("a batch cannot be flattened without a copy") from None
    return flat[0], flat[1]


def _problem(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> GemmProblem:
    dtype = _NAMES[a.dtype]
    batch = a.shape[0] if a.dim() == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if max(m, n, k, batch) >= 2**31:
        raise Declined("an extent does not fit 32 bits")
    size = a.element_size()
    letter_a, align_a = _stored(a, size)
    letter_b, align_b = _stored(b, size)
    if out is None:
        align_c = alignment(n * size)  # torch's allocator aligns bases to 512 bytes
    else:
        align_c = _stored(out, size)[1]
        if out.stride(-1) != 1 and n > 1:
            align_c = min(align_c, size)
    precision = "ieee"
    if dtype == "fp32" and a.is_cuda:
        precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
    return GemmProblem(m, n, k, batch, dtype, dtype, dtype, letter_a + letter_b, align_a,
                       align_b, align_c, "none", precision)


def _stored(x: torch.Tensor, size: int) -> tuple[str, int]:
    """How an operand [.., rows, cols] is stored, ``n`` or ``t``, and its alignment in bytes.

    An axis of one element may have any stride: it never decides.
    """
    rows, cols = x.shape[-2], x.shape[-1]
    inner, outer = x.stride(-1), x.stride(-2)
    if inner == 1 or cols <= 1:
        letter, lead, along, unit = "n", outer, rows, inner == 1
        if cols <= 1 and outer == 1 and rows > 1:
            letter, lead, along, unit = "t", inner, cols, True
    elif outer == 1 or rows <= 1:
        letter, lead, along, unit = "t", inner, cols, outer == 1
    else:
        return "n", size
    if not unit:
        return letter, size
    align = alignment(x.data_ptr())
    if along > 1:
        align = min(align, alignment(lead * size))
    if x.dim() == 3 and x.shape[0] > 1:
        align = min(align, alignment(x.stride(0) * size))
    return letter, align


class _Plans:
    """Plans by everything that a launch depends on; bounded, least recently used first out."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple, Plan | InterpretedPlan | Declined] = OrderedDict()
        self._lock = threading.Lock()
        self._building = threading.Lock()

    def get(self, key: tuple[GemmProblem, Geometry, torch.device]) -> Plan | InterpretedPlan:
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
        if plan is None:
            with self._building:  # one compile at a time; a second thread finds it made
                plan = self._plans.get(key)
                if plan is None:
                    plan = _make(*key)
                    self._keep(key, plan)
        if isinstance(plan, Declined):  # one of its own: a traceback would keep operands alive
            raise Declined(*plan.args)
        return plan

    def decline(self, key: tuple, reason: str) -> Declined:
        """From now on ``key`` goes to torch; says so once."""
        _warn(key[0], reason)
        self._keep(key, Declined(reason))
        return Declined(reason)

    def _keep(self, key: tuple, plan: Plan | InterpretedPlan | Declined) -> None:
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > settings.current().plan_cache_size:
                self._plans.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._plans.clear()


_plans = _Plans()


def clear_plans() -> None:
    """Forgets every plan, so that newly published tables and changed settings are seen."""
    _plans.clear()
    _say.cache_clear()


def device_of(where: torch.device) -> DeviceSpec:
    """The :class:`DeviceSpec` of a tensor's device."""
    if where.type != "cuda":
        return interpreter_device()
    return cuda_device(torch.cuda.current_device() if where.index is None else where.index)


def _make(problem: GemmProblem, geometry: Geometry,
          where: torch.device) -> Plan | InterpretedPlan | Declined:
    if where.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise Declined("no warm plan for this problem, and a CUDA graph is being captured")
    device = device_of(where)
    try:
        choice = choose(problem, device)
        plan = make_plan(problem, choice.config, device, geometry, where)
    except UnsupportedError as error:
        return Declined(str(error))
    except TritonGemmError as error:  # no compiler, no driver, a damaged table: torch still works
        reason = str(error)  # a kept log record must not keep the error's frames
        _warn(problem, reason)
        return Declined(reason)
    _say(str(problem), device.slug, str(choice.config), choice.source, choice.note)
    return plan


def _warn(problem: GemmProblem, reason: str) -> None:
    log.warning("tritongemm: %s goes to torch: %s", problem, reason)


@functools.lru_cache(maxsize=4096)
def _say(problem: str, device: str, config: str, source: str, note: str) -> None:
    """Logs a choice the first time; the same one for other strides says nothing new."""
    log.info("tritongemm: %s -> %s (%s; %s)", problem, config, source, note)


class _Call(NamedTuple):
    """A plan with its key, its operands as it takes them, and the shape of the result."""

    plan: Plan | InterpretedPlan
    key: tuple
    x: torch.Tensor
    y: torch.Tensor
    shape: tuple[int, ...]


def _prepare(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> _Call:
    """The call's plan and what it takes. Raises Declined."""
    if settings.current().disable:
        raise Declined("TRITONGEMM_DISABLE is set")
    x, y = _operands(a, b)
    if a.numel() == 0 or b.numel() == 0:
        raise Declined("an extent is 0")
    shape = _result_shape(a, b)
    if out is not None:
        _usable(out, a, b, shape)
    problem = _problem(x, y, None if out is None else _matrices(out, x))
    if out is None:
        m, n = problem.m, problem.n
        strides_c = (0 if x.dim() == 2 else m * n, n, 1)
        geometry = Geometry(*strides_of(x), *strides_of(y), *strides_c)
    else:
        geometry = geometry_of(x, y, _matrices(out, x))
    key = (problem, geometry, a.device)
    return _Call(_plans.get(key), key, x, y, shape)


def _run(call: _Call, a: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Launches. Raises Declined where the driver refuses the launch, for good, or where scratch
    does not fit, this time: torch then writes the result."""
    result = torch.empty(call.shape, dtype=a.dtype, device=a.device) if out is None else out
    target = _matrices(result, call.x)
    try:
        if isinstance(call.plan, Plan) and a.device.index != torch.cuda.current_device():
            with torch.cuda.device(a.device):
                call.plan(call.x, call.y, target)
        else:
            call.plan(call.x, call.y, target)
    except LaunchError as error:
        raise _plans.decline(call.key, str(error)) from None
    except torch.OutOfMemoryError:
        raise Declined("there is no memory for the scratch of this call") from None
    return result


def _result_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    if b.dim() == 2:
        return (*a.shape[:-1], b.shape[-1])
    return (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def _matrices(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The result as [rows, N] or [batch, M, N], as the operands were folded."""
    if out.dim() == x.dim():
        return out
    return out.view(-1, out.shape[-1]) if x.dim() == 2 else out.view(-1, *out.shape[-2:])


def _usable(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raises Declined unless ``out`` can be written directly: torch then warns, resizes, raises
    or goes through a temporary."""
    if type(out) is not torch.Tensor or out.dtype != a.dtype or out.device != a.device:
        raise Declined("out= is of another kind, dtype or device")
    if tuple(out.shape) != tuple(shape) or not out.is_contiguous():
        raise Declined("out= has another shape, or is not contiguous")
    if out.requires_grad:
        raise Declined("out= requires grad")
    if out.untyped_storage().data_ptr() in (a.untyped_storage().data_ptr(),
                                            b.untyped_storage().data_ptr()):
        raise Declined("out= shares memory with an operand")


def configure_logging() -> None:
    """Shows this package's log lines at the level of TRITONGEMM_LOG on standard error."""
    level = settings.current().log
    if level != "off":
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        if not log.handlers:
            log.addHandler(handler)
        log.setLevel(getattr(logging, level.upper()))
        log.propagate = False


configure_logging()

__all__ = ["clear_plans", "matmul", "problem_of"]

"""Runs a case and says whether it is right: against float64, torch's errors, and guard bands."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from unittest import mock

import torch

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.errors import UnsupportedError
from tritongemm.measure.numerics import error_of, judge, limit
from tritongemm.ops import calls

from .case import Case
from .configs import Choices
from .functions import FUNCTIONS, keywords
from .limits import Wrong, gradients_of, truth_of, within_bound
from .memory import Fresh, World, bits


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        kind: ``kernel``: a right result of kernels; ``torch``: one that torch computed, as it
            must; ``raises``: the error that torch raises; ``wrong``.
        message: of a wrong one.
        made: the configs of the products that kernels ran.
    """

    kind: str
    message: str = ""
    made: tuple = field(default=())


def run(case: Case, device: torch.device, built: frozenset[str] | None = None,
        host_only: bool = False) -> Outcome:
    """Runs a case. ``built`` and ``host_only`` are those of :class:`~.configs.Choices`."""
    choices = Choices(case.configs, built, host_only=host_only)
    with warnings.catch_warnings(), _precision(case, device):
        warnings.simplefilter("ignore")
        try:
            raised = _run(case, device, choices)
        except Wrong as fault:
            return Outcome("wrong", str(fault), tuple(c for _, c in choices.made))
    kind = "raises" if raised else "kernel" if choices.made else "torch"
    return Outcome(kind, "", tuple(c for _, c in choices.made))


def record(case: Case, device: torch.device, recorded: dict) -> None:
    """Adds to ``recorded`` what a case would have to have built."""
    world = _world(case, device)
    with warnings.catch_warnings(), _precision(case, device), _mode(case), Choices(
            case.configs, recorded=recorded).taken():
        warnings.simplefilter("ignore")
        _caught(lambda: _call(case, world, ours=True))


def _run(case: Case, device: torch.device, choices: Choices) -> bool:
    """Whether it raised as torch does. Raises Wrong."""
    theirs = _world(case, device)
    expected = _caught(lambda: _call(case, theirs, ours=False))
    ours = _world(case, device)
    fresh = Fresh()
    with choices.taken(), fresh.guarding(), _mode(case):
        if case.warm:
            _warm(case, device)
        found = _caught(lambda: _call(case, ours, ours=True))
        if isinstance(found, UnsupportedError) and not isinstance(expected, UnsupportedError):
            choices.made.clear()  # strict refused: it is torch's
            ours = _world(case, device)
            found = _caught(lambda: _call(case, ours, ours=True, strict=False))
    if not isinstance(found, Exception) and (
            _torch_cannot_fold(case, expected)
            or choices.made and _torch_refuses_d(case, expected)):
        plain = _world(replace(case, out=None), device)
        expected = _caught(lambda: _call(replace(case, out=None), plain, ours=False))
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if type(expected) is not type(found):
            raise Wrong(f"torch: {_told(expected)}; ours: {_told(found)}")
        return True
    if case.out is not None:
        if found[0] is not ours.out:
            raise Wrong("the result is not the out= that was given")
        ours.may_be_written(-1)
        theirs.may_be_written(-1)
    if case.function.endswith("_"):
        ours.may_be_written(0)
    # torch 2.13 makes the out= of a vector by a matrix contiguous, and writes between its elements.
    if choices.made or ours.changed() != theirs.changed():
        _memory(case, ours, fresh)
    if not _undefined(case, device) or choices.made and not case.warm:
        _values(case, device, found, expected)
    if (case.mode == "batch_invariant" and case.function in ("mm", "linear") and choices.made
            and not any(case.gradients) and not choices.host_only):
        _rows(case, choices, device, found[0])
    return False


def _world(case: Case, device: torch.device) -> World:
    return World(case.operands, case.dtype, case.values, device, case.out, case.distribution)


def _undefined(case: Case, device: torch.device) -> bool:
    """Whether torch's own result is undefined: on a GPU it writes ``out`` while it reads what lies
    in the same memory. (D in place of ``out`` is defined.)"""
    if device.type != "cuda" or case.out is None or case.out.shares < 0:
        return False
    first = case.operands[0]
    return not (FUNCTIONS[case.function].adds and case.out.shares == 0 and (
        first.shape, first.stride, first.offset) == (
        case.out.shape, case.out.stride, case.out.offset))


def _warm(case: Case, device: torch.device) -> None:
    """The same call with other strides and values, then with other values: nothing of them may be
    left."""
    other = _world(replace(case, values=case.values + 1), device)
    strided = other.operands
    if not case.function.endswith("_"):
        other.operands = [x.contiguous() for x in strided]
        _caught(lambda: _call(case, other, ours=True))
    other.operands = strided
    _caught(lambda: _call(case, other, ours=True))


def _torch_cannot_fold(case: Case, expected: object) -> bool:
    """Whether torch failed at a call that its documentation allows: ``matmul`` folds a batch into
    rows, and an ``out`` of the right shape that has gaps then has the wrong one (torch 2.13)."""
    return (case.function == "matmul" and case.out is not None
            and isinstance(expected, RuntimeError)
            and str(expected).startswith("The size of tensor a")
            and _caught(lambda: _resized(case)) is False)


def _torch_refuses_d(case: Case, expected: object) -> bool:
    """Whether torch refused an ``out`` in D's memory with other strides or another offset, to which
    it copies D first. A kernel's result is defined: it is written to a copy."""
    return (FUNCTIONS[case.function].adds and case.out is not None and case.out.shares == 0
            and isinstance(expected, RuntimeError)
            and str(expected).startswith("unsupported operation: some elements of the input"))


def _rows(case: Case, choices: Choices, device: torch.device, found: torch.Tensor) -> None:
    """Raises Wrong where the first rows alone have other bits, which a mode rules out. It holds
    where rows of A are stored one by one and every product ran by a kernel."""
    x = case.operands[-2]
    rows = (x.shape[0] + 1) // 2
    if len(x.shape) != 2 or x.stride[1] != 1 or x.stride[0] < x.shape[1] or case.out is not None:
        return
    world = _world(case, device)
    world.operands[-2] = world.operands[-2].narrow(0, 0, rows)
    choices.made.clear()
    with choices.taken(), _mode(case):
        part = _call(replace(case, gradients=()), world, ours=True, strict=False)[0]
    if choices.made and not _same(part, found[:rows]):
        raise Wrong(f"batch invariance: the first {rows} rows alone have other bits")


def _memory(case: Case, ours: World, fresh: Fresh) -> None:
    for fault in (ours.changed(), fresh.changed()):
        if fault and not _resized(case):
            raise Wrong(fault)


def _resized(case: Case) -> bool:
    """Whether ``out`` has another shape than the result: torch then moves it."""
    return case.out is not None and case.out.shape != _plain_shape(case)


def _plain_shape(case: Case) -> tuple[int, ...]:
    meta = [torch.empty(view.shape, device="meta") for view in case.operands]
    return tuple(FUNCTIONS[case.function].plain(*meta).shape)


def _caught(call):
    """The result, or the exception, which must not keep this frame alive. Raises
    torch.OutOfMemoryError."""
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return error.with_traceback(None)


def _told(what: object) -> str:
    if isinstance(what, Exception):
        return f"{type(what).__name__}: {what}"[:300]
    return f"a result of shape {tuple(what[0].shape)}"


def _call(case: Case, world: World, *, ours: bool,
          strict: bool | None = None) -> tuple[torch.Tensor, ...]:
    """The result, then the gradients asked for."""
    function = FUNCTIONS[case.function]
    operands = world.operands
    if any(case.gradients):
        operands = [x.detach().requires_grad_() if wanted else x
                    for x, wanted in zip(operands, case.gradients)]
    leaves, operands = operands, list(operands)
    words = keywords(case)
    if case.out is not None:
        words["out"] = world.out
    strict = case.strict if strict is None else strict
    if case.mixed and (not ours or case.override):
        operands[-2] = operands[-2].float()
    if not ours:
        result = function.theirs(*operands, **words)
    elif case.override:
        # a refusal under strict is an error of the override's own; counts are not asked for here
        with tg.override(min_flops=0):
            result = function.theirs(*operands, **words)
    else:
        if function.strict:
            words["strict"] = strict
        if case.mixed:
            words["mixed"] = True
        result = function.ours(*operands, **words)
    return (result, *gradients_of(leaves, case, result))


def _values(case: Case, device: torch.device, found: tuple[torch.Tensor, ...],
            expected: tuple[torch.Tensor, ...]) -> None:
    """Raises Wrong where a result or a gradient is beyond its limit."""
    names = ("the result", *(f"the gradient of operand {i}"
                             for i, wanted in enumerate(case.gradients) if wanted))
    truth: tuple = ()
    for i, (name, one, torchs) in enumerate(zip(names, found, expected)):
        if (one is None) != (torchs is None):
            raise Wrong(f"{name}: torch's is {torchs}, ours {one}")
        if one is None:
            continue
        if one.shape != torchs.shape or one.dtype != torchs.dtype:
            raise Wrong(f"{name}: {tuple(one.shape)} {one.dtype}, torch's {tuple(torchs.shape)} "
                         f"{torchs.dtype}")
        if _same(one, torchs):
            continue  # torch's own, bit for bit
        if not truth:
            wide = _world(case, device)
            truth, limits, terms = truth_of(case, wide)
        report = judge(error_of(_flat(one), _flat(truth[i])), limits[i], name)
        if not report.ok:
            own = error_of(_flat(torchs), _flat(truth[i]))
            report = judge(error_of(_flat(one), _flat(truth[i])), limit(limits[i], own), name)
        excess = max(report.max_err_ratio, report.rms_err_ratio)
        # The limits are of normal numbers: by RMS 3.3 times the error of a chain of additions.
        unsure = not report.ok or case.distribution != "normal"
        if unsure and (math.isinf(excess) or not within_bound(
                case, wide, i, one, truth[i], terms[i], excess)):
            raise Wrong(report.message or f"{name}: an element exceeds the bound of its terms, "
                         "or all together the errors of float32 sums")


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.detach().reshape(1, -1)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = (x.detach().resolve_conj().resolve_neg().contiguous() for x in (one, other))
    return torch.equal(bits(one), bits(other))


@contextlib.contextmanager
def _precision(case: Case, device: torch.device) -> Iterator[None]:
    """torch's setting and ours, as the case has them. They are of CUDA; in the interpreter products
    of float32 have the case's precision by themselves."""
    if case.dtype != "fp32":
        yield
        return
    if device.type != "cuda":
        with mock.patch.object(calls, "_precision_of", lambda x: (
                case.precision if x.dtype == torch.float32 else "ieee")):
            yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if case.precision == "tf32" else "ieee"
    try:
        with tg.fp32_compute("split" if case.precision == "fp16x3" else "ieee"):
            yield
    finally:
        matmul.fp32_precision = before


@contextlib.contextmanager
def _mode(case: Case) -> Iterator[None]:
    if case.mode == "batch_invariant":
        with tg.batch_invariant():
            yield
    elif case.mode == "sm_budget":
        with tg.sm_budget(3):
            yield
    else:
        yield


def with_configs(case: Case, outcome: Outcome) -> list[Case]:
    """The case with each config that its kernels ran, instead of a seed."""
    return [replace(case, configs=config) for config in dict.fromkeys(outcome.made)
            if isinstance(config, KernelConfig)]

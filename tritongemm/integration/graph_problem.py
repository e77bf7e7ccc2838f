"""Which problem a product of a traced graph is, and where its calls will run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import fx

from tritongemm import settings
from tritongemm.device import DeviceSpec
from tritongemm.epilogues import factor_named
from tritongemm.integration.graph_nodes import operand_of, size_of, value_of
from tritongemm.ops.calls import NAMES, precision_setting
from tritongemm.ops.operands import StridedShape, form_of, gapless, problem_of_form
from tritongemm.ops.plans import device_of, host_path
from tritongemm.problem import Epilogue, GemmProblem
from tritongemm.selection.hosttime import GRAPH, LARGE_PRODUCTS, HostPath

aten = torch.ops.aten


class Asked(NamedTuple):
    """A problem, and the device that it is for."""

    problem: GemmProblem
    device: DeviceSpec


def problem_of(product: fx.Node, addend: fx.Node | None, activation: str,
               min_flops: float | None, factor: float = 1.0,
               gradient_of: str = "") -> Asked | None:
    """The problem of ``mm`` or ``addmm``, with what is added to an ``mm``, its factor, and an
    activation; or with ``gradient_of``, by which the ``addend`` is a factor
    (:func:`tritongemm.epilogues.factor_named`). None where no kernel of this package is to be
    asked. ``min_flops``: as for :class:`tritongemm.integration.inductor.FusePass`."""
    if settings.current().disable:
        return None
    a, b = (value_of(x) for x in product.args[-2:])
    has_input = product.target is aten.addmm.default
    d = value_of(product.args[0]) if has_input else (
        None if addend is None else value_of(addend))
    if a.dtype not in NAMES or a.dtype != b.dtype or d is not None and d.dtype != a.dtype:
        return None
    if a.dtype.is_complex:  # Inductor leaves it to aten; lazy conjugates are not to be seen here
        return None
    if value_of(product).dtype != a.dtype:
        return None
    if a.device.type != "cuda" and not (a.device.type == "cpu" and settings.current().interpret):
        return None
    beta, alpha = (product.kwargs.get(name, 1) for name in ("beta", "alpha"))
    if type(beta) not in (int, float) or type(alpha) not in (int, float) or not alpha:
        return None
    one, two = operand_of(a), operand_of(b)
    products = one.shape[0] * one.shape[1] * two.shape[1]
    if min_flops is None:
        sizes = (*a.shape, *b.shape)
        least = 0.0 if all(isinstance(size, int) for size in sizes) else LARGE_PRODUCTS
    else:
        least = min_flops / 2
    if not products or products < least:
        return None
    added = None
    if d is not None and beta != 0:
        if d.dim() <= 2:
            added = operand_of(d)
        else:  # the batch folds into the rows
            shape = one.shape[0], size_of(d.shape[-1])
            added = StridedShape(shape, gapless(shape))
    form = form_of(one, two, None, added)
    name = NAMES[a.dtype]
    sums = "scale" if form.addend == "none" and alpha * factor != 1 else form.addend
    if gradient_of:
        sums = factor_named(gradient_of, vector=sums == "bias")
    problem, _ = problem_of_form(form, (0, 0, 0, 0), (name, name, name),
                                 str(Epilogue(sums, activation)), _precision(a))
    return Asked(problem, device_of(a.device))


def path() -> HostPath:
    """The path of the calls that a compiled graph makes; graphs that Inductor captures have no host
    time."""
    from torch._inductor import config

    return GRAPH if config.triton.cudagraphs else host_path()


def _precision(a: torch.Tensor) -> str:
    """Of float32 products, as :mod:`tritongemm.ops.calls` has it."""
    if a.dtype is not torch.float32 or a.device.type != "cuda":
        return "ieee"
    if precision_setting("cuda", "matmul") == "tf32":
        return "tf32"
    return "fp16x3" if settings.current().fp32 == "split" else "ieee"

"""Which problem a product of a traced graph is, and where its calls will run."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import fx

from tritongemm import settings
from tritongemm.device import DeviceSpec
from tritongemm.epilogues import factor_named
from tritongemm.integration.graph_nodes import operand_of, size_of, value_of
from tritongemm.ops import calls, execute
from tritongemm.ops.calls import NAMES, precision_setting
from tritongemm.ops.operands import StridedShape, form_of, gapless, problem_of_form
from tritongemm.ops.plans import device_of, host_path
from tritongemm.problem import Epilogue, GemmProblem
from tritongemm.selection.hosttime import GRAPH, LARGE_PRODUCTS, PYTHON, HostPath

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
    a, b = (value_of(x) for x in product.args[-2:])
    has_input = product.target is aten.addmm.default
    d = value_of(product.args[0]) if has_input else (
        None if addend is None else value_of(addend))
    beta, alpha = (product.kwargs.get(name, 1) for name in ("beta", "alpha"))
    if type(beta) not in (int, float) or type(alpha) not in (int, float) or not alpha:
        return None
    if d is not None and d.dtype != a.dtype or not _may_be_asked(product, min_flops):
        return None
    one, two = operand_of(a), operand_of(b)
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


def problems_of_batch(product: fx.Node, a: StridedShape, b: StridedShape,
                      min_flops: float | None) -> list[Asked]:
    """The problems that ``bmm`` can be where it is ``matmul`` of ``a`` [..., M, K] and ``b``
    [..., K, N], whose batches broadcast, in the order in which a call of ``matmul`` tries them.
    Empty where no kernel of this package is to be asked. ``min_flops``: as for
    :func:`problem_of`."""
    if not _may_be_asked(product, min_flops):
        return []
    x = value_of(product)
    operands = (torch.empty_strided(*one, dtype=x.dtype, device="meta") for one in (a, b))
    name, device, precision = NAMES[x.dtype], device_of(x.device), _precision(x)
    return [Asked(problem_of_form(form, (0, 0, 0, 0), (name, name, name), "none", precision)[0],
                  device)
            for form in calls.forms_of(execute.MATMUL.rule, calls.Operands(*operands))]


def _may_be_asked(product: fx.Node, min_flops: float | None) -> bool:
    """Whether a kernel of this package is to be asked for ``mm``, ``addmm`` or ``bmm``, as far as
    dtypes, devices and the number of flops tell. Raises Unknown."""
    if settings.current().disable:
        return False
    a, b = (value_of(x) for x in product.args[-2:])
    if a.dtype not in NAMES or a.dtype != b.dtype or value_of(product).dtype != a.dtype:
        return False
    if a.dtype.is_complex:  # Inductor leaves it to aten; lazy conjugates are not to be seen here
        return False
    if a.device.type != "cuda" and not (a.device.type == "cpu" and settings.current().interpret):
        return False
    products = math.prod(map(size_of, (*a.shape, b.shape[-1])))
    if min_flops is None:
        sizes = (*a.shape, *b.shape)
        least = 0.0 if all(isinstance(size, int) for size in sizes) else LARGE_PRODUCTS
    else:
        least = min_flops / 2
    return bool(products) and products >= least


def path(native: bool = True) -> HostPath:
    """The path of the calls that a compiled graph makes; graphs that Inductor captures have no host
    time. ``native``: whether the native dispatcher knows the op that is called."""
    from torch._inductor import config

    if config.triton.cudagraphs:
        return GRAPH
    return host_path() if native else PYTHON


def _precision(a: torch.Tensor) -> str:
    """Of float32 products, as :mod:`tritongemm.ops.calls` has it."""
    if a.dtype is not torch.float32 or a.device.type != "cuda":
        return "ieee"
    if precision_setting("cuda", "matmul") == "tf32":
        return "tf32"
    return "fp16x3" if settings.current().fp32 == "split" else "ieee"

"""Configs of Inductor's own matmul templates, chosen by this package's model instead of autotuning.

With ``max_autotune`` Inductor compiles and times a score of configs for each product. Its templates
are kernels like ``tiled`` and ``persistent_tma``, so the model knows which of their configs should
be fastest; only the first few are left for Inductor to compile. What Inductor calls without a
template (aten, and so :class:`tritongemm.override`) stays a candidate.

Inductor keeps its choices in an object for each thread. :func:`follow` lets that object's own
method ask here, whatever its class; without a pass that wants this, nothing changes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tritongemm.config import KernelConfig
from tritongemm.errors import TritonGemmError
from tritongemm.kernels import shared_bytes
from tritongemm.ops.calls import NAMES, precision_setting
from tritongemm.ops.declined import Declined
from tritongemm.ops.operands import StridedShape, form_of, problem_of_form
from tritongemm.ops.plans import device_of
from tritongemm.problem import GemmProblem
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import model_for, not_calibrated

_LOG = logging.getLogger("tritongemm")
#: Inductor's templates, and the kernel of this package that each is like.
KERNELS = {"mm": "tiled", "bmm": "tiled", "mm_persistent_tma": "persistent_tma"}
_METHOD = "_finalize_template_configs"
_FOLLOWED = "_tritongemm_follows"


def follow(wanted: Callable[[], int | None]) -> None:
    """Lets Inductor's choices of this thread keep ``wanted()`` configs of templates for each
    product; None: as many as it likes."""
    from torch._inductor.virtualized import V

    handler = V.choices
    method = getattr(handler, _METHOD, None)
    if method is None or getattr(handler, _FOLLOWED, False):
        return

    @functools.wraps(method)
    def finalize(template_choices: Any, kernel_inputs: Any, *rest: Any, **more: Any) -> list:
        found = method(template_choices, kernel_inputs, *rest, **more)
        count = wanted()
        if count is None:
            return found
        try:
            return fastest(found, kernel_inputs, count)
        except Exception as reason:  # another Inductor's parts: a program must compile all the same
            _LOG.warning("tritongemm: the configs of Inductor's templates are left to it: %s: %s",
                         type(reason).__name__, reason)
            return found

    setattr(handler, _METHOD, finalize)
    setattr(handler, _FOLLOWED, True)


def fastest(choices: Sequence[Any], kernel_inputs: Any, count: int) -> list[Any]:
    """The choices without a template, and the ``count`` configs of known templates with the least
    predicted times; all of them where no template is known or the model cannot tell."""
    known = [(choice, config) for choice in choices if (config := _config(choice)) is not None]
    try:
        problem, where = _problem(kernel_inputs)
        device = device_of(where)
        configs = [config for _, config in known]
        if not known or any(not_calibrated(problem, config, device) for config in configs):
            return list(choices)
        times = model_for(problem, device).times(problem, Columns(configs))
        # Inductor offers configs that no device of this kind can launch, and drops them when it
        # has timed the others.
        times = np.where([shared_bytes(problem, config) <= device.shared_bytes_per_block
                          for config in configs], times, np.inf)
    except (Declined, TritonGemmError, LookupError) as reason:
        _LOG.debug("the configs of Inductor's templates are left to it: %s", reason)
        return list(choices)
    best = {id(known[i][0]) for i in np.argsort(times, kind="stable")[:count]}
    return [x for x in choices if not _of_a_template(x) or id(x) in best]


def _of_a_template(choice: Any) -> bool:
    from torch._inductor.codegen.common import KernelTemplate

    return isinstance(choice.template, KernelTemplate)


def _config(choice: Any) -> KernelConfig | None:
    """The config of the kernel that ``choice`` is like; None: it is like none."""
    kernel = KERNELS.get(getattr(choice.template, "name", ""))
    if kernel is None or not _of_a_template(choice):
        return None
    values = choice.params.to_kwargs()
    try:
        return KernelConfig(kernel, int(values["BLOCK_M"]), int(values["BLOCK_N"]),
                            int(values["BLOCK_K"]), num_warps=int(values["num_warps"]),
                            num_stages=int(values["num_stages"]),
                            group_m=int(values.get("GROUP_M", 1)))
    except (KeyError, TypeError, ValueError, TritonGemmError):
        return None


def _problem(kernel_inputs: Any) -> tuple[GemmProblem, torch.device]:
    """The product of Inductor's operands, by what their sizes were when it was traced. Raises
    LookupError for operands that no kernel takes."""
    a, b = (range(kernel_inputs.count)[i]
            for i in (kernel_inputs._mat1_idx, kernel_inputs._mat2_idx))
    shapes, strides = kernel_inputs.shapes_hinted(), kernel_inputs.strides_hinted()
    dtypes = kernel_inputs.dtypes()
    name = NAMES[dtypes[a]]
    if dtypes[b] is not dtypes[a] or kernel_inputs.out_dtype() is not dtypes[a]:
        raise LookupError(f"dtypes {dtypes[a]}, {dtypes[b]} and {kernel_inputs.out_dtype()}")
    one, two = (StridedShape(tuple(map(int, shapes[i])), tuple(map(int, strides[i])))
                for i in (a, b))
    form = form_of(one, two)
    tf32 = name == "fp32" and precision_setting("cuda", "matmul") == "tf32"
    problem, _ = problem_of_form(form, (0, 0, 0, 0), (name, name, name), "none",
                                 "tf32" if tf32 else "ieee")
    return problem, kernel_inputs.device()

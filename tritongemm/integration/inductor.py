"""A graph pass for ``torch.compile``: products and what follows them as one kernel of this package.

Inductor runs the pass on its functional graph of aten operations, before its own patterns. It
replaces

* ``mm`` or ``addmm``, then relu, gelu (both kinds) or silu; ``mm``, then a factor that is a number,
  an addition of a bias [N] or of a matrix of the product's shape (a residual), and an activation
  behind that, any of them: by ``torch.ops.tritongemm.addmm`` (``fused_sums``);
* gated layers, activation(gate) * other, of two products or of one: by
  ``torch.ops.tritongemm.gated_linear`` and ``gated_pair`` (``fused_gates``);
* with ``aux``, ``mm`` or ``addmm`` with a bias, then gelu or silu, or a gated layer of one product
  whose first half is the gate, where the graph returns the product too, as forward does for
  backward: by ``torch.ops.tritongemm.linear_aux`` (``fused_kept``) and ``gated_linear_aux``
  (``fused_gates``);
* ``mm`` times a matrix, a row or a column, or times the derivative of an activation, as backward
  has it: by ``torch.ops.tritongemm.mulmm`` (``fused_factors``),

with a view in between where ``linear`` folds its batch into the rows; and

* ``bmm`` of copies of operands whose batches broadcast: by ``torch.ops.tritongemm.matmul`` of the
  operands (``broadcast_batches``).

A graph that has none of these is left as it is. So are

* products that torch is expected to run faster, by the host and GPU times of both sides, or with
  fewer flops than ``min_flops``. Where Inductor captures CUDA graphs (``mode="reduce-overhead"``)
  host time does not count. Small products of symbolic sizes stay too, unless ``min_flops`` is
  given: sizes that change at every call would each cost a selection;
* sums that something else in the graph reads too;
* sums that only pointwise or reducing code reads, which Inductor fuses into its own kernel.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

import tritongemm
from tritongemm import activations, settings
from tritongemm.errors import TritonGemmError, UsageError
from tritongemm.integration import (
    broadcast_batches,
    fused_factors,
    fused_gates,
    fused_kept,
    fused_sums,
    graph_nodes,
    graph_problem,
    template_choices,
)
from tritongemm.integration.graph_nodes import Unknown
from tritongemm.integration.graph_problem import path
from tritongemm.ops import calls, formulas, fused_linear, operands, registered
from tritongemm.ops.declined import Declined
from tritongemm.records.revision import choices_digest

_LOG = logging.getLogger("tritongemm")
_SLOT = "post_grad_custom_pre_pass"
#: What is replaced, in this order: what the gates leave alone may still have an epilogue.
_KINDS = (fused_gates, fused_kept, fused_factors, fused_sums, broadcast_batches)


class FusePass(CustomGraphPass):
    """The pass, as Inductor takes it.

    Args:
        min_flops: products of fewer flops are left alone; None: each product is decided.
        before: another pass in the same place, which runs first.
        templates: configs of Inductor's own templates that are left to it for each product, those
            with the least predicted times (``template_choices``); None: all.
        aux: also replace products that the graph returns beside what follows them.
    """

    def __init__(self, min_flops: float | None = None, before: Any = None,
                 templates: int | None = None, aux: bool = False) -> None:
        if min_flops is not None and (
                isinstance(min_flops, bool) or not isinstance(min_flops, (int, float))
                or not min_flops >= 0):
            raise UsageError(f"min_flops={min_flops!r} is not a number of at least 0")
        if templates is not None and (isinstance(templates, bool)
                                      or not isinstance(templates, int) or templates < 1):
            raise UsageError(f"templates={templates!r} is not a number of configs, 1 or more")
        self.min_flops = None if min_flops is None else float(min_flops)
        self.before, self.templates, self.aux = before, templates, bool(aux)

    def __call__(self, graph: fx.Graph) -> None:
        for one in _passes(self.before):
            one(graph)
        if self.templates is not None:
            template_choices.follow(_templates_now)
        fuse(graph, self.min_flops, self.aux)

    def uuid(self) -> Any:
        """What Inductor's cache of compiled graphs knows this pass by; None where it must not
        cache, since another pass in the same place has no such id."""
        ids = [one.uuid() if isinstance(one, CustomGraphPass) else None
               for one in _passes(self.before)]
        if None in ids:
            return None
        return ("tritongemm", tritongemm.__version__, _sources(), choices_digest(), self.min_flops,
                self.templates, self.aux, settings.current().disable, path().name, *ids)


def _passes(slot: Any) -> Sequence[Any]:
    """The passes in a slot: none, one or several."""
    if slot is None:
        return ()
    return slot if isinstance(slot, (list, tuple)) else (slot,)


def _templates_now() -> int | None:
    """``templates`` of the passes that the present compilation runs, of the last that has any."""
    from torch._inductor import config

    waiting = [*_passes(getattr(config, _SLOT))]
    while waiting:
        one = waiting.pop()
        if isinstance(one, FusePass):
            if one.templates is not None:
                return one.templates
            waiting += _passes(one.before)
    return None


@functools.cache
def _sources() -> str:
    """A digest of what decides how a graph is changed, beside the choice of configs: the files of
    the pass, and the ops that it puts there."""
    digest = hashlib.sha256()
    modules = (graph_nodes, graph_problem, *_KINDS, template_choices, activations, formulas,
               registered, fused_linear, calls, operands)
    for name in (__file__, *(str(module.__file__) for module in modules)):
        digest.update(Path(name).read_bytes())
    return digest.hexdigest()


def options(*, min_flops: float | None = None, templates: int | None = None, aux: bool = False,
            **others: Any) -> dict[str, Any]:
    """Options with the pass, for ``torch.compile(..., options=...)``.

    Args:
        min_flops: as for :class:`tritongemm.override`.
        templates: under ``max_autotune``, how many configs of Inductor's own templates are left for
            it to compile and time for each product: those with the least predicted times. None:
            all. What it calls without a template stays a candidate.
        aux: also fuse a gelu, a silu or a gated layer whose sum backward needs: the kernel writes
            both. Off, because no program was measured with it; of its kernels see docs/programs.md.
        others: further options of Inductor, passed on.

    Raises:
        UsageError: a ``min_flops`` that is no number of at least 0, ``templates`` that is no number
            of at least 1, or an option that this torch's Inductor does not have.
    """
    from torch._inductor import config

    for name in others:
        if name.replace("-", "_") not in config._config:
            raise UsageError(f"{name!r} is no option of torch {torch.__version__}'s Inductor, nor "
                             "of this pass; the pass takes min_flops, templates and aux")
    return {**others, _SLOT: FusePass(min_flops, others.get(_SLOT), templates, aux)}


_enabled: list[tuple[FusePass, Any]] = []


class enable:
    """Adds the pass to all that ``torch.compile`` compiles with Inductor from now on, until
    :func:`disable`, or to the end of a ``with`` block. What was compiled before stays as it is.

    Args and errors: as :func:`options`.
    """

    def __init__(self, *, min_flops: float | None = None, templates: int | None = None,
                 aux: bool = False) -> None:
        from torch._inductor import config

        before = getattr(config, _SLOT)
        self._pass = FusePass(min_flops, before, templates, aux)
        _enabled.append((self._pass, before))
        setattr(config, _SLOT, self._pass)

    def __enter__(self) -> enable:
        return self

    def __exit__(self, *error: object) -> None:
        _remove(self._pass)


def disable() -> None:
    """Ends the last :class:`enable`. Raises :class:`UsageError` where there is none."""
    if not _enabled:
        raise UsageError("tritongemm.inductor.disable() has no enable() to end")
    _remove(_enabled[-1][0])


def _remove(wanted: FusePass) -> None:
    from torch._inductor import config

    for i, (one, before) in enumerate(_enabled):
        if one is wanted:
            del _enabled[i]
            if i < len(_enabled):  # a later one runs it first
                later = _enabled[i][0]
                _enabled[i], later.before = (later, before), before
            elif getattr(config, _SLOT) is wanted:
                setattr(config, _SLOT, before)
            return


def backend_without_codegen(min_flops: float = 0.0, aux: bool = False) -> Callable[..., Any]:
    """A backend for ``torch.compile`` that traces and differentiates as Inductor does, runs the
    pass, and then the graph as it is: for trying the pass where no compiler is."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    def run(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        fuse(module.graph, min_flops, aux)
        module.recompile()
        return make_boxed_func(module.forward)

    return aot_autograd(fw_compiler=run, bw_compiler=run, decompositions=select_decomp_table(),
                        partition_fn=min_cut_rematerialization_partition)


def fuse(graph: fx.Graph, min_flops: float | None, aux: bool = False) -> int:
    """Replaces what it can in ``graph``; how many layers were. ``min_flops``, ``aux``: as for
    :class:`FusePass`."""
    return sum(_fuse_all(graph, kind, min_flops, aux) for kind in _KINDS)


def _fuse_all(graph: fx.Graph, kind: Any, min_flops: float | None, aux: bool) -> int:
    """Replaces what one of the modules :data:`_KINDS` finds."""
    count = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        try:
            found = kind.find(node)
            if found is None or (not aux and getattr(found, "kept", False)) or (
                    not kind.wanted(found, min_flops)):
                continue
        except (Unknown, Declined, TritonGemmError) as reason:
            _LOG.debug("%s is left to Inductor: %s", node.name, reason)
            continue
        kind.replace(graph, found)
        count += 1
    return count

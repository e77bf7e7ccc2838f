"""A graph pass for ``torch.compile``: products and what follows them as one kernel of this package.

Inductor runs the pass on its functional graph of aten operations, before its own patterns. It
replaces

* ``mm`` or ``addmm``, then relu, gelu (both kinds) or silu;
* ``mm``, then an addition of a bias [N] or of a matrix of the product's shape (a residual), and an
  activation behind that,

by ``torch.ops.tritongemm.addmm``, with a view in between where ``linear`` folds its batch into the
rows. A graph that has none of these is left as it is. So are

* products that torch is expected to run faster, by the host and GPU times of both sides, or with
  fewer flops than ``min_flops``. Where Inductor captures CUDA graphs (``mode="reduce-overhead"``)
  host time does not count. Small products of symbolic sizes stay too, unless ``min_flops`` is
  given: sizes that change at every call would each cost a selection;
* sums that something else reads too, such as the argument of a gelu that backward needs;
* results that only pointwise or reducing code reads, which Inductor fuses into its own kernel:
  ``silu(x W1) * (x W3)`` keeps its two products, since a fused silu saves no pass over memory.

An activation is known by what torch decomposes it into: each is traced once with Inductor's own
decompositions, and the graph is compared with that trace.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

import tritongemm
from tritongemm import settings
from tritongemm.activations import BY_NAME
from tritongemm.errors import TritonGemmError, UsageError
from tritongemm.ops import registered
from tritongemm.ops.calls import NAMES, precision_setting
from tritongemm.ops.declined import Declined
from tritongemm.ops.operands import StridedShape, form_of, gapless, problem_of_form
from tritongemm.ops.plans import device_of, host_path
from tritongemm.problem import Epilogue
from tritongemm.selection import choose, hosttime, torch_wins
from tritongemm.selection.hosttime import GRAPH, LARGE_PRODUCTS, HostPath

aten = torch.ops.aten
_LOG = logging.getLogger("tritongemm")
_SLOT = "post_grad_custom_pre_pass"
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
#: Operations that move no data, by name: their overloads are many.
_MOVES_NOTHING = {"view", "reshape", "_unsafe_view", "permute", "t", "transpose", "expand",
                  "unsqueeze", "squeeze", "slice", "select", "split", "split_with_sizes", "unbind",
                  "alias", "getitem"}
#: Operations that Inductor fuses with pointwise code without torch's tag for such. Everything else
#: is a kernel of its own, whose operands are in memory.
_FUSES = {"sum", "mean", "amax", "amin", "var_mean", "var", "prod", "max", "min", "any", "all",
          "argmax", "argmin", "clone", "cat", "convert_element_type", "full", "full_like"}


class _Unknown(Exception):
    """A node of which too little is known to decide."""


class Match(NamedTuple):
    """A product and what follows it.

    Attributes:
        product: ``mm`` or ``addmm``.
        view: of the product, or None.
        addend: what is added to an ``mm``, or None.
        activation: a name of :data:`tritongemm.activations.BY_NAME`.
        last: the node whose value the fused product has.
        inner: every node from the product to ``last``.
    """

    product: fx.Node
    view: fx.Node | None
    addend: fx.Node | None
    activation: str
    last: fx.Node
    inner: frozenset[fx.Node]


class FusePass(CustomGraphPass):
    """The pass, as Inductor takes it.

    Args:
        min_flops: products of fewer flops are left alone; None: each product is decided.
        before: another pass in the same place, which runs first.
    """

    def __init__(self, min_flops: float | None = None, before: Any = None) -> None:
        if min_flops is not None and (
                isinstance(min_flops, bool) or not isinstance(min_flops, (int, float))
                or not min_flops >= 0):
            raise UsageError(f"min_flops={min_flops!r} is not a number of at least 0")
        self.min_flops = None if min_flops is None else float(min_flops)
        self.before = before

    def __call__(self, graph: fx.Graph) -> None:
        if self.before is not None:
            for one in self.before if isinstance(self.before, (list, tuple)) else (self.before,):
                one(graph)
        fuse(graph, self.min_flops)

    def uuid(self) -> Any:
        """What Inductor's cache of compiled graphs knows this pass by; None where it must not
        cache, since another pass in the same place has no such id."""
        ids = []
        for one in self.before if isinstance(self.before, (list, tuple)) else (
                () if self.before is None else (self.before,)):
            ids.append(one.uuid() if isinstance(one, CustomGraphPass) else None)
        if None in ids:
            return None
        current = settings.current()
        return ("tritongemm", tritongemm.__version__, _sources(), self.min_flops, current.policy,
                current.disable, current.fp32, current.batch_invariant, current.num_sms,
                _path().name, *ids)


@functools.cache
def _sources() -> str:
    """A digest of what decides how a graph is changed: this file, the ops it puts there, and the
    host times."""
    digest = hashlib.sha256()
    for name in (__file__, str(registered.__file__), hosttime.__file__):
        digest.update(Path(name).read_bytes())
    return digest.hexdigest()


def _path() -> HostPath:
    """The path of the calls that a compiled graph makes; graphs that Inductor captures have no host
    time."""
    from torch._inductor import config

    return GRAPH if config.triton.cudagraphs else host_path()


def options(*, min_flops: float | None = None, **others: Any) -> dict[str, Any]:
    """Options with the pass, for ``torch.compile(..., options=...)``.

    Args:
        min_flops: as for :class:`tritongemm.override`.
        others: further options of Inductor, passed on.

    Raises:
        UsageError: a ``min_flops`` that is no number of at least 0, or an option that this torch's
            Inductor does not have.
    """
    from torch._inductor import config

    for name in others:
        if name.replace("-", "_") not in config._config:
            raise UsageError(f"{name!r} is no option of torch {torch.__version__}'s Inductor, nor "
                             "of this pass; the pass takes min_flops")
    return {**others, _SLOT: FusePass(min_flops, others.get(_SLOT))}


_enabled: list[tuple[FusePass, Any]] = []


class enable:
    """Adds the pass to all that ``torch.compile`` compiles with Inductor from now on, until
    :func:`disable`, or to the end of a ``with`` block. What was compiled before stays as it is.

    Args and errors: as :func:`options`.
    """

    def __init__(self, *, min_flops: float | None = None) -> None:
        from torch._inductor import config

        before = getattr(config, _SLOT)
        self._pass = FusePass(min_flops, before)
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


def backend_without_codegen(min_flops: float = 0.0) -> Callable[..., Any]:
    """A backend for ``torch.compile`` that traces and differentiates as Inductor does, runs the
    pass, and then the graph as it is: for trying the pass where no compiler is."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    def run(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        fuse(module.graph, min_flops)
        module.recompile()
        return make_boxed_func(module.forward)

    return aot_autograd(fw_compiler=run, bw_compiler=run, decompositions=select_decomp_table(),
                        partition_fn=min_cut_rematerialization_partition)


# -- the pass --------------------------------------------------------------------------------------

def fuse(graph: fx.Graph, min_flops: float | None) -> int:
    """Replaces what it can in ``graph``; how many products were. ``min_flops``: as for
    :class:`FusePass`."""
    count = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default):
            continue
        try:
            found = _match(node)
            if found is None or not _materialized(found.last) or not _ours(found, min_flops):
                continue
        except (_Unknown, Declined, TritonGemmError) as reason:
            _LOG.debug("%s is left to Inductor: %s", node.name, reason)
            continue
        _replace(graph, found)
        count += 1
    return count


def _match(product: fx.Node) -> Match | None:
    """The longest chain from ``product`` that one kernel can do; None: it is alone."""
    current, view, addend = product, None, None
    inner = {product}
    value = _value(product)
    user = _only_user(current)
    if user is not None and user.target in _VIEWS and _same_columns(user, value):
        current = view = user
        inner.add(user)
        user = _only_user(current)
    if product.target is aten.mm.default and user is not None:
        addend = _addend_of(user, current, value)
        if addend is not None:
            current = user
            inner.add(user)
    for name in BY_NAME:
        if name == "none":
            continue
        found = _activated(current, name)
        if found is not None:
            last, nodes = found
            return Match(product, view, addend, name, last, frozenset(inner | nodes))
    if addend is None:
        return None
    return Match(product, view, addend, "none", current, frozenset(inner))


def _value(node: fx.Node) -> torch.Tensor:
    """The fake tensor of a node. Raises _Unknown."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        raise _Unknown(f"{node} has no value on record")
    return value


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _same_columns(view: fx.Node, product: torch.Tensor) -> bool:
    """Whether a view of [M, N] only splits the rows, N being a known number."""
    shape = _value(view).shape
    return bool(len(shape)) and isinstance(product.shape[1], int) and (
        isinstance(shape[-1], int) and shape[-1] == product.shape[1])


def _addend_of(node: fx.Node, current: fx.Node, product: torch.Tensor) -> fx.Node | None:
    """What ``node`` adds to ``current``, where an epilogue can."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or (
            node.kwargs.get("alpha", 1) != 1):
        return None
    first, second = node.args
    other = second if first is current else first
    if not isinstance(other, fx.Node) or other is current:
        return None
    added, value = _value(other), _value(current)
    if added.dtype != product.dtype or added.device != product.device or (
            _value(node).dtype != product.dtype):
        return None
    # Symbols are compared as they are written, so that no guard is added.
    as_matrix = [str(x) for x in added.shape] == [str(x) for x in value.shape]
    as_bias = added.dim() == 1 and str(added.shape[0]) == str(product.shape[1])
    if as_matrix and added.dim() != 2 and not isinstance(product.shape[1], int):
        return None
    return other if as_matrix or as_bias else None


def _activated(start: fx.Node, name: str) -> tuple[fx.Node, set[fx.Node]] | None:
    """(its result, its nodes) where ``start`` is only read by the activation ``name``."""
    value = _value(start)
    if value.dtype not in NAMES:
        return None
    trace = _trace(name, value.dtype)
    result = next(node for node in trace.nodes if node.op == "output").args[0]
    size = len(trace.nodes)
    for node in _behind(start, size):
        if node.target is not result.target:
            continue
        bound: dict[fx.Node, fx.Node] = {}
        if _same(node, result, bound) and start in bound.values():
            argument = next(node for node in trace.nodes if node.op == "placeholder")
            if bound[argument] is not start:
                continue
            nodes = {mine for theirs, mine in bound.items() if theirs is not argument}
            read = {user for one in (start, *nodes) if one is not node for user in one.users}
            if read <= nodes:
                return node, nodes
    return None


def _behind(start: fx.Node, limit: int) -> Iterator[fx.Node]:
    """Nodes that follow from ``start``, the nearest first, ``limit`` steps far."""
    seen, front = {start}, [start]
    for _ in range(limit):
        front = [user for node in front for user in node.users if user not in seen]
        for user in dict.fromkeys(front):
            seen.add(user)
            yield user


def _same(node: Any, pattern: Any, bound: dict[fx.Node, fx.Node]) -> bool:
    """Whether ``node`` computes what ``pattern`` does; nodes of the pattern are bound."""
    if not isinstance(pattern, fx.Node):
        return not isinstance(node, fx.Node) and type(node) is type(pattern) and node == pattern
    if not isinstance(node, fx.Node):
        return False
    if pattern in bound:
        return bound[pattern] is node
    if pattern.op != "placeholder":
        if (node.op != "call_function" or node.target is not pattern.target
                or len(node.args) != len(pattern.args)
                or node.kwargs.keys() != pattern.kwargs.keys()):
            return False
        if not all(_same(x, y, bound) for x, y in zip(node.args, pattern.args)):
            return False
        if not all(_same(node.kwargs[key], y, bound) for key, y in pattern.kwargs.items()):
            return False
    bound[pattern] = node
    return True


@functools.cache
def _trace(name: str, dtype: torch.dtype) -> fx.Graph:
    """What an activation of a tensor of ``dtype`` is to Inductor."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    activate = BY_NAME[name].op()
    with torch.utils._python_dispatch._disable_current_modes(), FakeTensorMode():
        x = torch.empty(2, 2, dtype=dtype)
        return make_fx(lambda x: activate(x), decomposition_table=select_decomp_table())(x).graph


def _kind(node: fx.Node) -> str:
    """``view``, ``fuses`` (pointwise or reducing) or ``kernel``; the caller is one too."""
    target: Any = node.target
    if node.op != "call_function":
        return "kernel"
    overload = isinstance(target, torch._ops.OpOverload)
    name = target._schema.name.partition("::")[2] if overload else target.__name__
    if name in _MOVES_NOTHING:
        return "view"
    return "fuses" if name in _FUSES or overload and torch.Tag.pointwise in target.tags else (
        "kernel")


def _materialized(last: fx.Node) -> bool:
    """Whether the value of ``last`` is written to memory anyway.

    It is where a kernel of its own or the caller reads it, or pointwise code that also needs what
    such a kernel makes of it: a residual that is added again behind the next product.
    """
    readers = [user for user in _reached([last], "view") if _kind(user) != "view"]
    if any(_kind(user) == "kernel" for user in readers):
        return True
    kernels = [user for user in _reached([last], "view", "fuses") if _kind(user) == "kernel"]
    return not _reached(kernels, "view", "fuses", "kernel").isdisjoint(readers)


def _reached(start: Sequence[fx.Node], *through: str) -> set[fx.Node]:
    """Users of ``start``, and of those of them that are of a kind in ``through``."""
    seen: set[fx.Node] = set()
    todo = list(start)
    while todo:
        for user in todo.pop().users:
            if user not in seen:
                seen.add(user)
                if _kind(user) in through:
                    todo.append(user)
    return seen


def _ours(found: Match, min_flops: float | None) -> bool:
    """Whether the fused product is one that this package's kernels should run."""
    if settings.current().disable:
        return False
    a, b = (_value(x) for x in found.product.args[-2:])
    has_input = found.product.target is aten.addmm.default
    d = _value(found.product.args[0]) if has_input else (
        None if found.addend is None else _value(found.addend))
    if a.dtype not in NAMES or a.dtype != b.dtype or d is not None and d.dtype != a.dtype:
        return False
    if a.dtype.is_complex:  # Inductor leaves it to aten; lazy conjugates are not to be seen here
        return False
    if _value(found.product).dtype != a.dtype:
        return False
    if a.device.type != "cuda" and not (a.device.type == "cpu" and settings.current().interpret):
        return False
    beta, alpha = (found.product.kwargs.get(name, 1) for name in ("beta", "alpha"))
    if type(beta) not in (int, float) or type(alpha) not in (int, float) or not alpha:
        return False
    one, two = _operand(a), _operand(b)
    products = one.shape[0] * one.shape[1] * two.shape[1]
    if min_flops is None:
        sizes = (*a.shape, *b.shape)
        least = 0.0 if all(isinstance(size, int) for size in sizes) else LARGE_PRODUCTS
    else:
        least = min_flops / 2
    if not products or products < least:
        return False
    added = None
    if d is not None and beta != 0:
        rows = one.shape[0], two.shape[1]  # of more than two axes: the batch folds into the rows
        added = _operand(d) if d.dim() <= 2 else StridedShape(rows, gapless(rows))
    form = form_of(one, two, None, added)
    name = NAMES[a.dtype]
    addend = "scale" if form.addend == "none" and alpha != 1 else form.addend
    problem, _ = problem_of_form(form, (0, 0, 0, 0), (name, name, name),
                                 str(Epilogue(addend, found.activation)), _precision(a))
    device = device_of(a.device)
    return torch_wins(problem, choose(problem, device), device, _path()) is None


def _precision(a: torch.Tensor) -> str:
    """Of float32 products, as :mod:`tritongemm.ops.calls` has it."""
    if a.dtype is not torch.float32 or a.device.type != "cuda":
        return "ieee"
    if precision_setting("cuda", "matmul") == "tf32":
        return "tf32"
    return "fp16x3" if settings.current().fp32 == "split" else "ieee"


def _operand(x: torch.Tensor) -> StridedShape:
    return StridedShape(tuple(map(_number, x.shape)), tuple(map(_number, x.stride())))


def _number(size: Any) -> int:
    """A size, or what it was when the graph was traced: no guard is added. Raises _Unknown."""
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    if not isinstance(hint, int):
        raise _Unknown(f"size {size} is not known while compiling")
    return hint


def _replace(graph: fx.Graph, found: Match) -> None:
    """Puts the fused product in the place of ``found.last``."""
    product, columns = found.product, _value(found.product).shape[1]
    a, b = product.args[-2:]
    assert isinstance(b, fx.Node)
    numbers = {name: product.kwargs.get(name, 1) for name in ("beta", "alpha")}
    with graph.inserting_before(found.last):
        if product.target is aten.addmm.default:
            d: Any = product.args[0]
        elif found.addend is None:  # nothing is added: D is not read where beta is 0
            d = graph.call_function(aten.select.int, (b, 0, 0))
            d.meta["val"] = aten.select.int(_value(b), 0, 0)
            numbers["beta"] = 0
        else:
            d = found.addend
            if _value(d).dim() > 2:
                rows = graph.call_function(aten.reshape.default, (d, [-1, columns]))
                rows.meta["val"] = aten.reshape.default(_value(d), [-1, columns])
                d = rows
        new = graph.call_function(torch.ops.tritongemm.addmm.default, (d, a, b),
                                  {**numbers, "activation": found.activation})
        new.meta["val"] = _value(product)
        if found.view is not None:
            new = graph.call_function(found.view.target, (new, *found.view.args[1:]))
            new.meta["val"] = _value(found.view)
    found.last.replace_all_uses_with(new)
    for node in reversed(list(graph.nodes)):
        if node in found.inner and not node.users:
            graph.erase_node(node)

"""The transposed product: the same sum with the operands in each other's place."""

from __future__ import annotations

import functools
from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem, grouping_of


@functools.lru_cache(maxsize=256)  # asked for by config, thousands of times
def swapped(problem: GemmProblem) -> GemmProblem:
    """The transposed product: C.T [N, M] = B.T [N, K] @ A.T [K, M].

    B.T is stored row-major exactly where B is stored transposed, so the letters trade places
    and flip.
    """
    flip = {"n": "t", "t": "n"}
    layout = flip[problem.layout[1]] + flip[problem.layout[0]]
    grouping = grouping_of(problem.grouping)
    if grouping is not None:
        kind = {"m": "n", "n": "m"}.get(grouping.kind, grouping.kind)
        grouping = replace(grouping, kind=kind)
    strides = problem.two_strides
    if strides != "none":
        places = {"a": "b", "b": "a", "c": "c"}
        strides = "".join(sorted(places[x] for x in strides))
    # Half of a gated product's columns would be rows; no kernel computes that.
    epilogue = "none" if problem.gated else problem.epilogue
    return replace(problem, m=problem.n, n=problem.m, epilogue=epilogue, dtype_a=problem.dtype_b,
                   dtype_b=problem.dtype_a, layout=layout,
                   align_a=problem.align_b, align_b=problem.align_a,
                   scale_a=problem.scale_b, scale_b=problem.scale_a,
                   grouping=str(grouping or "none"), two_strides=strides)


def computed(problem: GemmProblem, config: KernelConfig) -> GemmProblem:
    """The product that ``config`` computes: ``problem``, or with ``swap_ab`` its transpose."""
    return swapped(problem) if config.swap_ab else problem


def swapped_geometry(g: Geometry) -> Geometry:
    """The strides of the transposed product."""
    return Geometry(g.bb, g.bn, g.bk, g.ab, g.ak, g.am, g.cb, g.cn, g.cm, g.db, g.dn, g.dm,
                    g.align_d, g.others, inner=g.inner, outer_a=g.outer_b, outer_b=g.outer_a,
                    outer_c=g.outer_c)

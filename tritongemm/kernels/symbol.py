"""The name that a profiler shows for a kernel: what it multiplies and how it is configured."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem


def symbol_of(problem: GemmProblem, config: KernelConfig) -> str:
    """``tritongemm_bf16_nt_bias_gelu_tiled_128x128x64_w8_s3_g8``.

    The format of B is named where it is another than A's (``bf16xint4``), that of C as well, and
    scales, groups and a batch of two strides where there are any. One binary serves many extents,
    so they are not in the name: TRITONGEMM_PROFILE=1 adds a range with the whole problem around
    each launch. With a split K the epilogue is named by the pass that adds the parts: it does it.
    """
    parts = ["tritongemm", problem.formats("_")]
    if problem.precision != "ieee":
        parts.append(problem.precision)
    words = epilogue_words(problem) if config.split_k == 1 else ()
    strides = () if problem.two_strides == "none" else (f"two_strides_{problem.two_strides}",)
    return "_".join([*parts, problem.layout, *problem.modifiers(), *strides, *words,
                     config.config_id])


def epilogue_words(problem: GemmProblem) -> tuple[str, ...]:
    """The epilogue in words that an assembler takes: ``("bias", "gelu")``."""
    return () if problem.epilogue == "none" else tuple(problem.epilogue.split("+"))

"""What an epilogue adds to a launch: D with its strides, alpha and beta, and constants.

A kernel with an epilogue takes ``d, alpha, beta, stride_db, stride_dm, stride_dn`` after its own
arguments; those that it does not use are constants, so that a launch without an epilogue has no
argument more and compiles to the same code as a kernel that knows of none. A kernel for every
epilogue takes ``x, stride_xb, stride_xm, stride_xn`` after these: the bias of an epilogue whose D
is a residual, or the auxiliary output.
"""

from __future__ import annotations

from tritongemm.kernels.launch import Argument, Geometry, Number, Pointer, Scalar
from tritongemm.problem import EPILOGUES, FULL_ALIGNMENT, GemmProblem, divisor_of

_PARAMETERS = ("d", "alpha", "beta", "stride_db", "stride_dm", "stride_dn")
Constants = tuple[tuple[str, object], ...]
#: The constants of a kernel that is launched without an epilogue.
NO_EPILOGUE: Constants = (*((name, None) for name in _PARAMETERS), ("ADDEND", "none"),
                          ("ACTIVATION", "none"))


def epilogue_of_launch(problem: GemmProblem,
                       geometry: Geometry) -> tuple[tuple[Argument, ...], Constants]:
    """The arguments and constants of ``problem``'s epilogue, to follow the kernel's own.

    ADDEND says which D the kernel reads: ``none``, ``scale`` (no D, alpha alone), ``columns``
    or ``rows`` (one vector, the same for every row or every column of a matrix) or ``tile``. It
    follows from the strides, so that a matrix with a stride of 0 costs no more than a bias, and
    so that a bias of the transposed product is one of its rows. ACTIVATION is the activation, or
    of a factor what is multiplied by: ``mul``, D itself, or a derivative.
    """
    epilogue, g = EPILOGUES[problem.epilogue], geometry
    arguments: tuple[Argument, ...] = ()
    addend = "tile" if epilogue.residual else epilogue.addend
    if epilogue.reads_d:
        unit = problem.c.format.elements_of(g.align_d)
        arguments = (
            Pointer("d", "d", problem.dtype_out, g.align_d), Number("alpha"), Number("beta"),
            Scalar("stride_db", g.db, divisor_of(g.db, unit)),
            Scalar("stride_dm", g.dm, divisor_of(g.dm, unit), fold=True),
            Scalar("stride_dn", g.dn, divisor_of(g.dn, unit), fold=True))
        addend = "columns" if g.dm == 0 else "rows" if g.dn == 0 else "tile"
    elif epilogue.scales:
        arguments = (Number("alpha"),)
    function = epilogue.activation
    if epilogue.multiplies:
        function = "mul" if epilogue.gradient_of == "none" else epilogue.addend
    given = {x.name for x in arguments}
    return arguments, (*((name, None) for name in _PARAMETERS if name not in given),
                       ("ADDEND", addend), ("ACTIVATION", function))


_FURTHER = ("x", "stride_xb", "stride_xm", "stride_xn")
_PLAIN: Constants = (("GATED", False), ("RESIDUAL", False), ("EXTRA", "none"))
#: The constants of a kernel for every epilogue that is launched without one.
NONE_OF_ALL: Constants = (*NO_EPILOGUE, *((name, None) for name in _FURTHER), *_PLAIN)


def any_epilogue_of_launch(problem: GemmProblem, geometry: Geometry,
                           flipped: bool = False, aux_by_map: bool = False,
                           ) -> tuple[tuple[Argument, ...], Constants]:
    """The same for a kernel that takes every epilogue; with ``aux_by_map`` one that stores the
    auxiliary output through a tensor map of its own.

    GATED and RESIDUAL are as in :class:`Epilogue`. EXTRA says what ``x`` is: ``none``; ``columns``
    or ``rows``, the bias of an epilogue with a residual (``rows``, where with ``flipped`` the
    kernel computes the transposed product); ``aux``, the auxiliary output, whose ``stride_xb`` is
    from one half to the other where the epilogue is gated.
    """
    epilogue = EPILOGUES[problem.epilogue]
    arguments, constants = epilogue_of_launch(problem, geometry)
    if epilogue.plain:
        return arguments, (*constants, *NONE_OF_ALL[len(NO_EPILOGUE):])
    extra = "none"
    further: tuple[Argument, ...] = ()
    unit = problem.c.format.elements_of(FULL_ALIGNMENT)
    if epilogue.aux and aux_by_map:
        extra = "aux"
    elif epilogue.aux:
        extra, view = "aux", geometry.view("aux")
        further = (
            Pointer("x", "aux", problem.dtype_out, view.align),
            *(Scalar(f"stride_x{name}", stride, divisor_of(stride, unit), fold=name == "n")
              for name, stride in zip("bmn", view.strides[-3:], strict=True)))
    elif epilogue.residual and epilogue.addend == "bias":
        extra, view = "rows" if flipped else "columns", geometry.view("bias")
        stride = view.strides[-1]
        # Loads of a vector's rows step by stride_xm, those of its columns by stride_xn.
        further = (Pointer("x", "bias", problem.dtype_out, view.align),
                   Scalar("stride_xm" if flipped else "stride_xn", stride,
                          divisor_of(stride, unit), fold=True))
    given = {x.name for x in further}
    return (*arguments, *further), (
        *constants, *((name, None) for name in _FURTHER if name not in given),
        ("GATED", epilogue.gated), ("RESIDUAL", epilogue.residual), ("EXTRA", extra))

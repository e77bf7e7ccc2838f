"""What an epilogue adds to a launch: D with its strides, alpha and beta, and two constants.

A kernel with an epilogue takes ``d, alpha, beta, stride_db, stride_dm, stride_dn`` after its own
arguments; those that it does not use are constants, so that a launch without an epilogue has no
argument more and compiles to the same code as a kernel that knows of none.
"""

from __future__ import annotations

from tritongemm.kernels.launch import Argument, Geometry, Number, Pointer, Scalar
from tritongemm.problem import EPILOGUES, GemmProblem, divisor_of

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
    so that a bias of the transposed product is one of its rows.
    """
    epilogue, g = EPILOGUES[problem.epilogue], geometry
    arguments: tuple[Argument, ...] = ()
    addend = epilogue.addend
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
    given = {x.name for x in arguments}
    return arguments, (*((name, None) for name in _PARAMETERS if name not in given),
                       ("ADDEND", addend), ("ACTIVATION", epilogue.activation))

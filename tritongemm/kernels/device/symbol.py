"""Names kernels after their SYMBOL constant: what they multiply, and their config."""


def symbol(specialization):
    """``repr`` of a ``triton.jit`` kernel: the name that profilers show."""
    return specialization.constants["SYMBOL"]

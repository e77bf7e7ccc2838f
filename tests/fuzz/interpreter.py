"""Triton's interpreter as the limits need it.

Triton 3.7.1 truncates float32 to bfloat16 there, where GPUs round to nearest, ties to even. A
result may then be a whole unit in the last place off, which is beyond the limit of some outputs.
"""

from __future__ import annotations

import numpy as np
import torch


def round_to_nearest() -> None:
    """From now on this process's interpreter rounds float32 to bfloat16 as GPUs do."""
    import triton.language as tl
    from triton.runtime import interpreter

    truncating = interpreter._convert_float

    def convert(data, source, target, mode):
        if source != tl.float32 or target != tl.bfloat16:
            return truncating(data, source, target, mode)
        rounded = torch.from_numpy(np.ascontiguousarray(data)).bfloat16()
        return rounded.view(torch.int16).numpy().view(np.uint16)

    interpreter._convert_float = convert

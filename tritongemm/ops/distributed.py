"""Which calls are of DTensors, and their way to :mod:`tritongemm.ops.sharded`, which imports
``torch.distributed.tensor``: only where a DTensor is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tritongemm import settings
from tritongemm.errors import UnsupportedError


def distributed(*tensors: Tensor | None) -> bool:
    """Whether all operands are DTensors. Traced by Dynamo."""
    return type(tensors[0]).__name__ == "DTensor" and all(
        x is None or type(x).__name__ == "DTensor" for x in tensors)


def of_shards(kind: str, function: Callable[..., Tensor], *tensors: Tensor | None,
              strict: bool | None = None, **options: bool) -> Tensor | None:
    """``function`` of each rank's local tensors; None where it cannot be.

    Args:
        kind: ``product``, ``total`` or ``layer`` of :mod:`tritongemm.ops.sharded`.
        strict: None: the caller composes what cannot be; else torch would run it, and where the
            call or TRITONGEMM_STRICT is strict, that is an error.

    Raises:
        UnsupportedError: strict, and no rule is for the placements.
    """
    from tritongemm.ops import sharded

    found = getattr(sharded, kind)(function, *tensors, **options)
    if not isinstance(found, str):
        return found
    if strict or strict is not None and settings.current().strict:
        raise UnsupportedError(f"a product of DTensors would call torch: {found}")
    return None

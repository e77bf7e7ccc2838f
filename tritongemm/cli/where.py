"""Where a command measures: a GPU, the CPU in its place, or Triton's interpreter."""

from __future__ import annotations

from tritongemm import settings
from tritongemm.errors import MissingDependencyError


def no_gpu() -> str | None:
    """Why there is no GPU to use, or None. Raises :class:`MissingDependencyError` without torch."""
    if settings.current().interpret:
        return "TRITON_INTERPRET=1 is set"
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"torch cannot be imported: {error}. Run: pip install torch"
                                     ) from error
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def cpu_instead(device: str) -> str | None:
    """Why ``--device`` means the CPU: it says so, or is ``auto`` where there is no GPU. None: it
    does not, or the interpreter runs."""
    if settings.current().interpret:
        return None
    if device == "auto":
        return no_gpu()
    return "--device cpu was given" if device == "cpu" else None

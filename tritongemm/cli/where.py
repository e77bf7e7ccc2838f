"""Where a command measures: on a GPU, on the CPU instead, or in Triton's interpreter."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from tritongemm import settings
from tritongemm.cli.shapes import integers
from tritongemm.errors import DeviceError, MissingDependencyError, UsageError


def no_gpu() -> str | None:
    """The reason why no GPU can be used, or None. Raises :class:`MissingDependencyError` without
    torch."""
    if settings.current().interpret:
        return "TRITON_INTERPRET=1 is set"
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"torch cannot be imported: {error}. Run: pip install torch"
                                     ) from error
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def cpu_instead(device: str) -> str | None:
    """The reason why ``--device`` means the CPU: it is ``cpu``, or ``auto`` without a GPU. None if
    it does not, or if the interpreter runs."""
    if settings.current().interpret:
        return None
    if device == "auto":
        return no_gpu()
    return "--device cpu was given" if device == "cpu" else None


def add_device_name(parser: argparse._ActionsContainer, help: str, **words) -> None:
    """Adds ``--device-name SLUG``, a device of ``configs/devices``. ``--device`` of `bench`,
    `models` and `ladder` is another thing, a device of this machine; other verbs took the name by
    that option once and still do, which their help leaves out."""
    parser.add_argument("--device-name", metavar="SLUG", help=help, **words)
    parser.add_argument("--device", dest="device_name", help=argparse.SUPPRESS, **words)


@contextlib.contextmanager
def or_named(purpose: str) -> Iterator[None]:
    """Where there is no GPU here, says how to name another machine's. ``purpose``: what for, as in
    "to compile"."""
    try:
        yield
    except (DeviceError, ImportError) as error:
        raise DeviceError(f"{error}. To {purpose} for another machine's GPU, name it: "
                          "--device-name nvidia-h200") from error


def devices_of(text: str) -> tuple[int | None, ...] | None:
    """The ``--devices`` of a sweep: CUDA indices, None for all; in the interpreter (None,), the
    CPU.

    Raises:
        UsageError: not a list of integers, or another device than the first in the interpreter.
    """
    if settings.current().interpret:
        from tritongemm.tuning.cluster_host import require_cpu

        require_cpu(text)
        return (None,)
    return None if text == "all" else integers(text, "devices")


def first_gpu(text: str) -> int:
    """The first CUDA index of ``--devices``, for what needs a GPU.

    Raises:
        UsageError: not a list of integers; or the interpreter runs.
    """
    if settings.current().interpret:
        raise UsageError("this needs a GPU, and TRITON_INTERPRET=1 is set; unset it")
    return 0 if text == "all" else integers(text, "devices")[0]

"""Where a bench runs: a CUDA device, the CPU, or Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

from tritongemm import settings
from tritongemm.device import DeviceSpec, check_index, cuda_device, interpreter_device
from tritongemm.errors import DeviceError, UsageError


@dataclass(frozen=True)
class Target:
    """A place to run.

    Attributes:
        kind: ``cuda``, ``cpu`` or ``interpreter``.
        spec: limits and peaks; none are known of a CPU.
        torch_device: where operands live, as torch writes it.
    """

    kind: str
    spec: DeviceSpec
    torch_device: str

    @property
    def timed(self) -> bool:
        """Whether times are meaningful: those of the interpreter are not."""
        return self.kind != "interpreter"


#: The CPU: no limits for kernels to respect, and no recorded peaks.
HOST = DeviceSpec("cpu", "CPU", 0, 0, 0, 0, 0, 0)


#: What can be done without a GPU, for a bench.
_WITHOUT_GPU = ("--device cpu measures host providers (torch, numpy_blocked), and "
                "TRITON_INTERPRET=1 checks kernels without timing them")


def resolve(text: str = "auto", without_gpu: str = _WITHOUT_GPU) -> Target:
    """The target named ``auto``, ``cpu``, ``cuda`` or ``cuda:INDEX``; makes it torch's current one.

    ``auto`` is the interpreter under TRITON_INTERPRET=1, else the current CUDA device.

    Args:
        text: the name.
        without_gpu: what the caller can do without a GPU, for the error message.

    Raises:
        UsageError: another name.
        DeviceError: there is no such device.
    """
    named = check(text, without_gpu)
    if settings.current().interpret:
        return Target("interpreter", interpreter_device(), "cpu")
    if text == "cpu":
        return Target("cpu", HOST, "cpu")
    import torch

    index = torch.cuda.current_device() if named is None else named
    spec = cuda_device(index)
    torch.cuda.set_device(index)
    return Target("cuda", spec, f"cuda:{index}")


def check(text: str, without_gpu: str = _WITHOUT_GPU) -> int | None:
    """The CUDA index in the name of a target, None without one. Makes no CUDA context, so a process
    that measures nothing can call it. Arguments and errors are those of :func:`resolve`."""
    if settings.current().interpret:
        if text not in ("auto", "cpu"):
            raise UsageError(f"device {text!r} under TRITON_INTERPRET=1: the interpreter runs on "
                             "the CPU; unset one of the two")
        return None
    if text == "cpu":
        return None
    name, _, index = text.partition(":")
    if name not in ("auto", "cuda") or (index and not index.isdecimal()):
        raise UsageError(f"device {text!r} is not known; use auto, cuda, cuda:INDEX or cpu. The "
                         "name of a device, such as nvidia-h200, is for `explain`, `warmup` and "
                         "`regret`, which need no GPU")
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("torch sees no CUDA device. `tritongemm doctor` says what is missing; "
                          + without_gpu)
    if not index:
        return None
    check_index(int(index))
    return int(index)

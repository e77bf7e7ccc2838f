"""Launching a compiled CUDA kernel on torch's current stream with torch's memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from tritongemm.baselines.cuda.resources import Resources
from tritongemm.errors import ConstraintError, DeviceError, LaunchError, UsageError

#: Dynamic shared memory, bytes, that a kernel gets without asking (CUDA C++ Programming Guide).
DEFAULT_SHARED_BYTES = 48 * 1024
#: The base of ctypes' scalars (c_int, c_float, c_void_p, ...).
_SIMPLE = ctypes.c_int.__mro__[1]


class CudaKernel:
    """A cubin, and the handles of its kernel on each device where it has been launched.

    Attributes:
        name, arch: the kernel's name; ``sm_90``.
        code: the cubin.
        resources: :class:`~tritongemm.baselines.cuda.resources.Resources`.
        log: what the compiler said.
        seconds: that compiling took; 0 from the cache.
        cached: whether it came from the disk cache.
    """

    def __init__(self, name: str, arch: str, code: bytes, resources: Resources, log: str,
                 seconds: float, cached: bool) -> None:
        self.name, self.arch, self.code, self.resources = name, arch, code, resources
        self.log, self.seconds, self.cached = log, seconds, cached
        self._loaded: dict[int, _Loaded] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"CudaKernel({self.name!r}, {self.arch!r}, {self.resources.registers} registers)"

    def launch(self, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence, *,
               shared_bytes: int = 0, device: int | None = None) -> None:
        """Puts one launch on torch's current stream of the device.

        Args:
            grid, block: one to three extents, in blocks and in threads.
            args: in the kernel's order: torch tensors and None go as pointers; scalars must be
                NumPy or ctypes ones, because their width is the kernel's business (a Python int
                would go as 8 bytes and a float as a double).
            shared_bytes: dynamic shared memory; above 48 KiB it is opted into.
            device: index; None: that of the tensors, or the current one.

        Raises:
            UsageError: a plain Python number, a tensor that is not on a CUDA device, tensors on
                two devices, a number or width of arguments that is not the kernel's.
            ConstraintError: more shared memory or threads than the device has.
            LaunchError: the driver refused to load or launch.
            DeviceError: there is no CUDA device.
        """
        values = [pack(arg, i, self.name) for i, arg in enumerate(args)]
        device = _device_of(args, device)
        loaded = self.on(device)
        loaded.check_arguments(values)
        loaded.launch(_extents(grid, "grid"), _extents(block, "block"), shared_bytes, values)

    def on(self, device: int) -> _Loaded:
        """The kernel loaded on device ``device``, once a device."""
        with self._lock:
            if device not in self._loaded:
                self._loaded[device] = _Loaded(self, device)
            return self._loaded[device]


class _Loaded:
    """A kernel on one device: :meth:`launch` is the short way, for arguments already packed."""

    def __init__(self, kernel: CudaKernel, device: int) -> None:
        import torch
        from cuda.core import ObjectCode

        if not torch.cuda.is_available():
            raise DeviceError(f"launching {kernel.name} needs a CUDA device and torch sees none; "
                              "compiling for a named arch needs none")
        major, minor = torch.cuda.get_device_capability(device)
        here, made = major * 10 + minor, int("".join(c for c in kernel.arch if c.isdigit()))
        if made // 10 != major or made > here:
            raise LaunchError(f"{kernel.name} was compiled for {kernel.arch}, which device "
                              f"{device} (sm_{here}) cannot run; compile it with arch={here}")
        self.name, self.device = kernel.name, device
        properties = torch.cuda.get_device_properties(device)
        self._shared_limit = properties.shared_memory_per_block_optin
        self._static_shared = kernel.resources.shared_bytes
        self._shared_granted = DEFAULT_SHARED_BYTES - self._static_shared
        self._configs: dict[tuple, object] = {}
        self._streams: dict[int, object] = {}
        self._checked = False
        with torch.cuda.device(device):
            if not torch.cuda.is_current_stream_capturing():
                torch.empty(1, device=f"cuda:{device}")  # torch makes the context, not we
            try:
                # The object file must outlive the kernel: its handle belongs to the library.
                self._object = ObjectCode.from_cubin(kernel.code, name=kernel.name)
                self._kernel = self._object.get_kernel(kernel.name)
                self._force_load()
            except Exception as error:  # cuda.core keeps its error classes private
                raise LaunchError(f"{kernel.name} cannot be loaded on device {device}: "
                                  f"{error}") from error

    def _force_load(self) -> None:
        """Loads the function into the context now: a lazy load may not happen in a capture."""
        from cuda.bindings import driver

        status, function = driver.cuKernelGetFunction(self._kernel.handle)
        _check(status, f"loading {self.name}")
        if hasattr(driver, "cuFuncLoad"):
            _check(driver.cuFuncLoad(function)[0], f"loading {self.name}")

    def check_arguments(self, values: Sequence[object]) -> None:
        """Compares number and widths of the packed arguments with the kernel's, once.

        Raises:
            UsageError: they differ.
        """
        if self._checked:
            return
        from cuda.bindings import driver

        widths = []
        while True:
            found = driver.cuKernelGetParamInfo(self._kernel.handle, len(widths))
            if int(found[0]) != 0:  # past the last one
                break
            widths.append(int(found[2]))
        given = [8 if isinstance(v, int) else ctypes.sizeof(v) if isinstance(v, _SIMPLE)
                 else v.nbytes for v in values]
        if widths and widths != given:
            raise UsageError(f"{self.name} takes {len(widths)} arguments of {widths} bytes; it "
                             f"was given {len(given)} of {given}")
        self._checked = True

    def launch(self, grid: tuple, block: tuple, shared_bytes: int, values: Sequence) -> None:
        """Launches on torch's current stream; see :meth:`CudaKernel.launch` for the errors."""
        import torch
        from cuda.core import LaunchConfig, Stream, launch

        key = (grid, block, shared_bytes)
        config = self._configs.get(key)
        if config is None:
            self._allow(block, shared_bytes)
            config = self._configs[key] = LaunchConfig(grid=grid, block=block,
                                                       shmem_size=shared_bytes)
        handle = torch.cuda.current_stream(self.device).cuda_stream
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = Stream.from_handle(handle)
        try:
            if torch.cuda.current_device() == self.device:
                launch(stream, config, self._kernel, *values)
            else:
                with torch.cuda.device(self.device):
                    launch(stream, config, self._kernel, *values)
        except Exception as error:  # cuda.core keeps its error classes private
            raise LaunchError(f"{self.name} with grid {grid}, block {block} and {shared_bytes} "
                              f"bytes of shared memory was refused: {error}") from error

    def _allow(self, block: tuple, shared_bytes: int) -> None:
        threads = block[0] * block[1] * block[2]
        if threads > 1024:
            raise ConstraintError(f"{self.name}: block {block} has {threads} threads; "
                                  "a block may have 1024")
        total = shared_bytes + self._static_shared
        if total > self._shared_limit:
            raise ConstraintError(f"{self.name} needs {total} bytes of shared memory; device "
                                  f"{self.device} allows {self._shared_limit} a block")
        if shared_bytes > self._shared_granted:
            from cuda.bindings import driver

            status, device = driver.cuDeviceGet(self.device)
            _check(status, f"device {self.device}")
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuKernelSetAttribute(attribute, shared_bytes, self._kernel.handle,
                                               device)[0],
                   f"opting {self.name} into {shared_bytes} bytes of shared memory")
            self._shared_granted = shared_bytes


def pack(arg: object, index: int, kernel: str) -> object:
    """``arg`` as cuda.core passes it on: an address as int, a scalar with its own width.

    Raises:
        UsageError: a plain Python number, a tensor off the GPU, or something else.
    """
    import numpy
    import torch

    if isinstance(arg, torch.Tensor):
        if arg.device.type != "cuda":
            raise UsageError(f"argument {index} of {kernel} is a tensor on {arg.device}; "
                             "a kernel takes tensors on a CUDA device")
        return int(arg.data_ptr())
    if arg is None:
        return 0
    if isinstance(arg, (numpy.number, numpy.bool_, _SIMPLE)):
        return arg
    if isinstance(arg, (bool, int, float)):
        raise UsageError(f"argument {index} of {kernel} is the Python number {arg!r}, whose width "
                         f"is not the kernel's; wrap it, e.g. numpy.int32({arg!r}) or "
                         f"numpy.float32({arg!r})")
    raise UsageError(f"argument {index} of {kernel} is a {type(arg).__name__}; give tensors, "
                     "None, and NumPy or ctypes scalars")


def _device_of(args: Sequence[object], device: int | None) -> int:
    import torch

    used = {arg.device.index for arg in args if isinstance(arg, torch.Tensor)}
    if len(used) > 1:
        raise UsageError("the tensors are on CUDA devices "
                         f"{' and '.join(map(str, sorted(used)))}; a launch runs on one")
    if device is None:
        if not torch.cuda.is_available():
            raise DeviceError("launching a CUDA kernel needs a CUDA device and torch sees none")
        return used.pop() if used else torch.cuda.current_device()
    if used and device not in used:
        raise UsageError(f"the tensors are on CUDA device {used.pop()}, the launch on {device}")
    return device


def _extents(value: int | Sequence[int], what: str) -> tuple[int, int, int]:
    given = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(given) <= 3 or any(not isinstance(v, int) or v < 1 for v in given):
        raise UsageError(f"{what}={value!r}: give one to three positive integers")
    return (*given, *(1,) * (3 - len(given)))  # type: ignore[return-value]


def _check(status: object, what: str) -> None:
    if int(status) != 0:  # type: ignore[call-overload]
        raise LaunchError(f"{what}: the driver says {getattr(status, 'name', status)}")

"""The device of a sweep as the CUDA driver describes it, before a worker is ready.

A worker needs seconds to import torch and to create a CUDA context. Meanwhile the sweep plans its
first problem and starts its compilers for the device that is described here. The worker's own
description decides: where the two differ, the sweep begins again with the worker's.
"""

from __future__ import annotations

import ctypes

from tritongemm import settings
from tritongemm.device import DeviceSpec, interpreter_device, reported

#: Numbers of CUdevice_attribute (cuda.h) for the limits of a DeviceSpec.
_LIMITS = {"num_sms": 16, "shared_bytes_per_block": 97, "shared_bytes_per_sm": 81,
           "registers_per_sm": 82, "l2_bytes": 38}
_MAJOR, _MINOR = 75, 76
_NAME_BYTES = 256


def expected_device(index: int | None, library: str = "libcuda.so.1") -> DeviceSpec | None:
    """The CUDA device ``index`` (None: the interpreter's stand-in), without torch and without a
    context on it; None if the driver does not describe it, which the worker will explain."""
    if index is None:
        return interpreter_device() if settings.current().interpret else None
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    handle, value = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    if (cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(handle), index)
            or cuda.cuDeviceGetName(name, _NAME_BYTES, handle)):
        return None

    found: dict[str, int] = {}
    for field, number in {**_LIMITS, "major": _MAJOR, "minor": _MINOR}.items():
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle):
            return None
        found[field] = value.value
    arch = 10 * found.pop("major") + found.pop("minor")
    return reported(name.value.decode(errors="replace"), arch=arch, **found)

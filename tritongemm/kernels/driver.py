"""Loading and launching cubins through the CUDA driver (ctypes: no dependency, no compiler).

Triton's own launcher costs 22 us a call with its argument handling (FACTS); a kept parameter
buffer in which only addresses change costs a few. ``cuLibraryLoadData`` gives handles that serve
every device of the architecture.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial

from tritongemm.errors import LaunchError
from tritongemm.formats import format_of
from tritongemm.kernels.launch import Descriptor, Launch, Number, Pointer
from tritongemm.kernels.store import Binary

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_DEPENDENT_LAUNCH = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_SUCCESS, _INVALID_CONTEXT, _OUT_OF_MEMORY = 0, 201, 2
_TENSOR_MAP_BYTES = 128
#: CUtensorMapDataType by the compiler's element type: the values differ on host and device.
_HOST_ELEMENT_TYPE = {**{i: i for i in range(16)}, 8: 10, 9: 8, 10: 9}
_TFLOAT32 = 11  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: rounded to nearest on the way
_L2_PROMOTION_256B = 3


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint))


@functools.cache
def _cuda() -> ctypes.CDLL:
    """libcuda, initialised, with the signatures of the functions used on the hot path."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LaunchError(f"the CUDA driver library cannot be loaded: {error}") from error
    for name in ("cuLibraryLoadData", "cuTensorMapEncodeTiled"):
        if not hasattr(cuda, name):
            raise LaunchError(f"the CUDA driver has no {name}; it is older than CUDA 12.0")
    cuda.cuTensorMapReplaceAddress.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    _check(cuda, cuda.cuInit(0), "initialising the driver")
    return cuda


def addresses() -> tuple[int, int]:
    """Of cuLaunchKernelEx and cuTensorMapReplaceAddress in this process. Raises LaunchError."""
    cuda = _cuda()
    return tuple(ctypes.cast(x, ctypes.c_void_p).value or 0  # type: ignore[return-value]
                 for x in (cuda.cuLaunchKernelEx, cuda.cuTensorMapReplaceAddress))


def _check(cuda: ctypes.CDLL, status: int, what: str) -> None:
    if status == _SUCCESS:
        return
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(status, ctypes.byref(text))
    reason = text.value.decode() if text.value else "unknown error"
    raise LaunchError(f"{what}: CUDA error {status}, {reason}")


@functools.cache
def _load(cubin: bytes, symbol: str, shared_bytes: int, device: int) -> int:
    """The kernel's handle, with its shared memory opted into on ``device``.

    Never unloaded: a captured graph may hold it. What a binary depends on bounds their number.
    """
    cuda = _cuda()
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _check(cuda, cuda.cuLibraryLoadData(ctypes.byref(library), cubin, None, None, 0, None, None,
                                        0), f"loading {symbol}")
    _check(cuda, cuda.cuLibraryGetKernel(ctypes.byref(kernel), library, symbol.encode()),
           f"finding {symbol}")
    if shared_bytes > 48 * 1024:
        handle = ctypes.c_int()
        _check(cuda, cuda.cuDeviceGet(ctypes.byref(handle), device), f"device {device}")
        _check(cuda, cuda.cuKernelSetAttribute(_MAX_DYNAMIC_SHARED, shared_bytes, kernel, handle),
               f"opting {symbol} into {shared_bytes} bytes of shared memory")
    return kernel.value or 0


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    """The primary context of a CUDA device, which is torch's too; kept as long as the process."""
    cuda = _cuda()
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check(cuda, cuda.cuDeviceGet(ctypes.byref(handle), device), f"device {device}")
    _check(cuda, cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle),
           f"the context of device {device}")
    return context


def _recover(status: int, again: Callable[[], int], device: int, what: str) -> None:
    """After a driver's call that failed: once more where this thread has not used CUDA yet, and
    so has no context. Raises LaunchError.

    It gets the device's, as the runtime would give it, but without waiting for anything: another
    thread may be capturing a graph, which a synchronisation would end.
    """
    cuda = _cuda()
    if status == _INVALID_CONTEXT:
        _check(cuda, cuda.cuCtxSetCurrent(_context(device)), f"entering device {device}")
        status = again()
    _check(cuda, status, what)


def _attribute(kind: int, *values: int) -> _Attribute:
    attribute = _Attribute(kind)
    attribute.value[:len(values)] = values
    return attribute


class Launcher:
    """One launch, packed: calling it writes the operands' addresses, and numbers, and launches.

    Args:
        launch, binary: what to launch and its cubin.
        device: CUDA ordinal.
        operands: names in the order in which :meth:`__call__` gets addresses; ``alpha`` and
            ``beta`` among them stand for the numbers themselves.

    Raises:
        LaunchError: the driver refused the cubin, or its parameters are not what this package
            packs (a Triton version whose launch interface is not known here).
    """

    def __init__(self, launch: Launch, binary: Binary, device: int,
                 operands: Sequence[str]) -> None:
        self._cuda, self._device = _cuda(), device
        self._start = self._cuda.cuLaunchKernelEx
        self._lock = threading.Lock()
        fields = _fields(launch)
        sizes = tuple(size for size, _, _ in fields)
        if sizes + (8, 8) != tuple(size for size, _ in binary.parameters):
            raise LaunchError(
                f"{binary.symbol} takes parameters of {[s for s, _ in binary.parameters]} bytes, "
                f"this package packs {[*sizes, 8, 8]}: this Triton version's launch interface is "
                "not supported. Install triton 3.6 to 3.9")
        offsets, end = [], 0
        for size, align in [*((s, a) for s, a, _ in fields), (8, 8), (8, 8)]:
            end = -(-end // align) * align
            offsets.append(end)
            end += size
        self._memory = ctypes.create_string_buffer(end + 64)
        base = -(-ctypes.addressof(self._memory) // 64) * 64
        shift = base - ctypes.addressof(self._memory)
        self._parameters = (ctypes.c_void_p * len(offsets))(*(base + o for o in offsets))
        self._shift, self._offsets, self._end = shift, offsets, end
        #: What a call writes: into which view of the memory, where, which operand, plus what.
        self._written: list[tuple[memoryview, int, int, int]] = []
        #: Operands of maps among them, which begin at 16 bytes; the driver would refuse others.
        self._mapped: list[int] = []
        self._last: tuple[int | float, ...] = ()
        memory = memoryview(self._memory).cast("B")[shift:shift + end // 8 * 8]
        words, floats = memory.cast("Q"), memory.cast("f")
        self._maps: list[_TensorMap] = []
        metas = iter(binary.maps)
        for (size, _, value), offset in zip(fields, offsets):
            if isinstance(value, Pointer):
                self._written.append((words, offset // 8, operands.index(value.operand),
                                      value.offset))
            elif isinstance(value, Number):
                self._written.append((floats, offset // 4, operands.index(value.name), 0))
            elif isinstance(value, Descriptor):
                self._maps.append(_TensorMap(value, next(metas), base + offset, words, offset // 8,
                                             operands.index(value.operand), device))
            else:
                struct.pack_into("i" if size == 4 else "q", self._memory, shift + offset, value)
        self.symbol = binary.symbol
        kernel = _load(binary.cubin, binary.symbol, binary.shared_bytes, device)
        attributes = []
        cluster = binary.num_ctas * launch.cluster
        if cluster > 1:
            attributes.append(_attribute(_CLUSTER_DIMENSION, cluster, 1, 1))
        if launch.dependent:
            attributes.append(_attribute(_DEPENDENT_LAUNCH, 1))
        self._attributes = (_Attribute * len(attributes))(*attributes)
        x, y, z = launch.grid
        self._stream = 0
        self._config = _LaunchConfig(
            (x * binary.num_ctas, y, z), (32 * binary.num_warps, 1, 1), binary.shared_bytes,
            None, self._attributes, len(attributes))
        # Made once: ctypes converts nothing at a call (1.5 us less than cuLaunchKernel's eleven).
        self._arguments = (ctypes.byref(self._config), ctypes.c_void_p(kernel),
                           ctypes.byref(self._parameters), None)

    def __call__(self, operands: tuple[int | float, ...], stream: int) -> None:
        """Launches on ``stream`` with the operands' addresses and numbers. Raises LaunchError."""
        with self._lock:  # the parameters are this call's until the driver returns
            if operands != self._last:
                self._last = ()
                for view, place, index, offset in self._written:
                    view[place] = operands[index] + offset
                for index in self._mapped:
                    if operands[index] & 15:  # type: ignore[operator]
                        raise LaunchError(f"{self.symbol}: a tensor map cannot begin at "
                                          f"{operands[index]:#x}, which 16 bytes do not divide")
                if self._maps:
                    self._move_maps(operands)
                self._last = operands
            if stream != self._stream:
                self._config.stream = self._stream = stream
            status = self._start(*self._arguments)
            if status != _SUCCESS:
                _recover(status, partial(self._start, *self._arguments), self._device,
                         f"launching {self.symbol}")

    def exported(self) -> dict[str, object]:
        """This launch for the native dispatcher: the driver's arguments, the parameters as they
        are, and (byte, index of the operand, bytes added) of all that a call writes: addresses,
        numbers, and the tensor maps to move. Raises LaunchError before a first launch, which makes
        the maps."""
        config = self._config
        with self._lock:
            if any(x.encoded_at is None for x in self._maps):
                raise LaunchError(f"{self.symbol} was not launched yet: its tensor maps are not "
                                  "made")
            written = [(view.format, view.itemsize * place, index, offset)
                       for view, place, index, offset in self._written]
            maps = [(8 * x.place, x.operand, x.offset) for x in self._maps]
            parameters = self._memory.raw[self._shift:self._shift + self._end]
        return {"grid": tuple(config.grid), "block": tuple(config.block), "shared": config.shared,
                "kernel": self._arguments[1].value, "attributes": bytes(self._attributes),
                "count": config.count, "parameters": parameters, "offsets": self._offsets,
                "words": [x[1:] for x in written if x[0] == "Q"],
                "floats": [x[1:] for x in written if x[0] == "f"], "maps": maps}

    def _move_maps(self, operands: tuple[int | float, ...]) -> None:
        """Points maps at their operands by the driver, until that has shown how."""
        for tensor_map in tuple(self._maps):
            index, offset = tensor_map.operand, tensor_map.offset
            tensor_map.point_at(int(operands[index]) + offset)
            if tensor_map.by_word and offset & 15 == 0:
                self._maps.remove(tensor_map)
                self._written.append((tensor_map.words, tensor_map.place, index, offset))
                if index not in self._mapped:
                    self._mapped.append(index)


class _TensorMap:
    """A tensor map in the parameter buffer; a new address is patched in, not encoded again.

    Attributes:
        words, place: the buffer, and the map's first word there.
        operand, offset: it starts at the operand's address plus that.
        by_word: the driver has moved it by writing the address as its first word and nothing else,
           so that whoever writes that word moves it too, without a call through ctypes.
    """

    def __init__(self, descriptor: Descriptor, meta: dict, address: int, words: memoryview,
                 place: int, operand: int, device: int) -> None:
        self.words, self.place, self.by_word = words, place, False
        self.operand, self.offset, self._device = operand, descriptor.offset, device
        self._cuda, self._address, self._name = _cuda(), address, descriptor.name
        self._base: int | None = None
        rank = len(descriptor.shape)
        bytes_of = format_of(descriptor.dtype).bytes_of
        kind = _TFLOAT32 if descriptor.rounds else _HOST_ELEMENT_TYPE[meta["elem_type"]]
        self._arguments = (
            ctypes.c_int(kind), ctypes.c_uint(rank),
            (ctypes.c_uint64 * rank)(*reversed(descriptor.shape)),
            (ctypes.c_uint64 * rank)(*map(bytes_of, reversed(descriptor.strides[:-1]))),
            (ctypes.c_uint32 * rank)(*reversed(descriptor.loaded or meta["block_size"])),
            (ctypes.c_uint32 * rank)(*[1] * rank))
        self._swizzle = ctypes.c_int(meta["swizzle"])

    @property
    def encoded_at(self) -> int | None:
        """The address that the map points at; None before it is encoded."""
        return self._base

    def point_at(self, base: int) -> None:
        """Makes the map's tensor start at address ``base``. Raises LaunchError."""
        if base == self._base:
            return
        put = self._cuda.cuTensorMapReplaceAddress if self._base is not None else self._encode
        before = self._content()
        status = put(self._address, base)
        if status != _SUCCESS:
            _recover(status, partial(put, self._address, base), self._device,
                     f"pointing the tensor map {self._name} at {base:#x}")
        self.by_word = (self._base is not None and before[0] == self._base
                        and self._content() == [base, *before[1:]])
        self._base = base

    def _content(self) -> list[int]:
        return self.words[self.place:self.place + _TENSOR_MAP_BYTES // 8].tolist()

    def _encode(self, address: int, base: int) -> int:
        """Writes the whole map; the driver's status."""
        kind, rank, shape, strides, box, steps = self._arguments
        return self._cuda.cuTensorMapEncodeTiled(
            ctypes.c_void_p(address), kind, rank, ctypes.c_void_p(base), shape, strides, box,
            steps, ctypes.c_int(0), self._swizzle, ctypes.c_int(_L2_PROMOTION_256B),
            ctypes.c_int(0))


def _fields(launch: Launch) -> list[tuple[int, int, object]]:
    """(bytes, alignment, value) of each parameter, as Triton expands the signature: a descriptor
    is its map, then its shape (i32) and its strides (i64)."""
    fields: list[tuple[int, int, object]] = []
    for x in launch.arguments:
        if isinstance(x, Pointer):
            fields.append((8, 8, x))
        elif isinstance(x, Descriptor):
            fields.append((_TENSOR_MAP_BYTES, 64, x))
            fields += [(4, 4, s) for s in x.shape] + [(8, 8, s) for s in x.strides]
        elif isinstance(x, Number):
            fields.append((4, 4, x))
        elif not x.folded:
            size = 4 if x.type == "i32" else 8
            fields.append((size, size, x.value))
    return fields

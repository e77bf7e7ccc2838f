"""What the launcher writes into the parameter buffer, with a driver that only takes notes."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import LaunchError
from tritongemm.kernels import driver
from tritongemm.kernels.compile import Binary, launches_of
from tritongemm.kernels.driver import Launcher, _fields
from tritongemm.kernels.launch import Descriptor, Launch, Number, Pointer
from tritongemm.problem import GemmProblem

H200 = representative(90)
OPERANDS = ("a", "b", "c", "scratch")
ADDRESSES = (0x7000_0000_0000, 0x7100_0000_0000, 0x7200_0000_0000, 0x7300_0000_0000)
TILED = KernelConfig("tiled", 64, 64, 32)
PERSISTENT = KernelConfig("persistent_tma", 64, 64, 64, num_stages=3)
PADDED = KernelConfig("warp_specialized", 128, 64, 64, num_warps=8, num_stages=4, pad_operands=1,
                      split_k=2)
PROBLEM = GemmProblem.contiguous(256, 512, 1024, layout="nt")
RAGGED = GemmProblem.contiguous(256, 510, 1022, layout="nt", batch=2)


class Notes:
    """Stands for libcuda: every call succeeds, or returns ``status``, and is kept. Nothing else
    of libcuda is there to be called: no synchronisation.

    ``context``: current in this thread; None: none is, which calls refuse.
    """

    def __init__(self) -> None:
        self.status = 0
        self.moves_by: tuple[int, ...] = ()  # words of a map in which a move puts the address
        self.context: int | None = 1
        self.retained: list[int] = []
        self.launches: list[tuple] = []
        self.encoded: list[tuple] = []
        self.kinds: list[int] = []
        self.moved: list[tuple] = []

    def _launched(self, parameters, launch: Launch) -> None:
        self.launches.append([
            value_at(parameters[i], size, field)
            for i, (size, _, field) in enumerate(_fields(launch))])

    def _answer(self) -> int:
        return 201 if self.context is None else self.status

    def cuDeviceGet(self, handle, ordinal):
        handle._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, context, handle):
        self.retained.append(handle.value)
        context._obj.value = 0xC0 + handle.value
        return 0

    def cuCtxSetCurrent(self, context):
        self.context = context.value
        return 0

    def cuLaunchKernelEx(self, config, kernel, parameters, extra):
        if self.context is None:
            return 201
        found = config._obj
        self.arguments = (kernel.value, *found.grid, *found.block, found.shared, found.stream)
        self.attributes = {found.attributes[i].id: tuple(found.attributes[i].value)[:3]
                           for i in range(found.count)}
        self._launched(parameters._obj, self.launch)
        return self.status

    def cuTensorMapEncodeTiled(self, place, kind, rank, base, shape, strides, box, steps, *rest):
        if self.context is not None:
            self.kinds.append(kind.value)
            self.encoded.append((base.value, list(shape), list(strides)[:rank.value - 1],
                                 list(box)))
            for word in self.moves_by:
                ctypes.c_uint64.from_address(place.value + 8 * word).value = base.value
        return self._answer()

    def cuTensorMapReplaceAddress(self, place, base):
        if self.context is not None:
            self.moved.append(base)
            for word in self.moves_by:
                ctypes.c_uint64.from_address(place + 8 * word).value = base
        return self._answer()

    def cuGetErrorString(self, status, text):
        text._obj.value = b"an error of this test"
        return 0


def value_at(address: int, size: int, field):
    """The parameter at ``address``; of a tensor map only that it is 64-byte aligned."""
    if isinstance(field, Descriptor):
        return address % 64
    if isinstance(field, Number):
        return ctypes.c_float.from_address(address).value
    kind = {4: ctypes.c_int, 8: ctypes.c_longlong}[size]
    return kind.from_address(address).value


@pytest.fixture
def notes(monkeypatch):
    made = Notes()
    monkeypatch.setattr(driver, "_cuda", lambda: made)
    monkeypatch.setattr(driver, "_load", lambda *_: 4242)
    driver._context.cache_clear()
    yield made
    driver._context.cache_clear()


def binary_of(launch: Launch, **changes) -> Binary:
    """A binary that takes what the launch gives."""
    sizes = tuple((size, align) for size, align, _ in _fields(launch))
    maps = tuple({"swizzle": 3, "elem_type": 10, "elem_size": 2, "block_size": list(x.box)}
                 for x in launch.arguments if isinstance(x, Descriptor))
    binary = Binary(launch.symbol, b"", 4, 1, 1000, 32, 0, maps, (*sizes, (8, 8), (8, 8)))
    return replace(binary, **changes)


def launcher(notes: Notes, launch: Launch, device: int = 0, **changes) -> Launcher:
    notes.launch = launch
    return Launcher(launch, binary_of(launch, **changes), device, OPERANDS)


def expected(launch: Launch, addresses=ADDRESSES) -> list[int]:
    """What each parameter must hold."""
    found = []
    for _, _, field in _fields(launch):
        if isinstance(field, Pointer):
            found.append(addresses[OPERANDS.index(field.operand)] + field.offset)
        else:
            found.append(0 if isinstance(field, Descriptor) else field)
    return found


@pytest.mark.parametrize(("problem", "config"), [
    (PROBLEM, TILED), (PROBLEM, replace(TILED, split_k=2)), (PROBLEM, PERSISTENT),
    (replace(PROBLEM, batch=3), PERSISTENT), (RAGGED, PADDED)], ids=str)
def test_addresses_offsets_and_scalars_are_where_the_kernel_reads_them(notes, problem, config):
    for launch in launches_of(problem, config, H200):
        launcher(notes, launch)(ADDRESSES, 77)
        assert notes.launches[-1] == expected(launch)
        x, y, z = launch.grid
        assert tuple(notes.arguments) == (4242, x, y, z, 128, 1, 1, 1000, 77)


@pytest.mark.parametrize("config", [TILED, replace(TILED, split_k=2), PERSISTENT], ids=str)
def test_d_and_the_numbers_of_a_call_are_where_the_kernel_reads_them(notes, config):
    for launch in launches_of(replace(PROBLEM, epilogue="add+silu"), config, H200):
        notes.launch = launch
        launch_it = Launcher(launch, binary_of(launch), 0, (*OPERANDS, "d", "alpha", "beta"))
        for alpha, beta in ((0.5, -2.0), (0.1, float("inf")), (-0.0, 1e-38)):
            launch_it((*ADDRESSES, 0x7400_0000_0000, alpha, beta), 0)
            given = {x.name: value for value, (_, _, x) in
                     zip(notes.launches[-1], _fields(launch), strict=True)
                     if isinstance(x, (Number, Pointer))}
            if "d" in given:
                assert given["d"] == 0x7400_0000_0000
                assert given["alpha"] == ctypes.c_float(alpha).value
                assert given["beta"] == ctypes.c_float(beta).value
            else:
                assert config.split_k == 2 and "alpha" not in given


def test_a_second_call_writes_the_new_addresses_only(notes):
    launch, = launches_of(PROBLEM, TILED, H200)
    launch_it = launcher(notes, launch)
    launch_it(ADDRESSES, 0)
    others = tuple(address + 4096 for address in ADDRESSES)
    launch_it(others, 0)
    assert notes.launches == [expected(launch), expected(launch, others)]


@pytest.mark.parametrize("config", [
    PERSISTENT, replace(PERSISTENT, kernel="warp_specialized", num_warps=4)], ids=str)
def test_only_operands_of_tf32_are_rounded_as_they_are_copied(notes, config):
    config = replace(config, block_k=32)
    for precision, dtype in (("tf32", "fp32"), ("ieee", "bf16")):
        problem = GemmProblem.contiguous(512, 512, 512, layout="nt", dtype=dtype,
                                         precision=precision)
        config = replace(config, block_k=32 if dtype == "fp32" else 64)
        for launch in launches_of(problem, config, H200):
            launcher(notes, launch)(ADDRESSES, 0)
        # 11: CU_TENSOR_MAP_DATA_TYPE_TFLOAT32; 9: what the maps of these tests say
        assert notes.kinds[:2] == ([11, 11] if dtype == "fp32" else [9, 9])
        assert 11 not in notes.kinds[2:]
        notes.kinds.clear()


def test_a_tensor_map_is_encoded_once_and_moved_when_its_address_changes(notes):
    launch, = launches_of(PROBLEM, PERSISTENT, H200)
    launch_it = launcher(notes, launch)
    launch_it(ADDRESSES, 0)
    assert [base for base, *_ in notes.encoded] == list(ADDRESSES[:3]) and not notes.moved
    _, shape, strides, box = notes.encoded[0]
    assert (shape, strides, box) == ([1024, 256], [2048], [64, 64])  # innermost first, in bytes
    launch_it(ADDRESSES, 0)
    assert len(notes.encoded) == 3 and not notes.moved
    launch_it((ADDRESSES[0] + 256, *ADDRESSES[1:]), 0)
    assert len(notes.encoded) == 3 and notes.moved == [ADDRESSES[0] + 256]


def maps_at(launch_it: Launcher, launch: Launch) -> list[int]:
    """The first word of each map, as a kernel would read it."""
    return [ctypes.c_uint64.from_address(pointer).value
            for pointer, (_, _, field) in zip(launch_it._parameters, _fields(launch))
            if isinstance(field, Descriptor)]


def test_a_map_is_written_without_the_driver_once_that_has_shown_how(notes):
    notes.moves_by = (0,)
    launch, = launches_of(PROBLEM, PERSISTENT, H200)
    launch_it = launcher(notes, launch)
    a, b, c, _ = ADDRESSES
    for i in range(4):  # B stays where it is
        launch_it((a + 256 * i, b, c + 512 * i, 0), 0)
        assert maps_at(launch_it, launch) == [a + 256 * i, b, c + 512 * i]
    assert len(notes.encoded) == 3 and notes.moved == [a + 256, c + 512]
    launch_it((a, b + 128, c, 0), 0)
    assert maps_at(launch_it, launch) == [a, b + 128, c] and notes.moved[2:] == [b + 128]
    with pytest.raises(LaunchError, match="which 16 bytes do not divide"):
        launch_it((a + 2, b, c, 0), 0)
    launch_it((a, b + 128, c, 0), 0)  # as before the refused one, which wrote nothing that lasts
    assert maps_at(launch_it, launch) == [a, b + 128, c] and len(notes.launches) == 6


def test_a_map_behind_an_offset_is_written_there_if_that_begins_at_16_bytes(notes):
    notes.moves_by = (0,)
    _, product, _ = launches_of(RAGGED, PADDED, H200)
    offsets = [x.offset for x in product.arguments if isinstance(x, Descriptor)]
    launch_it = launcher(notes, product)
    for i in range(4):
        launch_it((*ADDRESSES[:3], ADDRESSES[3] + 256 * i), 0)
        assert maps_at(launch_it, product) == [ADDRESSES[3] + 256 * i + x for x in offsets]
    assert len(notes.moved) == len(offsets)
    odd = replace(product, arguments=tuple(
        replace(x, offset=x.offset + 8) if isinstance(x, Descriptor) else x
        for x in product.arguments))
    launch_it, seen = launcher(notes, odd), len(notes.moved)
    for i in range(4):
        launch_it((*ADDRESSES[:3], ADDRESSES[3] + 256 * i), 0)
    assert len(notes.moved) == seen + 3 * len(offsets)  # the driver's to refuse


@pytest.mark.parametrize("words", [(), (1,), (0, 1)], ids=str)
def test_the_driver_moves_a_map_where_that_is_more_than_writing_its_first_word(notes, words):
    notes.moves_by = words
    launch, = launches_of(PROBLEM, PERSISTENT, H200)
    launch_it = launcher(notes, launch)
    for i in range(4):
        launch_it((ADDRESSES[0] + 256 * i, *ADDRESSES[1:]), 0)
    assert notes.moved == [ADDRESSES[0] + 256 * i for i in (1, 2, 3)]


def test_a_map_over_scratch_points_behind_its_offset(notes):
    copy, product, _ = launches_of(RAGGED, PADDED, H200)
    offsets = [x.offset for x in product.arguments if isinstance(x, Descriptor)]
    assert offsets[0] % 128 == 0 and offsets[1] > offsets[0] > 0
    launcher(notes, product)(ADDRESSES, 0)
    assert [base - ADDRESSES[3] for base, *_ in notes.encoded] == offsets


def test_early_starts_and_clusters_are_asked_for_by_attribute(notes):
    launch, = launches_of(PROBLEM, TILED, H200)
    launcher(notes, replace(launch, dependent=True), num_ctas=2)(ADDRESSES, 5)
    assert notes.attributes[4] == (2, 1, 1) and notes.attributes[6][0] == 1
    assert notes.arguments[1] == 2 * launch.grid[0]
    launcher(notes, replace(launch, dependent=False))(ADDRESSES, 5)
    assert not notes.attributes
    launcher(notes, replace(launch, cluster=4))(ADDRESSES, 5)  # whose grid counts its programs
    assert notes.attributes[4] == (4, 1, 1) and notes.arguments[1] == launch.grid[0]


@pytest.mark.parametrize("parameters", [(), ((8, 8),) * 3, ((8, 8), (4, 4)) * 12])
def test_parameters_that_are_not_known_are_refused_before_a_launch(notes, parameters):
    launch, = launches_of(PROBLEM, TILED, H200)
    with pytest.raises(LaunchError, match="launch interface is not supported. Install triton"):
        launcher(notes, launch, parameters=parameters)


@pytest.mark.parametrize("config", [TILED, PERSISTENT], ids=str)
def test_a_thread_without_a_context_gets_the_devices_without_waiting(notes, config):
    launch, = launches_of(PROBLEM, config, H200)
    launch_it = launcher(notes, launch, device=3)
    others = tuple(address + 4096 for address in ADDRESSES)
    for addresses in (ADDRESSES, ADDRESSES, others):
        notes.context = None
        launch_it(addresses, 0)
        assert notes.context == 0xC3
    assert notes.launches == [expected(launch), expected(launch), expected(launch, others)]
    assert notes.retained == [3], "one reference for the process"
    descriptors = sum(isinstance(x, Descriptor) for x in launch.arguments)
    assert len(notes.encoded) == len(notes.moved) == descriptors


@pytest.mark.parametrize("config", [TILED, PERSISTENT], ids=str)
def test_a_context_that_stays_invalid_is_refused(notes, config, monkeypatch):
    monkeypatch.setattr(notes, "cuCtxSetCurrent", lambda context: 0)
    launch, = launches_of(PROBLEM, config, H200)
    notes.context = None
    with pytest.raises(LaunchError, match="CUDA error 201, an error of this test"):
        launcher(notes, launch)(ADDRESSES, 0)


@pytest.mark.parametrize("config", [TILED, PERSISTENT], ids=str)
def test_a_refused_launch_names_the_kernel_and_the_reason(notes, config):
    launch, = launches_of(PROBLEM, config, H200)
    launch_it = launcher(notes, launch)
    notes.status = 2
    with pytest.raises(LaunchError, match="CUDA error 2, an error of this test"):
        launch_it(ADDRESSES, 0)


def test_a_binary_is_loaded_once_however_often_plans_are_made_of_it(monkeypatch):
    class Loading:
        loaded = 0

        def cuLibraryLoadData(self, library, *_):
            self.loaded += 1
            return 0

        def cuLibraryGetKernel(self, kernel, library, symbol):
            kernel._obj.value = 7
            return 0

    cuda = Loading()
    monkeypatch.setattr(driver, "_cuda", lambda: cuda)
    cubin = b"a cubin of this test"
    assert {driver._load(bytes(bytearray(cubin)), "kernel", 1000, 0) for _ in range(3)} == {7}
    assert cuda.loaded == 1


def test_no_driver_is_a_clear_error(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    driver._cuda.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(LaunchError, match="driver library cannot be loaded: libcuda.so.1"):
        driver._cuda()

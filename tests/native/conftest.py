"""The native dispatcher on CPU tensors: a C callback stands for the driver, torch for kernels.
Fakes of the compiler and of the process that builds."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tritongemm import native as package  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.measure.torch_epilogue import factor_of  # noqa: E402
from tritongemm.native import background, loading  # noqa: E402
from tritongemm.native.compiler import COMPILERS  # noqa: E402
from tritongemm.ops import execute, native  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.ops.autograd import ACTIVATE  # noqa: E402
from tritongemm.ops.plan import PRODUCT, Plan  # noqa: E402
from tritongemm.problem import epilogue_of  # noqa: E402

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                           ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
_REPLACE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
#: Parameters of a fake launch: A's tensor map or address, the addresses of B, C, D and scratch,
#: alpha, beta.
_MAP, _WORDS, _FLOATS, _BYTES = 0, (128, 136, 144, 152), (160, 164), 192


def at_address(address: int, dtype, strides, shape):
    """The tensor at an address."""
    last = sum((n - 1) * s for n, s in zip(shape, strides))
    size = torch.empty(0, dtype=dtype).element_size()
    buffer = (ctypes.c_char * ((last + 1) * size)).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).as_strided(shape, strides)


class FakePlan(Plan):
    """Launches by a fake driver, from either path."""

    def __init__(self, driver: FakeDriver, problem, geometry) -> None:
        self.problem, self.geometry, self.index = problem, geometry, 0
        self.operands, self.driver = PRODUCT, driver
        driver.plans.append(self)
        self.number = len(driver.plans)

        def at(values):
            driver.by_python += 1
            self.compute(*values)
        self.at = at

    def compute(self, pa, pb, pc, pd, alpha, beta):
        """Writes C."""
        p, g = self.problem, self.geometry
        stored, dtype, out = (
            getattr(torch, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[x])
            for x in (g.stored_a or p.dtype_a, p.dtype_b, p.dtype_out))

        def view(address, kind, rows, cols, batch, row, col):
            return at_address(address, kind, (batch, row, col), (p.batch, rows, cols))

        epilogue = epilogue_of(p.epilogue)
        a = view(pa, stored, p.m, p.k, g.ab, g.am, g.ak)
        c = view(pc, out, p.m, p.columns, g.cb, g.cm, g.cn)
        if epilogue.gated:  # the halves are where the geometry says, one before the other or not
            halves = []
            for i in range(2):
                b = view(pb + i * g.bb * a.element_size(), dtype, p.k, p.columns, 0, g.bk, g.bn)
                half = torch.from_numpy(a.double().numpy() @ b.double().numpy())
                if epilogue.reads_d:
                    half += view(pd + i * g.db * a.element_size(), out, p.m, p.columns, 0, g.dm,
                                 g.dn).double()
                halves.append(half)
            c.copy_(ACTIVATE[epilogue.activation](halves[0]) * halves[1])
            return
        b = view(pb, dtype, p.k, p.n, g.bb, g.bk, g.bn)
        # By NumPy: torch's products may be overridden.
        result = torch.from_numpy(a.double().numpy() @ b.double().numpy())
        if epilogue.scales:
            result = alpha * result
        if epilogue.multiplies:
            d = view(pd, out, p.m, p.n, g.db, g.dm, g.dn)
            result = result * factor_of(epilogue)(d.double())
        elif epilogue.reads_d:
            result = result + beta * view(pd, out, p.m, p.n, g.db, g.dm, g.dn).double()
        c.copy_(ACTIVATE.get(epilogue.activation, torch.clone)(result))

    def native_launches(self):
        words = [(offset, value, 0) for offset, value in zip(_WORDS, (1, 2, 3, 6))]
        floats = [(offset, value, 0) for offset, value in zip(_FLOATS, (4, 5))]
        # Tensor maps begin at 16 bytes; a kernel that takes other operands has their address.
        maps = [(_MAP, 0, 0)] if self.problem.align_a == 16 else []
        words += [] if maps else [(_MAP, 0, 0)]
        launch = {"grid": (1, 2, 3), "block": (32, 1, 1), "shared": 5, "kernel": self.number,
                  "attributes": b"x" * 72, "count": 1, "parameters": bytes(_BYTES),
                  "offsets": [_MAP, *_WORDS, *_FLOATS], "words": words, "floats": floats,
                  "maps": maps}
        return (*self.driver.addresses, [launch] * self.driver.launches,
                self.driver.scratch_bytes)


class FakeDriver:
    """Functions of the driver as C callbacks. ``status``: what a launch returns; from number
    ``fails_from`` on it fails."""

    def __init__(self) -> None:
        self.plans: list[FakePlan] = []
        self.by_python = self.by_native = self.status = self.scratch_bytes = 0
        self.launches, self.fails_from = 1, float("inf")
        self.scratch: list[int | None] = []
        self._launch, self._replace = _LAUNCH(self.launch), _REPLACE(self.replace)
        self.addresses = tuple(ctypes.cast(x, ctypes.c_void_p).value
                               for x in (self._launch, self._replace))

    def launch(self, config, kernel, parameters, extra) -> int:
        """cuLaunchKernelEx."""
        grid = (ctypes.c_uint * 7).from_address(config)
        assert tuple(grid) == (1, 2, 3, 32, 1, 1, 5) and not extra
        addresses = [ctypes.c_uint64.from_address(parameters[i]).value for i in range(5)]
        numbers = [ctypes.c_float.from_address(parameters[i]).value for i in (5, 6)]
        if self.status or self.by_native + 1 >= self.fails_from:
            return self.status or 700
        self.by_native += 1
        self.scratch.append(addresses.pop())
        self.plans[kernel - 1].compute(*addresses, *numbers)
        return 0

    def replace(self, tensor_map, address) -> int:
        """cuTensorMapReplaceAddress."""
        ctypes.c_uint64.from_address(tensor_map).value = address
        return 0


@pytest.fixture(autouse=True)
def seeded():
    """The same operands every time."""
    torch.manual_seed(20261126)


@pytest.fixture(scope="session")
def library():
    """The built library."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("needs g++")
    return package.build()


@pytest.fixture
def driver(library, monkeypatch):
    """Every CPU call is ours, launched by a fake driver; the native dispatcher is on."""
    fake = FakeDriver()
    monkeypatch.setattr(kept, "make_plan",
                        lambda problem, config, device, geometry, where:
                        FakePlan(fake, problem, geometry))
    monkeypatch.setattr("tritongemm.ops.calls._alone", lambda: True)
    with settings.override(interpret=True, native="on"):
        assert native.table() is not None, package.find().obstacle
        yield fake
    execute.clear_plans()


class FakeCompiler:
    """Stands for ``subprocess.run`` of a compiler. ``made``: what it compiles."""

    def __init__(self, status: int = 0, said: str = "") -> None:
        self.status, self.said, self.calls, self.made = status, said, 0, b"a library"
        self.imported = loading._imported

    def __call__(self, command, **_):
        self.calls += 1
        if self.status == 0:
            with open(command[command.index("-o") + 1], "wb") as file:
                file.write(self.made)
        return subprocess.CompletedProcess(command, self.status, "", self.said)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that makes a library at once, which is imported at once. Products go on in
    Python, whatever the process did before: what stands for the library cannot run them."""
    fake = FakeCompiler()
    native.table()  # from then on every change of settings asks again for the library
    monkeypatch.setattr(native, "load", lambda ready: None)
    monkeypatch.setattr("tritongemm.native.compiler.subprocess", SimpleNamespace(
        run=fake, TimeoutExpired=subprocess.TimeoutExpired))
    monkeypatch.setattr("tritongemm.native.compiler.shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(loading, "_loaded", {})
    monkeypatch.setattr(loading, "_imported", lambda path: SimpleNamespace(path=path))
    with settings.override(cache_dir=tmp_path, native="on"):
        yield fake
    monkeypatch.undo()
    native.empty()  # products ask for the true library again


class Builder:
    """In the place of the process that builds."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.started = status, []

    def __call__(self, command, **more):
        self.started.append((command, more["env"]))
        return self

    def wait(self) -> int:
        """Ends."""
        return self.status


@pytest.fixture
def automatic(compiler, monkeypatch):
    """auto, on a machine with a GPU, in a process that has not built yet."""
    builder = Builder()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(background, "_begun", True)  # what other tests left would build at once
    monkeypatch.setattr(background, "subprocess", SimpleNamespace(
        Popen=builder, DEVNULL=subprocess.DEVNULL))
    with settings.override(native="auto"):
        monkeypatch.setattr(background, "_begun", False)
        yield builder

"""Launch -> cubin, with no GPU needed: a shipped one, one of the store that all processes share, or
one that is compiled now.

A key names everything that makes a cubin: the launch's static key, the architecture, the device
code's text, and the compiler. A hit needs neither triton nor a compiler. Shipped binaries are known
without the compiler, which their manifest records (``pack.py``).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import (
    CompileError,
    DataFileError,
    MissingDependencyError,
    UnsupportedError,
)
from tritongemm.formats import format_of
from tritongemm.kernels import gluon_support, pack, spec_named, store
from tritongemm.kernels.complex_product import complex_launches
from tritongemm.kernels.launch import (
    Descriptor,
    Geometry,
    Launch,
    Number,
    Pointer,
    Scalar,
    descriptor_type,
)
from tritongemm.kernels.parse_once import parse_once
from tritongemm.kernels.revision import device_code_digest
from tritongemm.kernels.store import Binary
from tritongemm.kernels.store import store_path as store_path  # of binary_key's keys
from tritongemm.kernels.triton_version import compiler_key, triton_version
from tritongemm.problem import GemmProblem

_log = logging.getLogger("tritongemm")


@dataclass(frozen=True)
class BuildReport:
    """What building a config took: seconds, whether no binary was compiled, and the resources of
    its main kernel."""

    seconds: float
    cached: bool
    registers: int | None
    spills: int | None
    shared_bytes: int


def build(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> BuildReport:
    """Compiles ``config`` for ``problem`` on ``device.arch``, or finds it in the store.

    Raises:
        ConstraintError: the config is illegal. CompileError: the compiler refused it.
        DataFileError: the store cannot be written, so no other process would find the binary.
    """
    return build_launches(launches_of(problem, config, device), device.arch, must_keep=True)[1]


def launches_of(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                geometry: Geometry | None = None) -> tuple[Launch, ...]:
    """The launches of a legal config. Raises :class:`ConstraintError` for an illegal one,
    :class:`UnsupportedError` for a complex product that no config runs, or an A in memory in
    another format than a kernel that does not convert it."""
    geometry = geometry or Geometry.contiguous(problem)
    if problem.a.format.real:
        return complex_launches(problem, config, device, geometry)
    spec = spec_named(config.kernel)
    spec.require(problem, config, device)
    if geometry.stored_a and not spec.widens_a:
        raise UnsupportedError(f"{config.kernel} reads A in {problem.dtype_a}, not in "
                               f"{geometry.stored_a}")
    return spec.launches(problem, config, device, geometry)


def build_launches(launches: tuple[Launch, ...], arch: int, *,
                   must_keep: bool = False) -> tuple[tuple[Binary, ...], BuildReport]:
    """The binaries of ``launches`` and what getting them took.

    A store that cannot be written is a warning, or with ``must_keep`` a :class:`DataFileError`.
    """
    start = time.perf_counter()
    binaries, cached = [], True
    for launch in launches:
        binary, hit = _get(launch, arch, must_keep)
        binaries.append(binary)
        cached &= hit
    main = max(binaries, key=lambda b: (b.shared_bytes, b.registers or 0))
    return tuple(binaries), BuildReport(time.perf_counter() - start, cached, main.registers,
                                        main.spills, main.shared_bytes)


def launch_key(launch: Launch, arch: int) -> str:
    """What ``launch``'s binary is, whichever compiler made it."""
    return _digest({"device_code": device_code_digest(), "arch": arch,
                    "launch": launch.static_key()})


def binary_key(launch: Launch, arch: int) -> str:
    """The name of ``launch``'s binary in the store: of this compiler."""
    return _digest({"compiler": compiler_key(arch), "launch": launch_key(launch, arch)})


def place_key(launch: Launch, arch: int) -> str:
    """Where :func:`build_launches` finds or keeps ``launch``'s binary: ``shipped:`` and
    :func:`launch_key` where it comes with the package, else :func:`binary_key`."""
    key = launch_key(launch, arch)
    return _SHIPPED + key if pack.holds(key, arch) else binary_key(launch, arch)


def holds(place: str) -> bool:
    """Whether the binary of a :func:`place_key` is there."""
    return place.startswith(_SHIPPED) or store.holds(place)


_SHIPPED = "shipped:"


def _digest(parts: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _get(launch: Launch, arch: int, must_keep: bool) -> tuple[Binary, bool]:
    binary = pack.load(launch_key(launch, arch), arch)
    if binary is not None:
        return binary, True
    key = binary_key(launch, arch)
    stored = store.load(key)
    if stored is not None:
        return stored, True
    binary = compile_launch(launch, arch)
    try:
        store.save(key, binary)
    except DataFileError as error:
        if must_keep:
            raise
        _log.warning("tritongemm: the compiled %s is not kept for other processes: %s",
                     binary.symbol, error)
    return binary, False


def compile_launch(launch: Launch, arch: int) -> Binary:
    """Compiles one launch for ``sm_<arch>``. Raises :class:`CompileError` with the reason."""
    try:
        import triton
        from triton.backends.compiler import GPUTarget
    except ImportError as error:
        raise MissingDependencyError(f"compiling needs triton: {error}. Run: pip install triton"
                                     ) from error
    try:
        function = getattr(importlib.import_module(launch.module), launch.function)
        if launch.gluon:
            from triton.experimental.gluon._runtime import GluonASTSource as Source
        else:
            from triton.compiler import ASTSource as Source
    except ImportError as error:
        if launch.gluon:
            gluon_support.refuse(str(error))
        raise CompileError(f"{launch.symbol}: {launch.module} cannot be imported with Triton "
                           f"{triton_version()}: {error}") from error
    if not hasattr(type(function), "cache_key"):  # the interpreter's functions are not cached
        raise CompileError("the kernels were loaded for Triton's interpreter; compiling needs a "
                           "process without TRITON_INTERPRET=1")
    parse_once(launch.module.rpartition(".")[0])
    signature, attributes = _signature(launch, function.arg_names)
    constants = dict(launch.all_constants())
    source = _keyed(Source)(function, signature, constexprs={
        (function.arg_names.index(name),): value for name, value in constants.items()},
        attrs=attributes)
    options: dict[str, object] = {"num_warps": launch.num_warps, "num_stages": launch.num_stages,
                                  "num_ctas": launch.num_ctas}
    of_the_user = settings.compiler_environment()
    # By default Triton computes for each sum and product of integers whether it overflows, and then
    # drops the result, which is asserted in debug mode alone: a tenth of the front end's time.
    if "TRITON_DEBUG" not in of_the_user:
        options["sanitize_overflow"] = False
    # Triton 3.9 warns where this is not said, since its default will change. Only the environment
    # is looked at, as in the store's keys.
    if "TRITON_DEFAULT_FP_FUSION" not in of_the_user:
        options["enable_fp_fusion"] = True
    if launch.maxnreg is not None:
        options["maxnreg"] = launch.maxnreg
    try:
        kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        if not _whole(kernel):  # Triton's own cache has no check of what it holds
            with triton.knobs.compilation.scope():
                triton.knobs.compilation.always_compile = True
                kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32),
                                        options=options)
    except Exception as error:  # Triton raises kinds of its own, MLIR's and the assembler's
        raise CompileError(f"{launch.symbol} for sm_{arch}: {_reason(error)}") from error
    metadata = kernel.metadata
    if metadata.global_scratch_size:
        raise CompileError(f"{launch.symbol} asks for {metadata.global_scratch_size} bytes of "
                           "Triton's global scratch a program, which the launcher does not give")
    within = min(shared_offsets(kernel.asm["ptx"]), default=launch.first_shared)
    if within < launch.first_shared:
        raise CompileError(f"{launch.symbol}: something lies at byte {within} of shared memory, "
                           f"of which {launch.first_shared} bytes from the first are kept")
    cubin = kernel.asm["cubin"]
    registers, spills = _resources(cubin)
    return Binary(metadata.name, cubin, metadata.num_warps, metadata.num_ctas, metadata.shared,
                  registers, spills, tuple(getattr(metadata, "tensordesc_meta", None) or ()),
                  _parameters(kernel.asm["ptx"]))


def _whole(kernel: Any) -> bool:
    """Whether what Triton returns can be loaded: the cubin whole, its PTX there."""
    return store.whole_cubin(kernel.asm["cubin"]) and ".entry" in kernel.asm["ptx"]


def _keyed(kind: type) -> type:
    """Triton's source class, known to Triton's cache by all device code: by itself that looks at
    the functions a kernel calls, but not at a class of constants such as ``Constants``."""
    class Keyed(kind):  # type: ignore[misc]
        def hash(self) -> str:
            return hashlib.sha256(f"{super().hash()}-{device_code_digest()}".encode()).hexdigest()

    return Keyed


def _signature(launch: Launch, names: list[str]) -> tuple[dict[str, str], dict]:
    by_name = {x.name: x for x in launch.arguments}
    signature, attributes = {}, {}
    for index, name in enumerate(names):
        x = by_name.get(name)
        if x is None or (isinstance(x, Scalar) and x.folded):
            signature[name] = "constexpr"
            continue
        divisor = 1
        if isinstance(x, Pointer):
            signature[name], divisor = "*" + format_of(x.dtype).triton_name, x.align
        elif isinstance(x, Descriptor):
            signature[name] = descriptor_type(x, _shared_layout(x) if x.gluon else "")
        elif isinstance(x, Number):
            signature[name] = "fp32"
        else:
            signature[name], divisor = x.type, x.divisor
        if divisor > 1:
            attributes[(index,)] = [["tt.divisibility", divisor]]
    return signature, attributes


def _shared_layout(x: Descriptor) -> str:
    """The constructor call of the shared layout that a box has by default, as Gluon's types
    spell it."""
    from triton.experimental.gluon import language as gl

    element = getattr(gl, format_of(x.dtype).torch_name)
    return repr(gl.NVMMASharedLayout.get_default_for(list(x.box), element))


def _reason(error: BaseException) -> str:
    """What the compiler says. Triton shows the source first, level by level of calls, and the
    innermost error says why: that comes first here."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    said = getattr(root, "error_message", None) or (str(root) if root is not error else None)
    shown = _first_lines(str(error))
    return f"{type(root).__name__}: {f'{said} | {shown}' if said else shown}"


def _first_lines(text: str, limit: int = 600) -> str:
    text = " | ".join(line.strip() for line in text.splitlines() if line.strip())
    return text if len(text) <= limit else text[:limit] + " ..."


_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(b|u|s|f)(\d+)\s+[^,)]*?"
                        r"_param_\d+(?:\[(\d+)\])?\s*[,)]")


def _parameters(ptx: str) -> tuple[tuple[int, int], ...]:
    """(bytes, alignment) of the entry point's parameters, from the PTX."""
    head = ptx[ptx.index(".entry"):]
    head = head[:head.index("{")].replace("\n", " ") + ","
    found = []
    for align, _, bits, count in _PARAMETER.findall(head):
        size = int(bits) // 8 * int(count or 1)
        found.append((size, int(align or size)))
    return tuple(found)


def shared_offsets(ptx: str) -> list[int]:
    """The places in shared memory that the compiler's code names as constants; not those that are
    added to what ``device.hopper.shared_address`` takes, which is spelt differently."""
    found = [int(x) for x in re.findall(r"global_smem\+(\d+)", ptx)]
    for base in set(re.findall(r"mov\.[bu]32\s+(%r\d+), global_smem;", ptx)):
        found += [int(x) for x in re.findall(rf"add\.s32\s+%r\d+, {base}, (\d+);", ptx)]
    return found


def disassembler(name: str) -> Path | None:
    """``cuobjdump`` or ``nvdisasm`` of Triton's package, where it brings them."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return path if path.exists() else None


def _resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers a thread, and 32-bit words a thread in local memory."""
    tool = disassembler("cuobjdump")
    if tool is None:
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True,
                              check=False)
    registers = re.findall(r"REG:(\d+)", done.stdout)
    stack = re.findall(r"STACK:(\d+)", done.stdout)
    if not registers or not stack:
        return None, None
    return max(map(int, registers)), max(map(int, stack)) // 4

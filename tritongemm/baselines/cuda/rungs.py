"""The 19 CUDA rungs as data: parameters, limits, and what one launch looks like. Needs no GPU.

The kernels are in the ``.cu`` files beside this one; idea, lesson and figures of each rung are in
``tritongemm.ladder.catalog``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tritongemm.baselines.cuda import source_path
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import ConfigError, ConstraintError, UsageError
from tritongemm.problem import MAX_EXTENT, GemmProblem

MAX_THREADS = 1024
MAX_REGISTERS = 255
#: ``__shared__`` arrays; only ``extern __shared__`` memory can be opted into beyond this, bytes.
STATIC_SHARED_BYTES = 48 * 1024
#: Blocks along a grid's y (CUDA C++ Programming Guide, technical specifications).
MAX_GRID_Y = 65535
#: The largest extent: loop counters step past it by at most one tile.
MAX_SIZE = MAX_EXTENT - 1024
#: The largest offset that 32 bits hold, in floats.
MAX_OFFSET = 2**32 - 1
#: Floats that the columns of a transposed tile of A are padded by (PAD in the .cu files).
_PAD = 4

MACROS = {"block_m": "BM", "block_n": "BN", "block_k": "BK", "thread_m": "TM", "thread_n": "TN",
          "warp_m": "WM", "warp_n": "WN", "num_stages": "STAGES", "group_m": "GROUP_M"}


@dataclass(frozen=True)
class CudaRung:
    """One rung: how a :class:`KernelConfig` becomes macros, a block, a grid and shared memory.

    Attributes:
        number: its place, 1 to 19.
        name: also of its ``.cu`` file.
        variants: the shipped configurations, the first is the default.
        axes: fields of the config that it reads; the others are ignored.
        block: config -> (x, y) threads.
        shared: config -> bytes of static shared memory.
        dynamic: (config, k) -> bytes of dynamic shared memory.
        loads: (config, floats a load) -> (what, elements, threads) that must divide evenly.
        short_offsets: it adds 32-bit offsets to the corner of a tile of A or B.
        entry: the kernel's name, where it is not the rung's.
        square: one TILE macro stands for block_m = block_n = block_k.
        padded: config -> whether the operands are padded to the tile by copies first.
        vector: the operands whose alignment the ALIGNED macro speaks for; "" if it has none.
        swap_grid: blocks of rows run along the grid's x.
        linear_grid: one-dimensional grid.
        warps: it has warp tiles.
        min_arch: the first architecture that has its instructions.
    """

    number: int
    name: str
    variants: tuple[KernelConfig, ...]
    axes: tuple[str, ...]
    block: Callable[[KernelConfig], tuple[int, int]]
    shared: Callable[[KernelConfig], int]
    dynamic: Callable[[KernelConfig, int], int] = lambda config, k: 0
    loads: Callable[[KernelConfig, int], Iterator[tuple[str, int, int]]] = lambda c, v: iter(())
    short_offsets: bool = False
    entry: str = ""
    square: bool = False
    padded: Callable[[KernelConfig], bool] = lambda config: False
    vector: str = ""
    swap_grid: bool = False
    linear_grid: bool = False
    warps: bool = False
    min_arch: int = 75

    @property
    def source(self) -> Path:
        """Its ``.cu`` file."""
        return source_path(self.name)

    @property
    def symbol(self) -> str:
        """The kernel's name in the file."""
        return self.entry or self.name

    def threads(self, config: KernelConfig) -> int:
        """Threads a block."""
        x, y = self.block(config)
        return x * y

    def config(self, **axes: int) -> KernelConfig:
        """The default configuration with some axes changed; ``num_warps`` follows.

        Raises:
            ConfigError: an axis that this rung does not have.
        """
        unknown = set(axes) - set(self.axes)
        if unknown:
            raise ConfigError(f"{self.name} has no parameter {', '.join(sorted(unknown))}; "
                              f"it has {', '.join(self.axes)}")
        return self.canonical(replace(self.variants[0], **axes))

    def canonical(self, config: KernelConfig) -> KernelConfig:
        """``config`` with the fields that the rung does not read set to what they are in it."""
        if config.kernel != self.name:
            raise ConfigError(f"config of {config.kernel} given to rung {self.name}")
        base = self.variants[0]
        fields = {axis: getattr(config, axis) for axis in self.axes}
        if self.square:
            fields.update(block_m=config.block_m, block_n=config.block_n, block_k=config.block_k)
        made = replace(base, **fields)
        try:
            warps = -(-self.threads(made) // 32)
        except ZeroDivisionError:
            warps = 1  # violation() names the zero
        return replace(made, num_warps=max(warps, 1))

    def macros(self, config: KernelConfig, aligned: bool = True) -> dict[str, int]:
        """What the kernel is compiled with."""
        if self.square:
            return {"TILE": config.block_m}
        macros = {MACROS[axis]: getattr(config, axis) for axis in self.axes}
        if self.name == "outer_product":
            macros["PADDED"] = int(self.padded(config))
        if self.vector:
            macros["ALIGNED"] = int(aligned)
        return macros

    def grid(self, config: KernelConfig, m: int, n: int) -> tuple[int, int]:
        """Blocks along x and y."""
        rows, columns = -(-m // config.block_m), -(-n // config.block_n)
        if self.linear_grid:
            return rows * columns, 1
        return (rows, columns) if self.swap_grid else (columns, rows)


def _c(name: str, bm: int, bn: int, bk: int, **more: int) -> KernelConfig:
    return KernelConfig(name, bm, bn, bk, **{"num_stages": 1, "group_m": 1, **more})


def _element_block(c: KernelConfig) -> tuple[int, int]:
    return c.block_n, c.block_m


def _tile_block(c: KernelConfig) -> tuple[int, int]:
    return c.block_n // c.thread_n, c.block_m // c.thread_m


def _flat_tile_block(c: KernelConfig) -> tuple[int, int]:
    x, y = _tile_block(c)
    return x * y, 1


def _warp_block(c: KernelConfig) -> tuple[int, int]:
    return 32 * (c.block_m // c.warp_m) * (c.block_n // c.warp_n), 1


def _tiles(c: KernelConfig, pad_m: int = 0, pad_k: int = 0, buffers: int = 1) -> int:
    """Bytes of a tile of A and one of B; A's rows padded by pad_k, or its columns by pad_m."""
    a = c.block_m * (c.block_k + pad_k) if pad_k else c.block_k * (c.block_m + pad_m)
    return 4 * buffers * (a + c.block_k * c.block_n)


def _even(width: int) -> Callable[[KernelConfig, int], Iterator[tuple[str, int, int]]]:
    """Loads of ``width`` floats that every thread makes the same number of."""
    def loads(c: KernelConfig, threads: int) -> Iterator[tuple[str, int, int]]:
        yield "a tile of A", c.block_m * c.block_k, threads * width
        yield "a tile of B", c.block_k * c.block_n, threads * width
    return loads


def _async_loads(c: KernelConfig, threads: int) -> Iterator[tuple[str, int, int]]:
    yield "BK in groups of 8 lanes", c.block_k, 8
    yield "the rows of A in rounds of threads / 8", c.block_m, threads // 8
    yield "the threads over a row of B", threads, c.block_n
    yield "the rows of B in rounds of 4 threads / BN", c.block_k, 4 * threads // c.block_n


_TILE = ("block_m", "block_n", "block_k")
_THREAD = (*_TILE, "thread_m", "thread_n")
_WARP = (*_THREAD, "warp_m", "warp_n")
_8x8 = {"thread_m": 8, "thread_n": 8}


def _rungs() -> Iterator[CudaRung]:
    yield CudaRung(1, "naive", (_c("naive", 32, 32, 1), _c("naive", 16, 16, 1)),
                   ("block_m", "block_n"), lambda c: (c.block_m, c.block_n), lambda c: 0,
                   swap_grid=True)
    yield CudaRung(2, "coalesced", (_c("coalesced", 32, 32, 1), _c("coalesced", 16, 16, 1)),
                   ("block_m", "block_n"), _element_block, lambda c: 0)
    yield CudaRung(3, "smem_strip", (_c("smem_strip", 16, 16, 1),), ("block_m", "block_n"),
                   _element_block, lambda c: 0,
                   dynamic=lambda c, k: 4 * (c.block_m + c.block_n) * k)
    for number, name in ((4, "smem_tiled"), (5, "smem_tiled_unrolled")):
        yield CudaRung(number, name, (_c(name, 32, 32, 32), _c(name, 16, 16, 16)), ("block_m",),
                       _element_block, _tiles, square=True)
    yield CudaRung(6, "thread_tile_1d", (_c("thread_tile_1d", 64, 64, 8, thread_m=8),),
                   (*_TILE, "thread_m"), lambda c: (c.block_m * c.block_n // c.thread_m, 1),
                   _tiles, loads=_even(1))
    half = {"block": lambda c: (c.block_n // 2, c.block_m // 2), "shared": _tiles, "square": True}
    yield CudaRung(7, "strided_2x2",
                   (_c("strided_2x2", 64, 64, 64), _c("strided_2x2", 32, 32, 32)), ("block_m",),
                   **half)
    yield CudaRung(8, "padded", (_c("padded", 64, 64, 64), _c("padded", 32, 32, 32)),
                   ("block_m",), **half, padded=lambda c: True)
    yield CudaRung(9, "column_8", (_c("column_8", 32, 32, 32),), ("block_m",),
                   lambda c: (c.block_n, c.block_m // 8), _tiles, square=True,
                   padded=lambda c: True)
    yield CudaRung(10, "float4", (_c("float4", 32, 32, 32),), _TILE,
                   lambda c: (c.block_n // 4, c.block_m), _tiles, loads=_even(4),
                   entry="float4_loads", vector="ab")
    yield CudaRung(11, "outer_product",
                   (_c("outer_product", 64, 64, 16, thread_m=4, thread_n=8),
                    _c("outer_product", 16, 16, 16, thread_m=2, thread_n=2)), _THREAD,
                   _tile_block, lambda c: _tiles(c, pad_k=1), loads=_even(1),
                   padded=lambda c: c.thread_m * c.thread_n > 4)
    yield CudaRung(12, "thread_tile_2d", (_c("thread_tile_2d", 128, 128, 8, **_8x8),), _THREAD,
                   _flat_tile_block, _tiles, loads=_even(1))
    yield CudaRung(13, "outer_product_float4",
                   (_c("outer_product_float4", 64, 64, 64, thread_m=4, thread_n=4),),
                   (*_TILE, "thread_m", "thread_n"), _tile_block, _tiles, loads=_even(4),
                   vector="abc")
    yield CudaRung(14, "ldg_vectorized",
                   (_c("ldg_vectorized", 64, 64, 16, thread_m=4, thread_n=8),), _THREAD,
                   _tile_block, lambda c: _tiles(c, pad_k=1), loads=_even(4),
                   padded=lambda c: True)
    yield CudaRung(15, "transposed_a",
                   (_c("transposed_a", 128, 128, 8, **_8x8),
                    _c("transposed_a", 64, 64, 64, thread_m=4, thread_n=4)), _THREAD,
                   _flat_tile_block, lambda c: _tiles(c, _PAD), loads=_even(4), vector="abc")
    for number, name in ((16, "double_buffered_smem"), (17, "double_buffered")):
        yield CudaRung(number, name, (_c(name, 128, 128, 8, num_stages=2, **_8x8),), _THREAD,
                       _flat_tile_block, lambda c: _tiles(c, _PAD, buffers=2), loads=_even(4),
                       vector="abc")
    yield CudaRung(18, "warp_tiled",
                   (_c("warp_tiled", 128, 128, 8, thread_m=8, thread_n=16, warp_m=64, warp_n=64,
                       num_stages=2),), _WARP, _warp_block,
                   lambda c: _tiles(c, _PAD, buffers=2), loads=_even(4), vector="abc", warps=True)
    yield CudaRung(19, "warp_tiled_async",
                   tuple(_c("warp_tiled_async", bm, bn, bk, thread_m=tm, thread_n=tn, warp_m=wm,
                            warp_n=wn, num_stages=stages, group_m=8)
                         for bm, bn, bk, tm, tn, wm, wn, stages in (
                             (64, 128, 16, 8, 8, 32, 64, 3),
                             (64, 64, 16, 8, 8, 32, 64, 3))),
                   (*_WARP, "num_stages", "group_m"), _warp_block, lambda c: 0,
                   dynamic=lambda c, k: _tiles(c, _PAD, buffers=c.num_stages),
                   loads=_async_loads, short_offsets=True, vector="bc", linear_grid=True,
                   warps=True, min_arch=80)


def _finished(rung: CudaRung) -> CudaRung:
    return replace(rung, variants=tuple(rung.canonical(v) for v in rung.variants))


#: Every CUDA rung by name, in the ladder's order.
CUDA_RUNGS: dict[str, CudaRung] = {r.name: _finished(r) for r in _rungs()}


def rung_named(name: str) -> CudaRung:
    """The rung ``name``. Raises :class:`UsageError` listing the known ones."""
    try:
        return CUDA_RUNGS[name]
    except (KeyError, TypeError):
        raise UsageError(f"no CUDA rung is named {name!r}; the rungs are "
                         f"{', '.join(CUDA_RUNGS)}") from None


def config_violation(config: KernelConfig, device: DeviceSpec) -> str | None:
    """Why rung ``config.kernel`` cannot have these parameters on ``device``; None if it can."""
    rung = rung_named(config.kernel)
    if device.arch < rung.min_arch:
        return f"{rung.name} needs sm_{rung.min_arch} (cp.async); {device.name} is {device.sm}"
    shown = " ".join(f"{axis}={getattr(config, axis)}" for axis in rung.axes)
    for reason in _reasons(rung, config, device):
        return f"{rung.name} with {shown}: {reason}"
    return None


def _reasons(rung: CudaRung, c: KernelConfig, device: DeviceSpec) -> Iterator[str]:
    for axis in rung.axes:
        if getattr(c, axis) < 1:
            yield f"{axis} must be at least 1"
            return
    if rung.square:
        if not c.block_m == c.block_n == c.block_k:
            yield (f"the tile is square: block_m={c.block_m}, block_n={c.block_n}, "
                   f"block_k={c.block_k} must be equal")
            return
        unit = {"column_8": 8, "smem_tiled_unrolled": 4, "strided_2x2": 2, "padded": 2}.get(
            rung.name, 1)
        if c.block_m % unit:
            yield f"block_m={c.block_m} is not a multiple of {unit}"
            return
    for tile, part in (("block_m", "warp_m"), ("block_n", "warp_n"), ("warp_m", "thread_m"),
                       ("warp_n", "thread_n"), ("block_m", "thread_m"), ("block_n", "thread_n")):
        if tile in (*rung.axes, "block_n") and part in rung.axes \
                and getattr(c, tile) % getattr(c, part):
            yield f"{tile}={getattr(c, tile)} is not divisible by {part}={getattr(c, part)}"
            return
    if rung.name in ("transposed_a", "double_buffered_smem", "double_buffered") or rung.warps:
        for axis in ("thread_m", "thread_n"):
            if getattr(c, axis) % 4:
                yield f"{axis}={getattr(c, axis)} is not a multiple of 4 (128-bit fragments)"
                return
    if rung.name == "outer_product_float4" and c.thread_n != 4:
        yield f"thread_n={c.thread_n} must be 4, one float4 of B"
        return
    if rung.vector or rung.name == "ldg_vectorized":
        for axis in ("block_m", "block_n", "block_k"):
            if getattr(c, axis) % 4:
                yield f"{axis}={getattr(c, axis)} is not a multiple of 4 (128-bit loads)"
                return
    if rung.warps:
        lanes = (c.warp_m // c.thread_m, c.warp_n // c.thread_n)
        if lanes not in ((8, 4), (4, 8)):
            yield (f"{lanes[0]} x {lanes[1]} lanes a warp; warp_m / thread_m by warp_n / thread_n "
                   "must be 8 x 4 or 4 x 8")
            return
    if "num_stages" in rung.axes and c.num_stages < 2:
        yield f"num_stages={c.num_stages}; a pipeline needs at least 2"
        return
    yield from _resource_reasons(rung, c, device)


def _resource_reasons(rung: CudaRung, c: KernelConfig, device: DeviceSpec) -> Iterator[str]:
    threads = rung.threads(c)
    if not 1 <= threads <= MAX_THREADS:
        yield f"{threads} threads a block; at most {MAX_THREADS} are possible"
        return
    for what, elements, share in rung.loads(c, threads):
        if share < 1 or elements % share:
            yield f"{what}, {elements}, does not divide evenly by {share} ({threads} threads)"
            return
    results = c.thread_m * c.thread_n if "thread_n" in rung.axes else max(c.thread_m, 1)
    fragments = c.thread_m + c.thread_n if "thread_n" in rung.axes else 1
    least = results + fragments
    if least > MAX_REGISTERS:
        yield (f"{results} results and {fragments} operands a thread need more than "
               f"{MAX_REGISTERS} registers; use smaller thread_m or thread_n")
    if least * threads > device.registers_per_sm:
        yield (f"{threads} threads of at least {least} registers need more than the "
               f"{device.registers_per_sm} of an SM; use a smaller block tile or thread tile")
    static = rung.shared(c)
    if static > STATIC_SHARED_BYTES:
        yield (f"its tiles need {static} bytes of static shared memory; {STATIC_SHARED_BYTES} are "
               "possible. Use smaller tiles")
    dynamic = rung.dynamic(c, 1)
    if dynamic > device.shared_bytes_per_block:
        yield (f"its buffers need {dynamic} bytes of shared memory; {device.sm} allows "
               f"{device.shared_bytes_per_block}. Use fewer stages or smaller tiles")


def violation(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str | None:
    """Why the rung cannot run ``problem`` with ``config`` on ``device``; None if it can."""
    rung = rung_named(config.kernel)
    if {problem.dtype_a, problem.dtype_b, problem.dtype_out} != {"fp32"}:
        return (f"{rung.name} computes in fp32 only, not {problem.dtype_a} x {problem.dtype_b} -> "
                f"{problem.dtype_out}")
    if (problem.precision != "ieee" or problem.batch != 1 or problem.epilogue != "none"
            or not problem.plain):
        return f"{rung.name} computes one IEEE fp32 product without an epilogue, not {problem}"
    if problem.layout != "nn":
        return f"{rung.name} takes row-major operands (layout nn), not {problem.layout}"
    reason = config_violation(config, device)
    if reason is not None:
        return reason
    for axis in ("m", "n", "k"):
        if getattr(problem, axis) > MAX_SIZE:
            return f"{rung.name}: {axis}={getattr(problem, axis)} is above {MAX_SIZE}"
    if rung.short_offsets:
        for matrix, axis, rows, step in (("A", "block_m", min(config.block_m, problem.m), "k"),
                                         ("B", "block_k", min(config.block_k, problem.k), "n")):
            length = getattr(problem, step)
            if (rows - 1) * length > MAX_OFFSET:
                return (f"{rung.name}: a tile of {rows} rows of {matrix} with {step}={length} "
                        f"spans more than the {MAX_OFFSET} floats of a 32-bit offset; use "
                        f"{axis} <= {MAX_OFFSET // length + 1}")
    shared = rung.dynamic(config, problem.k)
    if shared > device.shared_bytes_per_block:
        fits = device.shared_bytes_per_block // max(rung.dynamic(config, 1), 1)
        return (f"{rung.name}: k={problem.k} needs strips of {shared} bytes of shared memory; "
                f"{device.sm} allows {device.shared_bytes_per_block}, so k <= {fits}")
    x, y = rung.grid(config, problem.m, problem.n)
    if y > MAX_GRID_Y or x > MAX_EXTENT:
        return (f"{rung.name}: {problem.m} x {problem.n} needs a grid of {x} x {y} blocks; "
                f"{MAX_EXTENT} x {MAX_GRID_Y} are possible")
    return None


def require(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> CudaRung:
    """The rung of ``config``. Raises :class:`ConstraintError` with :func:`violation`'s reason."""
    reason = violation(problem, config, device)
    if reason is not None:
        raise ConstraintError(reason)
    return CUDA_RUNGS[config.kernel]

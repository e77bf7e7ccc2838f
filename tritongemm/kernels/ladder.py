"""The ladder's Triton rungs: each a spec of its own, launched and compiled as any kernel.

Most are a production kernel held to what the rung teaches: no grouped order, no word about
alignment, one stage. ``tritongemm.matmul`` runs none of them, so they are not in ``SPECS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import tiled
from tritongemm.kernels.epilogue import NONE_OF_ALL
from tritongemm.kernels.launch import (
    ONE_STRIDE,
    Geometry,
    Launch,
    Pointer,
    Scalar,
    elements_of_line,
)
from tritongemm.kernels.persistent_tma import PERSISTENT_TMA
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.symbol import symbol_of
from tritongemm.kernels.takes import Takes
from tritongemm.kernels.warp_specialized import WARP_SPECIALIZED
from tritongemm.problem import GemmProblem

_DEVICE = "tritongemm.kernels.device"
_TAKES = Takes(("bf16", "fp16", "fp32"), ("native", "ieee", "tf32"))
#: Parameters that a pointer kernel of the ladder does not have.
_UNUSED = ("epilogue_subtile", "pingpong", "swap_ab", "pad_operands", *rules.CLUSTERS,
           *rules.CUDA_TILES)
#: The naive rung writes out every product of a step; more of them spill.
_MOST_PRODUCTS = 8192


def _without_hints(problem: GemmProblem) -> GemmProblem:
    """The same problem with nothing said about alignment: loads take one element each."""
    return replace(problem, **{f"align_{name}": getattr(problem, name).format.itemsize
                               for name in "abc"})


def _plain(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
           geometry: Geometry) -> tuple[Launch, ...]:
    """The tiled kernel, told nothing that would let it vectorise."""
    launches = tiled.launches(_without_hints(problem), config, device, geometry)
    return tuple(replace(launch, constants=_with(launch, EVEN_K=False))
                 if launch.function == "tiled" else launch for launch in launches)


def _with(launch: Launch, **values: object) -> tuple[tuple[str, object], ...]:
    return tuple((name, values.get(name, value)) for name, value in launch.constants)


def _looping(function: str, module: str, problem: GemmProblem, config: KernelConfig,
             device: DeviceSpec, geometry: Geometry, *, leave: tuple[str, ...] = ()) -> Launch:
    """The tiled kernel's launch, said to another function: the arguments of an edge, a batch and
    a split are left out, and so are the constants in ``leave``."""
    base = tiled.launches(problem, replace(config, split_k=1), device, geometry)[0]
    dropped = {"mask_m", "mask_n", "stride_ab", "stride_bb", "stride_cb", "stride_cs"}
    leave = (*leave, "SPLIT_K", *(name for name, _ in (*ONE_STRIDE, *NONE_OF_ALL)))
    return replace(
        base, module=f"{_DEVICE}.{module}", function=function, dependent=False, release=0,
        arguments=tuple(x for x in base.arguments if x.name not in dropped),
        constants=tuple(c for c in base.constants if c[0] not in leave),
        symbol=symbol_of(problem, config))


def _naive(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
           geometry: Geometry) -> tuple[Launch, ...]:
    launch = _looping("naive", "ladder_naive", _without_hints(problem), config, device, geometry,
                      leave=("VEC_M", "VEC_N", "GROUP_M", "EVEN_K", "PRECISION", "INTERPRETED"))
    grid = (-(-problem.m // config.block_m), -(-problem.n // config.block_n), 1)
    return (replace(launch, grid=grid),)


def _persistent(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                geometry: Geometry) -> tuple[Launch, ...]:
    launch = _looping("persistent", "ladder_persistent", problem, config, device, geometry)
    return (replace(launch, grid=(min(device.num_sms, launch.grid[0]), 1, 1)),)


def _stream_k(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
              geometry: Geometry) -> tuple[Launch, ...]:
    """The shares, and the fix-up of the tiles that they cut."""
    launch = _looping("stream_k", "ladder_stream_k", problem, config, device, geometry)
    tiles = launch.grid[0]
    total = tiles * max(1, -(-problem.k // config.block_k))
    share = -(-total // min(device.num_sms, total))
    programs = -(-total // share)
    partials = Pointer("partials", "scratch", "fp32", 16)
    a, b, c, *sizes = launch.arguments
    product = replace(
        launch, grid=(programs, 1, 1), arguments=(a, b, c, partials, *sizes,
                                                  Scalar("share", share)),
        scratch_bytes=4 * programs * 2 * config.block_m * config.block_n)
    kept = {"M", "N", "K", "stride_cm", "stride_cn"}
    fix_up = replace(
        launch, function="fix_up", grid=(tiles, 1, 1), num_stages=1,
        arguments=(partials, c, *(x for x in sizes if x.name in kept), Scalar("share", share)),
        constants=tuple(x for x in launch.constants if x[0] in
                        {"BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "INDEX64"}),
        symbol=f"{launch.symbol}_fix_up")
    return product, fix_up


def _empty(problem, config, device):
    if min(problem.m, problem.n) == 0:
        return "an empty result: there is nothing to launch"
    return None


def _has_k(problem, config, device):
    return "K is 0: there are no steps to share out" if problem.k == 0 else None


def _products(problem, config, device):
    if config.block_m * config.block_n * config.block_k > _MOST_PRODUCTS:
        return (f"{config.block_m}x{config.block_n}x{config.block_k} writes out "
                f"{config.block_m * config.block_n * config.block_k} products a step; at most "
                f"{_MOST_PRODUCTS}. Use a smaller tile")
    tiles_n = -(-problem.n // max(config.block_n, 1))
    return f"{tiles_n} tiles along N; a grid's y has at most 65535" if tiles_n > 65535 else None


def _constraints(shared: Callable[[GemmProblem, KernelConfig], int],
                 *more: rules.Constraint, split: bool = False,
                 dot: bool = True) -> tuple[rules.Constraint, ...]:
    """A pointer kernel's rules. No tile is too large for a problem here: a rung runs any."""
    unused = _UNUSED if split else (*_UNUSED, "split_k")
    return (rules.no_epilogue, rules.min_arch(80),
            rules.not_batched, rules.Constraint("empty", _empty, of_problem=True),
            rules.unused(*unused), rules.powers_of_two, *((rules.dot_shape,) if dot else ()),
            rules.accumulator, rules.fma_tile, *((rules.split_k,) if split else ()), *more,
            rules.grid, rules.shared_memory(shared))


def _fp32_parts(problem: GemmProblem, config: KernelConfig) -> int:
    """Shared memory where a tile may leave as float32."""
    return tiled.shared_bytes(problem, replace(config, split_k=2))


def _small(name: str, **more: int) -> Callable[[GemmProblem, DeviceSpec], KernelConfig]:
    """A 64x64 tile on 4 warps; K steps of 64 bytes a row."""
    def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
        return KernelConfig(name, 64, 64, elements_of_line(problem) // 2,
                            **{"num_warps": 4, "num_stages": 1, "group_m": 8, **more})
    return default


def _large(name: str, **more: int) -> Callable[[GemmProblem, DeviceSpec], KernelConfig]:
    """A 128x128 tile on 8 warps, pipelined. On CUDA cores (fp32 at ieee) a step of K is 16."""
    def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
        fma = rules.on_cuda_cores(problem)
        block_k = 16 if fma else elements_of_line(problem)
        return KernelConfig(name, 128, 128, block_k, **{"num_warps": 8, "num_stages": 3,
                                                        "group_m": 8, **more})
    return default


def _split_default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """Two parts, where K has two steps."""
    config = _large("triton_split_k")(problem, device)
    return replace(config, split_k=2 if problem.k > config.block_k else 1)


def _pointer(name: str, idea: str, default, launches=tiled.launches, *, split: bool = False
             ) -> KernelSpec:
    return KernelSpec(name, idea, (80, 89, 90, 100),
                      _constraints(tiled.shared_bytes, split=split), tiled.shared_bytes, launches,
                      default, tiled.footprint, takes=_TAKES)


def _renamed(name: str, idea: str, base: KernelSpec) -> KernelSpec:
    """A production kernel as it is, but for the epilogue, under the rung's name."""
    return replace(base, name=name, idea=idea, constraints=(rules.no_epilogue, *base.constraints),
                   default=lambda problem, device: replace(base.default(problem, device),
                                                           kernel=name))


def _no_shared(problem: GemmProblem, config: KernelConfig) -> int:
    """The sums over lanes go through shared memory: a tile of them a warp at the most."""
    return 4 * config.block_m * config.block_n * config.num_warps + 1024


_NAIVE = KernelSpec(
    "triton_naive", "one small tile a program, products written out and summed, no tl.dot",
    (80, 89, 90, 100),
    _constraints(_no_shared, rules.Constraint("products", _products), dot=False), _no_shared,
    _naive, lambda problem, device: KernelConfig("triton_naive", 16, 16, 16, num_warps=4,
                                                 num_stages=1, group_m=1), tiled.footprint,
    takes=_TAKES)
_STREAM_K = KernelSpec(
    "triton_stream_k", "the steps of all tiles in equal shares, cut tiles mended by a second pass",
    (80, 89, 90, 100),
    _constraints(_fp32_parts, rules.Constraint("steps", _has_k, of_problem=True)), _fp32_parts,
    _stream_k, _large("triton_stream_k"), tiled.footprint, takes=_TAKES)

#: The Triton rungs by name, in the ladder's order.
RUNG_SPECS: dict[str, KernelSpec] = {spec.name: spec for spec in (
    _NAIVE,
    _pointer("triton_tiled", "a tile a program and tl.dot; the compiler is told nothing more",
             _small("triton_tiled", group_m=1), _plain),
    _pointer("triton_grouped", "the same, with tiles in an order that the L2 likes",
             _small("triton_grouped"), _plain),
    _pointer("triton_vectorized", "the same, with alignment and even K said: 128-bit loads",
             _small("triton_vectorized")),
    _pointer("triton_pipelined", "the same, with loads some steps ahead of the product",
             _small("triton_pipelined", num_stages=3)),
    _pointer("triton_warp_tiled", "a larger tile shared by more warps",
             _large("triton_warp_tiled")),
    _pointer("triton_split_k", "K cut into parts, added in a fixed order by a second pass",
             _split_default, split=True),
    _STREAM_K,
    _pointer("triton_persistent", "one program an SM walks over the tiles",
             _large("triton_persistent"), _persistent),
    _renamed("triton_tma", "the same, with tiles moved by TMA", PERSISTENT_TMA),
    _renamed("gluon_warp_specialized", "a producer warp copies, consumer warpgroups multiply",
             WARP_SPECIALIZED),
)}

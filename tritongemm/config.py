"""One configuration of one kernel: :class:`KernelConfig`, its id and its JSON form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from tritongemm.errors import ConfigError

#: Short forms in ``config_id``, in the order in which they are written.
_CODES = {"num_warps": "w", "num_stages": "s", "group_m": "g", "split_k": "k",
          "epilogue_subtile": "e", "cluster_k": "c", "cluster_m": "m", "cluster_n": "n",
          "pingpong": "p", "swap_ab": "x", "pad_operands": "a", "dependent_launch": "d",
          "thread_m": "tm", "thread_n": "tn", "warp_m": "wm", "warp_n": "wn"}
#: A bound against nonsense and hostile files, far above anything a device can run.
MAX_VALUE = 65536


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """What a sweep may choose for a kernel; everything else is derived from it.

    Attributes:
        kernel: the name of a ``KernelSpec``.
        block_m, block_n, block_k: the tile of C and the step along K, in elements.
        num_warps: warps a program (in a warp-specialised kernel: of all consumers, 4 each).
        num_stages: buffers of the software pipeline.
        group_m: rows of tiles, or of clusters, walked together, for L2 reuse.
        split_k: parts that K is cut into.
        epilogue_subtile: pieces in which the tile is stored.
        cluster_k: programs of one cluster, which share K and add their parts within it.
        cluster_m, cluster_n: programs of one cluster along M and along N. Programs along M each
            load a part of B for all of them, programs along N a part of A.
        pingpong: 1: two consumer groups alternate, each on a tile of its own; 0: they share each
            tile.
        swap_ab: 1: computes the transposed product, so that a small M is the narrow side; 2: the
            same with a transposed store, so that M need not be small.
        pad_operands: 1: operands that TMA cannot read are copied to aligned scratch;
            2: those that it reads slowly too.
        dependent_launch: when the next launch of the stream may start: 0: at this one's end, 1:
            once its last loads are under way, 2: after its last product (sm_90 and later).
        thread_m, thread_n, warp_m, warp_n: register and warp tiles of the CUDA rungs; 0: unused.

    Raises:
        ConfigError: a value that is not an integer, or out of range.
    """

    kernel: str
    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    num_stages: int = 2
    group_m: int = 8
    split_k: int = 1
    epilogue_subtile: int = 1
    cluster_k: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: int = 0
    swap_ab: int = 0
    pad_operands: int = 0
    dependent_launch: int = 1
    thread_m: int = 0
    thread_n: int = 0
    warp_m: int = 0
    warp_n: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, str) or not self.kernel:
            raise ConfigError(f"kernel={self.kernel!r} is not a kernel's name")
        for name, low in _LOWEST:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name}={value!r} is not an integer")
            if not low <= value <= MAX_VALUE:
                raise ConfigError(f"{name}={value} is outside {low} to {MAX_VALUE}")

    @property
    def config_id(self) -> str:
        """A short readable id, e.g. ``tiled_128x128x64_w8_s3_g8``; equal ids are equal configs."""
        parts = [self.kernel, f"{self.block_m}x{self.block_n}x{self.block_k}"]
        for name, code in _CODES.items():
            value = getattr(self, name)
            if name in ("num_warps", "num_stages", "group_m") or value != DEFAULTS[name]:
                parts.append(f"{code}{value}")
        return "_".join(parts)

    @classmethod
    def from_id(cls, kernel: str, config_id: str) -> KernelConfig:
        """The config of a kernel with this ``config_id``. Raises :class:`ConfigError`."""
        codes = {code: name for name, code in _CODES.items()}
        tile, *words = config_id.removeprefix(f"{kernel}_").split("_")
        found = [re.fullmatch(r"([a-z]+)(\d+)", word) for word in words]
        sides = tile.split("x")
        if (not config_id.startswith(f"{kernel}_") or len(sides) != 3
                or not all(x.isdecimal() for x in sides)
                or not all(x is not None and x[1] in codes for x in found)):
            raise ConfigError(f"{config_id!r:.80} is not the id of a config of {kernel!r:.80}, "
                              "such as tiled_128x128x64_w8_s3_g8")
        values = {codes[x[1]]: int(x[2]) for x in found if x is not None}
        config = cls(kernel, *map(int, sides), **values)
        if config.config_id != config_id:
            raise ConfigError(f"{config_id!r:.80} is the id of no config; {config} has its values")
        return config

    def to_json(self) -> dict[str, int]:
        """The parameters without the kernel's name; those at their default are left out."""
        return {f.name: getattr(self, f.name) for f in fields(self)
                if f.name != "kernel" and getattr(self, f.name) != DEFAULTS.get(f.name)}

    @classmethod
    def from_json(cls, kernel: str, values: Mapping[str, object]) -> KernelConfig:
        """The inverse of :meth:`to_json`. Raises :class:`ConfigError` for an unknown name."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"config is a {type(values).__name__}, not an object")
        unknown = set(values).difference(PARAMETERS)
        if unknown:
            raise ConfigError(f"unknown parameter {', '.join(sorted(map(str, unknown)))}; "
                              f"known: {', '.join(sorted(PARAMETERS))}")
        absent = {"block_m", "block_n", "block_k"} - set(values)
        if absent:
            raise ConfigError(f"parameter {', '.join(sorted(absent))} is missing")
        return cls(kernel, **values)  # type: ignore[arg-type]

    @classmethod
    def trusted(cls, kernel: str, values: Iterable[int]) -> KernelConfig:
        """A config of values in the order of :data:`PARAMETERS` that were validated before."""
        made = object.__new__(cls)
        put = object.__setattr__
        put(made, "kernel", kernel)
        for name, value in zip(PARAMETERS, values, strict=True):
            put(made, name, value)
        return made

    def __str__(self) -> str:
        return self.config_id


#: Parameters that may be 0; the others start at 1.
LEAST = {f.name: 0 for f in fields(KernelConfig)
         if f.default == 0 or f.name == "dependent_launch"}
#: Parameter -> its default, for those that have one.
DEFAULTS = {f.name: f.default for f in fields(KernelConfig) if isinstance(f.default, int)}
#: The names a space may use as axes.
PARAMETERS = tuple(f.name for f in fields(KernelConfig) if f.name != "kernel")
#: (parameter, the least it may be): thousands of configs are read before a first call.
_LOWEST = tuple((name, LEAST.get(name, 1)) for name in PARAMETERS)

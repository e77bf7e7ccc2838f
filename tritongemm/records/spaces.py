"""Spaces: the configs that a sweep may try for a kernel, as products of axes.

``configs/spaces/<kernel>.json`` holds either one product of axes::

    {"schema_version": 1, "kernel": "tiled", "axes": {"block_m": [64, 128], ...}}

or the union of several, each of which may be limited to some formats of operands, named as
:attr:`GemmProblem.operands` names them (``bf16``; ``bf16xint4`` where those of A and B differ)::

    {"schema_version": 1, "kernel": "tiled",
     "products": [{"axes": {...}}, {"dtypes": ["fp32"], "axes": {...}}]}

``configs/spaces/ladder/`` holds those of the ladder's rungs. ``matmul`` never runs rungs, and a
sweep uses these spaces only for rungs that are named.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tritongemm import settings
from tritongemm.config import LEAST, MAX_VALUE, PARAMETERS, KernelConfig
from tritongemm.errors import ConfigError, DataFileError, UsageError
from tritongemm.formats import FORMATS
from tritongemm.records.layers import first_usable
from tritongemm.records.reading import Fields, read_json

SCHEMA_VERSION = 1
#: Limit against typing errors and hostile files; no sweep compiles that many.
MAX_CONFIGS = 1_000_000
_NEEDED = ("block_m", "block_n", "block_k")


@dataclass(frozen=True)
class AxisProduct:
    """One product of axes; ``dtypes`` limits it to those formats of operands (None: any)."""

    axes: Mapping[str, tuple[int, ...]]
    dtypes: tuple[str, ...] | None = None

    def count(self) -> int:
        """How many configurations the product has."""
        return math.prod(len(values) for values in self.axes.values())


@dataclass(frozen=True)
class Space:
    """The configurations to try for one kernel: a union of products of axes.

    ``axes`` alone is one product; with ``products`` it is the union of their values by axis.

    Raises:
        ConfigError: an unknown, missing or empty axis, a bad value, or too many configurations.
    """

    kernel: str
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    products: tuple[AxisProduct, ...] = ()

    def __post_init__(self) -> None:
        products = self.products or (AxisProduct(self.axes),)
        products = tuple(AxisProduct(_check_axes(p.axes), p.dtypes) for p in products)
        total = sum(p.count() for p in products)
        if total > MAX_CONFIGS:
            raise ConfigError(f"the space of {self.kernel} has {total} configurations; at most "
                              f"{MAX_CONFIGS} are allowed. Shorten some axes")
        union = {name: tuple(sorted({value for p in products for value in p.axes.get(name, ())}))
                 for name in PARAMETERS if any(name in p.axes for p in products)}
        object.__setattr__(self, "products", products)
        object.__setattr__(self, "axes", union)

    def configs(self, dtype: str | None = None) -> Iterator[KernelConfig]:
        """Every configuration once, in a fixed order; those for operands of ``dtype`` if given."""
        seen: set[KernelConfig] = set()
        for product in self.products:
            if dtype is not None and product.dtypes is not None and dtype not in product.dtypes:
                continue
            names = [name for name in PARAMETERS if name in product.axes]
            for values in itertools.product(*(product.axes[name] for name in names)):
                config = KernelConfig(self.kernel, **dict(zip(names, values, strict=True)))
                if config not in seen:
                    seen.add(config)
                    yield config

    def size(self, dtype: str | None = None) -> int:
        """How many configurations :meth:`configs` yields."""
        return sum(1 for _ in self.configs(dtype))

    @property
    def hash(self) -> str:
        """12 hexadecimal digits of the content, whatever the order of the file's fields."""
        content = [self.kernel, [[p.dtypes and sorted(p.dtypes),
                                  {name: list(values) for name, values in p.axes.items()}]
                                 for p in self.products]]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def combined_hash(spaces: Iterable[Space]) -> str:
    """One hash for all spaces of a sweep: that of a single space, or a hash of their hashes."""
    hashes = sorted({space.hash for space in spaces})
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:12]


def _check_axes(axes: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(axes, Mapping):
        raise ConfigError("axes must be an object of lists")
    for name in axes:
        if name not in PARAMETERS:
            raise ConfigError(f"unknown axis {str(name)[:80]!r}; known: {', '.join(PARAMETERS)}")
    for name in _NEEDED:
        if name not in axes:
            raise ConfigError(f"the axis {name} is missing")
    for name, values in axes.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise ConfigError(f"axis {name} must be a list with at least one value")
        if len(values) > MAX_CONFIGS:
            raise ConfigError(f"axis {name} has {len(values)} values; at most {MAX_CONFIGS}")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"axis {name}: {value!r:.80} is not an integer")
        if len(set(values)) != len(values):
            raise ConfigError(f"axis {name} holds a value twice")
        low = LEAST.get(name, 1)
        if min(values) < low or max(values) > MAX_VALUE:
            raise ConfigError(f"axis {name} has a value outside {low} to {MAX_VALUE}")
    return {name: tuple(axes[name]) for name in PARAMETERS if name in axes}


def read_space(path: str | os.PathLike[str]) -> Space:
    """Reads one space. Raises :class:`DataFileError` naming the file and the field."""
    path = Path(path)
    top = Fields(path, read_json(path), what="space")
    single = "axes" in top.values
    top.only(("schema_version", "kernel", "axes" if single else "products"))
    top.version(SCHEMA_VERSION)
    kernel = top.word("kernel")
    if kernel != path.stem:
        raise top.error("kernel", f"{kernel!r} does not match the file's name; "
                        f"rename the file to {kernel}.json")
    if single:
        products = [_product(path, {"axes": top.values["axes"]}, None)]
    else:
        entries = top.values["products"]
        if not isinstance(entries, list) or not entries:
            raise top.error("products", "must be a list with at least one product")
        products = [_product(path, entry, i) for i, entry in enumerate(entries, 1)]
    try:
        return Space(kernel, products=tuple(products))
    except ConfigError as error:
        raise DataFileError(path, str(error)) from error


def _product(path: Path, entry: object, row: int | None) -> AxisProduct:
    part = Fields(path, entry, row, what="product").only(("axes",), ("dtypes", "note"))
    try:
        axes = _check_axes(part.values["axes"])
    except ConfigError as error:
        raise part.error("axes", str(error)) from error
    if "dtypes" not in part.values:
        return AxisProduct(axes)
    dtypes = part.values["dtypes"]
    if not isinstance(dtypes, list) or not dtypes:
        raise part.error("dtypes", "must be a list with at least one dtype")
    for dtype in dtypes:
        if not isinstance(dtype, str) or not {*dtype.split("x", 1)} <= FORMATS.keys():
            raise part.error("dtypes", f"{dtype!r:.80} is not one of {', '.join(FORMATS)}, or two "
                             "of them joined by x")
    return AxisProduct(axes, tuple(dtypes))


def _space_files(*below: str) -> dict[str, Path]:
    return {name: paths[0] for name, paths in settings.config_files("spaces", *below).items()}


def load_space(kernel: str) -> Space:
    """The space of ``kernel`` in ``configs/spaces``.

    Raises:
        UsageError: there is none; it lists those there are.
        DataFileError: the file is bad.
    """
    files = _space_files()
    if kernel not in files:
        raise UsageError(f"kernel {str(kernel)[:100]!r} has no space; there is one for "
                         f"{', '.join(files) or 'none'}")
    return read_space(files[kernel])


def load_spaces() -> dict[str, Space]:
    """Every space of ``configs/spaces`` by kernel. Raises :class:`DataFileError`."""
    return {kernel: read_space(path) for kernel, path in _space_files().items()}


def usable_spaces() -> dict[str, Space]:
    """The same, for choosing among configs: a damaged file is left out, with one warning."""
    found = {kernel: first_usable(paths, read_space)
             for kernel, paths in settings.config_files("spaces").items()}
    return {kernel: space for kernel, space in found.items() if space is not None}


def rung_spaces() -> tuple[str, ...]:
    """The rungs of the ladder that have a space."""
    return tuple(_space_files("ladder"))


def load_rung_space(rung: str) -> Space:
    """The space of a rung of the ladder, ``configs/spaces/ladder/<rung>.json``.

    Raises:
        UsageError: there is none; it lists those there are.
        DataFileError: the file is bad.
    """
    files = _space_files("ladder")
    if rung not in files:
        raise UsageError(f"rung {str(rung)[:100]!r} has no space; there is one for "
                         f"{', '.join(files) or 'none'}")
    return read_space(files[rung])

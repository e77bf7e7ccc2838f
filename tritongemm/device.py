"""What a kernel may use and how fast the unit is: :class:`DeviceSpec`, from configs/devices/."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import DeviceError
from tritongemm.records.layers import first_usable
from tritongemm.records.reading import SMALL_LIMIT, Fields, read_json

#: Bytes of a line of the caches, and of a sector: what the L2 delivers at once.
LINE_BYTES, SECTOR_BYTES = 128, 32
#: Shared memory that the system keeps of each resident block, from sm_80 on (CUDA C++ Programming
#: Guide, "Technical Specifications per Compute Capability").
RESERVED_SHARED_BYTES = 1024


@dataclass(frozen=True)
class DeviceSpec:
    """A device's limits and peaks.

    Attributes:
        slug: the folder's name of its tables, e.g. ``nvidia-h200``.
        name: as the driver reports it.
        arch: compute capability as an integer, e.g. 90.
        num_sms: streaming multiprocessors.
        shared_bytes_per_block: opt-in limit of dynamic shared memory a block.
        shared_bytes_per_sm: shared memory an SM, all blocks together.
        registers_per_sm: 32-bit registers.
        l2_bytes: size of the L2.
        peak_tflops: dense peak by unit (``bf16, fp16, fp8, tf32, fp32``), TFLOP/s.
        memory_gbps: peak bandwidth of the device memory, GB/s.
        sources: where each figure comes from.
        spare_sms: SMs of the device that are left to others (:func:`within_budget`); ``num_sms``
            and the peaks are those of the rest.
        contended: kernels of other streams hold some of the SMs for a time, so that a launch must
            not count on any SM (:func:`tritongemm.kernels.footprint.resident`).
    """

    slug: str
    name: str
    arch: int
    num_sms: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    registers_per_sm: int
    l2_bytes: int
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    memory_gbps: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    spare_sms: int = 0
    contended: bool = False

    def __hash__(self) -> int:
        return hash((self.slug, self.num_sms))

    def blocks_by_shared(self, shared_bytes: int) -> int:
        """Blocks of ``shared_bytes`` each that the shared memory of an SM holds."""
        reserved = 0 if self.arch == 75 else RESERVED_SHARED_BYTES
        return self.shared_bytes_per_sm // max(shared_bytes + reserved, 1)

    @property
    def sm(self) -> str:
        """``sm_90``."""
        return f"sm_{self.arch}"


def within_budget(device: DeviceSpec) -> DeviceSpec:
    """``device`` with as many SMs as TRITONGEMM_NUM_SMS allows: a kernel for which every other SM
    is as if it were not there. The memory, shared by all, stays as it is."""
    budget = settings.current().num_sms
    if budget is None or budget >= device.num_sms:
        return device
    share = budget / device.num_sms
    return replace(device, num_sms=budget, spare_sms=device.num_sms - budget,
                   peak_tflops={unit: peak * share for unit, peak in device.peak_tflops.items()})


def whole(device: DeviceSpec) -> DeviceSpec:
    """``device`` without the budget that :func:`within_budget` gave it."""
    if not device.spare_sms:
        return device
    all_sms = device.num_sms + device.spare_sms
    return replace(device, num_sms=all_sms, spare_sms=0, peak_tflops={
        unit: peak * all_sms / device.num_sms for unit, peak in device.peak_tflops.items()})


def slug_of(name: str) -> str:
    """``NVIDIA H200`` -> ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


#: Integer fields of a file and the largest value that each may have, far above any device's.
_COUNTS = {"arch": 10_000, "num_sms": 100_000, "shared_bytes_per_block": 1 << 30,
           "shared_bytes_per_sm": 1 << 30, "registers_per_sm": 1 << 30, "l2_bytes": 1 << 40}
#: Of a peak in TFLOP/s or GB/s: outside these it has another unit, or is damaged.
_LEAST_PEAK, _LARGEST_PEAK = 1e-3, 1e9


def read_device(path: Path) -> DeviceSpec:
    """Reads and validates one ``configs/devices/*.json``.

    Raises:
        DataFileError: naming the file and the field.
    """
    top = Fields(path, read_json(path, SMALL_LIMIT), what="device")
    top.only(("name", *_COUNTS), ("peak_tflops", "memory_gbps", "sources"))
    if not (name := top.text("name", 200)).strip():
        raise top.error("name", "is empty; write it as the driver does")
    sources = Fields(path, top.values.get("sources", {}), what="sources")
    return DeviceSpec(
        slug=path.stem, name=name,
        **{field: top.integer(field, 1, largest)
           for field, largest in _COUNTS.items()},  # type: ignore[arg-type]
        peak_tflops=top.numbers("peak_tflops", _LEAST_PEAK, _LARGEST_PEAK),
        memory_gbps=(None if top.values.get("memory_gbps") is None
                     else top.number("memory_gbps", _LEAST_PEAK, _LARGEST_PEAK)),
        sources={field: sources.text(field) for field in sources.values})


@functools.cache
def _known(roots: tuple[Path, ...]) -> dict[str, DeviceSpec]:
    found = {slug: first_usable(paths, read_device)
             for slug, paths in settings.config_files("devices").items()}
    return {slug: device for slug, device in found.items() if device is not None}


def forget() -> None:
    """Forgets the device files read so far."""
    _known.cache_clear()


def known_devices() -> dict[str, DeviceSpec]:
    """Every device of ``devices/`` in :func:`settings.config_roots`, by slug. A damaged file is
    left out, with one warning."""
    return _known(settings.config_roots())


def device_named(slug: str) -> DeviceSpec:
    """The spec of ``slug`` in ``configs/devices``. A part of one slug alone, such as ``h200``, is
    enough, and so is a GPU's own name, such as ``NVIDIA H200``.

    Raises:
        DeviceError: an unknown name, or a part of several.
        DataFileError: every file of that name is damaged.
    """
    known = known_devices()
    if slug in known:
        return known[slug]
    for path in settings.config_files("devices").get(slug, ()):
        return read_device(path)  # raises, saying why
    wanted = slug.lower().replace(" ", "-").replace("_", "-").strip("-")
    found = [name for name in known if wanted and f"-{wanted}-" in f"-{name}-"]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise DeviceError(f"device {slug!r} could be {', '.join(found)}; use one of these names")
    raise DeviceError(f"device {slug!r} is not in configs/devices; known: {', '.join(known)}")


def representative(arch: int) -> DeviceSpec:
    """A shipped device of architecture ``arch``, for compiling with no GPU present.

    Raises:
        DeviceError: no shipped device has that architecture.
    """
    for spec in known_devices().values():
        if spec.arch == arch:
            return spec
    archs = sorted({spec.arch for spec in known_devices().values()})
    raise DeviceError(f"no device of sm_{arch} is in configs/devices; known: "
                      + ", ".join(f"sm_{a}" for a in archs))


def check_index(index: int) -> None:
    """Raises :class:`DeviceError` where there is no CUDA device ``index``."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("torch sees no CUDA device; `tritongemm doctor` says what is missing")
    if not 0 <= index < torch.cuda.device_count():
        raise DeviceError(f"CUDA device {index} is outside 0 to {torch.cuda.device_count() - 1}")


@functools.cache
def cuda_device(index: int) -> DeviceSpec:
    """The CUDA device ``index``: limits as the driver reports them, peaks from configs/devices.

    A device with no file of its own gets no peaks; everything else works.

    Raises:
        DeviceError: there is no such device.
    """
    import torch

    check_index(index)
    p = torch.cuda.get_device_properties(index)
    return reported(
        p.name, arch=p.major * 10 + p.minor, num_sms=p.multi_processor_count,
        shared_bytes_per_block=p.shared_memory_per_block_optin,
        shared_bytes_per_sm=p.shared_memory_per_multiprocessor,
        registers_per_sm=p.regs_per_multiprocessor, l2_bytes=p.L2_cache_size)


def reported(name: str, **limits: int) -> DeviceSpec:
    """The spec of the device that the driver calls ``name``: ``limits``, which are fields of
    :class:`DeviceSpec`, from the driver, and peaks from configs/devices."""
    slug = slug_of(name)
    shipped = known_devices().get(slug)
    return DeviceSpec(
        slug=slug, name=name, **limits,  # type: ignore[arg-type]
        peak_tflops=shipped.peak_tflops if shipped else {},
        memory_gbps=shipped.memory_gbps if shipped else None,
        sources=shipped.sources if shipped else {})


#: Slug of the stand-in under TRITON_INTERPRET=1.
INTERPRETER = "interpreter"


@functools.cache
def interpreter_device() -> DeviceSpec:
    """The stand-in under TRITON_INTERPRET=1: sm_90's rules, one program at a time."""
    base = representative(90)
    return DeviceSpec(INTERPRETER, "Triton interpreter", 90, 4, base.shared_bytes_per_block,
                      base.shared_bytes_per_sm, base.registers_per_sm, base.l2_bytes)


def current_device() -> DeviceSpec:
    """The current CUDA device, or the interpreter's stand-in. Raises :class:`DeviceError`."""
    if settings.current().interpret:
        return interpreter_device()
    import torch

    if not torch.cuda.is_available():
        return cuda_device(0)  # raises, saying why
    return cuda_device(torch.cuda.current_device())

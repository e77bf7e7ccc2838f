"""The calibration of a device: ``configs/calibration/<device>.json``, or
``<device>-and-<sibling>.json`` if it was fitted to the timings of its sibling too.

A file holds sections, one for each group of units (dtypes) whose kernels run alike::

    {"schema_version": 5, "device": "nvidia-h200", "arch": 90, "sections": [
      {"units": ["bf16", "fp16"], "run_ids": [...], "triton": "3.6.0", "problems": 62,
       "results": 17127, "rms_log_error": 0.15,
       "covers": {"kernels": ["tiled", ...], "formats": ["bf16", "fp16"], "computes": ["ieee"]},
       "constants": {"memory": {"dram_gbps": 4100.0, ...}, "tiled": {...},
                     "tiled_128x128x64_w8": {...}, ...},
       "factors": {"tiled_128x128x64_w8_s3_g8": 1.02, ...},
       "contenders": [{"kernel": "tiled", "block_m": 128, ...}, ...],
       "neighbours": [{"m": 978, "n": 199, "k": 1543, "dtype_a": "bf16", "layout": "nt", ...,
                       "vs_torch": 1.137}, ...],
       "network": [{"names": [...], "mean": [...], "scale": [...]},
                   [{"weights": "...", "biases": "..."}, ...], ...]}]}

``tritongemm.selection.model`` says what the constants mean. ``contenders`` are the configs that a
choice is made among, ``neighbours`` the measured problems, ``network`` what
``tritongemm.selection.network`` corrects by: the norms, then the layers of each member, whose
numbers are base64 of float16, least byte first. These three and ``covers`` may be absent; files of
version 4 have no ``covers``.
"""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tritongemm import compute, settings
from tritongemm.config import KernelConfig
from tritongemm.errors import ConfigError, DataFileError, ProblemError
from tritongemm.problem import GemmProblem
from tritongemm.records import atomic, prepared, prepared_calibration
from tritongemm.records.codec import (
    config_from_json,
    config_to_json,
    problem_from_json,
    problem_to_json,
)
from tritongemm.records.layers import first_usable
from tritongemm.records.reading import JSON_LIMIT, Fields, decode, parse_json, read_bytes

SCHEMA_VERSION = 5
#: The oldest version that is read.
_OLDEST = 4
_TOP = ("schema_version", "device", "arch", "sections")
_SECTION = ("units", "run_ids", "triton", "problems", "results", "rms_log_error", "constants",
            "factors")
#: Optional fields of a section; absent where there is nothing to say.
_LATER = ("covers", "contenders", "neighbours", "network")
#: Those of them that are lists, one entry a line.
_LISTS = ("contenders", "neighbours", "network")
_COVERS = ("kernels", "formats", "computes")
#: Limit against damaged files: times are microseconds, rates GB/s, shares of a peak.
_HIGHEST = 1e9
#: The same for a network's numbers, which are about 1.
_LARGEST = 1e6
#: Least scale of a network's input: smaller ones amplify rounding differences.
_LEAST_SCALE = 1e-6


@dataclass(frozen=True)
class Neighbour:
    """A measured problem.

    Attributes:
        vs_torch: torch's time over that of the fastest config, in the same rounds; None: not
            measured.
    """

    problem: GemmProblem
    vs_torch: float | None


@dataclass(frozen=True)
class Layer:
    """A linear layer: outputs = inputs @ weights + biases; weights of an input after each other.
    All are numbers of float16."""

    weights: Sequence[float]
    biases: Sequence[float]


Member = tuple[Layer, ...]


@dataclass(frozen=True)
class NetworkRecord:
    """Networks of one output whose mean is taken; name, mean and scale of each input, as trained
    on."""

    names: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Covers:
    """The kernels, formats and compute modes of a section's timings. Everything else is not
    calibrated.

    Attributes:
        kernels: names. formats: of operands A and B. computes: as ``GemmProblem.precision``.
    """

    kernels: tuple[str, ...]
    formats: tuple[str, ...]
    computes: tuple[str, ...]

    @classmethod
    def of(cls, measured: Iterable[tuple[GemmProblem, KernelConfig]]) -> Covers:
        """Of measured problems and configs."""
        kernels, formats, computes = set(), set(), set()
        for problem, config in measured:
            kernels.add(config.kernel)
            formats |= {problem.dtype_a, problem.dtype_b}
            computes.add(problem.precision)
        return cls(*(tuple(sorted(found)) for found in (kernels, formats, computes)))


@dataclass(frozen=True)
class Section:
    """The constants for problems of some units.

    Attributes:
        units: as :attr:`GemmProblem.unit`.
        run_ids: of the sweeps whose timings were fitted; triton: what they ran with.
        problems, results: how many were fitted.
        rms_log_error: root mean square of log(predicted / measured) over configs within 1.3 of
            their problem's best, of the timings that it was made of.
        constants: owner (``memory``, a kernel, or a class of configs) -> name -> value.
        factors: config without its split and copies -> measured over predicted time.
        candidates: the configs that were the best of some problem, or nearly, those of many
            problems first; a choice is made among these. ``contenders`` in the file.
        neighbours: the measured problems.
        network: the network that corrects the times; None: there were too few timings to train one.
        covers: the kernels, formats and compute modes of the timings.
    """

    units: tuple[str, ...]
    run_ids: tuple[str, ...]
    triton: str
    problems: int
    results: int
    rms_log_error: float
    constants: Mapping[str, Mapping[str, float]]
    factors: Mapping[str, float] = field(default_factory=dict)
    candidates: Sequence[KernelConfig] = ()
    neighbours: Sequence[Neighbour] = ()
    network: NetworkRecord | None = None
    covers: Covers = field(default_factory=lambda: Covers((), (), ()))

    def __hash__(self) -> int:
        return id(self)


def _covers_of(units: tuple[str, ...], constants: Mapping[str, Mapping[str, float]]) -> Covers:
    """What a section of version 4 covers: kernels are the owners of a time from launch to the first
    product; a unit names the operands' format, or is tf32."""
    kernels = {owner for owner, values in constants.items()
               if {"fill_us", "fill_us_dependent"} & {*values}}
    return Covers(tuple(sorted(kernels)),
                  tuple(sorted({"fp32" if unit == "tf32" else unit for unit in units})),
                  tuple(sorted({"tf32" if unit == "tf32" else "ieee" for unit in units})))


@dataclass(frozen=True)
class Calibration:
    """The sections of one device; no unit is in two."""

    device: str
    arch: int
    sections: tuple[Section, ...]

    def section(self, unit: str) -> Section | None:
        """The section for problems of ``unit``, or None."""
        return next((s for s in self.sections if unit in s.units), None)


def calibration_path(device: str, sibling: str = "") -> Path:
    """Where a calibration is written: ``calibration/<device>.json``, or of what was learned from
    the device's timings and its sibling's ``<device>-and-<sibling>.json``."""
    return settings.config_root() / _relative(device, sibling)


def find_calibration(device: str, sibling: str = "") -> Path | None:
    """The calibration in the first of :func:`settings.config_roots` that has it, or None."""
    return next(iter(_in_layers(device, sibling)), None)


def _in_layers(device: str, sibling: str) -> list[Path]:
    paths = (root / _relative(device, sibling) for root in settings.config_roots())
    return [path for path in paths if os.path.lexists(path)]


def _relative(device: str, sibling: str) -> Path:
    name = f"{device}-and-{sibling}" if sibling else device
    return Path("calibration", f"{name}.json")


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Reads and validates a calibration.

    Raises:
        DataFileError: naming the file, the section (1 is the first) and the field.
    """
    return _parsed(path, read_bytes(path, JSON_LIMIT))


def _parsed(path: str | os.PathLike[str], raw: bytes) -> Calibration:
    value = parse_json(path, decode(path, raw))
    top = Fields(path, value, what="calibration").only(_TOP)
    if top.version(SCHEMA_VERSION) < _OLDEST:
        raise top.error("schema_version", f"is older than {_OLDEST}; remove the file and "
                        "run `tritongemm calibrate` on its journals")
    entries = top.values["sections"]
    if not isinstance(entries, list):
        raise top.error("sections", "is not a list")
    sections = tuple(_section(Fields(path, entry, number, what="section"))
                     for number, entry in enumerate(entries, 1))
    units = [unit for section in sections for unit in section.units]
    for unit in units:
        if units.count(unit) > 1:
            raise top.error("units", f"{unit} is in more than one section; keep one")
    return Calibration(top.word("device"), top.integer("arch", 1, 10_000), sections)


def _section(entry: Fields) -> Section:
    entry.only(_SECTION, _LATER)
    units = _words(entry, "units")
    known = compute.units()
    for unit in units:
        if unit not in known:
            raise entry.error("units", f"{unit} is not one of {', '.join(known)}")
    if not units:
        raise entry.error("units", "is empty; name at least one")
    owners = entry.values["constants"]
    if not isinstance(owners, dict):
        raise entry.error("constants", "is not an object")
    constants = {owner: _numbers(entry, f"constants.{owner}"[:80], values)
                 for owner, values in owners.items()}
    candidates = tuple(_config(entry, number, value)
                       for number, value in enumerate(_list(entry, "contenders"), 1))
    neighbours = tuple(
        _neighbour(entry, Fields(entry.path, value, entry.row, f"neighbour {number}"))
        for number, value in enumerate(_list(entry, "neighbours"), 1))
    return Section(units, _words(entry, "run_ids"), entry.word("triton"),
                   entry.integer("problems", 1, 10**9), entry.integer("results", 1, 10**9),
                   entry.number("rms_log_error", 0.0), constants,
                   _numbers(entry, "factors", entry.values["factors"]), candidates, neighbours,
                   _network(entry), _covers(entry) or _covers_of(units, constants))


def _covers(entry: Fields) -> Covers | None:
    if "covers" not in entry.values:
        return None
    fields = Fields(entry.path, entry.values["covers"], entry.row, "covers").only(_COVERS)
    return Covers(*(_words(fields, name) for name in _COVERS))


def _list(entry: Fields, name: str) -> list:
    values = entry.values.get(name, [])
    if not isinstance(values, list):
        raise entry.error(name, "is not a list")
    return values


def _config(entry: Fields, number: int, value: Mapping[str, object]) -> KernelConfig:
    try:
        return config_from_json(value)
    except ConfigError as error:
        raise entry.error("contenders", f"number {number}: {error}"[:500]) from error


def _neighbour(entry: Fields, fields: Fields) -> Neighbour:
    values = dict(fields.values)
    vs_torch = fields.number("vs_torch", 1e-6) if "vs_torch" in values else None
    values.pop("vs_torch", None)
    try:
        return Neighbour(problem_from_json(values), vs_torch)
    except ProblemError as error:
        raise entry.error("neighbours", str(error)[:500]) from error


def _network(entry: Fields) -> NetworkRecord | None:
    """The network, whose layers must fit each other."""
    parts = _list(entry, "network")
    if not parts:
        return None
    norms = Fields(entry.path, parts[0], entry.row, "network").only(
        ("names", "mean", "scale"))
    names, mean, scale = _words(norms, "names"), _floats(norms, "mean"), _floats(norms, "scale")
    if (not len(names) == len(mean) == len(scale) or min(scale, default=0.0) < _LEAST_SCALE
            or len(parts) < 2):
        raise entry.error("network", f"{len(names)} names, {len(mean)} means, {len(scale)} scales "
                          f"and {len(parts) - 1} members; a mean and a scale of at least "
                          f"{_LEAST_SCALE:g} for each name, and a member at least")
    members = []
    for number, layers in enumerate(parts[1:], 1):
        member, inputs = [], len(mean)
        for values in layers if isinstance(layers, list) else ():
            fields = Fields(entry.path, values, entry.row, f"member {number}")
            fields.only(("weights", "biases"))
            layer = Layer(_halves(fields, "weights"), _halves(fields, "biases"))
            if not layer.biases or len(layer.weights) != inputs * len(layer.biases):
                raise entry.error("network", f"member {number}: a layer of {len(layer.weights)} "
                                  f"weights and {len(layer.biases)} biases for {inputs} inputs")
            member.append(layer)
            inputs = len(layer.biases)
        if not member or inputs != 1:
            raise entry.error("network", f"member {number} has no layers, or its last one has "
                              "several outputs")
        members.append(tuple(member))
    return NetworkRecord(names, mean, scale, tuple(members))


def _floats(fields: Fields, name: str) -> tuple[float, ...]:
    values = _list(fields, name)
    for value in values:
        if type(value) not in (int, float) or not abs(value) <= _LARGEST:
            raise fields.error(name, f"{value!r:.80} is not a number of at most {_LARGEST:g}")
    return tuple(map(float, values))


def _halves(fields: Fields, name: str) -> tuple[float, ...]:
    text = fields.values[name]
    try:
        found = np.frombuffer(base64.b64decode(text, validate=True), "<f2")  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise fields.error(name, f"is not base64 of float16: {error}") from error
    if not np.isfinite(found).all():
        raise fields.error(name, "holds a number that is not finite")
    return tuple(found.tolist())


def _text(halves: tuple[float, ...]) -> str:
    return base64.b64encode(np.array(halves, "<f2").tobytes()).decode()


def _words(entry: Fields, name: str) -> tuple[str, ...]:
    values = entry.values[name]
    if not isinstance(values, list):
        raise entry.error(name, "is not a list")
    return tuple(Fields(entry.path, {name: value}, entry.row).word(name) for value in values)


def _numbers(entry: Fields, name: str, values: object) -> dict[str, float]:
    """Names with positive numbers: each constant is a time, a rate or a ratio."""
    if not isinstance(values, dict):
        raise entry.error(name, "is not an object")
    fields = Fields(entry.path, values, entry.row)
    found = {}
    for key in values:
        found[key] = fields.number(key)
        if not 0.0 < found[key] <= _HIGHEST:
            raise entry.error(f"{name}.{key}"[:80], f"{found[key]:g} is outside 0 to "
                              f"{_HIGHEST:g}; a constant is a positive time, rate or ratio")
    return found


def write_calibration(path: str | os.PathLike[str], calibration: Calibration) -> None:
    """Writes a calibration atomically, one owner of constants a line, sorted.

    Raises:
        DataFileError: a value that could not be read again, or not writable; the file is as it
            was.
    """
    for number, section in enumerate(calibration.sections, 1):
        _section(Fields(path, _values(section), number, what="section"))
    head = {"schema_version": SCHEMA_VERSION, "device": calibration.device,
            "arch": calibration.arch}
    text = "{\n" + "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    text += '"sections": [\n' + ",\n".join(_lines(s) for s in calibration.sections) + "\n]\n}\n"
    atomic.write_atomic(path, text, follow_links=True)


def _values(section: Section) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(section, name) for name in _SECTION}
    values.update(units=list(section.units), run_ids=list(section.run_ids),
                  constants={k: dict(v) for k, v in sorted(section.constants.items())},
                  factors=dict(sorted(section.factors.items())))
    values["covers"] = {name: list(getattr(section.covers, name)) for name in _COVERS}
    if section.candidates:
        values["contenders"] = [config_to_json(c) for c in section.candidates]
    if section.neighbours:
        values["neighbours"] = [
            {**problem_to_json(x.problem),
             **({} if x.vs_torch is None else {"vs_torch": x.vs_torch})}
            for x in section.neighbours]
    if section.network is not None:
        net = section.network
        values["network"] = [
            {"names": list(net.names), "mean": list(net.mean), "scale": list(net.scale)},
            *([{"weights": _text(layer.weights), "biases": _text(layer.biases)}
               for layer in member] for member in net.members)]
    return values


def _lines(section: Section) -> str:
    values = _values(section)
    lines = []
    for name in _SECTION[:-2]:
        lines.append(f"{json.dumps(name)}: {json.dumps(values[name], allow_nan=False)}")
    lines.append(f'"covers": {json.dumps(values["covers"])}')
    for name in ("constants", "factors"):
        inside = [f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}"
                  for k, v in values[name].items()]  # type: ignore[attr-defined]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(inside) + "\n}")
    for name in _LISTS:
        if name in values:
            each = (json.dumps(v, allow_nan=False, separators=(",", ":"))
                    for v in values[name])  # type: ignore[attr-defined]
            lines.append(f"{json.dumps(name)}: [\n" + ",\n".join(each) + "\n]")
    return "{" + ",\n".join(lines) + "}"


_KINDS = (Calibration, Section, NetworkRecord, Layer, Covers)


def _neighbour_of(values: dict) -> Neighbour:
    vs_torch = values.pop("vs_torch", None)
    return Neighbour(problem_from_json(values), vs_torch)


def prepare(path: Path, folder: Path) -> None:
    """Keeps what is made of a calibration in ``folder``. Raises :class:`DataFileError`."""
    raw = read_bytes(path, JSON_LIMIT)
    if (key := prepared.key_of("calibration", raw)) is not None:
        prepared.keep(key, prepared_calibration.encode(_parsed(path, raw), _values), folder)


def read_shipped(device: str, sibling: str = "") -> Calibration | None:
    """The calibration for the device with that slug, or that which learned from its
    sibling too; None where none is. A damaged file, or one of another device, is left out with one
    warning."""
    return first_usable(_in_layers(device, sibling), _read_placed)


def _read_placed(path: Path) -> Calibration:
    try:
        file = path.stat()
    except OSError as error:
        raise DataFileError(path, f"cannot be read: {error.strerror}") from error
    found = _read_once(path, file.st_ino, file.st_mtime_ns)
    if isinstance(found, DataFileError):
        raise found
    return found


@functools.lru_cache(maxsize=16)
def _read_once(path: Path, inode: int, written_ns: int) -> Calibration | DataFileError:
    """An error is kept too: a damaged file is not read again for every problem."""
    try:
        return read_placed(path)
    except DataFileError as error:
        return error


def read_placed(path: Path) -> Calibration:
    """A calibration whose name says whose it is. Raises :class:`DataFileError`.

    What was made of the same content before is used where it was kept (``prepared.py``).
    """
    raw = read_bytes(path, JSON_LIMIT)
    key = prepared.key_of("calibration", raw)
    made = None if key is None else prepared.load(key)
    calibration = None if made is None else prepared_calibration.decode(made, _KINDS, _neighbour_of)
    if calibration is None:
        calibration = _parsed(path, raw)
        if key is not None:
            prepared.keep(key, prepared_calibration.encode(calibration, _values))
    if calibration.device != path.stem.partition("-and-")[0]:
        raise DataFileError(path, f"is of {calibration.device}, not of the device that the file is "
                            "named after; rename it", field="device")
    return calibration

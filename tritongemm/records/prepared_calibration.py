"""A calibration as plain arrays (``prepared.py``): its configs and measured problems, thousands of
each, are made one by one when they are asked for."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from tritongemm.config import PARAMETERS, KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.records import prepared
from tritongemm.records.prepared import Prepared

#: What of a measured problem is a number.
NUMBERS = ("m", "n", "k", "batch", "align_a", "align_b", "align_c")


class Configs(Sequence[KernelConfig]):
    """Configs as rows of integers: the number of the kernel, then :data:`PARAMETERS`.

    Attributes:
        kernels: names.
        rows: [configs, 1 + parameters].
    """

    def __init__(self, kernels: Sequence[str], rows: np.ndarray) -> None:
        if rows.ndim != 2 or rows.shape[1] != 1 + len(PARAMETERS):
            raise ValueError("rows of another length")
        self.kernels, self.rows = tuple(kernels), rows
        self._made: list[KernelConfig | None] = [None] * len(rows)

    @classmethod
    def of(cls, configs: Sequence[KernelConfig]) -> Configs:
        """Any configs in this form."""
        if isinstance(configs, Configs):
            return configs
        kernels: dict[str, int] = {}
        rows = np.array([(kernels.setdefault(config.kernel, len(kernels)), *parameters)
                         for config in configs
                         for parameters in ([getattr(config, name) for name in PARAMETERS],)],
                        np.int32).reshape(len(configs), 1 + len(PARAMETERS))
        made = cls(tuple(kernels), rows)
        made._made[:] = configs
        return made

    def place(self, config: KernelConfig) -> int | None:
        """The index of ``config``; None where it is none of these."""
        if config.kernel not in self.kernels:
            return None
        row = (self.kernels.index(config.kernel), *(getattr(config, x) for x in PARAMETERS))
        return self._places.get(np.array(row, self.rows.dtype).tobytes())

    @functools.cached_property
    def _places(self) -> dict[bytes, int]:
        """The first index of each row, by its bytes."""
        size, data = self.rows.itemsize * self.rows.shape[1], self.rows.tobytes()
        return {data[size * i:size * (i + 1)]: i for i in reversed(range(len(self.rows)))}

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, place: int) -> KernelConfig: ...

    @overload
    def __getitem__(self, place: slice) -> list[KernelConfig]: ...

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        found = self._made[place]
        if found is None:
            kernel, *values = self.rows[place].tolist()
            found = self._made[place] = KernelConfig.trusted(self.kernels[kernel], values)
        return found

    def __iter__(self) -> Iterator[KernelConfig]:
        return (self[place] for place in range(len(self)))


class Neighbours(Sequence):
    """Measured problems, as lines of JSON and arrays.

    Attributes:
        numbers: [problems, :data:`NUMBERS`]. turned: [problems, 2], whether A and B are stored
            transposed. vs_torch: NaN where it was not measured.
    """

    def __init__(self, arrays: dict[str, np.ndarray], read) -> None:
        self._arrays, self._read = arrays, read
        self.numbers, self.turned = arrays["numbers"], arrays["turned"]
        self.vs_torch = arrays["vs_torch"]
        if not (len(self.numbers) == len(self.turned) == len(self.vs_torch)
                == len(arrays["ends"])):
            raise ValueError("columns of different lengths")

    def __len__(self) -> int:
        return len(self.vs_torch)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return self._read(json.loads(prepared.line(self._arrays, range(len(self))[place])))


def columns_of(problems: Sequence) -> dict[str, np.ndarray]:
    """``numbers`` and ``turned`` of problems."""
    return {"numbers": np.array([[getattr(p, name) for name in NUMBERS] for p in problems],
                                np.int64).reshape(len(problems), len(NUMBERS)),
            "turned": np.array([[p.layout[0] == "t", p.layout[1] == "t"] for p in problems],
                               np.uint8).reshape(len(problems), 2)}


def encode(calibration, values_of) -> Prepared:
    """``values_of``: a section's JSON values (``calibration.py``)."""
    sections, arrays = [], {}
    for number, section in enumerate(calibration.sections):
        values = values_of(section)
        configs = Configs.of(section.candidates)
        at = f"{number}."
        arrays[at + "configs"] = configs.rows
        arrays |= {at + name: array for name, array in {
            **columns_of([x.problem for x in section.neighbours]),
            "vs_torch": np.array([np.nan if x.vs_torch is None else x.vs_torch
                                  for x in section.neighbours], np.float64),
            **prepared.lines_of(json.dumps(x) for x in values.pop("neighbours", ()))}.items()}
        values.pop("contenders", None)
        network = values.pop("network", None)
        shapes: list[int] = []
        if section.network is not None:
            for i, member in enumerate(section.network.members):
                shapes.append(len(member))
                for j, layer in enumerate(member):
                    arrays[f"{at}{i}.{j}.weights"] = np.array(layer.weights, "<f2")
                    arrays[f"{at}{i}.{j}.biases"] = np.array(layer.biases, "<f2")
        sections.append({**values, "kernels": list(configs.kernels),
                         "norms": network and network[0], "layers": shapes})
    return Prepared({"device": calibration.device, "arch": calibration.arch,
                     "parameters": list(PARAMETERS), "sections": sections}, arrays)


def decode(made: Prepared, kinds, read_neighbour):
    """The inverse of :func:`encode`; None for what it did not make.

    Args:
        kinds: ``calibration.py``'s classes Calibration, Section, NetworkRecord, Layer, Covers.
        read_neighbour: a neighbour from its JSON.
    """
    calibration, section_of, network_of, layer_of, covers_of = kinds
    try:
        head, arrays = made
        if head["parameters"] != list(PARAMETERS):
            return None
        sections = []
        for number, values in enumerate(head["sections"]):
            own = {name.partition(".")[2]: array for name, array in arrays.items()
                   if name.startswith(f"{number}.")}
            kernels, norms, layers = (values.pop(x) for x in ("kernels", "norms", "layers"))
            network = None
            if norms is not None:
                network = network_of(
                    *(tuple(norms[x]) for x in ("names", "mean", "scale")),
                    tuple(tuple(layer_of(own[f"{i}.{j}.weights"], own[f"{i}.{j}.biases"])
                                for j in range(count)) for i, count in enumerate(layers)))
            candidates = Configs(kernels, own["configs"]) if len(own["configs"]) else ()
            neighbours = Neighbours(own, read_neighbour) if len(own["vs_torch"]) else ()
            covers = values.pop("covers")
            values = {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
            sections.append(section_of(
                **values, candidates=candidates, neighbours=neighbours, network=network,
                covers=covers_of(**{name: tuple(x) for name, x in covers.items()})))
        return calibration(head["device"], head["arch"], tuple(sections))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, DataFileError):
        return None

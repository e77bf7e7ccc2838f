"""Calibrations and tables made by hand for the tests of selection."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Covers,
    Section,
    calibration_path,
    write_calibration,
)
from tritongemm.records.tables import TableHeader, TunedRow, TunedTable, path_for, write_table
from tritongemm.selection.model import factor_id
from tritongemm.selection.work import class_of

RUN = "20260101T000000Z-abcdef"
TILED = KernelConfig("tiled", 64, 64, 64, num_warps=4, num_stages=3)
TMA = KernelConfig("persistent_tma", 128, 128, 64, num_warps=8, num_stages=4)


def calibrate(device: DeviceSpec, *known: KernelConfig, units: tuple[str, ...] = ("bf16",),
              favourite: KernelConfig | None = None) -> Section:
    """Writes a calibration that knows the classes of ``known``; ``favourite`` is predicted to be
    a hundred times faster than it would be."""
    constants: dict[str, dict[str, float]] = {"memory": {"dram_gbps": 4000.0}}
    for config in known:
        constants[class_of(config)] = {"peak_share": 0.5, "pace_us": 0.1, "unit_us": 0.5}
        constants[config.kernel] = {"fill_us": 5.0, "fill_us_dependent": 0.9}
    factors = {factor_id(favourite): 0.01} if favourite else {}
    formats = tuple(sorted({"fp32" if unit == "tf32" else unit for unit in units}))
    computes = tuple(sorted({"tf32" if unit == "tf32" else "ieee" for unit in units}))
    kernels = tuple(sorted({config.kernel for config in known}))
    section = Section(units, (RUN,), "3.6.0", 3, 100, 0.1, constants, factors,
                      covers=Covers(kernels, formats, computes))
    write_calibration(calibration_path(device.slug),
                      Calibration(device.slug, device.arch, (section,)))
    return section


def publish(device: DeviceSpec, *rows: tuple[GemmProblem, KernelConfig]) -> None:
    """Writes a tuned table with a row a problem, all of one table."""
    header = TableHeader.of(rows[0][0], device=device.slug, arch=device.arch, space_hash="abc",
                            torch="2.11.0", triton="3.6.0")
    table = TunedTable(header)
    for problem, config in rows:
        row = TunedRow.of(problem, config, time_us=10.0, margin_vs_second=0.1, run_id=RUN)
        table.rows[row.key] = row
    write_table(path_for(problem, device.slug), table)

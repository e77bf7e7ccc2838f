"""The network: what it computes, what it is shown, and how the model takes what it says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from selection_made import TILED, TMA, calibrate

from tritongemm import selection
from tritongemm.config import KernelConfig
from tritongemm.kernels import SPECS
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Layer,
    NetworkRecord,
    calibration_path,
    read_calibration,
    write_calibration,
)
from tritongemm.selection import choose, estimate
from tritongemm.selection.columns import Columns
from tritongemm.selection.inputs import NAMES
from tritongemm.selection.model import model_for
from tritongemm.selection.network import FARTHEST, Network
from tritongemm.selection.shipped import configs as shipped_configs

SQUARE = GemmProblem.contiguous(1024, 1024, 1024, layout="nt")


def says(value, names=NAMES):
    """A network that says ``value`` of everything."""
    width = len(names)
    return NetworkRecord(names, (0.0,) * width, (1.0,) * width,
                         ((Layer((0.0,) * width, (value,)),),))


def with_network(device, network):
    section = replace(calibrate(device, TILED, TMA), network=network)
    write_calibration(calibration_path(device.slug),
                      Calibration(device.slug, device.arch, (section,)))
    selection.reload()


def test_a_network_is_the_mean_of_its_members():
    # Of 3: (3 - 1) / 0.5 = 4; in the first member 4 * 0.5 - 1 = 1, sigmoid(1) * 2; in the second 4.
    record = NetworkRecord(("x",), (1.0,), (0.5,), (
        (Layer((0.5,), (-1.0,)), Layer((2.0,), (0.0,))), (Layer((1.0,), (0.0,)),)))
    found = Network(record)(np.array([[3.0]], np.float32))
    assert found == pytest.approx([(2 / (1 + math.exp(-1)) + 4) / 2])


def test_an_input_far_outside_the_training_data_is_clipped():
    record = NetworkRecord(("x",), (0.0,), (2.0,), ((Layer((1.0,), (0.0,)),),))
    found = Network(record)(np.array([[2 * FARTHEST], [1e6], [-1e6]], np.float32))
    assert found.tolist() == [FARTHEST, FARTHEST, -FARTHEST]


def test_the_networks_correction_is_added_and_explain_prints_it(configs, h200):
    with_network(h200, says(0.0))
    plain = estimate(SQUARE, TILED, h200)
    assert plain.correction_us == 0
    with_network(h200, says(-0.5))
    corrected = estimate(SQUARE, TILED, h200)
    assert corrected.total_us == pytest.approx(plain.total_us * math.exp(-0.5))
    assert corrected._replace(correction_us=0.0) == plain
    assert "correction -" in str(explain_problem(SQUARE, h200))


@pytest.mark.parametrize(("names", "found"), (
    ((*NAMES, "moon"), "moon"), (NAMES[1:], NAMES[0]), (NAMES[::-1], "their order")))
def test_a_network_with_other_inputs_is_left_out_with_one_warning(configs, h200, caplog, names,
                                                                   found):
    calibrate(h200, TILED, TMA)
    constants_alone = estimate(SQUARE, TILED, h200)
    with_network(h200, says(-0.5, names))
    assert estimate(SQUARE, TILED, h200) == constants_alone
    assert choose(SQUARE, h200).source == "model"
    fp16 = GemmProblem.contiguous(1024, 1024, 1024, dtype="fp16")
    assert choose(fp16, h200).source == "rule"  # the same file, another unit
    (record,) = caplog.records
    assert record.levelname == "WARNING" and found in record.message
    assert "nvidia-h200.json" in record.message and "tritongemm calibrate" in record.message


def test_each_input_has_the_value_that_its_name_states(configs, h200):
    """A network that repeats one input, a hundredth of it."""
    assert len(set(NAMES)) == len(NAMES)
    problem = GemmProblem.contiguous(100, 520, 2056, layout="nt")
    config = KernelConfig("tiled", 64, 96, 32, num_warps=8, num_stages=3, split_k=2)
    with_network(h200, says(0.0))
    plain = estimate(problem, config, h200)
    expected = {"copy_engine": 0, "producer_warps": 0, "tensor_cores": 1,
                "k_over_threads": 0, "persistent": 0, "bits_a": 4, "bits_b": 4, "products": 0,
                "programs_per_sm": 2,
                "registers": math.log2(28 + (64 * 96 + (64 + 96) * 32 * 0.2) / 256),
                "in_flight_kib": math.log2(4 * 3 * (64 + 96) * 32 * 2 / 1024),
                "block_m": 6, "block_n": math.log2(96), "block_k": 5,
                "num_warps": 3, "split_k": 1, "block_m_power": 6, "block_n_power": 5,
                "swap_ab.1": 0, "m": math.log2(100), "n": math.log2(520), "k": math.log2(2056),
                "batch": 0, "align_a": 4, "align_c": 4, "lead_a": 4, "lead_b": 4, "lead_c": 4,
                "a_turned": 0, "b_turned": 1, "rows_used": 100 / 128, "cols_used": 520 / 576,
                "tiles_down": 1, "tiles_along": math.log2(6), "tiles": math.log2(24),
                "total_us": math.log(plain.total_us),
                "store_us": plain.store_us / plain.total_us,
                "pad_us": 0}
    for name, value in expected.items():
        only = tuple(float(each == name) for each in NAMES)
        with_network(h200, replace(says(0.0), scale=(100.0,) * len(NAMES),
                                   members=((Layer(only, (0.0,)),),)))
        said = math.log(estimate(problem, config, h200).total_us / plain.total_us)
        assert 100 * said == pytest.approx(value, abs=1e-3), name


def test_configs_as_arrays_have_no_other_attributes():
    configs = Columns([TILED, TMA])
    assert configs.block_m.tolist() == [64, 128]
    with pytest.raises(AttributeError, match="block_q"):
        configs.block_q  # noqa: B018


def test_it_learns_from_inputs_and_times_that_have_no_correction(configs, h200):
    calibrate(h200, TILED, TMA)
    plain = [estimate(SQUARE, one, h200).total_us for one in (TILED, TMA)]
    with_network(h200, says(-0.5))
    inputs, times_us = model_for(SQUARE, h200).training_inputs(SQUARE, Columns([TILED, TMA]))
    assert inputs.shape == (2, len(NAMES)) and times_us == pytest.approx(plain)


@pytest.mark.parametrize("dtype", ("bf16", "fp32"))
def test_every_kernel_has_network_inputs(dtype, h200):
    problem = GemmProblem.contiguous(8, 4096, 4096, dtype=dtype, layout="nt")
    model = model_for(problem, h200)
    every = {config.kernel: config for config in shipped_configs(problem)}
    assert set(every) >= {name for name, spec in SPECS.items()
                          if spec.supports(problem, h200) is None}
    assert np.isfinite(model.times(problem, Columns(list(every.values())))).all()


def test_empty_extents_are_finite_too(h200):
    for m, n, k in ((0, 64, 64), (64, 0, 64), (64, 64, 0)):
        e = estimate(GemmProblem.contiguous(m, n, k, layout="nt"), TILED, h200)
        assert all(math.isfinite(x) for x in e)


def test_what_is_shipped_stays_small_and_bounded():
    """A choice counts the work of each candidate and runs the network on it: that is its cost."""
    path = calibration_path("nvidia-h200")
    assert path.stat().st_size < 1_500_000
    section = read_calibration(path).section("bf16")
    assert 100 < len(section.neighbours) and len(section.candidates) < 5000
    assert sum(len(layer.weights) for member in section.network.members
               for layer in member) < 100_000

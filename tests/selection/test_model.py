"""The model: terms that sum up, counts that a person can check, constants where none are known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from selection_made import TILED, TMA, calibrate

from tritongemm.calibration.calibrate import corrected
from tritongemm.calibration.timing_table import Fit, TimingTable
from tritongemm.calibration.timings import Timing
from tritongemm.config import KernelConfig
from tritongemm.device import device_named, interpreter_device, representative
from tritongemm.kernels import SPECS
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import LAYOUTS, GemmProblem
from tritongemm.selection import candidates, estimate
from tritongemm.selection.columns import Columns, kind_of
from tritongemm.selection.model import Rates, keys_of, model_for, predict, scales
from tritongemm.selection.shipped import configs as shipped_configs
from tritongemm.selection.work import class_of, footprint_of, static_of, work_of

H200 = device_named("nvidia-h200")
SQUARE = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")
PAIR = KernelConfig("warp_specialized", 128, 256, 64, num_warps=8, num_stages=4,
                    epilogue_subtile=2)


def test_counts_of_a_persistent_kernel():
    work = work_of(SQUARE, PAIR, H200)
    assert (work.tiles, work.waves, work.per_sm, work.steps) == (512, 4, 4, 64)
    assert work.step_flops == 2 * 128 * 256 * 64
    assert work.l2_bytes == 512 * 64 * (128 + 256) * 64 * 2 + 4096 * 4096 * 2
    assert work.store == "engine" and work.store_kib == 4 * 128 * 256 * 2 / 1024
    assert (work.load_a, work.load_b, work.spilled) == (0, 0, 0)
    assert (work.split_bytes, work.pad_bytes) == (0, 0)


def test_a_split_counts_its_parts_and_the_pass_over_them():
    work = work_of(SQUARE, replace(PAIR, split_k=2, epilogue_subtile=1), H200)
    assert (work.tiles, work.steps, work.store) == (1024, 32, "split")
    assert work.split_bytes == (2 * 4 + 2) * 4096 * 4096


def test_a_cluster_counts_its_parts_and_stores_once():
    config = KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4, cluster_k=4)
    work = work_of(GemmProblem.contiguous(512, 512, 8192, layout="nt"), config, H200)
    assert (work.tiles, work.waves, work.steps, work.store) == (64, 1, 32, "engine")
    assert work.store_kib == 128 * 128 / 4 * 2 / 1024 and work.split_bytes == 0
    assert class_of(config) == "warp_specialized_128x128x64_w8_c4"


def test_programs_that_share_operands_ask_for_less_and_take_in_as_much():
    problem = GemmProblem.contiguous(4088, 4096, 4088, layout="nt")  # rows begin inside sectors
    config = replace(PAIR, block_m=128, block_n=128, num_stages=4)
    shared = replace(config, cluster_m=2, cluster_n=2)
    alone, work = work_of(problem, config, H200), work_of(problem, shared, H200)
    stored = 4088 * 4096 * 2
    assert (work.l2_bytes - stored) == pytest.approx((alone.l2_bytes - stored) / 2)
    assert (alone.per_sm, work.per_sm) == (8, 9)  # of 132 SMs, and of 120
    assert work.sm_bytes / work.per_sm < alone.sm_bytes / alone.per_sm
    large = GemmProblem.contiguous(16384, 16384, 8192, layout="nt")  # whose B outgrows the L2
    below = work_of(large, replace(config, group_m=4, cluster_m=2), H200)
    assert below.dram_bytes == work_of(large, replace(config, group_m=8), H200).dram_bytes
    whole = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")
    assert work_of(whole, shared, H200).sm_bytes == 9 * 64 * 2 * 64 * (128 + 128)
    assert class_of(shared) == "warp_specialized_128x128x64_w8_m2_n2"


def test_a_transposed_store_has_the_class_of_other_tiles_and_stores_by_tma():
    problem = GemmProblem.contiguous(272, 4096, 4096, layout="nt")
    turned = replace(PAIR, block_n=144, swap_ab=2)
    work = work_of(problem, turned, H200)
    assert (work.tiles, work.store) == (32 * 2, "engine")
    assert class_of(turned) == class_of(replace(turned, swap_ab=0))


def test_columns_of_a_side_stored_across_k_come_in_whole_boxes():
    config = KernelConfig("warp_specialized", 128, 144, 64, num_warps=8, num_stages=4)
    across, along = (work_of(GemmProblem.contiguous(1024, 1152, 512, layout=layout), config, H200)
                     for layout in ("tn", "tt"))
    assert across.sm_bytes / along.sm_bytes == (128 + 192) / (128 + 144)


def test_ping_pong_consumers_halve_the_waves():
    pingpong = replace(PAIR, block_n=128, pingpong=1)
    work = work_of(SQUARE, pingpong, H200)
    assert (work.waves, work.per_sm) == (4, 8)
    assert (work.programs_per_sm, work.tiles_per_program) == (1, 2)
    assert footprint_of(SQUARE, replace(PAIR, block_n=128), H200).tiles_per_program == 1


def test_one_group_leaves_room_for_a_second_program():
    small = KernelConfig("warp_specialized", 64, 64, 64, num_warps=4, num_stages=4)
    assert footprint_of(SQUARE, small, H200).programs_per_sm == 2
    assert footprint_of(SQUARE, replace(small, num_stages=12), H200).programs_per_sm == 1


def test_footprints_tell_the_kernels_apart_by_what_they_do():
    problem = GemmProblem.contiguous(8, 4096, 4096, layout="nt")
    split = GemmProblem.contiguous(512, 512, 512, dtype="fp32", precision="fp16x3")
    found = footprint_of(split, SPECS["split_product"].default(split, H200), H200)
    assert (found[3:8], found.products) == ((True, True, True, True, False), 3)
    assert {name: footprint_of(problem, spec.default(problem, H200), H200)[3:8]
            for name, spec in SPECS.items() if spec.takes.formats != ("fp32",)} == {
        # persistent, copy_engine, producer_warps, tensor_cores, k_over_threads
        "warp_specialized": (True, True, True, True, False),
        "persistent_tma": (True, True, False, True, False),
        "tiled": (False, False, False, True, False),
        "gemv": (False, False, False, False, True),
        "skinny": (False, False, False, True, True)}
    tiled = KernelConfig("tiled", 64, 64, 16)
    for precision, expected in (("ieee", False), ("tf32", True)):
        fp32 = GemmProblem.contiguous(64, 64, 64, dtype="fp32", precision=precision)
        assert footprint_of(fp32, tiled, H200).tensor_cores == expected
    assert not footprint_of(problem, replace(PAIR, cluster_k=4), H200).persistent


def test_operands_of_two_widths_are_counted_each_by_its_own():
    """A of 4 bytes and B of 2: no kernel takes them yet, and the counts are those of each."""
    even = GemmProblem.contiguous(512, 1024, 2048, layout="nt")
    wide_a = replace(even, dtype_a="fp32")
    config = replace(TMA, block_m=64, block_n=128)
    one, two = work_of(even, config, H200), work_of(wide_a, config, H200)
    assert (two.bits_a, two.bits_b) == (32, 16)
    assert two.sm_bytes / one.sm_bytes == (64 * 4 + 128 * 2) / (64 * 2 + 128 * 2)
    assert two.dram_bytes - one.dram_bytes == 512 * 2048 * 2
    assert two.in_flight_kib / one.in_flight_kib == (64 * 4 + 128 * 2) / (64 * 2 + 128 * 2)
    swapped = replace(PAIR, block_m=64, block_n=128, num_warps=4, swap_ab=2)
    one, two = work_of(even, swapped, H200), work_of(wide_a, swapped, H200)
    assert two.sm_bytes / one.sm_bytes == (64 * 2 + 128 * 4) / (64 * 2 + 128 * 2)


def test_swapped_operands_swap_the_sides():
    thin = GemmProblem.contiguous(16, 4096, 512, layout="nt")
    config = KernelConfig("warp_specialized", 64, 16, 64, num_warps=4, num_stages=8, swap_ab=1)
    work = work_of(thin, config, H200)
    assert (work.tiles, work.store) == (64, "swapped")


def test_copies_count_only_the_unaligned_operand():
    problem = GemmProblem.contiguous(512, 512, 500, layout="nt")
    config = replace(PAIR, block_n=128, pad_operands=1)
    assert work_of(problem, config, H200).pad_bytes == 2 * 2 * 512 * 512 * 2  # both, 512 a row
    one = replace(problem, align_a=16)
    assert work_of(one, config, H200).pad_bytes == 2 * 512 * 512 * 2
    assert work_of(problem, config, H200).pads == "align8"


def test_rows_that_straddle_lines_load_more():
    aligned = work_of(GemmProblem.contiguous(512, 512, 1024, layout="nt"), TMA, H200)
    straddling = work_of(GemmProblem.contiguous(512, 512, 1040, layout="nt"), TMA, H200)
    per_step = aligned.sm_bytes / aligned.steps
    assert straddling.sm_bytes / straddling.steps == pytest.approx(
        per_step * (1 + 1 - math.gcd(1040 * 2, 128) / 128))


def test_rows_that_begin_inside_a_sector_cost_more_unless_they_are_copied():
    sectors = work_of(GemmProblem.contiguous(512, 512, 1040, layout="nt"), PAIR, H200)
    within = GemmProblem.contiguous(512, 512, 1032, layout="nt")
    inside = work_of(within, PAIR, H200)
    copied = work_of(within, replace(PAIR, pad_operands=2), H200)
    assert inside.sm_bytes / inside.steps > 1.4 * sectors.sm_bytes / sectors.steps
    assert copied.sm_bytes / copied.steps < sectors.sm_bytes / sectors.steps
    assert copied.pad_bytes == 2 * 2 * 512 * 1088 * 2  # rows of whole lines


def test_large_unaligned_tiles_spill():
    problem = GemmProblem.contiguous(512, 512, 511, layout="nt")
    wide = KernelConfig("tiled", 128, 128, 64, num_warps=4, num_stages=4)
    assert work_of(problem, wide, H200).spilled > 0
    assert work_of(problem, replace(wide, num_warps=8, block_n=64), H200).spilled == 0
    assert work_of(replace(problem, align_a=16, align_b=16), wide, H200).spilled == 0


def test_the_class_is_what_decides_the_rate():
    assert class_of(PAIR) == "warp_specialized_128x256x64_w8"
    assert class_of(replace(PAIR, num_stages=6, group_m=16, split_k=2)) == class_of(PAIR)
    assert class_of(replace(PAIR, pingpong=1)) != class_of(PAIR)
    assert class_of(replace(PAIR, swap_ab=1)) != class_of(PAIR)


def test_every_rate_has_a_constant():
    work = work_of(SQUARE, PAIR, H200)
    assert len(keys_of(PAIR, work)) == len(Rates._fields) == len(scales(SQUARE, H200))


def test_the_terms_add_up_to_the_total_and_explain_prints_them(configs, h200):
    calibrate(h200, TILED, TMA)
    for config in candidates(SQUARE, h200, 20):
        e = estimate(SQUARE, config, h200)
        assert e.total_us == pytest.approx(
            e.launch_us + e.fill_us + e.k_loop_us + e.unit_us + e.store_us + e.split_us + e.pad_us
            + e.correction_us)
    text = str(explain_problem(SQUARE, h200))
    line = next(x for x in text.splitlines() if x.startswith("estimate"))
    total, terms = line.removeprefix("estimate").split(" us: ")
    assert sum(float(x.split()[-1]) for x in terms.split(" + ")) == pytest.approx(
        float(total), abs=0.04)
    assert "source     model: predicted" in text


def test_a_factor_scales_the_kernel_and_not_its_launch():
    work = work_of(SQUARE, PAIR, H200)
    rates = Rates(*(1.0 for _ in Rates._fields))
    once, twice = predict(work, rates), predict(work, rates, 2.0)
    assert twice.launch_us == once.launch_us and twice.split_us == once.split_us
    assert twice.k_loop_us == 2 * once.k_loop_us and twice.fill_us == 2 * once.fill_us


def test_no_config_beats_the_roof_by_the_usual_constants(configs, h200):
    least = SQUARE.flops() / (h200.peak_tflops["bf16"] * 1e6)
    assert model_for(SQUARE, h200).section is None
    found = candidates(SQUARE, h200)  # the fastest first
    assert all(estimate(SQUARE, c, h200).total_us > least for c in found[:200] + found[200::10])


def test_a_device_without_peaks_is_estimated_too():
    e = estimate(GemmProblem.contiguous(64, 64, 64, dtype="fp32"),
                 KernelConfig("tiled", 32, 32, 16), interpreter_device())
    assert math.isfinite(e.total_us) and e.total_us > 0


EXTENT = st.integers(0, 20000)


@hypothesis_settings(max_examples=150, deadline=None)
@given(m=EXTENT, n=EXTENT, k=EXTENT, batch=st.integers(0, 5),
       layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
       config=st.sampled_from([
           TILED, TMA, PAIR, replace(PAIR, pad_operands=1, split_k=2),
           KernelConfig("warp_specialized", 64, 16, 64, num_stages=12, swap_ab=1)]))
def test_every_term_is_finite_and_not_negative(m, n, k, batch, layout, config):
    problem = GemmProblem.contiguous(m, n, k, batch=batch, layout=layout)
    e = estimate(problem, config, H200)
    assert all(math.isfinite(x) for x in e) and e.total_us > 0
    assert all(x >= 0 for x in e._replace(correction_us=0.0))


@pytest.mark.parametrize("config", [TILED, TMA, PAIR])
def test_a_dependent_launch_has_constants_of_its_own(config, configs, h200):
    calibrate(h200, config)
    early = estimate(SQUARE, config, h200)
    late = estimate(SQUARE, replace(config, dependent_launch=0), h200)
    assert (early.fill_us, late.fill_us) == (0.9, 5.0)
    assert early.k_loop_us > late.k_loop_us


def test_what_calibration_predicts_is_what_a_call_predicts(h200):
    """The same terms and the same inputs of the network, though one counts many problems at once
    and the other one."""
    section = model_for(SQUARE, h200).section
    problems = (SQUARE, GemmProblem.contiguous(31, 4096, 777, layout="nn"),
                GemmProblem.contiguous(1000, 520, 2056, batch=3, layout="tt", dtype="fp16"))
    timings = [Timing(problem, config, 1.0) for problem in problems
               for config in candidates(problem, h200, 60)]
    table = TimingTable(timings, h200)
    constants = [model_for(t.problem, h200)._constants(
        [t.config], [class_of(t.config)], [static_of(t.problem, t.config, h200)])[:, 0]
        * np.array(scales(t.problem, h200)) for t in timings]
    fitted = Fit(np.zeros(len(table.keys)), dict(section.factors))
    fitted.constants[table.index] = np.log(constants) - table.scale
    rows = np.random.default_rng(1).permutation(len(timings))
    found = [estimate(timings[i].problem, timings[i].config, h200).total_us for i in rows]
    assert section.network is not None
    assert found == pytest.approx(corrected(table.rows(rows), fitted, section.network), rel=1e-3)


@given(*3 * [st.integers(1, 9000)], st.integers(1, 3), st.sampled_from(("bf16", "fp16", "fp32")),
       st.sampled_from(LAYOUTS), st.sampled_from(("none", "bias", "add")), st.booleans(),
       st.integers(0, 10**6))
@hypothesis_settings(deadline=None)  # the first reads the spaces
def test_a_kind_decides_the_static_part(m, n, k, batch, dtype, layout, epilogue, whole, seed):
    if whole:
        n, k = -(-n // 8) * 8, -(-k // 8) * 8
    problem = GemmProblem.contiguous(m, n, k, batch=batch, dtype=dtype, layout=layout,
                                     epilogue=epilogue)
    kind, configs = kind_of(problem), random.Random(seed).sample(shipped_configs(problem), 40)
    for device in (H200, representative(89)):
        for config in configs:
            assert static_of(kind, config, device) == static_of(problem, config, device)


def test_shapes_of_whole_sectors_are_of_one_kind():
    kinds = {kind_of(GemmProblem.contiguous(m, n, k, layout="nt"))
             for m in (1, 77, 4096) for n in (512, 1040, 11008) for k in (4096, 4112)}
    assert len(kinds) == 1
    assert kind_of(GemmProblem.contiguous(77, 512, 4104, layout="nt")) not in kinds


def test_many_configs_are_timed_as_each_alone(h200):
    model = model_for(SQUARE, h200)
    pair = (PAIR, replace(PAIR, dependent_launch=2))
    together = model.times(SQUARE, Columns((*pair, TMA)))
    assert together == pytest.approx([model.estimate(SQUARE, c).total_us for c in (*pair, TMA)])
    assert together[0] != together[1]


def test_what_another_thread_clears_at_once_is_given_all_the_same():
    class Cleared(dict):
        def __setitem__(self, key, value):
            self.clear()

    columns = Columns((PAIR,))
    columns._kept = Cleared()
    assert columns.kept(("a",), lambda: 7) == 7

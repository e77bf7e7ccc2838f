"""Tiles of any width, and of clusters: what their code relies on in shared memory and in order."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from compiled import disassembled

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import CompileError
from tritongemm.kernels import violation
from tritongemm.kernels.compile import compile_launch, launches_of
from tritongemm.problem import GemmProblem

H200 = representative(90)


def wide(block_m, block_n, warps, **more):
    return KernelConfig("warp_specialized", block_m, block_n, 64, num_warps=warps,
                        **{"num_stages": 3, **more})


CASES = [(wide(128, 144, 8), "bf16", "nt", 1), (wide(64, 120, 4), "bf16", "nt", 1),
         (wide(192, 136, 12), "fp16", "nn", 3), (wide(128, 88, 8, swap_ab=2), "bf16", "tt", 1),
         (wide(128, 112, 8, epilogue_subtile=2), "fp16", "tt", 1),
         (wide(192, 80, 12), "bf16", "nt", 3), (wide(64, 176, 8, pingpong=1), "fp16", "nt", 1),
         (wide(64, 48, 4, swap_ab=1), "bf16", "nn", 1),
         (wide(64, 192, 4, split_k=2), "bf16", "nt", 1),
         (wide(192, 96, 12), "bf16", "tn", 1), (wide(128, 144, 8), "fp16", "nn", 1),
         (wide(128, 144, 8, swap_ab=2), "bf16", "nt", 1),
         (wide(192, 128, 12, swap_ab=2, epilogue_subtile=2), "fp16", "tn", 3),
         (wide(64, 112, 8, swap_ab=2, pingpong=1), "bf16", "nt", 1)]
TWICE = [(wide(256, 144, 8, epilogue_subtile=2), "bf16", "nt", 1),  # two accumulators a group
         (wide(256, 120, 8), "fp16", "tn", 3), (wide(128, 104, 4, num_stages=5), "bf16", "nn", 1),
         (wide(256, 104, 8, epilogue_subtile=2), "bf16", "nt", 1),  # epilogue tiles of both
         (wide(256, 128, 8, cluster_m=2), "bf16", "nt", 1),
         (wide(256, 112, 8, swap_ab=2), "bf16", "tt", 1),
         (wide(128, 152, 8, pingpong=1), "bf16", "nt", 1),
         (wide(256, 152, 8, split_k=2), "fp16", "nt", 1)]
CLUSTERS = [(wide(64, 16, 4, cluster_k=2, swap_ab=1, num_stages=8), "bf16", "nt", 1),
            (wide(64, 64, 4, cluster_k=4, num_stages=6), "fp16", "tn", 3),
            (wide(128, 128, 8, cluster_k=4, num_stages=4), "bf16", "nn", 1),
            (wide(128, 96, 8, cluster_k=2, num_stages=4), "bf16", "tt", 1)]
SHARING = [(wide(128, 256, 8, cluster_m=2, epilogue_subtile=2), "bf16", "nt", 1),
           (wide(128, 208, 8, cluster_m=2, cluster_n=2), "fp16", "nt", 1),
           (wide(192, 192, 12, cluster_n=4, epilogue_subtile=2), "bf16", "nt", 3),
           (wide(192, 128, 12, cluster_m=2), "bf16", "nn", 1),
           (wide(192, 80, 12, cluster_n=2, swap_ab=2), "bf16", "nn", 1),
           (wide(128, 192, 8, cluster_n=2), "fp16", "tn", 1),
           (wide(64, 96, 4, cluster_m=4, num_stages=6), "bf16", "tt", 3),
           (wide(128, 120, 8, cluster_m=4, cluster_n=2), "bf16", "nt", 1),
           (wide(64, 48, 4, cluster_m=2, swap_ab=1), "bf16", "nt", 1),
           (wide(64, 128, 4, cluster_m=2, cluster_n=4, split_k=2), "bf16", "nt", 1)]


def gluon_launch(config, dtype, layout, batch=1):
    m = 48 if config.swap_ab == 1 else 1000
    problem = GemmProblem.contiguous(m, 2000, 512, batch=batch, dtype=dtype, layout=layout)
    assert violation(problem, config, H200) is None
    return next(x for x in launches_of(problem, config, H200) if x.gluon)


@pytest.mark.parametrize("config, dtype, layout, batch", [*CASES, *TWICE, *CLUSTERS, *SHARING],
                         ids=str)
def test_the_operands_buffer_is_the_first_in_shared_memory(config, dtype, layout, batch):
    launch = gluon_launch(config, dtype, layout, batch)
    assert all(x.loaded[-1] == 64 for x in launch.arguments[:2])  # a swizzled row of 128 bytes
    across = layout[0] == "t" if config.swap_ab else layout[1] == "n"
    columns = -(-config.block_n // 64) * 64 if across else config.block_n  # whole swizzled rows
    operands = config.num_stages * (config.block_m + columns) * 128
    behind = 4 * config.block_m * config.block_n if config.cluster_k > 1 else 0  # partial sums
    if config.split_k == 1 and config.swap_ab != 1:  # epilogue tiles, one or all of a consumer's
        stored = config.block_n // config.cluster_k
        rows = config.block_m if config.pingpong else config.block_m * 4 // config.num_warps
        if config.epilogue_subtile == 2:  # two store buffers of 64 rows
            stored = 2 * max((x for x in (16, 32, 48, 64)
                              if stored % x == 0 and (x <= 32 or not config.swap_ab)),
                             default=stored)
            rows = 64
        behind += 2 * rows * stored * config.num_warps // 4
    assert launch.first_shared == operands + behind
    binary = compile_launch(launch, 90)  # raises where it is not
    assert binary.shared_bytes > launch.first_shared and not binary.spills
    accumulators = 2 if (config, dtype, layout, batch) in TWICE else 1
    assert disassembled(binary).count(f"HGMMA.64x{config.block_n}x16") >= 4 * accumulators


@pytest.mark.parametrize("config, dtype, layout, batch", CLUSTERS, ids=str)
def test_a_consumer_stages_its_sums_over_its_operands_once_all_its_warps_are_done(
        config, dtype, layout, batch):
    # The last wait for products, a barrier of the consumer's warps, and only then the first store.
    code = disassembled(compile_launch(gluon_launch(config, dtype, layout, batch), 90))
    ends = [m.start() for m in re.finditer(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0", code)]
    assert len(ends) == config.num_warps // 4
    for end in ends:
        store = code.index("STS.128", end)
        assert "BAR.SYNC" in code[end:store]


def test_a_cluster_is_one_of_the_launch_and_does_one_tile():
    config, *rest = CLUSTERS[2]
    launch = gluon_launch(config, *rest)
    assert launch.cluster == 4 and launch.grid == (4 * 8 * 16, 1, 1)  # not the device's SMs
    assert gluon_launch(replace(config, cluster_k=1), *rest).grid == (128, 1, 1)


@pytest.mark.parametrize("config, dtype, layout, batch", SHARING, ids=str)
def test_each_program_of_a_cluster_loads_its_share_of_an_operand_in_one_box(
        config, dtype, layout, batch):
    launch = gluon_launch(config, dtype, layout, batch)
    across = [letter == other for letter, other in zip(layout, "tn", strict=True)]
    if config.swap_ab:
        across.reverse()
    loads = []
    sides = ((config.block_m, config.cluster_n), (config.block_n, config.cluster_m))
    for x, (rows, programs), is_across in zip(launch.arguments, sides, across, strict=False):
        atoms = -(-rows // 64)
        if not is_across:
            box, count = rows // programs, 1
        elif atoms % programs == 0:  # whole swizzle atoms, as the tensor instruction reads them
            box, count = 64, atoms // programs
        else:  # a range of K of all atoms
            box, count = 64 // programs, atoms
        assert x.loaded == (*(1,) * (batch > 1), box, 64)
        loads.append((programs > 1, count))
    code = disassembled(compile_launch(launch, 90))
    assert code.count(".MULTICAST") == sum(count for many, count in loads if many)
    assert len(re.findall(r"UTMALDG\.[23]D ", code)) == sum(count for _, count in loads
                                                            ) - code.count(".MULTICAST")


@pytest.mark.parametrize("config", (wide(128, 160, 8, pingpong=1), wide(192, 128, 12, cluster_n=2),
                                    wide(128, 112, 8, swap_ab=2, epilogue_subtile=2)), ids=str)
def test_a_result_that_the_l2_cannot_hold_is_stored_evict_first(config):
    columns = H200.l2_bytes // 2 // 4096
    stores = []
    for batch, n in ((1, columns), (1, columns + 8), (2, columns // 2 + 8)):
        problem = GemmProblem.contiguous(4096, n, 128, batch=batch, layout="nt")
        launch = launches_of(problem, config, H200)[0]
        found = re.findall(r"UTMASTG\.[23]D .*;", disassembled(compile_launch(launch, 90)))
        stores.append((len(found), sum("desc[" in x for x in found)))
    assert stores[0][1] == 0 and all(0 < every == said for every, said in stores[1:])


def test_only_tma_stores_from_the_one_buffer_evict_first():
    large = GemmProblem.contiguous(8192, 8192, 128, layout="nt")
    for problem, config, said in (
            (large, wide(128, 160, 8), True), (large, wide(128, 128, 8), False),
            (large, wide(128, 160, 8, split_k=2), False),
            (replace(large, dtype_out="fp32"), wide(128, 160, 8), False),
            (replace(large, align_c=8), wide(128, 160, 8), False)):
        launch = next(x for x in launches_of(problem, config, H200) if x.gluon)
        assert dict(launch.constants)["EVICT_FIRST"] is said


def test_a_transposed_tile_is_transposed_by_stmatrix_and_stored_in_rows_of_c():
    config, *rest = CASES[-3]
    launch = gluon_launch(config, *rest)
    c = launch.arguments[2]
    assert c.shape == (1000, 2000) and c.loaded == (16, 64)  # rows, columns of C
    code = disassembled(compile_launch(launch, 90))
    assert code.count("STSM.16.MT88.4") == 2 * 144 * 64 // 1024 and code.count("UTMASTG") == 2 * 9


@pytest.mark.parametrize("block_n, width, inner", [
    (120, 120, 8), (112, 112, 8), (160, 80, 8), (96, 48, 8), (192, 64, 64), (176, 176, 8)])
def test_epilogue_tiles_of_whole_sectors_are_stored_by_each_warp(block_n, width, inner):
    # 16 rows a box; an inner side of 64 in the type swizzles rows of 128 bytes, one of 8 none
    launch = gluon_launch(wide(64, block_n, 4), "bf16", "nt")
    c = launch.arguments[2]
    assert c.loaded == (16, width) and c.box == (64, inner)
    code = disassembled(compile_launch(launch, 90))
    assert code.count("UTMASTG") == block_n // width
    assert "BAR.SYNC" not in code[code.index("STSM"):code.rindex("STSM")]  # no warp waits


@pytest.mark.parametrize("config, buffers", [
    (wide(128, 192, 8, num_stages=4), 2), (wide(128, 192, 8, num_stages=5), 1),
    (wide(256, 128, 8, cluster_m=2), 2), (wide(128, 192, 8, num_stages=4, swap_ab=2), 2),
    (wide(64, 128, 4, cluster_m=2), 1)], ids=str)
def test_epilogue_tiles_alternate_between_two_store_buffers_where_these_fit(config, buffers):
    # The first waits for all of the tile before; with two buffers the second waits for none, and
    # the others for the one before the last. With one buffer each waits for all. So does the end of
    # the kernel.
    launch = gluon_launch(replace(config, epilogue_subtile=2), "bf16", "nt")
    tiles = config.block_m * config.block_n * 4 // config.num_warps // 64
    tiles //= 32 if config.swap_ab else 64
    code = disassembled(compile_launch(launch, 90))
    waits = [len(re.findall(rf"[^.]DEPBAR\.LE SB0, {x}\b", code)) * 4 // config.num_warps
             for x in ("0x0", "0x1")]
    assert waits == ([tiles + 1, 0] if buffers == 1 else [2, tiles - 2])


def test_the_loop_of_one_buffer_has_no_barrier_of_warps_and_issues_each_copy_once():
    # Of the consumer's steps and the producer's: ptxas wraps a copy whose predicate it does not
    # know to be one thread's in a loop (BRA.U.ANY).
    for config in (wide(128, 112, 8), wide(128, 128, 8, cluster_m=2, cluster_n=2),
                   wide(64, 160, 8, pingpong=1)):
        code = disassembled(compile_launch(gluon_launch(config, "bf16", "nt"), 90))
        assert "BRA.U.ANY" not in code
        steps = [code[code.rindex("TRYWAIT", 0, end.start()):end.start()]
                 for end in re.finditer(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1", code)]
        assert len(steps) == 2 and not any("BAR.SYNC" in step for step in steps)


@pytest.mark.parametrize("batch", (1, 3))
def test_the_maps_that_are_taken_by_number_are_where_the_code_looks_for_them(batch):
    binary = compile_launch(gluon_launch(SHARING[0][0], "bf16", "nt", batch), 90)
    maps = [i for i, (size, align) in enumerate(binary.parameters) if (size, align) == (128, 64)]
    assert maps[:2] == [0, 7 if batch > 1 else 5]


def test_clusters_leave_out_the_sms_on_which_they_do_not_fit():
    problem = GemmProblem.contiguous(8192, 8192, 512, layout="nt")
    for m, n, programs in ((2, 1, 132), (2, 2, 120), (4, 2, 120), (1, 8, 120)):
        config = wide(128, 128, 8, num_stages=6, cluster_m=m, cluster_n=n)
        launch, = launches_of(problem, config, H200)
        assert (launch.cluster, launch.grid) == (m * n, (programs, 1, 1))
    launch, = launches_of(problem, replace(config, cluster_n=4), replace(H200, num_sms=100))
    assert launch.grid == (88, 1, 1)
    small = replace(config, block_m=64, num_warps=4, num_stages=3)  # two an SM
    assert launches_of(problem, small, H200)[0].grid == (240, 1, 1)
    few = GemmProblem.contiguous(1000, 1000, 512, layout="nt")  # 16 by 8 tiles
    assert launches_of(few, small, H200)[0].grid == (128, 1, 1)


def test_something_before_it_is_a_compile_error():
    config, dtype, layout, batch = CASES[0]
    problem = GemmProblem.contiguous(1000, 2000, 512, dtype=dtype, layout=layout)
    launch = next(x for x in launches_of(problem, config, H200) if x.gluon)
    with pytest.raises(CompileError, match="of which 200000 bytes from the first are kept"):
        compile_launch(replace(launch, first_shared=200_000), 90)


@pytest.mark.parametrize("config", [
    wide(128, 144, 8), wide(192, 136, 12), wide(64, 160, 8, pingpong=1), wide(256, 120, 8),
    wide(128, 120, 8, swap_ab=2)], ids=str)
@pytest.mark.parametrize("epilogue, n", [("bias", 2000), ("add", 2000), ("bias", 2001)])
def test_an_epilogue_that_loads_d_issues_each_copy_once(config, epilogue, n):
    problem = GemmProblem.contiguous(1000, n, 512, layout="nt", epilogue=epilogue)
    launch, = launches_of(problem, config, H200)
    assert "BRA.U.ANY" not in disassembled(compile_launch(launch, 90))


@pytest.mark.parametrize("epilogue", ("bias", "add"))
def test_every_consumer_loads_two_values_of_d_at_once(epilogue):
    problem = GemmProblem.contiguous(1000, 2000, 512, layout="nt", epilogue=epilogue)
    for config in (wide(192, 136, 12), wide(128, 144, 8)):
        launch, = launches_of(problem, config, H200)
        code = disassembled(compile_launch(launch, 90))
        assert "LDG.E.U16" not in code and code.count("LDG.E ") >= config.num_warps // 4 * 16
    launch, = launches_of(replace(problem, n=2001, align_c=2), wide(192, 136, 12), H200)
    assert "LDG.E.U16" in disassembled(compile_launch(launch, 90))

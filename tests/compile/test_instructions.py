"""What a kernel is for shows in its instructions: bulk copies, tensor cores, wide loads."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from compiled import (
    compiled,
    count,
    disassembled,
    in_loops,
    local_accesses_in_loops,
    most_in_flight,
    opcodes_in_loops,
    sass,
)

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels import shared_bytes, violation
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.tensor_map import tma_store
from tritongemm.problem import LAYOUTS, GemmProblem, dtype_of

#: Tensor-core instructions by architecture.
TENSOR = {80: "HMMA", 89: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}
#: The wait of a programmatic dependent launch, and what reads or writes global memory.
_WAIT_OR_MEMORY = re.compile(r"\bACQBULK\b|\b(?:LDG|LDGSTS|STG|RED|ATOMG|UTMALDG|UTMASTG)\b")


@dataclass(frozen=True)
class Case:
    arch: int
    config: KernelConfig
    problem: GemmProblem

    def __str__(self) -> str:
        return f"sm_{self.arch}-{self.config}-{self.problem}".replace(" ", "-")


def shape(layout: str = "nt", **changes) -> GemmProblem:
    return GemmProblem.contiguous(2048, 1536, 1024, layout=layout, **changes)


PERSISTENT = KernelConfig("persistent_tma", 128, 128, 64, num_warps=8, num_stages=3)
SUBTILED = KernelConfig("persistent_tma", 128, 256, 64, num_warps=8, num_stages=3,
                        epilogue_subtile=2)
TF32 = KernelConfig("persistent_tma", 128, 128, 32, num_warps=8, num_stages=3)
SHARED = KernelConfig("warp_specialized", 128, 256, 64, num_warps=8, num_stages=4,
                      epilogue_subtile=2)
PINGPONG = KernelConfig("warp_specialized", 64, 256, 64, num_warps=8, num_stages=4, pingpong=1)
SINGLE = KernelConfig("warp_specialized", 64, 128, 64, num_warps=4, num_stages=4, split_k=4)
SWAPPED = KernelConfig("warp_specialized", 64, 16, 64, num_warps=4, num_stages=8, split_k=2,
                       swap_ab=1)
PADDED = replace(SHARED, num_stages=3, epilogue_subtile=1, pad_operands=1)
UNALIGNED = GemmProblem.contiguous(2047, 1535, 1023, layout="nt")

#: TF32 whose first operand is stored across K and comes from registers, near their limit.
ACROSS = tuple(KernelConfig("warp_specialized", *tile, 32, num_warps=warps, num_stages=4, swap_ab=1)
               for *tile, warps in ((64, 192, 4), (128, 256, 8), (256, 112, 8), (192, 160, 12)))
COPIED = (
    *(Case(arch, PERSISTENT, shape(layout)) for arch in (90, 100) for layout in LAYOUTS),
    *(Case(arch, SUBTILED, shape(dtype="fp16", batch=3)) for arch in (90, 100)),
    *(Case(arch, TF32, shape(dtype="fp32", precision="tf32")) for arch in (90, 100)),
    *(Case(90, config, shape("nn", dtype="fp32", precision="tf32")) for config in ACROSS),
    Case(90, PERSISTENT, GemmProblem.contiguous(2048, 1531, 1024, layout="nt")),
    *(Case(90, SHARED, shape(layout)) for layout in LAYOUTS),
    Case(90, SHARED, shape(dtype="fp16", batch=3)), Case(90, PINGPONG, shape()),
    Case(90, SINGLE, shape()), Case(90, PADDED, UNALIGNED),
    Case(90, SWAPPED, GemmProblem.contiguous(16, 4096, 4096, layout="nt")),
)


def main_of(case: Case):
    """The opcodes of the product's own kernel."""
    device = representative(case.arch)
    assert violation(case.problem, case.config, device) is None
    binary, = (b for b in compiled(case.problem, case.config, device)
               if case.config.config_id in b.symbol)
    return binary, sass(binary)


@pytest.mark.parametrize("case", COPIED, ids=str)
def test_tma_kernels_load_by_the_copy_engine_into_tensor_cores(case):
    binary, opcodes = main_of(case)
    assert binary.spills == 0 or case.arch != 90
    assert count(opcodes, "UTMALDG") >= 2, opcodes
    assert count(opcodes, TENSOR[case.arch]), opcodes
    assert not count(opcodes, "LDG.", "LDGSTS"), "operands are also loaded by pointer"
    stores_by_pointer = case.config.split_k > 1 or case.config.swap_ab or not tma_store(
        case.problem)
    assert bool(count(opcodes, "UTMASTG")) != bool(stores_by_pointer), opcodes
    assert bool(count(opcodes, "STG")) == bool(stores_by_pointer), opcodes


ROWS_64 = KernelConfig("tiled", 128, 64, 64, num_warps=4, num_stages=3)
FMA = KernelConfig("tiled", 64, 64, 16, num_warps=4, num_stages=2)
WIDE = tuple(
    Case(arch, FMA if dtype == "fp32" else ROWS_64, shape(layout, dtype=dtype))
    for arch in (80, 89, 90, 100) for dtype, layouts in (("bf16", LAYOUTS), ("fp32", ("nn", "nt")))
    for layout in layouts)


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_tiled_moves_aligned_operands_128_bits_at_a_time(case):
    binary, opcodes = main_of(case)
    loads = {name: times for name, times in opcodes.items()
             if name.startswith(("LDG.", "LDGSTS."))}
    assert loads and all(name.split(".")[-1] == "128" or ".128" in name for name in loads), loads
    stores = {name for name in opcodes if name.startswith("STG")}
    assert stores and all(".64" in name or ".128" in name for name in stores), stores
    if case.problem.dtype_a == "bf16":
        assert count(opcodes, TENSOR[case.arch]), opcodes
    else:
        assert count(opcodes, "FFMA") and not count(opcodes, TENSOR[case.arch]), opcodes


@pytest.mark.parametrize("config", ACROSS, ids=str)
def test_products_from_registers_run_together_while_the_next_ones_are_loaded(config):
    problem = shape("nn", dtype="fp32", precision="tf32")
    of_interest = re.findall(r"\b(HGMMA|LDS|DEPBAR)\b(?!\.U8)",
                             disassembled(main_of(Case(90, config, problem))[0]))
    consumers = config.num_warps // 4
    products = 4 * config.block_m // consumers // 64
    steps = re.findall(r"(?:HGMMA )+(?:LDS )+DEPBAR", " ".join(of_interest))
    # ptxas that serialises products waits after each; here one wait is behind the loads.
    assert [x.count("HGMMA") for x in steps] == [products] * consumers
    assert [x.count("LDS") for x in steps] == [4 * products] * consumers


@pytest.mark.parametrize(("layout", "epilogue", "tile", "warps"), (
    ("tt", "bias+residual", (256, 112), 8), ("tt", "add", (128, 192), 8),
    ("nn", "add", (128, 160), 8), ("nn", "bias+residual", (256, 80), 8),
    ("nt", "dgelu", (192, 96), 12)))
def test_tf32_beside_a_matrix_d_spills_a_few_registers_at_most(layout, epilogue, tile, warps):
    config = KernelConfig("warp_specialized", *tile, 32, num_warps=warps, num_stages=3,
                          swap_ab=int(layout == "nn"))
    problem = shape(layout, dtype="fp32", precision="tf32", epilogue=epilogue)
    assert main_of(Case(90, config, problem))[0].spills <= 16


def test_tiled_assumes_no_alignment_that_is_not_there():
    case = Case(90, ROWS_64, UNALIGNED)
    _, opcodes = main_of(case)
    assert not count(opcodes, "LDGSTS"), "an asynchronous copy moves at least 4 aligned bytes"
    assert all(".U16" in name for name in opcodes if name.startswith("LDG.")), opcodes
    assert all(".U16" in name for name in opcodes if name.startswith("STG.")), opcodes


@pytest.mark.parametrize(("align", "wide"), ((2, ".U16"), (4, "LDGSTS.E"), (8, ".64"),
                                             (16, ".128")))
def test_a_load_is_as_wide_as_the_operand_is_aligned(align, wide):
    problem = replace(shape(), align_a=align, align_b=align)
    binary, = compiled(problem, ROWS_64, representative(90))
    loads = {name for name in sass(binary) if name.startswith(("LDG.", "LDGSTS."))}
    assert loads and all(wide in name for name in loads), loads


def test_padding_copies_both_operands_before_the_product():
    device = representative(90)
    copy, product = compiled(UNALIGNED, PADDED, device)
    assert copy.symbol == "tritongemm_pad_bf16_ab" and not copy.maps
    opcodes = sass(copy)
    assert count(opcodes, "LDG") and count(opcodes, "STG") and not count(opcodes, "UTMALDG")
    assert len(product.maps) >= 2


THIN = GemmProblem.contiguous(4, 8192, 4096, layout="nt")
TALL = GemmProblem.contiguous(8192, 3, 4096, layout="nt")
STREAM = KernelConfig("gemv", 4, 16, 256, num_warps=4, num_stages=1)
ALONG_N = KernelConfig("gemv", 4, 64, 64, num_warps=4, num_stages=1)
#: Opcodes of a step that would make one thread wait for another, or a tensor core.
_EXCHANGE = ("SHFL", "BAR", "LDS", "STS", "HMMA", "HGMMA", "UTCHMMA")


STREAMED = tuple(
    Case(arch, config, problem) for arch in (80, 90, 100) for config, problem in (
        (STREAM, THIN), (replace(STREAM, swap_ab=1), TALL), (replace(STREAM, num_stages=2), THIN),
        (ALONG_N, replace(THIN, layout="nn")), (replace(STREAM, block_m=8), replace(THIN, m=8)),
        (replace(STREAM, block_m=1, split_k=2), replace(THIN, m=1)),
        (replace(STREAM, block_n=4, block_k=1024), replace(THIN, epilogue="bias+gelu")),
        (STREAM, replace(THIN, dtype_a="fp32", dtype_b="fp32", dtype_out="fp32"))))


@pytest.mark.parametrize("case", STREAMED, ids=str)
def test_weights_stream_to_registers_and_no_thread_waits_for_another(case):
    binary, _ = main_of(case)
    text = disassembled(binary)
    inside, size = opcodes_in_loops(text), dtype_of(case.problem.dtype_a).itemsize
    assert not local_accesses_in_loops(text) and not count(inside, *_EXCHANGE), inside
    weights = {name: times for name, times in inside.items()
               if name.startswith("LDG.") and ".EF" in name}
    assert weights and all(".128" in name for name in weights), inside
    a_step = case.config.block_n * case.config.block_k * size // (16 * 32 * case.config.num_warps)
    assert a_step > 1 and sum(weights.values()) % a_step == 0, "all are under way at a time"
    products = sum(weights.values()) * 16 // size * case.config.block_m
    assert count(inside, "FFMA2") or count(inside, "FFMA", "FMUL") >= products, inside


@pytest.mark.parametrize("rows", (1, 2, 4, 8))
@pytest.mark.parametrize("config", (STREAM, ALONG_N), ids=str)
def test_with_two_stages_all_of_a_step_is_under_way_before_the_step_before_is_used(config, rows):
    config = replace(config, block_m=rows, num_stages=2)
    binary, _ = main_of(Case(90, config, replace(
        THIN, m=rows, layout="nt" if config.block_k == STREAM.block_k else "nn")))
    assert most_in_flight(in_loops(disassembled(binary)), "LDG.E.EF") == 4


@pytest.mark.parametrize("problem", [replace(THIN, layout="tt", align_a=8),
                                     replace(THIN, align_a=2)], ids=str)
def test_rows_that_cannot_be_loaded_as_wide_leave_the_weights_as_they_are(problem):
    binary, _ = main_of(Case(90, STREAM, problem))
    inside = opcodes_in_loops(disassembled(binary))
    assert not count(inside, "SHFL") and count(inside, "LDG.E.EF.128") == 4, inside
    assert 0 < binary.shared_bytes <= shared_bytes(problem, STREAM)


@pytest.mark.parametrize(("config", "problem"), [(STREAM, THIN), (
    replace(STREAM, swap_ab=1), TALL), (ALONG_N, replace(THIN, layout="nn"))], ids=str)
def test_a_pipelined_stream_copies_16_bytes_at_a_time_to_shared_memory(config, problem):
    binary, opcodes = main_of(Case(90, replace(config, num_stages=3), problem))
    copies = {name for name in opcodes if name.startswith("LDGSTS")}
    assert copies and all(".128" in name for name in copies) and binary.spills == 0


@pytest.mark.parametrize(("align", "wide"), ((2, ".U16"), (4, "LDG.E.EF"), (8, ".64")))
def test_a_stream_is_as_wide_as_the_weights_are_aligned(align, wide):
    _, opcodes = main_of(Case(90, STREAM, replace(THIN, align_b=align)))
    loads = {name for name in opcodes if name.startswith("LDG.") and ".EF" in name}
    assert loads and all(wide in name and ".128" not in name for name in loads), loads


FEW = GemmProblem.contiguous(16, 8192, 4096, layout="nt")
COLUMNS = GemmProblem.contiguous(8192, 20, 4096, layout="nt")
SKINNY = KernelConfig("skinny", 16, 16, 256, num_warps=4, num_stages=3)
SKINNY_WIDE = replace(SKINNY, block_n=64, num_warps=8)
SKINNY_SWAPPED = replace(SKINNY, block_m=32, num_stages=2, swap_ab=1)
#: What warps meet by: barriers and shared memory.
_MEETING = ("BAR", "LDS", "STS", "ATOMS", "SHFL")

FRAGMENTS = tuple(Case(90, config, problem) for config, problem in (
    (SKINNY, FEW), (SKINNY, replace(FEW, dtype_a="fp16", dtype_b="fp16", dtype_out="fp16")),
    (replace(SKINNY, block_m=8), replace(FEW, m=1)), (SKINNY, replace(FEW, k=4104)),
    (replace(SKINNY, block_k=512), replace(FEW, batch=3, epilogue="bias+gelu")),
    (replace(SKINNY, num_stages=1), FEW), (replace(SKINNY, split_k=2), FEW), (SKINNY_WIDE, FEW),
    (replace(SKINNY, block_k=192, num_warps=2, num_stages=2), FEW),
    (replace(SKINNY, block_k=512, num_warps=16), FEW), (SKINNY_SWAPPED, COLUMNS),
    (replace(SKINNY_SWAPPED, block_n=32, num_warps=8, split_k=2), COLUMNS)))


@pytest.mark.parametrize("case", FRAGMENTS, ids=str)
def test_weights_go_from_memory_into_fragments_and_no_warp_waits_for_another(case):
    binary, opcodes = main_of(case)
    text, config = disassembled(binary), case.config
    inside = opcodes_in_loops(text)
    assert binary.spills == 0 and not count(opcodes, "LDL", "STL"), opcodes
    assert not count(inside, *_MEETING) and not count(opcodes, "LDGSTS", "UTMALDG"), opcodes
    loads = {name: times for name, times in inside.items() if name.startswith("LDG.")}
    assert all(name.endswith(".128") for name in loads), loads
    weights = sum(times for name, times in loads.items() if name.startswith("LDG.E.EF"))
    a_step = config.block_n // 8 * (config.block_k // config.num_warps // 32)
    assert weights == config.num_stages * a_step, inside
    assert sum(loads.values()) - weights == weights * config.block_m // config.block_n, inside
    assert count(inside, "HMMA.16816.F32") == weights * config.block_m // 8, inside
    assert sum(times for name, times in inside.items() if "MMA" in name) == count(inside, "HMMA")


@pytest.mark.parametrize("case", FRAGMENTS, ids=str)
def test_the_sums_of_all_warps_meet_in_shared_memory_once_and_after_the_loop(case):
    binary, opcodes = main_of(case)
    text = disassembled(binary)
    last = max(match.end() for match in re.finditer(r"\bHMMA\b|\bLDG\S*\.EF\b", text))
    assert not re.search(r"\b(?:BAR|LDS|LDSM|STS|STSM|SHFL)\b", text[:last])
    assert count(opcodes, "BAR") == 1 and count(opcodes, "STS") and count(opcodes, "LDS")


@pytest.mark.parametrize("stages", (1, 2, 3, 4))
def test_all_stages_of_a_warp_are_under_way_at_a_time(stages):
    binary, _ = main_of(Case(90, replace(SKINNY, num_stages=stages), FEW))
    assert most_in_flight(in_loops(disassembled(binary)), "LDG.E.EF") == 4 * stages


@pytest.mark.parametrize(("rows", "tile", "warps", "stages"), (
    (8, (16, 192), 1, 3), (8, (16, 1536), 8, 3), (16, (16, 512), 16, 5), (16, (32, 512), 16, 3),
    (16, (32, 256), 8, 8), (32, (16, 1536), 16, 1), (32, (16, 512), 4, 2)))
def test_what_just_fits_the_registers_does_not_spill(rows, tile, warps, stages):
    config = KernelConfig("skinny", rows, *tile, num_warps=warps, num_stages=stages)
    problem = GemmProblem.contiguous(rows, 8192, 16392, layout="nt", batch=3, epilogue="add+gelu")
    binary, opcodes = main_of(Case(90, config, problem))
    assert binary.spills == 0 and not count(opcodes, "LDL", "STL"), opcodes
    more = replace(config, num_stages=stages + 1)
    assert violation(problem, more, representative(90)).rule in ("registers", "tile")


WAITING = (Case(90, SHARED, shape()), Case(90, SINGLE, shape()), Case(90, PADDED, UNALIGNED),
           Case(90, PERSISTENT, shape()), Case(100, PERSISTENT, shape()),
           Case(90, ROWS_64, shape()), Case(100, replace(ROWS_64, split_k=2), shape()),
           Case(90, STREAM, THIN), Case(90, replace(STREAM, num_stages=3, split_k=2), THIN),
           Case(80, STREAM, THIN), Case(90, replace(STREAM, swap_ab=1), TALL),
           Case(90, SKINNY, FEW), Case(90, replace(SKINNY_SWAPPED, split_k=2), COLUMNS),
           Case(80, replace(ROWS_64, split_k=2), shape()), Case(90, FMA, shape(dtype="fp32")))


@pytest.mark.parametrize("case", WAITING, ids=str)
def test_a_kernel_that_may_start_early_waits_before_it_touches_memory(case):
    device = representative(case.arch)
    launches = launches_of(case.problem, case.config, device)
    for launch, binary in zip(launches, compiled(case.problem, case.config, device), strict=True):
        order = [match.group() for match in _WAIT_OR_MEMORY.finditer(disassembled(binary))]
        if not launch.dependent:
            assert case.arch < 90 and "ACQBULK" not in order
            continue
        roles = 1
        if launch.function == "warp_specialized":  # producer and consumers each wait
            roles += max(1, case.config.num_warps // 4)
        elif launch.function == "pad_operands":  # who copies A, and who copies B
            roles += 1
        assert order[0] == "ACQBULK" and order.count("ACQBULK") == roles, order
        loading = [part for part in " ".join(order).split("ACQBULK") if "UTMALDG" in part]
        assert len(loading) == (launch.function in ("warp_specialized", "persistent_tma")), order


#: The wait, what a division of integers begins with, and what loads.
_WAIT_DIVISION_OR_LOAD = re.compile(r"\bACQBULK\b|\bI2F\b|\b(?:LDG|LDGSTS|UTMALDG)\b")


@pytest.mark.parametrize("case", (
    Case(90, SHARED, shape()), Case(90, PINGPONG, shape(batch=3)), Case(90, PADDED, UNALIGNED),
    Case(90, ROWS_64, shape()), Case(90, ROWS_64, replace(UNALIGNED, batch=3)),
    Case(90, STREAM, THIN)), ids=str)
def test_a_program_knows_its_first_place_before_it_waits_for_the_kernel_before_it(case):
    """A division takes some 100 instructions, in which memory has nothing to do."""
    for binary in compiled(case.problem, case.config, representative(90)):
        if "reduce" in binary.symbol:  # it divides for where it stores
            continue
        order = " ".join(x.group()
                         for x in _WAIT_DIVISION_OR_LOAD.finditer(disassembled(binary)))
        loading = [part for part in order.split("ACQBULK")[1:] if "LDG" in part]
        assert loading and all(part.split()[0] != "I2F" for part in loading), order


#: A copy-engine request for the L2, and the wait.
_PREFETCH_OR_WAIT = re.compile(r"\bUBLKPF\b|\bACQBULK\b")


@pytest.mark.parametrize(("config", "problem"), (
    (SKINNY, FEW), (replace(SKINNY, dependent_launch=0), FEW),
    (replace(SKINNY_SWAPPED, split_k=2), COLUMNS), (SKINNY, replace(FEW, batch=3))), ids=str)
def test_skinny_asks_for_weights_before_it_waits(config, problem):
    binary, _ = main_of(Case(90, config, problem))
    order = [match.group() for match in _PREFETCH_OR_WAIT.finditer(disassembled(binary))]
    assert order == ["UBLKPF", "ACQBULK"]
    launch = launches_of(problem, config, representative(90))[0]
    assert dict(launch.constants)["PREFETCHERS"] == 4 * representative(90).num_sms

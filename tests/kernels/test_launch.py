"""A launch as data: what two problems may share, and that no promise to the compiler is false."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import CompileError
from tritongemm.kernels import SPECS, violation
from tritongemm.kernels.compile import binary_key, launches_of
from tritongemm.kernels.driver import _fields
from tritongemm.kernels.footprint import resident
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.kernels.launch import Descriptor, Geometry, Number, Pointer, Scalar
from tritongemm.kernels.padding import pad_operands, padded_bytes
from tritongemm.kernels.symbol import symbol_of
from tritongemm.problem import LAYOUTS, PLAIN_EPILOGUES, GemmProblem, divisor_of, dtype_of

H200 = representative(90)
CONFIGS = {
    "tiled": KernelConfig("tiled", 64, 64, 32),
    "split": KernelConfig("tiled", 64, 64, 32, split_k=4),
    "persistent_tma": KernelConfig("persistent_tma", 64, 64, 64, num_stages=3),
    "warp_specialized": KernelConfig("warp_specialized", 128, 64, 64, num_warps=8, num_stages=4),
    "swapped": KernelConfig("warp_specialized", 64, 64, 64, num_stages=4, split_k=2, swap_ab=1),
}
BASE = GemmProblem.contiguous(128, 512, 1024, layout="nt")
#: Rows or columns at most, of the kernels that are for few.
FEW = {"gemv": 8, "skinny": 32}
SKINNY = KernelConfig("skinny", 16, 16, 256, num_stages=3)
NARROW = GemmProblem.contiguous(16, 512, 1024, layout="nt")


def keys(problem: GemmProblem, config: KernelConfig, geometry: Geometry | None = None) -> list:
    return [launch.static_key() for launch in launches_of(problem, config, H200, geometry)]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("epilogue", "more"), [
    ("none", set()), ("relu", set()), ("scale", {"alpha"}), ("bias", {"d", "alpha", "beta"})])
def test_launches_declare_the_operands_that_they_read(config, epilogue, more):
    problem = replace(BASE, epilogue=epilogue)
    found = [launch.operands() for launch in launches_of(problem, CONFIGS[config], H200)]
    assert {name for names in found for name in names} == {"a", "b", "c", *more}
    assert all(len(names) == len(set(names)) for names in found)


SHARED = {
    "longer": GemmProblem.contiguous(96, 1024, 2048, layout="nt"),
    "ragged-rows": GemmProblem.contiguous(111, 512, 1024, layout="nt"),
}


@pytest.mark.parametrize("config", [name for name in CONFIGS if name != "swapped"])
@pytest.mark.parametrize("other", SHARED)
def test_extents_with_the_same_divisors_share_a_binary(config, other):
    assert keys(BASE, CONFIGS[config]) == keys(SHARED[other], CONFIGS[config])


DIFFERENT = {
    "dtype": replace(BASE, dtype_a="fp16", dtype_b="fp16", dtype_out="fp16"),
    "dtype_out": replace(BASE, dtype_out="fp32"),
    "layout-a": replace(BASE, layout="tt"), "layout-b": replace(BASE, layout="nn"),
    "n-divisor": GemmProblem.contiguous(128, 500, 1024, layout="nt"),
    "align-c": replace(BASE, align_c=4),
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("other", DIFFERENT)
def test_what_a_binary_is_specialised_on_makes_another(config, other):
    mine, others = keys(BASE, CONFIGS[config]), keys(DIFFERENT[other], CONFIGS[config])
    assert not any(a == b for a, b in zip(mine, others, strict=True)) or (
        len(mine) == 2 and mine != others)


@pytest.mark.parametrize("split", (1, 2))
def test_all_rows_of_a_skinny_tile_and_all_lengths_share_a_binary(split):
    config = replace(SKINNY, split_k=split)
    problems = [GemmProblem.contiguous(m, n, k, layout="nt", batch=batch) for m in range(9, 17)
                for n in (512, 4096) for k in (1024, 8192) for batch in (1, 16)]
    assert len({str(keys(problem, config)[0]) for problem in problems}) == 1


@pytest.mark.parametrize("other", (
    replace(NARROW, dtype_a="fp16", dtype_b="fp16", dtype_out="fp16"),
    replace(NARROW, dtype_out="fp32"), replace(NARROW, epilogue="relu"),
    GemmProblem.contiguous(16, 500, 1024, layout="nt"),
    GemmProblem.contiguous(16, 512, 1032, layout="nt")), ids=str)
def test_what_a_skinny_binary_is_specialised_on_makes_another(other):
    assert keys(NARROW, SKINNY) != keys(other, SKINNY)


@pytest.mark.parametrize("change", ({"block_n": 32}, {"block_k": 512}, {"num_warps": 8},
                                    {"num_stages": 2}, {"split_k": 2}, {"dependent_launch": 0}),
                         ids=str)
def test_every_parameter_makes_another_skinny_binary(change):
    assert keys(NARROW, SKINNY)[0] != keys(NARROW, replace(SKINNY, **change))[0]


@pytest.mark.parametrize("operand", ("align_a", "align_b", "align_c"))
def test_alignment_makes_another_tiled_binary(operand):
    found = {str(keys(replace(BASE, **{operand: align}), CONFIGS["tiled"]))
             for align in (2, 4, 8, 16)}
    assert len(found) == 4


def test_a_ragged_k_a_unit_stride_and_a_far_offset_make_other_tiled_binaries():
    config, one = CONFIGS["tiled"], Geometry.contiguous(BASE)
    others = [keys(BASE, config),
              keys(GemmProblem.contiguous(128, 512, 1040, layout="nt"), config),
              keys(BASE, config, replace(one, ak=2)), keys(BASE, config, replace(one, cn=2)),
              keys(BASE, config, replace(one, am=2**33)),
              keys(BASE, config, replace(one, am=2**25))]
    assert len({str(key) for key in others}) == len(others)


@pytest.mark.parametrize("config", ("persistent_tma", "warp_specialized"))
def test_a_batch_makes_another_tma_binary_but_its_length_does_not(config):
    two, five = (replace(BASE, batch=batch) for batch in (2, 5))
    assert keys(BASE, CONFIGS[config]) != keys(two, CONFIGS[config])
    assert keys(two, CONFIGS[config]) == keys(five, CONFIGS[config])


@pytest.mark.parametrize("change", ({"block_m": 128}, {"num_warps": 8}, {"num_stages": 3},
                                    {"group_m": 4}, {"split_k": 2}), ids=str)
def test_every_parameter_makes_another_binary(change):
    config = CONFIGS["tiled"]
    assert keys(BASE, config)[0] != keys(BASE, replace(config, **change))[0]


def test_architecture_compiler_and_device_code_make_other_files(monkeypatch):
    from tritongemm.kernels import compile as compiling

    launch = launches_of(BASE, CONFIGS["tiled"], H200)[0]
    found = {binary_key(launch, 90), binary_key(launch, 100)}
    monkeypatch.setattr(compiling, "compiler_key", lambda arch: {"triton": "0.0.1"})
    found.add(binary_key(launch, 90))
    monkeypatch.setattr(compiling, "device_code_digest", lambda: "another")
    found.add(binary_key(launch, 90))
    assert len(found) == 4 and all(re.fullmatch("[0-9a-f]{64}", key) for key in found)


@pytest.mark.parametrize("config", ("tiled", "warp_specialized"))
def test_tritons_own_cache_knows_a_kernel_by_all_device_code_too(monkeypatch, config):
    from tritongemm.kernels import compile as compiling

    seen = []

    def stop(source, **_):
        seen.append(source.hash())
        raise RuntimeError("seen")

    monkeypatch.setattr("triton.compile", stop)
    launch = launches_of(BASE, CONFIGS[config], H200)[0]
    for digest in ("one", "another", "one"):
        monkeypatch.setattr(compiling, "device_code_digest", lambda digest=digest: digest)
        with pytest.raises(CompileError, match="seen"):
            compiling.compile_launch(launch, 90)
    assert seen[0] == seen[2] != seen[1]


@st.composite
def operands(draw) -> tuple[GemmProblem, Geometry]:
    """A problem and strides such as torch may hand over, with the alignment that they have."""
    dtype = draw(st.sampled_from(("bf16", "fp16", "fp32")))
    size = dtype_of(dtype).itemsize
    m, n, k = (draw(st.one_of(st.integers(1, 20), st.integers(1, 5000),
                              st.sampled_from((64, 128, 1024, 4096)))) for _ in range(3))
    batch, layout = draw(st.sampled_from((1, 1, 3))), draw(st.sampled_from(LAYOUTS))
    gap = st.one_of(st.just(0), st.sampled_from((1, 8, 64)), st.integers(0, 100))
    base = st.sampled_from((2, 4, 8, 16))

    def strides(rows: int, cols: int, letter: str) -> tuple[int, int, int, int]:
        inner = draw(st.sampled_from((1, 1, 1, 3)))
        lead = (cols if letter == "n" else rows) * inner + draw(gap)
        whole = (rows if letter == "n" else cols) * lead + draw(gap)
        align = max(size, draw(base))
        align = min(align, divisor_of(lead * size), divisor_of(whole * size))
        if inner != 1:
            align = size
        outer_inner = (lead, inner) if letter == "n" else (inner, lead)
        return whole, *outer_inner, align

    ab, am, ak, align_a = strides(m, k, layout[0])
    bb, bk, bn, align_b = strides(k, n, layout[1])
    cb, cm, cn, align_c = strides(m, n, "n")
    epilogue = draw(st.sampled_from(tuple(PLAIN_EPILOGUES)))
    db = dm = dn = 0
    align_d = 16
    if "bias" in epilogue:
        dn, align_d = draw(st.sampled_from((1, 3))), max(size, draw(base))
    elif "add" in epilogue:
        db, dm, dn, align_d = strides(m, n, draw(st.sampled_from("nt")))
        gone = draw(st.sets(st.sampled_from(("batch", "rows", "columns"))))
        db, dm, dn = (0 if name in gone else stride for name, stride in
                      (("batch", db), ("rows", dm), ("columns", dn)))
    problem = GemmProblem(m, n, k, batch, dtype, dtype, dtype, layout, align_a, align_b, align_c,
                          epilogue)
    return problem, Geometry(ab, am, ak, bb, bk, bn, cb, cm, cn, db, dm, dn, align_d)


def aligned_operand(x: Pointer | Descriptor, problem: GemmProblem, geometry: Geometry) -> int:
    """The alignment in bytes that the operand really has: scratch is torch's own."""
    if x.operand == "d":
        return geometry.align_d
    return 16 if x.operand == "scratch" else getattr(problem, f"align_{x.operand}")


@given(operands())
def test_no_promise_to_the_compiler_is_false(drawn):
    problem, geometry = drawn
    padded = [replace(config, pad_operands=1) for config in CONFIGS.values()]
    legal = [config for config in (*CONFIGS.values(), *padded)
             if violation(problem, config, H200) is None]
    for config in legal:
        check_promises(problem, geometry, config)


@st.composite
def few_rows(draw) -> tuple[GemmProblem, Geometry]:
    """A problem of few rows or columns, each stored along K from a multiple of 16 bytes on, and
    strides with and without gaps between them."""
    few, many = draw(st.integers(1, FEW["skinny"])), draw(st.integers(1, 5000))
    k = draw(st.one_of(st.integers(1, 5000), st.sampled_from((8, 256, 512, 1032, 4096))))
    m, n = draw(st.sampled_from(((few, many), (many, few))))
    problem = replace(GemmProblem.contiguous(
        m, n, k, batch=draw(st.sampled_from((1, 3))), dtype=draw(st.sampled_from(("bf16", "fp16"))),
        layout="nt", epilogue=draw(st.sampled_from(tuple(PLAIN_EPILOGUES)))),
        align_a=16, align_b=16)
    am, bn = (8 * (-(-k // 8) + draw(st.sampled_from((0, 1, 64)))) for _ in "ab")
    walked = int(problem.batch > 1)
    return problem, replace(Geometry.contiguous(problem), ab=walked * m * am, am=am,
                            bb=walked * n * bn, bn=bn)


@given(few_rows(), st.sampled_from((1, 2, 3)))
def test_no_promise_of_few_rows_is_false(drawn, split):
    problem, geometry = drawn
    config = replace(SPECS["skinny"].default(problem, H200), split_k=split)
    if violation(problem, config, H200) is None:
        check_promises(problem, geometry, config)


@pytest.mark.parametrize("k", (1000, 1001))
@pytest.mark.parametrize("kernel", SPECS)
def test_rows_kept_apart_may_end_anywhere(kernel, k):
    problem = replace(GemmProblem.contiguous(5, 1000, k, layout="nt"), align_a=16, align_b=16)
    geometry = replace(Geometry.contiguous(problem), am=1008, bn=1008)
    config = SPECS[kernel].default(problem, H200)
    if violation(problem, config, H200) is None:
        check_promises(problem, geometry, config)


def check_promises(problem: GemmProblem, geometry: Geometry, config: KernelConfig) -> None:
    launches = launches_of(problem, config, H200, geometry)
    need = max(launch.scratch_bytes for launch in launches)
    for launch in launches:
        assert min(launch.grid) >= 1 and launch.grid[1] < 2**16
        constants = dict(launch.all_constants())
        for x in launch.arguments:
            if isinstance(x, Scalar):
                assert x.value % x.divisor == 0 and x.type == ("i32" if x.value < 2**31 else "i64")
                assert not x.folded or constants[x.name] == 1
                continue
            if isinstance(x, Number):
                continue
            aligned = aligned_operand(x, problem, geometry)
            assert x.offset % 128 == 0 and x.offset <= need
            if isinstance(x, Pointer):
                assert x.align <= aligned
            else:
                size = dtype_of(x.dtype).itemsize
                assert aligned == 16 and x.strides[-1] == 1
                assert all(s * size % 16 == 0 for s in x.strides[:-1])
                assert max(x.box) <= 256
        for vector, extent in (("VEC_M", problem.m), ("VEC_N", problem.n)):
            assert extent % constants.get(vector, 1) == 0
        if launch.function == "tiled":
            assert constants["VEC_M"] == 1 or geometry.am == 1
            assert constants["VEC_N"] == 1 or geometry.bn == 1
        if constants.get("EVEN_K"):
            assert problem.k % (config.block_k * config.split_k) == 0


def test_a_step_of_two_to_the_31_elements_has_a_64_bit_stride():
    problem = GemmProblem.contiguous(16, 16, 64, layout="tn")
    for stride, wanted in ((2**26 - 1, "i32"), (2**26, "i64")):
        geometry = replace(Geometry.contiguous(problem), ak=stride, bk=stride)
        (launch,) = launches_of(problem, KernelConfig("tiled", 16, 16, 32, num_warps=1), H200,
                                geometry)
        types = {x.name: x.type for x in launch.arguments if isinstance(x, Scalar)}
        assert (types["stride_ak"], types["stride_bk"]) == (wanted, wanted)


@pytest.mark.parametrize("of", ("cb", "db"))
def test_the_adding_pass_counts_the_batch_in_its_offsets(of):
    problem = GemmProblem.contiguous(16, 16, 64, batch=3, epilogue="add")
    config = KernelConfig("tiled", 16, 16, 16, num_warps=1, split_k=2)
    for stride, wanted in ((2**29, False), (2**30, True)):
        geometry = replace(Geometry.contiguous(problem), **{of: stride})
        assert dict(launches_of(problem, config, H200, geometry)[-1].constants)["INDEX64"] is wanted


@given(operands(), operands(), st.sampled_from(("tiled", "split")))
def test_launches_with_one_key_are_packed_alike(one, other, name):
    found = [SPECS["tiled"].launches(problem, CONFIGS[name], H200, geometry)[0]
             for problem, geometry in (one, other)]
    shapes = [[(size, align) for size, align, _ in _fields(launch)] for launch in found]
    if found[0].static_key() == found[1].static_key():
        assert shapes[0] == shapes[1]


@given(operands(), st.integers(0, 10_000), st.sampled_from((1, 2)))
def test_padded_copies_are_aligned_whole_and_apart(drawn, start, level):
    problem, geometry = drawn
    if min(problem.align_a, problem.align_b) == 16:
        problem = replace(problem, align_b=8)
    config = replace(CONFIGS["warp_specialized"], pad_operands=level)
    padding = pad_operands(problem, config, geometry, H200, start)
    copied = [x for x, plain, along, across in (
        ("a", problem.layout[0] == "n", problem.k, problem.m),
        ("b", problem.layout[1] == "n", problem.n, problem.k))
        if getattr(problem, f"align_{x}") < 16
        or (level == 2 and dtype_of(problem.dtype_a).itemsize * (along if plain else across) % 32)]
    assert sorted(padding.offsets) == copied
    assert padding.problem == replace(problem, align_a=16, align_b=16)
    end, g, old = start, padding.geometry, geometry
    sides = {"a": (problem.layout[0] == "n", problem.m, problem.k, (g.ab, g.am, g.ak),
                   (old.ab, old.am, old.ak)),
             "b": (problem.layout[1] == "n", problem.k, problem.n, (g.bb, g.bk, g.bn),
                   (old.bb, old.bk, old.bn))}
    for x, (plain, rows, cols, new_strides, old_strides) in sides.items():
        if x not in copied:
            assert new_strides == old_strides
            continue
        size = dtype_of(problem.dtype_a).itemsize
        batch, lead, inner = new_strides if plain else (
            new_strides[0], new_strides[2], new_strides[1])
        stored_rows, stored_cols = (rows, cols) if plain else (cols, rows)
        assert inner == 1 and lead >= stored_cols and lead * size % 128 == 0
        assert batch == stored_rows * lead
        assert padding.offsets[x] % 128 == 0 and padding.offsets[x] >= end
        end = padding.offsets[x] + problem.batch * batch * size
    assert end <= padding.scratch_bytes
    assert padding.scratch_bytes - start <= padded_bytes(problem, level) + 128
    assert (g.cb, g.cm, g.cn) == (old.cb, old.cm, old.cn)


@pytest.mark.parametrize(("problem", "changes", "pairs"), (
    (dict(dtype_out="fp32"), {}, True), (dict(), {}, False), (dict(), {"split_k": 2}, True),
    (dict(dtype_out="fp32"), {"swap_ab": 2}, False), (dict(dtype_out="fp32", n=1001), {}, False),
    (dict(dtype_out="fp32", batch=3, m=333, n=1002), {}, True)), ids=str)
def test_float32_is_stored_in_pairs_where_rows_begin_on_eight_bytes(problem, changes, pairs):
    sides = {"m": 1000, "n": 1000, "k": 1024} | problem
    config = KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4, **changes)
    product = launches_of(GemmProblem.contiguous(**sides, layout="nt"), config,
                          representative(90))[0]
    assert dict(product.constants)["PAIRED_C"] is pairs


def test_symbols_say_what_is_multiplied_and_how():
    assert symbol_of(BASE, CONFIGS["split"]) == "tritongemm_bf16_nt_tiled_64x64x32_w4_s2_g8_k4"
    mixed = GemmProblem.contiguous(8, 8, 8, dtype="fp32", dtype_out="fp32", precision="tf32")
    assert symbol_of(mixed, CONFIGS["tiled"]).startswith("tritongemm_fp32_tf32_nn_tiled_")
    assert symbol_of(replace(BASE, dtype_out="fp32"), CONFIGS["tiled"]).startswith(
        "tritongemm_bf16_fp32_nt_")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_symbol_is_a_name_in_c_and_holds_the_config(name):
    launches = launches_of(BASE, CONFIGS[name], H200)
    assert all(re.fullmatch(r"tritongemm_\w+", launch.symbol) for launch in launches)
    assert CONFIGS[name].config_id in "".join(launch.symbol for launch in launches)
    assert len({launch.symbol for launch in launches}) == len(launches)


@pytest.mark.parametrize("kernel", [*SPECS, *RUNG_SPECS])
@given(data=st.data())
def test_the_rule_default_is_legal_wherever_the_kernel_takes_the_problem(kernel, data):
    spec = {**SPECS, **RUNG_SPECS}[kernel]
    least = 24 if kernel in ("persistent_tma", "triton_tma") else 1
    m, n = (data.draw(st.integers(least, 9000)) for _ in range(2))
    k = data.draw(st.integers(1, 9000))
    if kernel in FEW:
        few = data.draw(st.integers(1, FEW[kernel]))
        m, n = data.draw(st.sampled_from(((few, n), (m, few))))
        k = data.draw(st.sampled_from((k, 8 * (-(-k // 8)))))
    problem = GemmProblem.contiguous(
        m, n, k, batch=data.draw(st.sampled_from([1, 3])),
        dtype=data.draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        layout=data.draw(st.sampled_from(LAYOUTS)))
    if spec.supports(problem, H200) is None:
        assert spec.violation(problem, spec.default(problem, H200), H200) is None


@pytest.mark.parametrize("kernel", SPECS)
def test_the_grid_covers_every_tile_of_the_rule_default(kernel):
    spec = SPECS[kernel]
    n = 7 if kernel in FEW else 777
    problem = GemmProblem.contiguous(1111, n, 512, layout="nt", batch=3)
    if spec.takes.formats == ("fp32",):
        problem = replace(problem, dtype_a="fp32", dtype_b="fp32", dtype_out="fp32",
                          precision="fp16x3" if "fp16x3" in spec.takes.computes else "tf32")
    config = spec.default(problem, H200)
    if (broken := violation(problem, config, H200)) is not None:
        pytest.fail(f"the default is not legal: {broken.message}")
    product = next(x for x in launches_of(problem, config, H200) if config.config_id in x.symbol)
    m, n = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    units = -(-m // config.block_m) * -(-n // config.block_n) * problem.batch * config.split_k
    x, y, z = product.grid
    assert x * y * z == units or x * y * z in (H200.num_sms, 2 * H200.num_sms)
    contended = next(x for x in launches_of(problem, config, replace(H200, contended=True))
                     if config.config_id in x.symbol)
    programs, (x, y, z) = x * y * z, contended.grid
    assert x * y * z == (units if programs == units else
                         resident(units, programs, replace(H200, contended=True)))


@pytest.mark.parametrize(("units", "contended", "wanted"), [
    (100, False, 100), (1000, False, 132),
    (100, True, 100), (264, True, 264), (395, True, 395), (396, True, 198), (1001, True, 501)])
def test_programs_of_a_contended_device_have_at_most_two_units(units, contended, wanted):
    assert resident(units, 132, replace(H200, contended=contended)) == wanted


@pytest.mark.parametrize(("n", "changes", "geometry", "wanted"), [
    (1002, {}, {}, 2), (1001, {}, {}, 1), (1002, {"align_c": 2}, {}, 1), (1004, {}, {}, 2),
    (1024, {}, {}, 0),  # TMA stores
    (1001, {"dtype_out": "fp32"}, {}, 0), (1001, {"align_c": 1}, {"cn": 2}, 0),
    (1001, {}, {"cm": 2**31 // 256}, 0),  # offsets of a tile would want 64 bits
], ids=str)
def test_rows_that_the_copy_engine_cannot_store_are_stored_along(n, changes, geometry, wanted):
    problem = replace(GemmProblem.contiguous(1000, n, 512, layout="nt"), **changes)
    config = KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4)
    where = replace(Geometry.contiguous(problem), **geometry)
    launch = launches_of(problem, config, H200, where)[-1]
    assert dict(launch.constants)["VECTOR"] == wanted


@pytest.mark.parametrize(("words", "batch", "expected"), [
    ({}, 1, {}),
    ({"scale_a": "row"}, 1, {"scale_a": (1, 1)}),
    ({"scale_a": "tensor", "scale_b": "row"}, 1, {"scale_a": (1, 1), "scale_b": (96, 1)}),
    ({"scale_a": "1x128", "scale_b": "128x128"}, 1, {"scale_a": (3, 1), "scale_b": (1, 1)}),
    ({"scale_a": "1x128", "scale_b": "1x128"}, 3,
     {"scale_a": (3 * 64, 3, 1), "scale_b": (3 * 96, 96, 1)}),
], ids=str)
def test_factors_lie_as_those_of_torch_do(words, batch, expected):
    problem = GemmProblem.contiguous(64, 96, 384, batch=batch, **words)
    found = dict(Geometry.contiguous(problem).others)
    assert {name: view.strides for name, view in found.items()} == expected


@pytest.mark.parametrize(("value", "expected"), [(2**31 - 1, "i32"), (2**31, "i64")])
def test_a_scalar_has_64_bits_from_where_it_does_not_fit_32(value, expected):
    assert Scalar("M", value).type == expected


@pytest.mark.parametrize("config", [
    KernelConfig("tiled", 16, 64, 64), KernelConfig("gemv", 2, 64, 8, num_warps=1, num_stages=1)],
    ids=str)
def test_offsets_have_64_bits_from_where_they_do_not_fit_32(config):
    problem = GemmProblem.contiguous(2, 64, 64)
    for furthest in (2**31 - 1, 2**31):
        geometry = replace(Geometry.contiguous(problem), am=furthest - 63)
        assert geometry.max_offset(problem) == furthest
        constants = dict(launches_of(problem, config, H200, geometry)[0].constants)
        assert constants["INDEX64"] == (furthest >= 2**31)

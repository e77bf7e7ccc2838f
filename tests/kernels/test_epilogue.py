"""What an epilogue adds to a launch: which D, whose strides, what the binary depends on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels import SPECS, shared_bytes, violation
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.epilogue import NO_EPILOGUE, epilogue_of_launch
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.kernels.launch import Geometry, Launch, Number, Pointer, Scalar, View
from tritongemm.problem import PLAIN_EPILOGUES, GemmProblem, epilogue_of

H200 = representative(90)
PLAIN = GemmProblem.contiguous(64, 512, 1024, layout="nt")
CONFIGS = {
    "tiled": KernelConfig("tiled", 64, 64, 64),
    "persistent_tma": KernelConfig("persistent_tma", 64, 64, 64, num_stages=3),
    "warp_specialized": KernelConfig("warp_specialized", 64, 64, 64, num_stages=4),
    "swapped": KernelConfig("warp_specialized", 64, 64, 64, num_stages=4, swap_ab=1),
}
SPLIT = [replace(CONFIGS[name], split_k=2) for name in CONFIGS if name != "persistent_tma"]


def fused(epilogue: str, **changes) -> GemmProblem:
    return replace(PLAIN, epilogue=epilogue, **changes)


def constants(launch: Launch) -> dict[str, object]:
    return dict(launch.all_constants())


def names(launch: Launch, *kinds: type) -> list[str]:
    return [x.name for x in launch.arguments if isinstance(x, kinds)]


@pytest.mark.parametrize("config", [*CONFIGS.values(), *SPLIT], ids=str)
def test_without_an_epilogue_there_is_no_argument_more(config):
    for launch in launches_of(PLAIN, config, H200):
        assert set(NO_EPILOGUE) <= set(launch.all_constants())
        assert not names(launch, Number) and "d" not in [x.name for x in launch.arguments]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("epilogue", PLAIN_EPILOGUES)
def test_arguments_are_those_that_the_epilogue_takes(name, epilogue):
    launch, = launches_of(fused(epilogue), CONFIGS[name], H200)
    kind = epilogue_of(epilogue)
    assert ("d" in names(launch, Pointer)) == kind.reads_d
    assert names(launch, Number) == ["alpha", "beta"][:kind.scales + kind.reads_d]
    function = "mul" if kind.addend == "gain" else kind.addend
    assert constants(launch)["ACTIVATION"] == (function if kind.multiplies else kind.activation)
    taken = {x.name for x in launch.arguments} | set(constants(launch))
    assert {"d", "alpha", "beta", "stride_db", "stride_dm", "stride_dn", "ADDEND"} <= taken


@pytest.mark.parametrize(("strides", "addend"), [
    ((0, 0, 1), "columns"), ((0, 0, 3), "columns"), ((0, 0, 0), "columns"),
    ((64, 0, 1), "columns"), ((0, 1, 0), "rows"), ((64, 8, 0), "rows"), ((0, 512, 1), "tile"),
    ((32768, 1, 64), "tile")], ids=str)
def test_a_stride_of_nothing_makes_a_vector(strides, addend):
    db, dm, dn = strides
    geometry = replace(Geometry.contiguous(fused("add")), db=db, dm=dm, dn=dn)
    assert dict(epilogue_of_launch(fused("add"), geometry)[1])["ADDEND"] == addend


def test_a_swapped_product_swaps_d():
    config = CONFIGS["swapped"]
    bias, = launches_of(fused("bias"), config, H200)
    assert constants(bias)["ADDEND"] == "rows" and constants(bias)["stride_dm"] == 1
    matrix, = launches_of(fused("add"), config, H200)
    assert constants(matrix)["ADDEND"] == "tile" and constants(matrix)["stride_dm"] == 1
    assert [x.value for x in matrix.arguments if x.name == "stride_dn"] == [512]


@pytest.mark.parametrize("config", SPLIT, ids=str)
def test_with_a_split_the_pass_that_adds_the_parts_does_the_epilogue(config):
    product, adding = launches_of(fused("bias+gelu"), config, H200)
    plain, plainly = launches_of(PLAIN, config, H200)
    assert product.static_key() == plain.static_key() and product.symbol == plain.symbol
    assert constants(adding)["ACTIVATION"] == "gelu" and "d" in names(adding, Pointer)
    assert adding.symbol == f"{plainly.symbol}_bias_gelu"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_epilogue_is_a_binary_of_its_own_with_a_name_that_says_it(name):
    launches = {e: launches_of(fused(e), CONFIGS[name], H200)[0] for e in PLAIN_EPILOGUES}
    assert len({str(launch.static_key()) for launch in launches.values()}) == len(PLAIN_EPILOGUES)
    for epilogue, launch in launches.items():
        assert re.fullmatch(r"tritongemm_\w+", launch.symbol)
        words = "" if epilogue == "none" else epilogue.replace("+", "_") + "_"
        assert launch.symbol == f"tritongemm_bf16_nt_{words}{CONFIGS[name].config_id}"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bias_serves_every_m(name):
    found = {str(launches_of(fused("bias+relu", m=m), CONFIGS[name], H200)[0].static_key())
             for m in (40, 64, 96)}
    assert len(found) == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_alignment_of_d_makes_another_binary(name):
    geometry = Geometry.contiguous(fused("add"))
    found = {str(launches_of(fused("add"), CONFIGS[name], H200,
                             replace(geometry, align_d=align))[0].static_key())
             for align in (2, 4, 8, 16)}
    assert len(found) == 4


@pytest.mark.parametrize(("epilogue", "strides", "align"), [
    ("none", (0, 0, 0), 16), ("relu", (0, 0, 0), 16), ("scale", (0, 0, 0), 16),
    ("bias+silu", (0, 0, 1), 16), ("add", (40 * 36, 36, 1), 8)])
def test_gapless_operands_have_a_gapless_d(epilogue, strides, align):
    g = Geometry.contiguous(GemmProblem.contiguous(40, 36, 8, batch=2, epilogue=epilogue))
    assert ((g.db, g.dm, g.dn), g.align_d) == (strides, align)


def test_offsets_in_d_count_for_the_width_of_indices():
    config, far = CONFIGS["tiled"], replace(Geometry.contiguous(fused("add")), dm=2**27)
    assert far.max_offset(fused("add")) == 63 * 2**27 + 511
    launch, = launches_of(fused("add"), config, H200, far)
    assert constants(launch)["INDEX64"] is True
    assert not constants(launches_of(fused("add"), config, H200)[0])["INDEX64"]


def test_so_do_offsets_in_a_bias_beside_a_residual():
    problem = fused("bias+gelu+residual")
    geometry = Geometry.contiguous(problem)
    far = replace(geometry, others=(("bias", View((2**27,))),))
    assert far.max_offset(problem) == (problem.n - 1) * 2**27
    assert constants(launches_of(problem, CONFIGS["tiled"], H200, far)[0])["INDEX64"] is True
    assert not constants(launches_of(problem, CONFIGS["tiled"], H200, geometry)[0])["INDEX64"]


@given(st.sampled_from(tuple(PLAIN_EPILOGUES)), st.sampled_from(tuple(SPECS)),
       *(st.integers(1, 4096) for _ in range(3)))
def test_an_epilogue_changes_no_rule_but_the_room_for_d(epilogue, kernel, m, n, k):
    plain = GemmProblem.contiguous(m, n, k)
    with_it = replace(plain, epilogue=epilogue)
    assert SPECS[kernel].supports(plain, H200) == SPECS[kernel].supports(with_it, H200)
    config = SPECS[kernel].default(plain, H200)
    broken, also = (violation(p, config, H200) for p in (plain, with_it))
    if broken != also:
        assert epilogue_of(epilogue).reads_d and also.rule == "shared_memory"
    assert shared_bytes(with_it, config) >= shared_bytes(plain, config)
    own = SPECS[kernel].default(with_it, H200)
    if SPECS[kernel].supports(with_it, H200) is None and broken is None:
        assert violation(with_it, own, H200) is None


@pytest.mark.parametrize("name", RUNG_SPECS)
def test_rungs_have_none(name):
    broken = RUNG_SPECS[name].supports(fused("relu", batch=1), H200)
    assert broken is not None and "no epilogue 'relu'" in broken.message


def test_scalars_of_d_are_promised_no_more_than_its_alignment():
    geometry = replace(Geometry.contiguous(fused("add")), dm=520, align_d=4)
    arguments, _ = epilogue_of_launch(fused("add"), geometry)
    pointer = next(x for x in arguments if isinstance(x, Pointer))
    strides = {x.name: x.divisor for x in arguments if isinstance(x, Scalar)}
    assert pointer.align == 4 and strides["stride_dm"] == 2

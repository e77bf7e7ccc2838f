"""The ordered list of the ladder: complete, in order, and each rung said in full."""

import pytest

from tritongemm.baselines import CUDA_RUNGS, HOST_RUNGS
from tritongemm.errors import UsageError
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.ladder import catalog


def test_list_holds_every_rung_in_order():
    assert tuple(r.name for r in catalog.rungs("host")) == HOST_RUNGS
    assert [r.name for r in catalog.rungs("cuda")] == list(CUDA_RUNGS)
    assert [r.name for r in catalog.rungs("triton")] == list(RUNG_SPECS)
    assert [len(catalog.rungs(kind)) for kind in ("host", "cuda", "triton")] == [5, 19, 11]
    names = [r.name for r in catalog.RUNGS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("rung", catalog.RUNGS, ids=lambda r: r.name)
def test_rung_says_source_idea_and_lesson(rung):
    assert rung.sources and rung.idea.endswith(".") and rung.lesson.endswith(".")
    assert (rung.kind != "host") == bool(rung.variants) == bool(rung.parameters)
    for figure in rung.figures:
        assert figure.value > 0 and figure.m == figure.n == figure.k


def test_figures_of_the_sources_are_all_there():
    by_source = {}
    for rung in catalog.RUNGS:
        for figure in rung.figures:
            by_source.setdefault(figure.source, []).append(figure.value)
    assert len(by_source["S1"]) == 3 * 9
    assert sorted(by_source["S2"]) == [0.35, 1.55, 3.32, 3.44, 3.65, 5.09, 6.31]
    assert by_source["S3"] == [500, 52, 31, 11, 10.3, 9.4, 9.19]
    assert len(by_source["S4"]) == 4 * 5
    assert [f.m for f in catalog.S2_BY_SIZE] == [1022, 2044, 3135, 4088, 6132, 8176]


def test_unknown_rung_lists_the_known_ones():
    with pytest.raises(UsageError, match="'v9'.*cpu_naive.*warp_tiled_async"):
        catalog.rung("v9")


@pytest.mark.parametrize("name, m, text", [
    ("coalesced", 512, "S1 471.78 us"), ("coalesced", 4096, "S3 52 ms (A100)"),
    ("coalesced", 8176, "S2 0.35 TFLOPS (TITAN X)"),
    ("thread_tile_1d", 300, "S4 35.215 us at 256 (GTX 1080 Ti)"), ("triton_naive", 512, "")])
def test_the_figure_beside_is_of_the_nearest_size(name, m, text):
    assert catalog.figure_text(catalog.figure_for(catalog.rung(name), m, m, m), m) == text

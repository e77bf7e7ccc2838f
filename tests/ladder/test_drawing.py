"""The drawings: every result has one owner, and the maps are those of the .cu files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from tritongemm.baselines import CUDA_RUNGS
from tritongemm.ladder import catalog, drawing

VARIANTS = [pytest.param(rung, config, id=str(config)) for rung in CUDA_RUNGS.values()
            for config in rung.variants]


@pytest.mark.parametrize("rung, c", VARIANTS)
def test_every_thread_computes_the_same_number_of_results(rung, c):
    owner = drawing.owner_of(rung, c)
    count = Counter(owner(y, x) for y in range(c.block_m) for x in range(c.block_n))
    assert set(count) == set(range(rung.threads(c)))
    assert set(count.values()) == {c.block_m * c.block_n // rung.threads(c)}


@pytest.mark.parametrize("rung, c", VARIANTS)
def test_every_element_of_a_tile_is_brought_by_a_thread_of_the_block(rung, c):
    loaders = drawing.loaders_of(rung, c)
    if loaders is None:
        assert rung.name in ("naive", "coalesced")
        return
    for owner, rows, columns in ((loaders[0], c.block_m, c.block_k),
                                 (loaders[1], c.block_k, c.block_n)):
        count = Counter(owner(y, x) for y in range(rows) for x in range(columns))
        assert max(count) < rung.threads(c) and min(count) >= 0
        if rung.name != "smem_strip":  # of whose strips only a slice is drawn
            assert len(set(count.values())) == 1 and len(count) == rung.threads(c)


def owned(name, thread):
    rung = CUDA_RUNGS[name]
    c = rung.variants[0]
    owner = drawing.owner_of(rung, c)
    return [(y, x) for y in range(c.block_m) for x in range(c.block_n) if owner(y, x) == thread]


def test_a_warp_of_naive_walks_down_a_column_and_of_coalesced_along_a_row():
    assert [owned("naive", t)[0] for t in (0, 1)] == [(0, 0), (1, 0)]
    assert [owned("coalesced", t)[0] for t in (0, 1)] == [(0, 0), (0, 1)]


def test_maps_of_thread_tiles_are_those_of_the_kernels():
    assert owned("thread_tile_1d", 65) == [(8 + i, 1) for i in range(8)]
    assert owned("strided_2x2", 33) == [(1, 1), (1, 33), (33, 1), (33, 33)]
    assert owned("thread_tile_2d", 17)[:3] == [(1, 1), (1, 17), (1, 33)]
    rows = sorted({y for y, _ in owned("transposed_a", 0)})
    assert rows == [0, 1, 2, 3, 64, 65, 66, 67]
    # Lane 1 of a warp tile with 8 lanes along M stands four columns further.
    assert owned("warp_tiled", 1)[0] == (0, 4) and owned("warp_tiled", 2)[0] == (4, 0)
    assert owned("warp_tiled", 32)[0] == (0, 64)


def test_rectangles_cover_a_field_once():
    def value(y, x):
        return (y // 3 + x // 5) % 4

    seen = Counter()
    for y, x, height, width, one in drawing.rectangles(13, 17, value):
        for i in range(y, y + height):
            for j in range(x, x + width):
                assert value(i, j) == one
                seen[i, j] += 1
    assert len(seen) == 13 * 17 and set(seen.values()) == {1}


def test_orders_of_tiles():
    for name in (r.name for r in catalog.rungs("triton")):
        cells = [cell[1:] for cell in drawing.shares_of(name)]
        assert len(set(cells)) == len(cells) == 8 * 8 * 4
    stream = Counter(program for program, *_ in drawing.shares_of("triton_stream_k"))
    assert max(stream.values()) - min(stream.values()) <= 22 and len(stream) == 12
    grouped = [cell[1:3] for cell in drawing.shares_of("triton_grouped")][::4]
    assert grouped[:5] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]


def test_drawings_are_well_formed_small_and_named_after_their_rungs(tmp_path):
    written = drawing.write_drawings(tmp_path)
    assert [p.stem for p in written] == [r.name for r in catalog.RUNGS if r.kind != "host"]
    for path in written:
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg") and path.stem in path.read_text()
        assert path.stat().st_size < 300_000
        assert not re.search(r"NaN|inf|None", path.read_text())


def test_reuse_follows_from_the_parameters():
    rows = {row[0]: row for row in drawing.reuse_rows()}
    assert rows["naive"][3:5] == ["2", "none"]
    assert rows["smem_tiled"][2:5] == ["1 x 1 = 1", "0.0625", "2"]
    assert rows["thread_tile_2d"][2:5] == ["8 x 8 = 64", "0.0156", "0.25"]

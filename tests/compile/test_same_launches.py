"""perf/same_launches.py draws legal pairs of every kernel and finds what differs."""

from __future__ import annotations

import json

import pytest
from compiled import compiled
from perf_scripts import loaded
from test_instructions import ROWS_64, shape

from tritongemm.device import representative
from tritongemm.kernels import SPECS

same_launches = loaded("same_launches")
#: Of so many, drawn from the spaces and tables as they are, each kernel has some.
PAIRS = 120


@pytest.fixture(scope="module")
def rows():
    return [{"pair": pair, "launches": same_launches.described(pair)}
            for pair in same_launches.drawn_pairs(PAIRS, seed=5)]


def test_every_kernel_is_drawn_and_a_seed_repeats(rows):
    assert {x["pair"]["config"]["kernel"] for x in rows} >= set(SPECS)
    assert [x["pair"] for x in rows] == list(same_launches.drawn_pairs(PAIRS, seed=5))
    assert all(isinstance(x["launches"], list) for x in rows)  # none is refused


def test_the_same_launches_are_the_same(rows, capsys):
    assert same_launches.compare(rows, json.loads(json.dumps(rows)), {}, set()) == 0
    assert "0 pairs differ" in capsys.readouterr().out


@pytest.mark.parametrize("change, path", [
    (lambda x: x.update(grid=[1, 2, 3]), "launches[0].grid"),
    (lambda x: x["constants"].update(SPLIT_K=77), "launches[0].constants.SPLIT_K"),
    (lambda x: x["arguments"][0].update(align=3), "launches[0].arguments[0].align"),
    (lambda x: x.pop("symbol"), "launches[0].symbol")])
def test_a_field_that_differs_is_named(rows, change, path, capsys):
    other = json.loads(json.dumps(rows))
    first = next(i for i, x in enumerate(other) if x["pair"]["config"]["kernel"] == "tiled")
    change(other[first]["launches"][0])
    assert same_launches.compare(rows, other, {}, set()) == 1
    said = capsys.readouterr().out
    assert path in said and "1 pairs differ" in said


def test_a_new_name_is_the_same_only_where_it_is_said(rows):
    other = json.loads(json.dumps(rows).replace('"GROUP_M"', '"ROWS_TOGETHER"'))
    assert same_launches.compare(rows, other, {}, set()) == 1
    assert same_launches.compare(rows, other, {"GROUP_M": "ROWS_TOGETHER"}, set()) == 0
    assert same_launches.compare(rows, other, {}, {"GROUP_M", "ROWS_TOGETHER"}) == 0


def test_code_that_differs_has_another_digest():
    binary = compiled(shape(), ROWS_64, representative(90))[0]
    digest = same_launches.code_digest(binary.cubin)
    assert digest == same_launches.code_digest(bytes(bytearray(binary.cubin)))
    other = compiled(shape("nn"), ROWS_64, representative(90))[0]
    assert same_launches.code_digest(other.cubin) != digest

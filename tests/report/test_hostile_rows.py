"""CSVs with damaged numbers and with texts that a terminal, Markdown or matplotlib would obey; and
comparing by columns gives what comparing row by row does."""

from __future__ import annotations

import math
import random
import re

import numpy as np
import pandas as pd
import pytest
from made_rows import LATER, RUN, make_row, write_csv

from tritongemm.cli import main
from tritongemm.records import rows as records
from tritongemm.report import compare as comparing
from tritongemm.report import load, markdown, page

IMAGE = "![x](http://evil.example/a.png)"
CLOSING = "d](http://evil.example/a.png) ![y"
ANSI = "\x1b]1337;File=inline=1:AAAA\x07\x1b[2J\x1b[31mred\u202e"
FORMULA = r"$\frac{$"


def hostile_rows() -> list[dict]:
    texts = (FORMULA, IMAGE, CLOSING, ANSI, "<script>alert(1)</script>")
    return [make_row(64 + i, ratio=1.0 + i / 10, suite=texts[i], provider=provider,
                     device=texts[-1 - i], error=ANSI, throttled=texts[i], tags=texts[i])
            for i in range(len(texts)) for provider in ("tritongemm", f"mine {texts[i]}")]


def set_field(path, field: str, text: str) -> None:
    """Puts ``text`` into a field of a CSV's first row."""
    head, line, *rest = path.read_text().splitlines()
    texts = line.split(",")
    texts[records.NAMES.index(field)] = text
    path.write_text("\n".join([head, ",".join(texts), *rest]) + "\n")


@pytest.mark.parametrize("field, text", [
    ("registers", str(2**63)), ("shared_bytes", str(2**64)), ("n_rounds", "-1"),
    ("tflops", "1e308"), ("gbps", "1e-308"), ("time_us_p50", "1e300"),
    ("ratio_vs_torch", "1e-300"), ("energy_mj", "1e16")])
def test_a_number_out_of_bounds_is_a_clear_error_of_each_command(make_csv, tmp_path, capsys, field,
                                                                text):
    bad, good = make_csv([make_row(ratio=1.0)], "bad.csv"), make_csv([make_row(ratio=1.0)])
    set_field(bad, field, text)
    for words in (["report", bad], ["report", bad, "--out", tmp_path / "out"],
                  ["compare", bad, good], ["compare", good, bad]):
        assert main([str(word) for word in words]) == 2
        assert f"bad.csv, row 2, field '{field}'" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["inf", "1.7977e308"])
def test_an_error_beyond_all_bounds_is_shown(make_csv, value):
    path = make_csv([make_row(ratio=1.0, max_err_ratio=1.0, rms_err_ratio=1.0)])
    for field in ("max_err_ratio", "rms_err_ratio"):
        set_field(path, field, value)
    results = load.load([path])
    assert "<html" in page.page(results) and markdown.document(results)


def test_a_formula_in_a_name_is_drawn_as_it_is(make_csv, tmp_path):
    pytest.importorskip("matplotlib")
    path = make_csv([make_row(ratio=1.0, suite=FORMULA, device=FORMULA, provider=FORMULA)])
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 3


def test_no_output_obeys_a_text_of_the_file(make_csv, tmp_path, capsys):
    old, new = make_csv(hostile_rows(), "old/a.csv"), make_csv(
        [{**row, "status": "wrong", "time_us_p50": None} for row in hostile_rows()], "new/a.csv")
    results = load.load([old, new], all_runs=True)
    captions = [(device, f"{device}.png") for device in results.devices]
    text = markdown.document(results, sections=markdown.SECTIONS, images=captions)
    assert not re.search(r"(?<!\\)\]\(http", text) and "<script>" not in text
    assert "<script>alert" not in page.page(results)
    for words in (["report", old], ["compare", old, new, "--all"], ["compare", old, old]):
        main([str(word) for word in words])
        said = capsys.readouterr()
        assert not {"\x1b", "\x07", "\u202e"} & {*said.out, *said.err} and said.out
    assert "\x1b" not in text


def test_a_run_dated_in_the_future_does_not_hide_later_ones(make_csv):
    rows = [make_row(ratio=9.0, timestamp_utc="2999-01-01T00:00:00Z"),
            make_row(ratio=2.0, run=LATER)]
    for given in (rows, rows[::-1]):
        (ratio,) = load.load([make_csv(given)]).headline["ratio_vs_torch"]
        assert ratio == 2.0


# --- by columns ----------------------------------------------------------------------------------


def judged(old: dict | None, new: dict | None, by: str) -> tuple:
    """(verdict, by, change, low, high) of a pair of rows, by the rules alone."""
    nothing = ("", *[None] * 3)
    if old is None or new is None:
        return ("NEW" if old is None else "MISSING", *nothing)
    was, now = old["status"] == "ok", new["status"] == "ok"
    if not (was and now):
        return ({(True, False): "BROKEN", (False, True): "MENDED"}.get((was, now), "FAILED"),
                *nothing)
    for name, columns in (("ratio", ("ratio_vs_torch", "ratio_low", "ratio_high")),
                          ("time", ("time_us_p50", "time_us_p20", "time_us_p80"))):
        a, b = [old.get(c) for c in columns], [new.get(c) for c in columns]
        if None in (*a, *b) or (by == "time" and name == "ratio"):
            continue
        found = ((b[0] / a[0], b[1] / a[2], b[2] / a[1]) if name == "ratio"
                 else (a[0] / b[0], a[1] / b[2], a[2] / b[1]))
        return comparing.verdict(*found), name, *found
    return "UNTIMED", *nothing


@pytest.mark.parametrize("by", ["ratio", "time"])
def test_each_row_has_the_verdict_that_its_pair_has_alone(make_csv, by):
    draw = random.Random(1)

    def some(run: str) -> dict[tuple, dict]:
        rows = {}
        for m in draw.sample(range(1, 60), 45):
            for provider in ("torch", "tritongemm", "inductor"):
                kind = draw.choice(["ratio", "ratio", "time", "none", "wrong"])
                more = {"ratio": {"ratio": draw.choice([1.0, draw.uniform(0.9, 1.1)]),
                                  "width": 0.002},
                        "time": {"time_us": draw.choice([9.0, 10.0, 11.0])}, "none": {},
                        "wrong": {"status": "wrong", "error": "off"}}[kind]
                rows[m, provider] = make_row(m, provider=provider, run=run, **more)
        return rows

    old, new = some(RUN), some(LATER)
    result = comparing.compare(load.load([make_csv([*old.values()], "old/o.csv")]),
                               load.load([make_csv([*new.values()], "new/n.csv")]), by=by)
    keys = [key for key in [*new, *(key for key in old if key not in new)]
            if by == "time" or key[1] != "torch"]
    assert [(c.row["m"], c.row["provider"]) for c in result.changes] == keys
    for change, key in zip(result.changes, keys, strict=True):
        verdict, used, *numbers = judged(old.get(key), new.get(key), by)
        assert (change.verdict, change.by) == (verdict, used)
        for got, expected in zip((change.change, change.low, change.high), numbers, strict=True):
            assert math.isnan(got) if expected is None else got == pytest.approx(expected, 1e-5)
        if verdict in ("BROKEN", "MENDED", "FAILED"):
            error = ": off" if new[key]["status"] == "wrong" else ""
            assert change.reason == f"{old[key]['status']} -> {new[key]['status']}{error}"
    assert result.counts.keys() >= {"SAME", "SLOWER", "FASTER", "BROKEN", "MENDED", "NEW"}
    slowest = result.worst("SLOWER", 3)
    assert [c.change for c in slowest] == sorted(
        c.change for c in result.changes if c.verdict == "SLOWER")[:3]
    fastest = result.worst("FASTER", 3)
    assert [c.change for c in fastest] == sorted(
        (c.change for c in result.changes if c.verdict == "FASTER"), reverse=True)[:3]


def test_rows_have_one_number_exactly_where_they_agree():
    random_ints = np.random.default_rng(0).integers
    # 9 columns of 300 values: their product exceeds 64 bits.
    first = pd.DataFrame({f"c{i}": random_ints(0, 300, 400) for i in range(9)})
    second = pd.concat([first.iloc[::3], first.iloc[:50].assign(c0=-1)])
    ids = load.key_ids([first, second], list(first.columns))
    rows = [*map(tuple, pd.concat([first, second]).to_numpy().tolist())]
    numbers: dict[tuple, int] = {}
    assert [numbers.setdefault(row, number) for row, number in zip(rows, ids, strict=True)] == [
        *ids]
    assert len({*ids}) == len({*rows})


def test_a_row_takes_less_than_400_bytes(tmp_path):
    path = write_csv(tmp_path / "a.csv", [make_row(m, ratio=1.0) for m in range(1, 300)])
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *lines * 20]) + "\n")
    rows = load.load([path], all_runs=True).rows
    assert len(rows) == 20 * 299
    assert rows.memory_usage(deep=True).sum() < 400 * len(rows)
    few = load.load([path], columns=comparing.COLUMNS).rows
    assert few.memory_usage(deep=True).sum() < 160 * len(few)

"""What a resumed search measures, and what it takes over from its journal."""

from __future__ import annotations

import functools
from pathlib import Path

import fakes
import pytest
from test_search import H200, PROBLEM, Some, searched

import tritongemm.tuning.sweep as door
from tritongemm.cli import main
from tritongemm.records.journal import read_journal
from tritongemm.tuning.candidates import Candidates, KernelPlanner
from tritongemm.tuning.search import LEAST


class Of(Some):
    """The configs of :class:`Some` of some kernels."""

    def __init__(self, *kernels: str) -> None:
        super().__init__()
        self._kernels, self.space_hash = kernels, " ".join(kernels)

    def __call__(self, problem, device) -> Candidates:
        every = super().__call__(problem, device)
        configs = tuple(c for c in every.configs if c.kernel in self._kernels)
        return Candidates(configs, every.report)


def winners(journal: Path) -> list[dict]:
    return [record for record in read_journal(journal) if record["kind"] == "winner"]


def best() -> str:
    """The id of the fastest config of :class:`Some`."""
    configs = Some()(PROBLEM, H200).configs
    times = fakes.ModelMeasurer.times(PROBLEM, configs)
    return min(zip(times, configs, strict=True), key=lambda pair: pair[0])[1].config_id


def test_a_search_of_other_spaces_is_continued_and_its_winner_is_of_all(tmp_path):
    journal = tmp_path / "j.jsonl"
    kernels = {config.kernel for config in Some()(PROBLEM, H200).configs}
    assert len(kernels) > 1
    narrow = searched(journal, candidates=Of("tiled"))
    assert narrow.measured and narrow.problems[0].note == ""
    again = searched(journal, candidates=Of("tiled"), resume=True)
    assert again.measured == 0 and again.problems[0].note == "measured before"
    wide = searched(journal, resume=True)
    assert wide.measured and wide.resumed
    assert wide.problems[0].winner.kernel != "tiled"
    assert wide.problems[0].time_us < narrow.problems[0].time_us
    after = searched(journal, resume=True)
    assert after.measured == 0 and after.problems[0].note == "measured before"
    assert [record["space_hash"] for record in winners(journal)] == ["tiled", "some"]


@pytest.mark.thorough
def test_a_sweep_of_some_kernels_is_resumed_with_all(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(door, "sweep", functools.partial(
        door.sweep, measurer="fakes:ModelMeasurer", builder=fakes.BUILDER))
    words = ["sweep", "--m", "328", "--n", "712", "--k", "520", "--layout", "nt", "--plain",
             "--compile-workers", "1", "--journal", "j.jsonl"]
    assert main([*words, "--kernels", "tiled"]) == 0
    assert main([*words, "--resume"]) == 0
    assert "measured before" not in capsys.readouterr().out
    kernels = {r["config"]["kernel"] for r in read_journal("j.jsonl") if r["kind"] == "result"}
    assert len(kernels) > 1
    assert main([*words, "--resume"]) == 0
    assert "measured before" in capsys.readouterr().out


def test_an_older_winner_without_a_hash_still_ends_its_search(tmp_path):
    journal = tmp_path / "j.jsonl"
    searched(journal)
    journal.write_text(journal.read_text().replace(',"space_hash":"some"', ""))
    assert "space_hash" not in winners(journal)[0]
    assert searched(journal, resume=True).problems[0].note == "measured before"


@pytest.mark.parametrize("top, searched_whole", [(40, False), (10**6, True)])
def test_a_search_of_the_first_configs_says_nothing_of_the_spaces(tmp_path, top, searched_whole):
    searched(tmp_path / "j.jsonl", candidates=KernelPlanner(["tiled"], top=top))
    assert ("gain" in winners(tmp_path / "j.jsonl")[0]) is searched_whole


@pytest.mark.parametrize("what, options", [("kill", {}), ("hang", {"per_config_timeout_s": 1.0})])
def test_a_promising_config_that_an_outcome_says_nothing_of_is_tried_again(tmp_path, what, options):
    journal, lost = tmp_path / "j.jsonl", best()
    searched(journal, measurer_arguments={"behaviour": {f"coarse *:{lost}": what}}, **options)
    (record,) = [r for r in read_journal(journal) if r["kind"] == "result" and r["status"] != "ok"]
    assert record.get("limit_s") == options.get("per_config_timeout_s")
    again = searched(journal, resume=True)
    assert again.measured >= 1 and again.problems[0].winner.config_id == lost
    assert searched(journal, resume=True).problems[0].note == "measured before"


def test_a_config_without_prospects_is_not_tried_again_and_the_winner_stays(tmp_path, monkeypatch):
    journal = tmp_path / "j.jsonl"
    searched(journal, gain=0.0002)
    # It may end with the least number of outcomes, depending on which were built first; with one
    # less a search with a gain of 0.5 is to be over.
    monkeypatch.setattr("tritongemm.tuning.search.LEAST", LEAST - 1)
    slowest = max((r for r in read_journal(journal) if r.get("stage") == "coarse"),
                  key=lambda r: r["time_us"])
    lines = [line.replace('"status":"ok"', '"status":"timeout","limit_s":1.0').replace(
        f'"time_us":{slowest["time_us"]},', "") if f'"time_us":{slowest["time_us"]},' in line
        and '"stage":"coarse"' in line else line for line in journal.read_text().splitlines()]
    journal.write_text("\n".join(lines) + "\n")
    assert journal.read_text().count("timeout") == 1
    again = searched(journal, gain=0.5, resume=True)
    assert again.measured == 0 and again.problems[0].note == "measured before"
    assert len(winners(journal)) == 1

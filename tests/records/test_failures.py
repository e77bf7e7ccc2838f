"""What calls note about kernels that could not be built, and what ``doctor`` makes of it."""

from __future__ import annotations

import threading

import file_faults
import pytest

from tritongemm import settings
from tritongemm.records import failures


@pytest.fixture(autouse=True)
def cache(tmp_path):
    with settings.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def test_failures_are_kept_in_order_across_processes(cache):
    assert failures.remembered() == ()
    failures.remember("nvidia-h200", "64x64x64 bf16 nn", "ptxas said no")
    failures.remember("nvidia-h200", "8x8x8 fp32 nt", "a second\nline")
    one, other = failures.remembered()
    assert (one.device, one.problem, one.reason) == ("nvidia-h200", "64x64x64 bf16 nn",
                                                     "ptxas said no")
    assert other.reason == "a second\nline" and one.when <= other.when


def test_only_a_damaged_line_is_lost(cache):
    failures.remember("d", "one", "x")
    with failures.path().open("a", encoding="utf-8") as file:
        file.write('{"when": 1, "de\n[]\n{"other": 1}\n')
    failures.remember("d", "two", "y")
    assert [f.problem for f in failures.remembered()] == ["one", "two"]


def test_a_long_file_is_restarted(cache, monkeypatch):
    monkeypatch.setattr(failures, "MAX_BYTES", 300)
    for i in range(20):
        failures.remember("d", f"problem {i}", "x" * 50)
    assert failures.path().stat().st_size < 600
    assert failures.remembered()[-1].problem == "problem 19"


def test_a_message_of_megabytes_is_cut_and_hides_no_other(cache):
    failures.remember("d", "p", "the first")
    failures.remember("d", "p", "x" * 5_000_000)
    assert [one.reason[:9] for one in failures.remembered()] == ["the first", "x" * 9]


def test_threads_do_not_mix_lines(cache):
    threads = [threading.Thread(target=lambda i=i: [failures.remember("d", f"{i}", "r" * 200)
                                                    for _ in range(20)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures.remembered()) == 80


def test_a_cache_that_cannot_be_written_loses_the_record_only(cache, monkeypatch):
    said = []
    monkeypatch.setattr(failures.log, "debug", lambda text, *values: said.append(text % values))
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file, not a folder")
    failures.remember("d", "p", "r")
    assert failures.remembered() == () and "cannot be kept for doctor" in said[0]


def test_a_link_in_the_cache_is_not_written_through(cache, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("x" * 2 * failures.MAX_BYTES)
    cache.mkdir()
    for link in (failures.path().symlink_to, failures.path().hardlink_to):
        link(victim)
        failures.remember("d", "p", "r")
        assert victim.read_text() == "x" * 2 * failures.MAX_BYTES
        failures.path().unlink()
    failures.path().symlink_to(tmp_path / "absent")
    failures.remember("d", "p", "r")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("make", file_faults.NOT_A_FILE)
def test_what_is_no_file_neither_hangs_a_call_nor_doctor(cache, make):
    from tritongemm.cli import doctor

    cache.mkdir()
    make(failures.path())
    failures.remember("d", "p", "r")
    check = doctor._failures()
    assert not check.ok and str(failures.path()) in check.detail and "delete" in check.fix


@pytest.mark.parametrize("line", [
    '{"when": 1, "device": [], "problem": {}, "reason": null}', "[" * 100_000, "7", "\udcff",
    '{"when": "now", "device": "d", "problem": "p", "reason": "r", "more": 1}'])
def test_a_line_of_other_types_is_left_out(cache, line):
    failures.remember("d", "one", "x")
    with failures.path().open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    failures.remember("d", "two", "y")
    assert [f.problem for f in failures.remembered()] == ["one", "two"]


def test_doctor_shows_no_escape_sequence_of_a_reason(cache):
    from tritongemm.cli import doctor

    failures.remember("d", "p", "\x1b]1337;File=inline=1:AAAA\x07\x1b[2J")
    assert "\x1b" not in str(doctor._failures()) and "\\x1b[2J" in str(doctor._failures())


def test_doctor_names_the_last_one_and_the_file(cache):
    from tritongemm.cli import doctor

    assert doctor._failures().ok
    failures.remember("nvidia-h200", "64x64x64 bf16 nn", "ptxas said no")
    failures.remember("nvidia-h200", "64x64x64 bf16 nn", "ptxas said no again")
    check = doctor._failures()
    assert not check.ok and "1 problem went to torch" in check.detail
    assert "64x64x64 bf16 nn on nvidia-h200" in check.detail and "said no again" in check.detail
    assert str(failures.path()) in check.fix

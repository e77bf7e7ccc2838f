"""Host clocks: items rotate over the sets, blocks interleave, nothing leaks out."""

from __future__ import annotations

import contextlib
import gc
import os

import pytest

from tritongemm.measure import host


def test_an_items_calls_rotate_over_the_sets(monkeypatch):
    monkeypatch.setattr(host, "MIN_ITEM_US", 0.0)
    seen = []
    calls = [lambda i=i: seen.append(i) for i in range(3)]
    timer = host.HostTimer()
    item = timer.load("a", calls)
    item.calls, item.position = 2, 0
    seen.clear()
    times = timer.run([item, item, item])
    assert seen == [0, 1, 2, 0, 1, 2] and len(times) == 3 and all(t > 0 for t in times)
    seen.clear()
    timer.closing(item, [2, 0])
    assert seen == [2, 0]


def test_the_context_is_entered_around_every_call():
    depth = []

    @contextlib.contextmanager
    def inside():
        depth.append(1)
        yield
        depth.pop()

    seen = []
    timer = host.HostTimer()
    item = timer.load("a", [lambda: seen.append(len(depth))], context=inside)
    timer.run([item])
    timer.closing(item, [0])
    assert set(seen) == {1} and not depth


def test_blocks_interleave_and_the_queue_is_drained_between_them():
    log = []
    calls = {"a": lambda: log.append("a"), "b": lambda: log.append("b")}
    times = host.host_time_us(calls, blocks=4, calls=3, drain=lambda: log.append("|"), seed=1)
    blocks = "".join(log)[20:].strip("|").split("|")  # after 10 warming calls of each
    assert sorted(blocks) == ["aaa"] * 4 + ["bbb"] * 4
    assert blocks != sorted(blocks)
    assert times["a"].p20 <= times["a"].p50 <= times["a"].p80


def test_collection_and_affinity_are_restored_after_an_error():
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        host.host_time_us({"a": fails}, blocks=1, calls=1)
    assert gc.isenabled()
    if before is not None:
        assert os.sched_getaffinity(0) == before


def test_rotating_goes_round():
    seen = []
    call = host.rotating([lambda: seen.append(0), lambda: seen.append(1)])
    for _ in range(5):
        call()
    assert seen == [0, 1, 0, 1, 0]


def test_a_cache_size_is_found_or_guessed():
    assert host.cache_bytes() >= 2**15


def test_an_item_is_timed_from_drained_to_drained():
    seen = []
    timer = host.HostTimer(drain=lambda: seen.append("drain"), least_us=0.0)
    item = timer.load("a", [lambda: seen.append("call")])
    item.calls = 2
    seen.clear()
    timer.run([item])
    assert seen == ["drain", "call", "call", "drain"]

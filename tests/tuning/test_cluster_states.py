"""What a worker sends of its state, and what the client shows of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest

from tritongemm.tuning import cluster_states
from tritongemm.tuning.cluster_states import EVERY_S, StateSender, WorkerStates
from tritongemm.tuning.progress import OnDevice, Snapshot
from tritongemm.workers.dask_pool import PoolWorker

STATE = OnDevice("device 0", "64x64x64 bf16 nn", 3, 60, 16.5, 100.0, 0.02)


def snapshot(*devices, compiling=0):
    return Snapshot(0, 1, 3, Counter(), compiling, 1.0, None, list(devices))


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(cluster_states, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_a_state_is_sent_when_it_has_changed_and_not_more_often_than_said(clock):
    sent = []
    sender = StateSender("tcp://a", sent.append)
    sender.send(snapshot(STATE))
    sender.send(snapshot(replace(STATE, settled=4)))  # too early
    assert len(sent) == 1
    clock.s += EVERY_S
    sender.send(snapshot(STATE))  # the last one that was sent
    assert len(sent) == 1
    sender.send(snapshot(replace(STATE, settled=5)))
    assert len(sent) == 2
    clock.s += EVERY_S
    sender.send(snapshot())  # the problem is over
    assert len(sent) == 3


def test_the_client_shows_the_last_state_of_each_worker_that_takes_part():
    states, sent = WorkerStates(), []
    # A search computes with numpy; events of Dask do not take its numbers.
    gain = numpy.float32(0.25)
    StateSender("tcp://a", sent.append).send(snapshot(STATE, compiling=5))
    StateSender("tcp://a", sent.append).send(snapshot(replace(STATE, gain_left=gain), compiling=4))
    StateSender("tcp://b", sent.append).send(snapshot(compiling=2))
    for message in sent:
        states.take(message)
    a, b, new = (PoolWorker(f"tcp://{name}", name, 3, None) for name in ("a", "b", "new"))
    assert states.devices([a, b, new]) == [replace(STATE, device="worker a", gain_left=0.25)]
    assert states.compiling([a, b, new]) == 6
    assert states.devices([b]) == [] and states.compiling([b]) == 2  # a has left

"""The pool of a cluster's workers, with a fake client."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tritongemm.errors import UsageError
from tritongemm.workers.dask_pool import Pool, WorkerIdentity, connect


class FakeClient:
    """Its workers, by address, are all of one kind; keeps what was run on which."""

    status = "running"

    def __init__(self, *names):
        self.there = {f"tcp://{name}": {"name": name, "nthreads": 3} for name in names}
        self.ran = []

    def scheduler_info(self, n_workers):
        return {"workers": dict(self.there)}

    def submit(self, function, *arguments, workers, **options):
        found = WorkerIdentity.here("fake-gpu", "fingerprint", {}, None)
        return SimpleNamespace(done=lambda: True, status="finished", result=lambda timeout: found)

    def run(self, function, topic, on_error, workers):
        self.ran.append((function, topic, workers))


@pytest.mark.parametrize("address", ["foo", "tcp://10.0.0.1", "10.0.0.1:", "tcp://[::1]", ":8786",
                                     "tcp://a b:1"])
def test_a_word_that_is_no_address_is_refused_at_once(address):
    pytest.importorskip("distributed")
    with pytest.raises(UsageError, match="is not the address of a Dask scheduler"):
        connect(address)


def test_a_worker_that_died_since_the_last_look_is_not_waited_for():
    client = FakeClient("a:1", "b:1")
    pool = Pool(client, "tcp://s:8786", "run 7", lambda: None, (), lambda text: None, 1.0, "kept")
    assert pool.update() == ["fake-gpu"] and len(pool.admitted) == 2
    del client.there["tcp://a:1"]
    pool.on_workers(print)
    assert client.ran == [(print, "run 7", ["tcp://b:1"])]

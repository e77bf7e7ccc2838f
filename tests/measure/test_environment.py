"""The environment record: what it holds, what it must not, what makes times comparable."""

from __future__ import annotations

import getpass
import json
import pickle
import platform
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tritongemm.measure.environment import capture, fingerprint


@pytest.fixture(scope="module")
def record():
    return capture()


def test_it_names_what_results_depend_on(record):
    assert {"python", "torch", "triton", "cuda", "driver", "device", "cpu", "system",
            "packages"} <= set(record)
    assert record["python"] == platform.python_version()
    json.dumps(record)


def test_it_holds_no_host_no_user_and_no_path(record):
    text = json.dumps(record)
    assert str(Path(__file__).resolve().parents[2]) not in text
    words = {word for value in _values(record) for word in str(value).split()}
    assert not words & {platform.node(), getpass.getuser()}


def _values(record):
    for value in record.values():
        yield from _values(value) if isinstance(value, dict) else (value,)


def test_a_process_that_reads_it_from_a_worker_needs_no_torch(record):
    assert b"torch.torch_version" not in pickle.dumps(record)
    assert type(record["torch"]) is str


def test_a_commit_does_not_make_times_stale_but_a_driver_does(record):
    assert fingerprint(record) == fingerprint({**record, "git_revision": "0" * 40, "python": "4"})
    assert fingerprint(record) != fingerprint({**record, "driver": "0.0"})
    assert fingerprint(record) != fingerprint({**record, "triton": "0.0"})
    assert fingerprint(record) != fingerprint({**record, "cache_multiple": 3})


def test_a_devices_times_do_not_depend_on_the_cpu_and_a_hosts_do(record):
    for device, same in (("NVIDIA H200", True), ("cpu", False)):
        one, other = ({**record, "device": device, "cpu": cpu} for cpu in ("x", "y"))
        assert (fingerprint(one) == fingerprint(other)) is same

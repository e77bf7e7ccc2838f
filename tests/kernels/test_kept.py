"""Rules, defaults and launches are what the tables were measured with (``kept.py``)."""

from __future__ import annotations

import json

import pytest
from kept import FILE, of_problem, problems

from tritongemm.config import KernelConfig
from tritongemm.kernels import SPECS

KEPT = json.loads(FILE.read_text("utf-8"))
CONFIGS = {kernel: [KernelConfig.from_json(kernel, x) for x in found["configs"]]
           for kernel, found in KEPT.items()}


def test_every_kernel_is_kept():
    assert set(KEPT) == set(SPECS)


@pytest.mark.parametrize("problem", problems(), ids=str)
@pytest.mark.parametrize("kernel", KEPT)
def test_what_is_legal_chosen_and_launched_stays(kernel, problem):
    found = json.loads(json.dumps(of_problem(kernel, problem, CONFIGS[kernel])))
    assert found == KEPT[kernel][str(problem)], "meant? python tests/kernels/kept.py"

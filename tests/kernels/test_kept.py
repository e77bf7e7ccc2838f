"""Rules, defaults and launches are what the tables were measured with (``kept.py``)."""

from __future__ import annotations

import json

import pytest
from kept import ALL, FILE, of_problem, problems

from tritongemm.config import KernelConfig

KEPT = json.loads(FILE.read_text("utf-8"))
CONFIGS = {kernel: [KernelConfig.from_json(kernel, x) for x in found["configs"]]
           for kernel, found in KEPT.items()}


def test_every_kernel_is_kept():
    assert set(KEPT) == set(ALL)


@pytest.mark.parametrize(("kernel", "problem"), [
    (kernel, problem) for kernel in KEPT for problem in problems(kernel)], ids=str)
def test_what_is_legal_chosen_and_launched_stays(kernel, problem):
    found = json.loads(json.dumps(of_problem(kernel, problem, CONFIGS[kernel])))
    assert found == KEPT[kernel][str(problem)], "if meant: kept.py writes it anew"

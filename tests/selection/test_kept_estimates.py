"""Predictions are what they were when the calibrations were fitted (``kept_estimates.py``)."""

from __future__ import annotations

import json

import pytest
from kept_estimates import FILE, of_problem, prepare, problems


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_each_term_of_a_prediction_stays(configs, problem):
    prepare(configs)
    kept = json.loads(FILE.read_text("utf-8"))[str(problem)]
    found = of_problem(problem)
    assert list(found) == list(kept)
    for config, terms in found.items():
        assert terms == pytest.approx(kept[config], rel=1e-4, abs=1e-5), config

"""Training the networks: what they learn, what is too little, and that it can be repeated."""

from __future__ import annotations

import numpy as np
import pytest

from tritongemm.calibration import training
from tritongemm.selection.network import Network

torch = pytest.importorskip("torch")

NAMES = tuple("abcdef")


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(7)
    inputs = rng.normal(size=(2000, 6)).astype(np.float32) * 3 + 5
    at = (inputs - 5) / 3
    return inputs, 0.2 * np.tanh(at[:, 0] * at[:, 1]) + 0.1 * (at[:, 2] > 0)


@pytest.fixture(scope="module")
def trained(drawn):
    inputs, misses = drawn
    return training.train(NAMES, inputs[:1500], misses[:1500], np.zeros(1500))


def test_a_network_predicts_timings_that_it_was_not_trained_on(drawn, trained):
    inputs, misses = drawn
    found = Network(trained)(inputs[1500:])
    assert np.sqrt(np.mean((found - misses[1500:]) ** 2)) < 0.5 * np.std(misses[1500:])


def test_the_same_timings_give_the_same_network_and_no_draw_of_the_users(drawn, trained):
    inputs, misses = drawn
    state = torch.random.get_rng_state()
    assert training.train(NAMES, inputs[:1500], misses[:1500], np.zeros(1500)) == trained
    assert torch.equal(state, torch.random.get_rng_state())


def test_timings_far_behind_weigh_less(drawn):
    inputs, _ = drawn
    one = np.repeat(inputs[:1], 1000, 0)
    behind = np.where(np.arange(1000) % 2, 3.0, 0.0)
    found = Network(training.train(NAMES, one, np.where(behind > 0, 1.0, 0.0), behind))(one[:1])
    assert found[0] == pytest.approx(0.0, abs=0.05)


def test_a_constant_of_a_group_is_not_learned(drawn):
    inputs, misses = drawn
    alike = np.arange(1500) // 5
    own = np.random.default_rng(1).normal(size=300)[alike]  # far more than what is to be learned
    record = training.train(NAMES, inputs[:1500], misses[:1500] + own, np.zeros(1500), alike=alike)
    found = Network(record)(inputs[1500:])
    error = (found - found.mean()) - (misses[1500:] - misses[1500:].mean())
    assert np.sqrt(np.mean(error ** 2)) < 0.5 * np.std(misses[1500:])


def test_too_few_timings_train_no_network(drawn):
    inputs, misses = drawn
    few = training.LEAST - 1
    assert training.train(NAMES, inputs[:few], misses[:few], np.zeros(few)) is None


def test_a_constant_input_has_no_effect(drawn):
    inputs, misses = drawn
    still = np.concatenate([inputs, np.full((len(inputs), 1), 16.0, np.float32)], 1)
    network = Network(training.train((*NAMES, "still"), still[:1500], misses[:1500],
                                     np.zeros(1500)))
    moved = still[1500:].copy()
    moved[:, -1] = 2.0
    assert network(moved) == pytest.approx(network(still[1500:]), abs=1e-3)

"""Every legal config of every shipped space compiles within its estimate of shared memory."""

from __future__ import annotations

import random

import pytest
from compiled import TARGETS, fault, legal_problem

from tritongemm.device import representative
from tritongemm.kernels import SPECS
from tritongemm.problem import OPERAND_DTYPES
from tritongemm.records.spaces import load_space, load_spaces

SEED = 20261121
#: Configs of a space that are compiled for each architecture: by `make test`, by `make test-all`.
FEW, SAMPLE = 1, 4
EACH = pytest.mark.parametrize(("kernel", "arch"), TARGETS,
                               ids=[f"{kernel}-sm_{arch}" for kernel, arch in TARGETS])


def test_every_kernel_has_a_space_and_every_space_a_kernel():
    assert set(load_spaces()) == set(SPECS)


def build_all(kernel: str, arch: int, most: int | None = None) -> tuple[int, list[str]]:
    """Builds the space's configs in a seeded order, each for a problem drawn for it, until
    ``most`` are built: how many, and what was wrong."""
    device, space = representative(arch), load_space(kernel)
    offered = {dtype: set(space.configs(dtype)) for dtype in OPERAND_DTYPES}
    configs = sorted(space.configs(), key=lambda c: c.config_id)
    random.Random(f"{SEED} {kernel} {arch}").shuffle(configs)
    built, wrong = 0, []
    for config in configs:
        rng = random.Random(f"{SEED} {config} {arch}")
        problem = legal_problem(rng, config, device,
                                [d for d in OPERAND_DTYPES if config in offered[d]])
        if problem is not None:
            built += 1
            if (message := fault(problem, config, device)) is not None:
                wrong.append(message)
        if built == most:
            break
    return built, wrong


@pytest.mark.parametrize("most", [pytest.param(FEW, marks=pytest.mark.quick), SAMPLE])
@EACH
def test_a_sample_of_the_space_compiles_within_its_estimate(kernel, arch, most):
    built, wrong = build_all(kernel, arch, most)
    assert not wrong, "\n".join(wrong)
    assert built == most, f"seed {SEED}: {built} configs were legal for a drawn problem"


@pytest.mark.slow
@EACH
def test_the_whole_space_compiles_within_its_estimate(kernel, arch):
    built, wrong = build_all(kernel, arch)
    assert not wrong, "\n".join(wrong)
    assert built >= load_space(kernel).size() // 4, f"only {built} were legal for a drawn problem"

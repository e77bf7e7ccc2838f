"""GPU tests prove this package's kernels, so no product goes to torch because torch is faster."""

from __future__ import annotations

import pytest

from tritongemm import settings


@pytest.fixture(autouse=True)
def own_policy():
    with settings.override(policy="own"):
        yield

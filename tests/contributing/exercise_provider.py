"""A provider that was added as CONTRIBUTING says: torch's product, under another name."""

from __future__ import annotations

import torch

from tritongemm.bench.providers import Prepared
from tritongemm.measure.contender import Contender


class Exercise:
    """Host only."""

    name = "exercise"

    def available(self, target):
        return None if target.kind == "cpu" else "it runs on the host: use --device cpu"

    def build(self, problem, target):
        return None

    def prepare(self, problem, target):
        def bind(operands):
            return lambda: torch.matmul(operands.a, operands.b, out=operands.out)

        return Prepared(Contender(self.name, bind, capturable=False), {"kernel": "torch.matmul"})

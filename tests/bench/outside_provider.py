"""A provider of another package, as a user would write one."""

from tritongemm.bench.providers import Prepared
from tritongemm.measure.contender import Contender


class Doubled:
    name = "doubled"

    def available(self, target):
        return None

    def build(self, problem, target):
        return None

    def prepare(self, problem, target):
        def bind(operands):
            return lambda: operands.out.copy_(2 * (operands.a @ operands.b))

        return Prepared(Contender(self.name, bind), {"kernel": "wrong on purpose"})


class Unwilling(Doubled):
    def available(self, target):
        return "it has no licence"


class Failing(Doubled):
    def prepare(self, problem, target):
        raise ZeroDivisionError("no tile fits")


class Partial:
    name = "partial"

"""Why a call is torch's."""

from __future__ import annotations


class Declined(Exception):
    """A call that goes to torch, with the reason. Never leaves this package.

    A call returns it in the place of its result, for an exception costs as much as finding out what
    is known of the call. It is raised by the steps that learn a call, once, and inside of autograd
    functions, which have no other way to end.

    Attributes:
        lasting: every call like this one is declined, so the answer may be kept.
        by_choice: a kernel could run it; ``strict`` makes it do so.
    """

    lasting = True
    by_choice = False

    def fresh(self) -> Declined:
        """A copy without a traceback, which would keep a call's operands alive."""
        return type(self)(*self.args)


class DeclinedNow(Declined):
    """This time: another call like this one may run."""

    lasting = False


class DeclinedByChoice(Declined):
    """torch is at least as good."""

    by_choice = True

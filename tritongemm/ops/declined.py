"""Reasons why a call goes to torch."""

from __future__ import annotations


class Declined(Exception):
    """A call that goes to torch, with the reason. Never leaves this package.

    A call returns it instead of a result, because raising an exception takes as long as looking up
    the call. It is raised only while a new kind of call is bound, and inside autograd functions,
    which cannot return it.

    Attributes:
        lasting: every call with the same key is declined, so the answer may be cached.
        by_choice: a kernel could run the call, and does under ``strict``.
    """

    lasting = True
    by_choice = False

    def fresh(self) -> Declined:
        """A copy without a traceback, which would keep a call's operands alive."""
        return type(self)(*self.args)


class DeclinedNow(Declined):
    """Declines this call only: the next call with the same key may run."""

    lasting = False


class DeclinedByChoice(Declined):
    """Declines because torch is expected to be at least as fast."""

    by_choice = True


class DeclinedForNow(DeclinedByChoice):
    """Declines this call by choice; a later one with the same key may run."""

    lasting = False


class DeclinedAtFirst(DeclinedForNow):
    """Declines by choice as many calls with the same key as ``calls`` says, this one among them."""

    def __init__(self, reason: str, calls: int) -> None:
        super().__init__(reason)
        self.calls = calls

    def fresh(self) -> DeclinedAtFirst:
        return type(self)(str(self), self.calls)

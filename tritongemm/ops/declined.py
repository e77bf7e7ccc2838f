"""Why a call is torch's."""

from __future__ import annotations


class Declined(Exception):
    """A call that goes to torch, with the reason. Never leaves this package.

    Attributes:
        lasting: every call like this one is declined, so the answer may be kept.
        by_choice: a kernel could run it; ``strict`` makes it do so.
    """

    def __init__(self, reason: str, *, lasting: bool = True, by_choice: bool = False) -> None:
        super().__init__(reason)
        self.lasting, self.by_choice = lasting, by_choice

    def fresh(self) -> Declined:
        """The same, with no traceback that would keep a call's operands alive."""
        return Declined(str(self), lasting=self.lasting, by_choice=self.by_choice)

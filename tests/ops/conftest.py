"""Fixtures of this folder."""

from faked import logged, plans

__all__ = ["logged", "plans"]

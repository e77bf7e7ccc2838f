"""The native dispatcher: looks up and launches repeated products in C++ (``dispatcher.cpp``).

It is off by default (``TRITONGEMM_NATIVE=1`` turns it on). ``tritongemm native`` builds it for the
installed torch. Without it every call runs through the Python path, with the same results.
"""

from tritongemm.native.compiler import build, library
from tritongemm.native.loading import load, obstacle

__all__ = ["build", "library", "load", "obstacle"]

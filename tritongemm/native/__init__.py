"""The native dispatcher: repeated products found and launched in C++ (``dispatcher.cpp``).

It is off by default (``TRITONGEMM_NATIVE=1`` turns it on) and built for the installed torch by
``tritongemm native``. Without it everything runs through the Python path, and behaves alike.
"""

from tritongemm.native.compiler import build, library
from tritongemm.native.loading import load, obstacle

__all__ = ["build", "library", "load", "obstacle"]

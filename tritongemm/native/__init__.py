"""The native dispatcher: repeated products found and launched in C++ (``dispatcher.cpp``).

``TRITONGEMM_NATIVE=auto``, the default, uses it where there is a GPU: what is not built for the
installed torch is built in the background, for this process and later ones. Without it everything
runs through the Python path, and behaves alike.
"""

from tritongemm.native.compiler import build, failure, library
from tritongemm.native.loading import load, obstacle

__all__ = ["build", "failure", "library", "load", "obstacle"]

"""The native dispatcher: looks up and launches repeated products in C++ (``dispatcher.cpp``).

``TRITONGEMM_NATIVE=auto``, the default, uses it if there is a GPU. A library that is neither in the
package nor built for the installed torch is built in the background, for this process and later
ones. Without it every call runs through the Python path, with the same results.
"""

from tritongemm.native.compiler import build, failure
from tritongemm.native.loading import find, load

__all__ = ["build", "failure", "find", "load"]

"""The ladder: teaching kernels from naive to tuned, listed, measured, swept and drawn.

The rungs' code is elsewhere (``catalog.py`` says where). Nothing heavy is imported by importing the
package.
"""

"""Makes the packs of compiled kernels that come with the package; ``kernels/pack.py`` reads them.

``choosing`` draws problems and asks what calls would launch; ``building`` compiles the binaries
that most of them need, and writes the pack and its wheel. Neither needs a GPU.
"""

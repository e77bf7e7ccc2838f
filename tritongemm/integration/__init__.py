"""A whole program's products, without a change to it: ``override`` and ``record``."""

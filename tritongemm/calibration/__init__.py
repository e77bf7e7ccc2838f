"""The selection's model: what fits and trains it from sweep journals, and what judges it.

Nothing heavy is imported by importing the package.
"""

"""Fits and trains the selection's model from sweep journals, and evaluates it.

Nothing heavy is imported by importing the package.
"""

"""Whole programs of published sizes, timed under ``tritongemm.override`` and with torch.

One file a program; ``catalog.py`` names them. ``tritongemm models`` runs them.
"""

"""Tables, plots and one HTML page from bench CSVs; and the comparison of two of them.

Reads records (and pandas), never torch. ``load`` -> ``aggregate`` -> ``markdown``, ``plots``
(matplotlib), ``page`` (plotly); ``compare`` stands beside them. Nothing heavy is imported here.
"""

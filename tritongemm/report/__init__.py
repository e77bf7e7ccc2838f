"""Tables, plots and one HTML page from bench CSVs; and the comparison of two of them.

Reads records (and pandas), never torch. ``load`` -> ``aggregate`` -> ``markdown``, ``plots``
(matplotlib), ``page`` (HTML, with charts.js, page.js and page.css inside); ``compare`` judges two
loads. Nothing heavy is imported here.
"""

"""Everything on disk: suites, spaces, tuned tables, sweep journals, CSV rows and sidecars.

One module a format, each with its schema and its validator; writes are atomic and under locks.
Nothing here imports torch, triton or pandas, and nothing is imported until it is asked for.
"""

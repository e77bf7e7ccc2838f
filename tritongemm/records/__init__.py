"""All file formats: suites, spaces, tuned tables, sweep journals, CSV rows and run records.

One module for each format, with its schema and validator. Writes are atomic and locked. Nothing
here imports torch, triton or pandas, and modules are imported on first use.
"""

"""The sweep: candidates, device workers, the journal, finalists, publishing.

``tuning.sweep`` is the entry point; nothing heavy is imported by importing the package.
"""

"""The sweep: candidates, workers that may hang or die, the journal, finalists, publishing.

``tuning.sweep`` is the door; nothing heavy is imported by importing the package.
"""

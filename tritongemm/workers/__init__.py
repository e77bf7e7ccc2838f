"""Worker processes: a supervisor that survives hangs, crashes and device faults, and a compile pool
on top of it.

Nothing heavy is imported by importing the package.
"""

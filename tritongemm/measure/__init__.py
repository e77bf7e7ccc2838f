"""Timing, numerics, clocks, roofline and the environment record.

``measure.protocol.measure`` is the one entry point that the sweep, the bench and the ladder use.
"""

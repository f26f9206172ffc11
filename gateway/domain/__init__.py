"""Frozen values and pure functions: what may be done and what it costs.

Time and prices are arguments.
"""

"""Frozen values and pure functions: permissions, decisions and costs.

Time and prices are arguments.
"""

"""Contains the gateway's rules as frozen values and pure functions: policy, prices, budgets,
routing, residency; does no I/O.

Time and prices are arguments.
"""

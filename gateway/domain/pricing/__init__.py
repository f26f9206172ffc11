"""Declares token counts and prices, and computes the cost, hold and settlement of an attempt;
stores nothing.
"""

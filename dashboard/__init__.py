"""The dashboard for finance.

It asks only `gateway.reports`, and computes no money.
"""

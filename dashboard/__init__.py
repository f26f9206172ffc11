"""The dashboard: what finance sees.

It asks `gateway.reports` and nothing else, and computes no money.
"""

"""Builds receipts: the cost of one request, line by line, with sources, adjustments and the
decision's reasons.
"""

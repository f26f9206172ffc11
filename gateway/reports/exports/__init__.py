"""Reads whole ledgers row by row for other programs: events, adjustments and FOCUS, in a stable
order, from a watermark on.
"""

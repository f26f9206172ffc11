"""Applies rate and concurrency limits in one worker: `limiter` admits, `limit_units` counts the
held units; `own_reads` runs callers' own reads under them.
"""

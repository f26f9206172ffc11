"""Comparisons that anyone can run again.

Figures are ratios within one run; see `docs/performance.md`.
"""

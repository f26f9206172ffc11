"""Reads re-allocations, currency rates, shares of cost centres and idle cost, for reports."""

from __future__ import annotations

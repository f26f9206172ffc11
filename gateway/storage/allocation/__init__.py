"""Stores of re-allocations between cost centres, and of currency rates."""

from __future__ import annotations

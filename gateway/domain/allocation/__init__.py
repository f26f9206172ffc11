"""The allocation of cost to cost centres after the fact, and its display in other currencies."""

from __future__ import annotations

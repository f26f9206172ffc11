"""The commands that re-allocate cost and keep currency rates."""

from __future__ import annotations

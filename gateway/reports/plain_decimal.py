"""Formats a decimal as plain text for JSON and CSV: no exponent, no trailing zeros, never through a
float.
"""

from __future__ import annotations

from decimal import Decimal


def plain_decimal(value: Decimal) -> str:
    """Return a decimal as plain text for JSON and CSV: `0.0001234`, `-3`, `0`."""
    text = f"{value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text

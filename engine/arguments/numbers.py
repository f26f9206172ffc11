"""Reads numbers from the command line: each function is a `type` of argparse."""

import argparse
import math


def whole(given: str) -> int:
    """Return a whole number above 0. Raises `ArgumentTypeError` otherwise."""
    if not (given.isascii() and given.isdecimal() and 0 < int(given) < 10**9):
        raise argparse.ArgumentTypeError(f"{given!r} is not a whole number above 0")
    return int(given)


def count(given: str) -> int:
    """Return a whole number from 0. Raises `ArgumentTypeError` otherwise."""
    return 0 if given == "0" else whole(given)


def positive(given: str) -> float:
    """Return a finite number above 0. Raises `ArgumentTypeError` otherwise."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{given!r} is not a number above 0")
    return value

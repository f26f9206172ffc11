"""Reads numbers from the command line: each function is a `type` of argparse."""

import argparse
import math

LARGEST = 10**9  # more than any count of this program's; larger ones are slips of the hand


def whole(given: str) -> int:
    """Return a whole number from 1 to `LARGEST`. Raises `ArgumentTypeError` otherwise."""
    is_digits = given.isascii() and given.isdecimal()
    # Its length comes first: Python reads no number of more than 4,300 digits.
    if is_digits and (len(given.lstrip("0")) > len(str(LARGEST)) or int(given) > LARGEST):
        raise argparse.ArgumentTypeError(f"{given[:20]!r} is above {LARGEST:,}")
    if not is_digits or int(given) == 0:
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

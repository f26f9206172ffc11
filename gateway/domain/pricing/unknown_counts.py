"""Finds the counts of a usage that its dialect's table does not name: one rule for all dialects.

A count is a number that is not 0 under a name of tokens, calls or other units, at any depth. One in
the table is read, or costs nothing beside those that are. Any other is never nothing: tokens in an
object that divides a count are a part of it whose kind is unknown, and everything else is a unit
without a price.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.domain.pricing.tokens import TokenUsage

Path = tuple[str, ...]
INPUT, OUTPUT = "unknown_input_tokens", "unknown_output_tokens"
WRITES, UNITS = "unknown_cache_write_tokens", "unknown_units"
_TOKENS = "token"
# A name may be in snake case or in camel case. `tool_us` is in the names of objects of calls.
_UNIT = re.compile(
    "call|request|search|unit|second|minute|hour|character|word|byte|page|image|pixel|frame|credit"
    "|quer|session|tool_?us",
    re.I,
)
# Amounts of money, rates, and times to a token are no counts.
_NO_COUNT = re.compile(r"(?:_cost|_price|_usd|_rate)$|_per_|^time_", re.I)
MOST_VALUES = 1000  # of a usage: the longest recorded one has 60
_MOST_CHARS = 40  # of a number that is written as a text


class KnownNames(NamedTuple):
    """The names of one dialect's usages, each as its path; the items of a list have the list's.

    Nothing is looked at below a path of `paths`. `parts` has the objects that divide a count, with
    the count of their unknown tokens.
    """

    paths: frozenset[Path]
    parts: Mapping[Path, str]


def known_names(paths: Iterable[str], parts: Mapping[str, str]) -> KnownNames:
    """Return a table whose paths are written with dots."""
    return KnownNames(
        frozenset(tuple(path.split(".")) for path in paths),
        {tuple(path.split(".")): name for path, name in parts.items()},
    )


def unknown_counts(usage: Any, known: KnownNames) -> Counter[str]:
    """Return the unknown counts of a decoded usage, by the names that `TokenUsage` has for them.
    One with more values than any real usage has a unit that is not known.
    """
    found: Counter[str] = Counter()
    # Each value with its path, the unit that the names above it say, and the count that unknown
    # tokens there are a part of. A stack of its own: a usage may be deeper than Python's.
    left: list[tuple[Any, Path, str, str]] = [(usage, (), "", UNITS)]
    seen = 0
    while left:
        value, at, unit, whole = left.pop()
        seen += len(value) if isinstance(value, list | dict) else 0
        if seen > MOST_VALUES:  # each takes some microseconds
            return Counter({UNITS: 1})
        if isinstance(value, list):
            left += ((item, at, unit, whole) for item in value)
        elif isinstance(value, dict):
            for name, member in value.items():
                path = (*at, name)
                if path not in known.paths and not _NO_COUNT.search(name):
                    left.append(
                        (member, path, _unit_of(name) or unit, known.parts.get(path, whole))
                    )
        elif unit and at not in known.parts and (amount := _amount(value)):
            name = whole if unit == _TOKENS else UNITS
            found[name] += abs(amount) if name == UNITS else amount
    return found


def with_unknown(usage: TokenUsage | None, unknown: Mapping[str, int]) -> TokenUsage | None:
    """Return a usage with its unknown counts.

    Writes to the cache without their whole are beside the prompt, as far as anyone can tell.
    """
    if not unknown:
        return usage
    usage, found = usage or TokenUsage(), dict(unknown)
    if usage.cache_write_tokens is None and WRITES in found:
        found[UNITS] = found.get(UNITS, 0) + found.pop(WRITES)
    counts = {name: (getattr(usage, name) or 0) + n for name, n in found.items() if name != WRITES}
    if WRITES in found:  # the reader may have found the same ones as the rest of the whole
        counts[WRITES] = max(usage.unknown_cache_write_tokens or 0, found[WRITES])
    return replace(usage, **counts)


def _unit_of(name: str) -> str:
    """Return the unit that a name says, empty if it says none. Tokens of images are tokens."""
    return _TOKENS if _TOKENS in name.lower() else "unit" if _UNIT.search(name) else ""


def _amount(value: Any) -> int:
    """Return a number, or a text that is one, away from 0 to a whole one; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    if isinstance(value, int):
        return value
    try:
        number = Decimal(str(value)[:_MOST_CHARS])
    except InvalidOperation:
        return 0
    if not number.is_finite() or abs(number.adjusted()) > _MOST_CHARS:
        return int(bool(number)) if number.is_finite() else 0
    whole = int(number)
    return whole if whole == number else whole + (1 if number > 0 else -1)

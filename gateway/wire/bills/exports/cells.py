"""Reads single values of an export: days, numbers, names, and words for kinds of tokens."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from math import ceil
from typing import NamedTuple

from gateway.domain.money import EXACT
from gateway.domain.pricing.tokens import TokenKind

MOST_TEXT = 300
MOST_USD, MOST_QUANTITY = Decimal(1_000_000_000), Decimal(10) ** 15
LEAST_DECIMALS = 2  # an amount of `12.5` is printed in cents: its last zeros are left out
FIRST_YEAR, LAST_YEAR = 2000, 2100
# A spreadsheet runs such a cell as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)? ?(Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_WORDS = {
    TokenKind.INPUT: "input prompt input_tokens input_token uncached_input uncached_input_tokens",
    TokenKind.CACHED_INPUT: "cached_input cache_read cache_read_input cache_read_input_tokens "
    "cached_input_tokens input_cached input_cache_read cache_read_input_token_count",
    TokenKind.CACHE_WRITE: "cache_write cache_write_5m cache_creation cache_write_input "
    "input_cache_write cache_write_input_token_count cache_creation_input_tokens",
    TokenKind.CACHE_WRITE_1H: "cache_write_1h cache_creation_1h input_cache_write_1h",
    TokenKind.OUTPUT: "output completion output_tokens output_token",
    TokenKind.REASONING: "reasoning thinking reasoning_tokens",
    TokenKind.AUDIO_INPUT: "audio_input input_audio",
    TokenKind.CACHED_AUDIO_INPUT: "cached_audio_input audio_cached_input",
    TokenKind.AUDIO_OUTPUT: "audio_output output_audio",
    TokenKind.IMAGE_INPUT: "image_input input_image",
    TokenKind.IMAGE_OUTPUT: "image_output output_image",
}
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()} | {
    kind.value: kind for kind in TokenKind
}
_THOUSANDS = re.compile(r"\b1?,?0*(k|thousand|1k|1000|1,000)\b|1000|1,000")
_MILLIONS = re.compile(r"\b(m|1m|million|1000000|1,000,000)\b|1000000|1,000,000")


class WrongCell(ValueError):
    """A value that cannot be read; its text is the finding."""


class PrintedAmount(NamedTuple):
    """An amount in dollars with all its digits, and half of its last printed digit.

    It is rounded once, as part of its sum: a million lines of half a nano-dollar are no 0.
    """

    usd: Decimal
    slack_nusd: int


def read_number(text: object, name: str, *, most: Decimal) -> Decimal:
    """Return a decimal number, from text or a JSON number. Raises `WrongCell` unless it is one
    within `most` of 0.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, Decimal)):
        raise WrongCell(f"{name} is {_kind_of(text)}, not a number")
    word = str(text).strip()
    if not _NUMBER.fullmatch(word):
        raise WrongCell(
            f"{name} is '{word[:MOST_TEXT]}'; write a number with a decimal point and without "
            "other separators, such as 1234.50"
        )
    value = Decimal(word)
    if abs(value) > most:
        raise WrongCell(f"{name} is {word[:MOST_TEXT]}; at most {most:,}")
    return value


def read_amount(text: object, name: str, *, cents: bool = False) -> PrintedAmount:
    """Return an amount of USD, or of US cents. Raises `WrongCell`."""
    value = read_number(text, name, most=MOST_USD)
    exponent = value.as_tuple().exponent
    decimals = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    if cents:
        value, decimals = EXACT.scaleb(value, -2), decimals + 2
    decimals = max(decimals, LEAST_DECIMALS)
    return PrintedAmount(value, ceil(Decimal(10) ** (9 - decimals) / 2))


def read_quantity(text: object, name: str) -> Decimal:
    """Return a quantity of tokens or calls. Raises `WrongCell`."""
    return read_number(text, name, most=MOST_QUANTITY)


def read_count(value: object, name: str) -> Decimal:
    """Return a whole, not negative number; a missing one is 0. Raises `WrongCell`."""
    if value is None:
        return Decimal(0)
    found = read_quantity(value, name)
    if found < 0 or found != found.to_integral_value():
        raise WrongCell(f"{name} is {found}; tokens are counted from 0 in whole numbers")
    return found


def read_day(text: object, name: str) -> date:
    """Return the UTC day of a day or a moment. Raises `WrongCell`."""
    return read_moment(text, name).date()


def read_moment(text: object, name: str) -> datetime:
    """Return a moment in UTC; one without an offset is UTC. Raises `WrongCell`."""
    word = text.strip() if isinstance(text, str) else ""
    found = _MOMENT.fullmatch(word)
    try:
        if found is None:
            raise ValueError(word)
        moment = datetime.fromisoformat(re.sub(r" ?UTC$", "Z", word))
    except ValueError:
        shown = f"'{word[:MOST_TEXT]}'" if word else _kind_of(text)
        raise WrongCell(f"{name} is {shown}; write a day in UTC as 2026-11-01") from None
    if not FIRST_YEAR <= moment.year < LAST_YEAR:
        raise WrongCell(f"{name} is {word}; years are from {FIRST_YEAR} to {LAST_YEAR - 1}")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def read_unix_day(value: object, name: str) -> date:
    """Return the UTC day of Unix seconds. Raises `WrongCell`."""
    seconds = read_number(value, name, most=Decimal(10) ** 11)
    try:
        moment = datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        raise WrongCell(f"{name} is {seconds}, which is no moment in Unix seconds") from None
    if not FIRST_YEAR <= moment.year < LAST_YEAR:
        raise WrongCell(f"{name} is {seconds}, which is no moment in Unix seconds of this century")
    return moment.date()


def read_name(value: object, name: str) -> str | None:
    """Return a name; None if it is null or empty. Raises `WrongCell` if it is no text, too long or
    a formula.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise WrongCell(f"{name} is {_kind_of(value)}, not text")
    word = value.strip()
    if word.startswith(_FORMULA):
        raise WrongCell(
            f"{name} is '{word[:MOST_TEXT]}', which a spreadsheet would run as a formula"
        )
    if len(word) > MOST_TEXT or not word.isprintable():
        raise WrongCell(f"{name} must be at most {MOST_TEXT} printable characters")
    return word or None


def check_usd(value: object, name: str) -> None:
    """Raise `WrongCell` unless a currency is US dollars; an empty one is."""
    if value in (None, ""):
        return
    if not isinstance(value, str) or value.strip().upper() != "USD":
        raise WrongCell(
            f"{name} is '{str(value)[:MOST_TEXT]}'; the ledger is in USD. Convert the amounts first"
        )


def kind_word(text: str) -> str:
    """Return our kind of token for a provider's word; the word itself if it is none of them."""
    word = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    word = word.removesuffix("_count") if word.removesuffix("_count") in _KINDS else word
    found = _KINDS.get(word) or _KINDS.get(word.removesuffix("_tokens"))
    return text.strip() if found is None else found.value


def unit_size(unit: str) -> Decimal | None:
    """Return how many tokens or calls a unit is; None if it counts something else."""
    word = unit.lower().strip()
    if word in {"", "count", "units", "unit", "requests", "request", "calls", "tokens", "token"}:
        return Decimal(1)
    if "token" not in word and "request" not in word:
        return {"1k": Decimal(1000), "1m": Decimal(10**6)}.get(word)
    if _MILLIONS.search(word):
        return Decimal(10**6)
    return Decimal(1000) if _THOUSANDS.search(word) else Decimal(1)


def _kind_of(value: object) -> str:
    """Return the kind of a value as words for people."""
    match value:
        case None:
            return "missing"
        case bool():
            return "true or false"
        case dict():
            return "an object"
        case list():
            return "a list"
        case _:
            return f"'{str(value)[:MOST_TEXT]}'"

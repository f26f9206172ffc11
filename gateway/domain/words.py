"""Prepares names for messages and files: makes a text safe to print or to open in a spreadsheet,
finds the known name that was probably meant, and shortens lists.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SHOWN_CHARACTERS = 60
SHOWN_NAMES = 8
# The names that a deployment's `listed` takes: `?` stands for a value that is no text.
LISTED_NAME = r"(?:anthropic-beta: )?[A-Za-z_][A-Za-z0-9_.:=?-]{0,127}"
# Names of this form need no quotes in a list of YAML, unless YAML gives the word a meaning.
_BARE = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_.=-]|:(?=[A-Za-z0-9_]))*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""A spreadsheet calculates a cell that begins with one: a team called `=HYPERLINK(...)`. The last
four are the full-width signs, which East Asian versions read as the narrow ones.
"""


def shown(text: str) -> str:
    """Return a document's text made safe to print in a message: short, and without characters that
    move the cursor.
    """
    short = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
    if short.isprintable():
        return short
    return "".join(letter if letter.isprintable() else "?" for letter in short)


def host_and_port(host: str, port: int | str) -> str:
    """Return a listener as a URL names it: an IPv6 address stands in brackets (RFC 3986 §3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def spreadsheet_text(text: str) -> str:
    """Return a text, with an apostrophe before one that a spreadsheet would calculate."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant by a word, ignoring case; None if no name is
    near.
    """
    folded = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(word[:100].lower(), sorted(folded), n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: `; did you mean 'eu-de'?` or, if no name is near, the
    names that exist.
    """
    names = sorted(set(known))
    near = nearest(word, names)
    if near:
        return f"; did you mean '{near}'?"
    return f"; there is: {few(names, SHOWN_NAMES)}" if names else ""


def few(names: list[str], most: int = 10) -> str:
    """Return the first of some names for a message, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(names: Iterable[str]) -> str:
    """Return names for a description: `a`, `b`."""
    return ", ".join(f"`{name}`" for name in names)


def listed_text(names: Iterable[str]) -> str | None:
    """Return the line of a policy that lists these names, as a policy takes it; None if it can list
    none of them.
    """
    able = [name for name in names if re.fullmatch(LISTED_NAME, name)]
    if not able:
        return None
    written = (
        name if _BARE.fullmatch(name) and name.lower() not in _WORDS else f'"{name}"'
        for name in able
    )
    return f"listed: [{', '.join(written)}]"

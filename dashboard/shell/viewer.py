"""Writes numbers and moments as the reader's browser does: separators by its language, moments in
its time zone. Days and months stay those of the books, in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import streamlit as st

# Thousands and decimal separator by language, as Unicode CLDR has them (symbols of numberSystem
# latn). Written from memory: not yet compared with a release. A region that differs is listed.
_NARROW, _SPACE = "\u202f", "\u00a0"
_BY_LANGUAGE = {
    **dict.fromkeys(("da", "de", "el", "es", "hr", "id", "it", "nl", "pt", "ro", "tr"), (".", ",")),
    **dict.fromkeys(("bg", "cs", "et", "fi", "hu", "lt", "lv", "nb", "nn"), (_SPACE, ",")),
    **dict.fromkeys(("no", "pl", "ru", "sk", "sv", "uk"), (_SPACE, ",")),
    "fr": (_NARROW, ","),
    "de-AT": (_SPACE, ","),
    "de-CH": ("’", "."),
    "es-MX": (",", "."),
    "es-US": (",", "."),
    "pt-PT": (_SPACE, ","),
    "en-ZA": (_SPACE, ","),
}
_ENGLISH = (",", ".")


def separators() -> tuple[str, str]:
    """Return the reader's separators of thousands and of decimals."""
    locale = st.context.locale or "en"
    return _BY_LANGUAGE.get(locale, _BY_LANGUAGE.get(locale.partition("-")[0], _ENGLISH))


def localised(text: str) -> str:
    """Return a number that is written with `,` and `.` in the reader's format."""
    thousands, decimals = separators()
    if (thousands, decimals) == _ENGLISH:
        return text
    return text.translate({ord(","): thousands, ord("."): decimals})


def zone_name() -> str:
    """Return the name of the reader's time zone, `UTC` if the browser named none that exists."""
    return str(_zone())


def local_moment(at: datetime) -> str:
    """Return a moment in the reader's time zone, to the second: `2026-11-20 13:00:00`."""
    return f"{at.astimezone(_zone()):%Y-%m-%d %H:%M:%S}"


def _zone() -> tzinfo:
    """Return the reader's time zone; UTC without one."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (KeyError, ValueError, OSError):
        return UTC

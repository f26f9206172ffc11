"""Writes a body as long as a tokenizer may read it: each character that another form of its text
makes longer is padded up to its width (`domain.request.text_forms`).

The rules that size a request then read the padded body as any other one. Characters grow only
inside of texts, so it stays JSON, and no two different texts become equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil

from gateway.domain.providers.table import TextForms
from gateway.domain.request.text_forms import PromptSize, ratios_of, widths_of

# A larger body takes the largest ratio of its characters: padding 350,000 of them takes 50 ms.
MAX_PADDED_BYTES = 2**20
_ASCII = bytes(range(128))
# An escape of a character, or of the two halves of one; JSON inside of JSON escapes backslashes.
_ESCAPE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4})"
)
_ESCAPE_CHARS = 64  # a longer one, with more backslashes, has more bytes than any width


def may_grow(body: bytes) -> bool:
    """Return False if no form of a body's text is longer: it is ASCII without escapes, as nearly
    every body.
    """
    # `in` would create and drop an exception (Python 3.11); one byte is found faster than two.
    return not body.isascii() or (body.find(b"\\") >= 0 and body.find(b"\\u") >= 0)


def grown_sizes(
    body: bytes, measure: Callable[[bytes], PromptSize]
) -> Mapping[TextForms, PromptSize] | None:
    """Return the size of a body in each form of its text that is longer than the one that was sent;
    None if no form is. `measure` returns the size of a body as it is.
    """
    sizes = {}
    for forms in (TextForms.ANY, TextForms.NFC):
        if len(body) > MAX_PADDED_BYTES:
            ratio = _largest_ratio(body, forms)
            if ratio > 1:
                sizes[forms] = measure(body).times(ratio)
        elif (wide := padded(body, forms)) is not None:
            sizes[forms] = measure(wide)
    return sizes or None


def padded(body: bytes, forms: TextForms) -> bytes | None:
    """Return a body with each character and each escape filled up to the character's width; None if
    nothing grows.
    """
    text = body.decode()
    widths = widths_of(forms)
    beyond_ascii = "" if body.isascii() else body.translate(None, _ASCII).decode()
    if beyond_ascii and widths.growing.search(beyond_ascii):
        parts = widths.growing.split(text)
        parts[1::2] = map(widths.padding.__getitem__, parts[1::2])
        text = "".join(parts)
    if "\\u" in text:
        parts = _ESCAPE.split(text)
        parts[1::2] = [
            escape + "x" * (_escaped_width(escape, forms) - len(escape)) for escape in parts[1::2]
        ]
        text = "".join(parts)
    wide = text.encode()
    return wide if len(wide) > len(body) else None


def _largest_ratio(body: bytes, forms: TextForms) -> int:
    """Return a bound of the width of any of the body's characters for each byte that was sent."""
    ratio = 1
    if not body.isascii():
        beyond_ascii = body.translate(None, _ASCII).decode()
        ratio = next((most for most, those in ratios_of(forms) if those.search(beyond_ascii)), 1)
    text, escapes = body.decode(), set[str]()
    if "\\u" in text:
        for start in range(0, len(text), MAX_PADDED_BYTES):
            start_before = max(0, start - _ESCAPE_CHARS)
            escapes.update(_ESCAPE.findall(text, start_before, start + MAX_PADDED_BYTES))
    return max([ratio, *(ceil(_escaped_width(one, forms) / len(one)) for one in escapes)])


@lru_cache(2**14)
def _escaped_width(escape: str, forms: TextForms) -> int:
    """Return the width of an escaped character. Half of a pair is read as U+FFFD."""
    code_point = int(escape[2:6], 16)
    if len(escape) > 6:
        code_point = 0x10000 + ((code_point & 0x3FF) << 10) + (int(escape[-4:], 16) & 0x3FF)
    return 0 if 0xD800 <= code_point < 0xE000 else widths_of(forms).width(chr(code_point))

"""Makes gateway/domain/request/unicode_widths.py from the newest Unicode data on PyPI.

    .venv/oracles/bin/python tests/oracles/unicode_widths.py > unicode_widths.py

A width is the least number that satisfies all of: the code point's own UTF-8 bytes; the sum of the
widths of each form that a tokenizer may write instead; and, where two code points compose, at most
the sum of theirs. So no sequence of forms makes the sum of a text's widths larger.
"""

from __future__ import annotations

import datetime
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping

import unicodedata2

LAST = 0x10FFFF
HANGUL = range(0xAC00, 0xD7A4)
BOTH = (unicodedata2, unicodedata)  # a form that an older version of Unicode gave counts too
Widths = dict[int, int]


def code_points() -> Iterable[int]:
    """Return every code point that a text can hold, beyond ASCII."""
    return (at for at in range(0x80, LAST + 1) if not 0xD800 <= at < 0xE000)


def utf8_bytes(at: int) -> int:
    """Return the bytes of a code point."""
    return len(chr(at).encode())


def any_forms(at: int) -> set[str]:
    """Return all that a tokenizer may write for a code point."""
    one = chr(at)
    forms = {data.normalize(form, one) for data in BOTH for form in ("NFC", "NFD", "NFKC", "NFKD")}
    forms |= {one.lower(), one.casefold()}
    if one.isspace() or unicodedata2.category(one) in ("Cc", "Cf"):
        forms.add("\u2581")  # SentencePiece's `nmt` rules make a blank of some of them
    if unicodedata2.category(one) == "Lu" and unicodedata.category(one) == "Cn":
        forms.add("\U00010000")  # Python does not know its lower case yet, which is one letter
    return {form.replace(" ", "\u2581") for form in forms} - {one}


def composed_forms(at: int) -> set[str]:
    """Return the forms that NFC may write for a code point beside marks: its parts. A syllable of
    Hangul stays whole, or grows by a final that stands behind it.
    """
    if at in HANGUL:
        return set()
    one = chr(at)
    return {data.normalize(form, one) for data in BOTH for form in ("NFC", "NFD")} - {one}


def widths(forms_of: Callable[[int], set[str]]) -> Widths:
    """Return the width of each code point that has more than its own bytes."""
    forms = {at: found for at in code_points() if (found := forms_of(at))}
    wide: Widths = {}

    def width(at: int) -> int:
        """Return the width as far as it is known."""
        return wide.get(at) or utf8_bytes(at)

    is_changed = True
    while is_changed:
        is_changed = False
        for at, found in forms.items():
            most = max(sum(width(ord(one)) for one in form) for form in found)
            if most > width(at):
                wide[at], is_changed = most, True
    for at in code_points():
        parts = unicodedata2.normalize("NFD", chr(at))
        first, last = unicodedata2.normalize("NFC", parts[:-1]), parts[-1]
        if len(parts) > 1 and unicodedata2.normalize("NFC", first + last) == chr(at):
            assert width(at) <= sum(width(ord(one)) for one in first + last), hex(at)
    return wide


def runs(values: Mapping[int, int]) -> str:
    """Return the code points with their values as text: `FIRST-LAST:VALUE`, without a value that
    is 0.
    """
    found: list[list[int]] = []
    for at in sorted(values):
        if found and found[-1][1] == at - 1 and found[-1][2] == values[at]:
            found[-1][1] = at
        else:
            found.append([at, at, values[at]])
    written = (
        (f"{a:x}" if a == z else f"{a:x}-{z:x}") + (f":{v}" if v else "") for a, z, v in found
    )
    return "\n".join(textwrap.wrap(" ".join(written), 98, break_on_hyphens=False))


def main() -> None:
    """Print the module."""
    longest, composed, unassigned = widths(any_forms), widths(composed_forms), {}
    for at in code_points():
        is_noncharacter = 0xFDD0 <= at <= 0xFDEF or at & 0xFFFE == 0xFFFE
        if unicodedata2.category(chr(at)) == "Cn" and not is_noncharacter:
            unassigned[at] = 0
    version = unicodedata2.unidata_version
    print(
        f'''"""The widths of code points: the most bytes of UTF-8 that a tokenizer may read for one.

Made by tests/oracles/unicode_widths.py on {datetime.date.today()} from Unicode {version} (package
unicodedata2) and Python's own; do not edit. A code point that is not listed has its own bytes.
A code point that Unicode has not assigned yet has the longest width: it may become anything.
"""

UNICODE_VERSION = "{version}"
# NFC, NFD, NFKC, NFKD, lower case and case folding, in any order and number. A blank that stems
# from such a form counts 3: SentencePiece writes it as U+2581.
LONGEST = """
{runs(longest)}
"""
# NFC alone, of any text that contains the code point.
COMPOSED = """
{runs(composed)}
"""
UNASSIGNED = """
{runs(unassigned)}
"""'''
    )


main()

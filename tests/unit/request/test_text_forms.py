"""The width of a character bounds each of its forms, alone and in any text.

The proof is a potential. `width` of a text is the sum of the widths of its characters. No form
makes the width of a character larger (first test), and composing two never makes their sum larger
(second test); marks are only reordered. So no sequence of forms makes a text's width larger, and a
text never has more bytes than its width.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.providers.table import TextForms
from gateway.domain.request import unicode_widths
from gateway.domain.request.text_forms import (
    USUAL_RATIO,
    PromptSize,
    ratios_of,
    widths_of,
)

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
HANGUL = range(0xAC00, 0xD7A4)
BLANK = "\u2581"  # as SentencePiece writes a space


def width(text: str, forms: TextForms = TextForms.ANY) -> int:
    """Return the sum of the widths of a text's characters."""
    return sum(map(widths_of(forms).width, text))


@cache
def changed_by_a_form() -> dict[str, set[str]]:
    """Return all characters beyond ASCII that any form changes, by this Python's Unicode, each with
    its forms.
    """
    found = {}
    for at in code_points():
        one = chr(at)
        if unicodedata.decomposition(one) or at in HANGUL or one != one.lower() != one.casefold():
            found[one] = {unicodedata.normalize(form, one) for form in FORMS}
            found[one] |= {one.lower(), one.casefold()}
        elif one != one.casefold() or one != one.lower() or one.isspace():
            found[one] = {one.lower(), one.casefold(), *([BLANK] if one.isspace() else [])}
    return found


def growing(forms: TextForms) -> list[str]:
    """Return all characters that grow, of a span of unassigned ones the first and the last."""
    ends = re.split(r"[\s-]+", unicode_widths.UNASSIGNED.strip())
    return [*widths_of(forms).padding, *(chr(int(end, 16)) for end in ends)]


def code_points() -> Iterator[int]:
    """Yield each code point beyond ASCII that a text can hold."""
    return (at for at in range(0x80, 0x110000) if not 0xD800 <= at < 0xE000)


def test_no_form_of_any_character_is_wider() -> None:
    """All of Unicode. U+FDFA has 3 bytes; after NFKC 18 characters, of which 3 are blanks."""
    wider = {
        hex(ord(one)): form
        for one, forms in changed_by_a_form().items()
        for form in forms
        if width(one) < len(form.replace(" ", BLANK).encode()) or width(one) < width(form)
    }
    assert wider == {}


def test_no_other_character_changes() -> None:
    """The characters that are not looked at one by one stay as they are in each form."""
    rest = "\0".join(chr(at) for at in code_points() if chr(at) not in changed_by_a_form())
    for form in FORMS:
        assert unicodedata.normalize(form, rest) == rest
    assert rest.lower() == rest
    assert rest.casefold() == rest


@pytest.mark.parametrize("forms", [TextForms.ANY, TextForms.NFC])
def test_two_characters_that_compose_are_no_wider_than_apart(forms: TextForms) -> None:
    """Each composition of this Python's Unicode, and of Hangul's letters."""
    wider = []
    for one in changed_by_a_form():
        parts = unicodedata.normalize("NFD", one)
        pair = unicodedata.normalize("NFC", parts[:-1]) + parts[-1]
        if len(parts) > 1 and unicodedata.normalize("NFC", pair) == one:
            wider += [] if width(one, forms) <= width(pair, forms) else [one]
    assert wider == []


def test_nfc_takes_a_character_apart_no_wider() -> None:
    """A mark behind a composed letter can make NFC take it apart: U+00E9 and a dot below become
    U+1EB9 and an acute, 5 bytes of 4. A syllable of Hangul only grows, by a final.
    """
    for one in changed_by_a_form():
        if ord(one) not in HANGUL:
            for form in ("NFC", "NFD"):
                assert width(unicodedata.normalize(form, one), TextForms.NFC) <= width(
                    one, TextForms.NFC
                ), hex(ord(one))
    apart = "\u00e9\u0323"
    assert len(unicodedata.normalize("NFC", apart).encode()) == 5 > len(apart.encode())
    assert width(apart, TextForms.NFC) == 5


MARKS = st.sampled_from([chr(at) for at in code_points() if unicodedata.combining(chr(at))])
LONG = st.sampled_from(sorted(changed_by_a_form()))
JAMO = st.characters(min_codepoint=0x1100, max_codepoint=0x11FF)
SYLLABLES = st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3)
TEXTS = st.lists(st.one_of(MARKS, LONG, JAMO, SYLLABLES, st.characters(codec="utf-8"))).map("".join)


@given(TEXTS, st.lists(st.sampled_from([*FORMS, "lower", "casefold"]), min_size=1, max_size=4))
def test_no_sequence_of_forms_makes_a_text_wider(text: str, forms: list[str]) -> None:
    """Tokenizers apply several, such as NFD, lower case and NFC."""
    read = text
    for form in forms:
        read = unicodedata.normalize(form, read) if form in FORMS else getattr(read, form)()
        assert len(read.encode()) <= width(read) <= width(text)


@given(TEXTS)
def test_nfc_of_a_text_is_no_longer_than_its_width(text: str) -> None:
    """As Qwen's tokenizers read it."""
    read = unicodedata.normalize("NFC", text)
    assert len(read.encode()) <= width(text, TextForms.NFC) <= width(text)


def test_ascii_does_not_grow() -> None:
    """A hold of English stays the same."""
    assert width("".join(map(chr, range(128)))) == 128


def test_what_unicode_has_not_assigned_has_the_longest_width() -> None:
    """The next version may give it any form."""
    for at in (0x378, 0x2FFFD, 0xE0FFF):
        assert unicodedata.category(chr(at)) == "Cn"
        assert width(chr(at)) == width("\ufdfa") == 39
        assert width(chr(at), TextForms.NFC) == width("\U0001d160", TextForms.NFC) == 12
    assert width("\ue000\uffff") == 6, "private use and noncharacters never change"


def test_the_table_knows_this_pythons_unicode() -> None:
    """An older table would take assigned characters for unassigned ones, and hold too much."""

    def version(written: str) -> tuple[int, ...]:
        """Return the parts of a version as numbers."""
        return tuple(map(int, written.split(".")))

    assert version(unicode_widths.UNICODE_VERSION) >= version(unicodedata.unidata_version)
    listed = widths_of(TextForms.ANY).padding
    held = [one for one in growing(TextForms.ANY) if one not in listed]
    assert [one for one in held if unicodedata.category(one) != "Cn"] == []


@pytest.mark.parametrize("forms", [TextForms.ANY, TextForms.NFC])
def test_ratios_bound_each_character(forms: TextForms) -> None:
    """A body too large to be padded takes the largest ratio of its characters."""
    (most, compounds), (usual, pattern) = ratios_of(forms)
    rest = compounds.sub("", "".join(growing(forms)))
    assert max(width(one, forms) / len(one.encode()) for one in rest) <= usual == USUAL_RATIO
    assert max(width(one, forms) / len(one.encode()) for one in growing(forms)) <= most
    assert widths_of(forms).growing.pattern == f"({pattern.pattern})"


def test_a_size_times_a_ratio() -> None:
    """A size without a bound stays without one."""
    assert PromptSize(10, 2, 1).times(3) == PromptSize(30, 6, 3)
    assert PromptSize(10, None, 0).times(3) == PromptSize(30, None, 0)

"""A padded body is as long as a tokenizer may read it, and says the same in the same places."""

from __future__ import annotations

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.providers.table import TextForms
from gateway.domain.request.text_forms import PromptSize, widths_of
from gateway.wire.widened_text import MAX_PADDED_BYTES, grown_sizes, may_grow, padded

TEXTS = st.text(
    st.one_of(
        st.sampled_from('\ufdfa\u0f76\u00e9\ud55c\U0001d160\u3316\u0344\\u"n'),
        st.characters(codec="utf-8"),
    )
)


def sizes(body: bytes) -> dict[TextForms, int]:
    """Return the bytes of a body in each form that is longer."""
    found = grown_sizes(body, lambda wide: PromptSize(len(wide), 0, 0)) or {}
    return {forms: size.body_bytes for forms, size in found.items()}


@given(TEXTS, st.booleans(), st.integers(1, 3))
def test_a_text_is_bounded_however_it_is_written(text: str, is_escaped: bool, depth: int) -> None:
    """As UTF-8 or as escapes, and as JSON inside of JSON: tools' arguments are."""
    body = text
    for _ in range(depth):
        body = json.dumps(body, ensure_ascii=is_escaped)
    sent = body.encode()
    most = sizes(sent).get(TextForms.ANY, len(sent))
    assert most >= sum(map(widths_of(TextForms.ANY).width, text))
    assert most >= len(unicodedata.normalize("NFKC", text).encode())
    assert may_grow(sent) or most == len(sent)


@given(st.dictionaries(TEXTS, TEXTS))
def test_a_padded_body_has_the_same_members(members: dict[str, str]) -> None:
    """Two names never become one: a member that is lost would not be counted."""
    body = json.dumps(members, ensure_ascii=False).encode()
    wide = msgspec.json.decode(padded(body, TextForms.ANY) or body, type=dict[str, str])
    assert len(wide) == len(members)
    for (name, text), (wide_name, wide_text) in zip(members.items(), wide.items(), strict=True):
        assert wide_name.replace("x", "") == name.replace("x", "")
        assert wide_text.replace("x", "") == text.replace("x", "")


@pytest.mark.parametrize(
    ("written", "width"),
    [
        ("\ufdfa", 39),
        ("\\ufdfa", 39),
        ("\\uFDFA", 39),
        ("\\\\ufdfa", 40),  # escaped twice; the backslash before it counts too
        ("\\ud834\\udd60", 12),  # no more than its escape has
        ("\\\\ud834\\\\udd60", 14),
        ("\\ud800", 6),  # half of a pair is read as U+FFFD, 3 bytes
        ("\\u00e9", 6),
        ("\\ud55c", 9),
    ],
)
def test_escapes(written: str, width: int) -> None:
    """An escape has at least 6 bytes, and only few characters outgrow that."""
    body = f'"{written}"'.encode()
    assert len(padded(body, TextForms.ANY) or body) == width + 2


@pytest.mark.parametrize(
    "text", ["Hello, world", "\u4eca\u65e5\u306f", "\u043f\u0440\u0438", "\U0001f600", "\\n\\u4eca"]
)
def test_most_text_does_not_grow(text: str) -> None:
    """English, Chinese characters, kana, most Cyrillic letters and emoji stay the same."""
    assert sizes(f'"{text}"'.encode()) == {}


def test_hangul_grows_in_some_forms_only() -> None:
    """Korean has no longer hold where a tokenizer is known to compose."""
    assert sizes('"\ud55c\uae00"'.encode()) == {TextForms.ANY: 2 + 2 * 9}


@pytest.mark.parametrize("text", ["\ud55c", "\\ud55c", "\ufdfa", "\\ufdfa", "a\u00e9", "\u4eca"])
def test_a_large_body_is_bounded_by_its_widest_character(text: str) -> None:
    """It is not padded, which would take too long."""
    body = f'"{text * (MAX_PADDED_BYTES // len(text.encode()) + 1)}"'.encode()
    exact = len(padded(body, TextForms.ANY) or body)
    bound = sizes(body).get(TextForms.ANY, len(body))
    assert exact <= bound <= 3 * exact

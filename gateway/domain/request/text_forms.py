"""Bounds the tokens of a text by its characters, for tokenizers that rewrite a text before they
split it.

A tokenizer makes at most one token of each byte that it reads. Many read another text than was
sent: one of Unicode's normal forms, in lower case, or by SentencePiece's rules. U+0F76 has 3 bytes,
and 6 after NFC; U+FDFA has 3 bytes, and 18 characters after NFKC. So each character counts as the
longest of its forms: its width, in `unicode_widths`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil

from msgspec import Struct

from gateway.domain.providers.table import TextForms
from gateway.domain.request import unicode_widths

USUAL_RATIO = 3  # of a width to the bytes; only some sixty compounds have more


class PromptSize(Struct, frozen=True, gc=False):
    """The size of a request's prompts, as in `RequestFacts`, if its text is read in other forms."""

    body_bytes: int
    expansion_tokens: int | None
    predicted_bytes: int

    def times(self, ratio: int) -> PromptSize:
        """Return this size for a text with `ratio` times as many bytes in each of its parts."""
        more_tokens = self.expansion_tokens
        return PromptSize(
            self.body_bytes * ratio,
            None if more_tokens is None else more_tokens * ratio,
            self.predicted_bytes * ratio,
        )


class _Padding(dict[str, str]):
    """Each character that grows, followed by a letter for each byte that its width has more.

    A character that is not listed is not assigned yet, and has the longest width.
    """

    def __init__(self, widths: Mapping[int, int]) -> None:
        """Write the padding of each listed character."""
        super().__init__((chr(at), _padded(chr(at), width)) for at, width in widths.items())
        self._longest = max(widths.values())

    def __missing__(self, character: str) -> str:
        """Return an unassigned character with its padding, without keeping it."""
        return _padded(character, self._longest)


class Widths(Struct, frozen=True):
    """The characters that some forms make longer: `growing` finds one of them, as a group, and
    `padding` fills it up to its width.
    """

    growing: re.Pattern[str]
    padding: Mapping[str, str]

    def width(self, character: str) -> int:
        """Return the most bytes that a tokenizer may read for a character."""
        if not self.growing.match(character):
            return len(character.encode())
        return len(self.padding[character].encode())


@cache
def widths_of(forms: TextForms) -> Widths:
    """Return the characters that these forms make longer. The first call takes 20 ms."""
    spans = _spans_of(forms)
    widths = {at: width for span, width in spans.items() for at in span}
    return Widths(re.compile(f"({_class_of([*spans, *_unassigned()])})"), _Padding(widths))


@cache
def ratios_of(forms: TextForms) -> tuple[tuple[int, re.Pattern[str]], ...]:
    """Return bounds of the width of one byte, the largest first, each with a pattern of characters
    that need it.
    """
    spans = _spans_of(forms)
    longest = max(spans.values())
    spans |= dict.fromkeys(_unassigned(), longest)
    ratios = {span: width / len(chr(span[0]).encode()) for span, width in spans.items()}
    more = [span for span, ratio in ratios.items() if ratio > USUAL_RATIO]
    return (
        (ceil(max(ratios.values())), re.compile(_class_of(more))),
        (USUAL_RATIO, re.compile(_class_of(ratios))),
    )


def _spans_of(forms: TextForms) -> dict[range, int]:
    """Return the code points that these forms make longer, with their widths."""
    assert forms is not TextForms.NONE, "it makes nothing longer"
    table = unicode_widths.LONGEST if forms is TextForms.ANY else unicode_widths.COMPOSED
    runs = (run.partition(":") for run in table.split())
    return {_code_points(span): int(width) for span, _, width in runs}


def _unassigned() -> list[range]:
    """Return the code points that Unicode has not assigned yet."""
    return [_code_points(span) for span in unicode_widths.UNASSIGNED.split()]


def _code_points(span: str) -> range:
    """Return the code points of a span of the table: `FIRST` or `FIRST-LAST`."""
    first, _, last = span.partition("-")
    return range(int(first, 16), int(last or first, 16) + 1)


def _class_of(spans: Iterable[range]) -> str:
    """Return a regular expression for one character of the spans. Adjacent ones are joined: that
    compiles in a third of the time.
    """
    joined: list[list[int]] = []
    for first, last in sorted((span[0], span[-1]) for span in spans):
        if joined and joined[-1][1] == first - 1:
            joined[-1][1] = last
        else:
            joined.append([first, last])
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in joined) + "]"


def _padded(character: str, width: int) -> str:
    """Return a character followed by letters that fill it up to its width."""
    return character + "x" * (width - len(character.encode()))

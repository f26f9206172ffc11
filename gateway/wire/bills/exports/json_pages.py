"""Walks a page of daily buckets in JSON, as OpenAI and Anthropic publish it: each result with its
bucket and its line, without the whole page in memory.

The standard library decodes one result at a time. Numbers stay exact, and a member given twice,
`NaN` or a number of hundreds of digits is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

from gateway.wire.bills.exports.text import WrongExport

MOST_VALUE_CHARS = 2**20  # of one result
MOST_DIGITS = 60
BEGINS = frozenset({"start_time", "starting_at"})
_BLANK = " \t\r\n"


class PageResult(NamedTuple):
    """A result of a bucket. `members` is None for the bucket itself, which comes before its
    results.
    """

    line: int
    bucket: Mapping[str, Any]
    members: Mapping[str, Any] | None


def page_results(texts: Iterable[str]) -> Iterator[PageResult]:
    """Yield the buckets and results of the page in a text. Raises `WrongExport` if it is no page,
    or not the last one.
    """
    cursor = _Cursor(texts)
    seen: set[str] = set()
    has_more: object = None
    for name in cursor.members("the page"):
        _refuse_twice(seen, name, cursor.line)
        if name == "data":
            yield from _buckets(cursor)
        elif name == "has_more":
            line, has_more = cursor.line, cursor.value()
            if has_more not in (False, None):
                raise WrongExport(
                    line,
                    "has_more is true: the page is not the last one. Ask for all days in one "
                    "page (a larger limit), or import each page's days after the last",
                )
        else:
            cursor.value()
    if "data" not in seen:
        raise WrongExport(1, "the page has no member `data`: it is no page of daily buckets")
    cursor.expect_end()


def _buckets(cursor: _Cursor) -> Iterator[PageResult]:
    """Yield the buckets of the list at the cursor, each before its results."""
    for _ in cursor.items("data"):
        line = cursor.line
        bucket: dict[str, Any] = {}
        seen: set[str] = set()
        is_open = False
        late: list[PageResult] = []
        for name in cursor.members("a bucket"):
            _refuse_twice(seen, name, cursor.line)
            if name != "results":
                bucket[name] = cursor.value()
                continue
            is_open = True
            is_dated = bool(bucket.keys() & BEGINS)
            if is_dated:
                yield PageResult(line, bucket, None)
            for _ in cursor.items("results"):
                at, value = cursor.line, cursor.value()
                if not isinstance(value, dict):
                    raise WrongExport(at, "a result is no object")
                if is_dated:
                    yield PageResult(at, bucket, value)
                else:  # the members of an object come in any order
                    late.append(PageResult(at, bucket, value))
        if not is_open:
            raise WrongExport(line, "the bucket has no list `results`")
        if late or not bucket.keys() & BEGINS:
            yield PageResult(line, bucket, None)
            yield from late


def _refuse_twice(seen: set[str], name: str, line: int) -> None:
    """Raise `WrongExport` if a member was seen before; else note it."""
    if name in seen:
        raise WrongExport(line, _twice(name))
    seen.add(name)


def _twice(name: str) -> str:
    """Return the finding on a member that an object has twice."""
    return f"the member `{name[:60]}` stands there twice"


class _Cursor:
    """A place in a JSON text that is read as far as it is needed."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Begin at the text's first character."""
        self._texts = iter(texts)
        self._text = ""
        self._at = 0
        self._line = 1
        self._is_whole = False
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_float=self._number,
            parse_int=self._number,
            parse_constant=self._constant,
        )

    @property
    def line(self) -> int:
        """Return the line of the next character that is not blank."""
        self._peek()
        return self._line

    def members(self, what: str) -> Iterator[str]:
        """Yield the name of each member of the object at the cursor; the caller reads its value."""
        self._expect("{", f"{what} is no object")
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            if self._peek() != '"':
                self._fail("a member's name is missing")
            name = str(self.value())
            self._expect(":", "it is no JSON: ':' is missing")
            yield name
            if self._closes("}"):
                return

    def items(self, what: str) -> Iterator[None]:
        """Yield once for each item of the list at the cursor; the caller reads it."""
        self._expect("[", f"`{what}` is no list")
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            yield
            if self._closes("]"):
                return

    def value(self) -> Any:
        """Return the value at the cursor."""
        self._peek()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as broken:
                if self._is_whole or len(self._text) - self._at > MOST_VALUE_CHARS:
                    self._line += self._text.count("\n", self._at, broken.pos)
                    is_cut = self._is_whole and (
                        broken.pos >= len(self._text.rstrip())
                        or broken.msg.startswith("Unterminated string")
                    )
                    wrong = f"it is no JSON: {broken.msg}"
                    self._fail("the file ends too early" if is_cut else wrong)
            except RecursionError:
                self._fail("it is nested too deep")
            else:
                # A number that ends with the text read so far may go on.
                if end < len(self._text) or self._is_whole:
                    break
            self._read()
        self._line += self._text.count("\n", self._at, end)
        self._at = end
        return found

    def expect_end(self) -> None:
        """Raise `WrongExport` unless nothing follows."""
        if self._peek():
            self._fail("something follows the page. One file is one page")

    def _closes(self, end: str) -> bool:
        """Move past a comma or the end of a list or an object; return True at its end."""
        found = self._peek()
        if found not in (",", end):
            self._fail("the file ends too early" if not found else "it is no JSON: ',' is missing")
        self._at += 1
        return found == end

    def _expect(self, mark: str, wrong: str) -> None:
        """Move past a mark. Raises `WrongExport` if another character is there."""
        if self._peek() != mark:
            self._fail(wrong if self._peek() else "the file ends too early")
        self._at += 1

    def _peek(self) -> str:
        """Return the next character that is not blank, empty at the end of the text."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._line += self._text[self._at] == "\n"
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_whole:
                return ""
            self._read()

    def _read(self) -> None:
        """Read more of the text, and drop the part before the cursor."""
        more = next(self._texts, None)
        self._is_whole = more is None
        self._text, self._at = self._text[self._at :] + (more or ""), 0

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object of its members. Raises `WrongExport` if one is there twice."""
        found = dict(pairs)
        if len(found) < len(pairs):
            names = Counter(name for name, _ in pairs)
            self._fail(_twice(names.most_common(1)[0][0]))
        return found

    def _number(self, text: str) -> Decimal:
        """Return a number exactly. Raises `WrongExport` for one of hundreds of digits."""
        if len(text) > MOST_DIGITS:
            self._fail(f"a number has more than {MOST_DIGITS} digits")
        return Decimal(text)

    def _constant(self, text: str) -> NoReturn:
        """Raise `WrongExport`: `NaN` and infinities are no numbers."""
        self._fail(f"{text} is no number")

    def _fail(self, finding: str) -> NoReturn:
        """Raise `WrongExport` at the present line."""
        raise WrongExport(self._line, finding)

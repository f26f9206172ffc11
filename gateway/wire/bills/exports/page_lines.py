"""Turns a page of daily buckets into lines, for the readers of OpenAI's and Anthropic's exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from gateway.domain.pricing.tokens import TokenKind
from gateway.wire.bills.exports.cells import WrongCell
from gateway.wire.bills.exports.collected import ReadLine
from gateway.wire.bills.exports.json_pages import page_results
from gateway.wire.bills.exports.text import WrongExport

Members = Mapping[str, Any]


def page_lines(
    texts: Iterable[str],
    *,
    day_of: Callable[[Members], date],
    result: Callable[[int, date, Members], Iterator[ReadLine]],
) -> Iterator[ReadLine]:
    """Yield the lines of all results of a page; a bucket is marked as a day that the export has.

    `day_of` reads a bucket's day, `result` one result; both may raise `WrongCell`. Raises
    `WrongExport`.
    """
    for line, bucket, members in page_results(texts):
        try:
            day = day_of(bucket)
            if members is None:
                yield empty_day(line, day)
            else:
                yield from result(line, day, members)
        except WrongCell as wrong:
            raise WrongExport(line, str(wrong)) from None


def empty_day(line: int, day: date) -> ReadLine:
    """Return the mark of a day that the export has, even if no line follows."""
    return ReadLine(line, day, None, None, None, "", None, None, None)


def usage_lines(
    line: int,
    day: date,
    owner: tuple[str | None, str | None, str | None],
    model: str,
    counts: Mapping[TokenKind, Decimal],
) -> Iterator[ReadLine]:
    """Yield a line for each kind of tokens or calls that were used."""
    for kind, count in counts.items():
        if count:
            yield ReadLine(line, day, *owner, model, kind.value, count, None)

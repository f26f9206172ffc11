"""Parses a GPU bill (CSV) into its lines, or into one finding for each wrong line; reads no file.

The columns, in any order: `deployment, from, to, gpu_hours, amount, currency, invoice_id`. Moments
are UTC unless they carry an offset; `to` is exclusive. Numbers have a decimal point and no
separator of thousands. A negative amount is a credit.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from gateway.domain.deployments.gpu_bills import HOUR_MS, BillLine
from gateway.domain.money import EXACT, nusd_from_usd
from gateway.errors import BillRejected

COLUMNS = ("deployment", "from", "to", "gpu_hours", "amount", "currency", "invoice_id")
MOST_BYTES = 64 * 2**20
MOST_HOURS = 1_000_000  # of all lines: each becomes a row
MOST_DAYS = 1_100  # of one line: three years, the longest usual commitment
MOST_USD, MOST_GPU_HOURS = Decimal(1_000_000_000), Decimal(1_000_000_000)
MOST_TEXT = 200
FIRST_YEAR, LAST_YEAR = 2000, 2100

_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.0+)?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_LINE_END = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")  # not `splitlines`: a cell may hold U+2028
# A spreadsheet runs such a cell as a formula; as a name it would be dangerous in every export.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class _Wrong(ValueError):
    """A wrong cell; its text is the finding without the line's number."""


def parse_gpu_bill(data: bytes, *, name: str, known: Collection[str]) -> tuple[BillLine, ...]:
    """Return the lines of a GPU bill; `known` are the deployments that may have one.

    Raises `BillRejected` with every wrong line. `name` is the file's, for its message.
    """
    found: list[BillLine] = []
    findings: list[str] = []
    first_of: dict[tuple[object, ...], int] = {}
    hours = 0
    for number, cells in _rows(_text(data, name), name):
        try:
            line = _line(number, cells, known)
            earlier = first_of.setdefault(_content(line), number)
            if earlier != number:
                raise _Wrong(
                    f"it repeats line {earlier}. Add the two up in one line, or remove one"
                )
        except _Wrong as wrong:
            findings.append(f"line {number}: {wrong}.")
            continue
        found.append(line)
        hours += len(line.hours)
        if hours > MOST_HOURS:
            raise BillRejected(name, [f"line {number}: more than {MOST_HOURS:,} hours. Split it."])
    if abs(sum(line.amount_nusd for line in found)) > MOST_USD * 10**9:
        findings.append(f"the amounts add up to more than {MOST_USD:,} USD.")
    if not found and not findings:
        findings.append("it has no line below the header.")
    if findings:
        raise BillRejected(name, findings)
    return tuple(found)


def _text(data: bytes, name: str) -> str:
    """Return the file's text without a byte order mark. Raises `BillRejected`."""
    if len(data) > MOST_BYTES:
        raise BillRejected(name, [f"it is larger than {MOST_BYTES >> 20} MiB. Split it."])
    encoding = _BOMS.get(data[:2])
    if encoding:
        raise BillRejected(name, [f"line 1: it is {encoding} text. Save it as UTF-8."])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise BillRejected(name, [f"line {line}: it is not UTF-8. Save it as UTF-8."]) from None


def _rows(text: str, name: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield each line's number and its cells by column. Raises `BillRejected` if it is no CSV."""
    reader = csv.reader(_LINE_END.split(text), strict=True)
    header: list[str] | None = None
    begin = 1
    try:
        for row in reader:
            number, begin = begin, reader.line_num + 1
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if header is None:
                header = _header(cells, number, name)
                continue
            if len(cells) != len(header):
                raise BillRejected(
                    name,
                    [
                        f"line {number}: it has {len(cells)} cells, the header has {len(header)}. "
                        "A number with a comma needs no comma: write 1234.50."
                    ],
                )
            yield number, dict(zip(header, cells, strict=True))
    except csv.Error as wrong:
        raise BillRejected(name, [f"line {reader.line_num}: it is no CSV: {wrong}."]) from None


def _header(cells: list[str], number: int, name: str) -> list[str]:
    """Return the columns that the header names. Raises `BillRejected` unless they are right."""
    columns = [cell.lower() for cell in cells]
    missing = [column for column in COLUMNS if column not in columns]
    others = [cell for cell in cells if cell.lower() not in COLUMNS]
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if missing or others or twice:
        wrong = [
            *(f"there is no column {column}" for column in missing),
            *(f"unknown column {other[:MOST_TEXT]!r}" for other in others),
            *(f"column {column} stands there twice" for column in twice if column in COLUMNS),
        ]
        raise BillRejected(
            name,
            [
                f"line {number}: {'; '.join(wrong)}. The header is: {','.join(COLUMNS)} "
                "(separated by commas)."
            ],
        )
    return columns


def _line(number: int, cells: Mapping[str, str], known: Collection[str]) -> BillLine:
    """Return the bill line of a row. Raises `_Wrong` with the first wrong cell."""
    deployment = _name(cells, "deployment")
    if deployment not in known:
        names = ", ".join(sorted(known)) or "none yet"
        raise _Wrong(f"there is no self-hosted deployment '{deployment}' (there is: {names})")
    begin, end = _moment(cells, "from"), _moment(cells, "to")
    if begin >= end:
        raise _Wrong(f"it ends ({cells['to']}) before it begins ({cells['from']}); to is exclusive")
    if end - begin > timedelta(days=MOST_DAYS):
        raise _Wrong(f"it spans more than {MOST_DAYS:,} days")
    if cells["currency"].upper() != "USD":
        raise _Wrong(
            f"currency is '{cells['currency'][:MOST_TEXT]}'; the ledger is in USD. Convert the "
            "amount first"
        )
    gpu_hours = _number(cells, "gpu_hours", most=MOST_GPU_HOURS)
    if gpu_hours < 0:
        raise _Wrong(f"gpu_hours is {cells['gpu_hours']}; hours are not negative")
    amount_usd = _number(cells, "amount", most=MOST_USD)
    gpu_ms = EXACT.multiply(gpu_hours, Decimal(HOUR_MS))
    return BillLine(
        number=number,
        deployment=deployment,
        begin=begin,
        end=end,
        gpu_ms=int(gpu_ms.to_integral_value(rounding=ROUND_HALF_EVEN)),
        amount_nusd=nusd_from_usd(amount_usd),
        invoice_id=_name(cells, "invoice_id"),
    )


def _content(line: BillLine) -> tuple[object, ...]:
    """Return a line's content, without its number."""
    return (
        line.deployment,
        line.begin,
        line.end,
        line.gpu_ms,
        line.amount_nusd,
        line.invoice_id,
    )


def _name(cells: Mapping[str, str], column: str) -> str:
    """Return the text of a name. Raises `_Wrong` if it is empty, too long or a formula."""
    text = cells[column]
    if not text:
        raise _Wrong(f"{column} is empty")
    if text.startswith(_FORMULA):
        raise _Wrong(
            f"{column} is '{text[:MOST_TEXT]}', which a spreadsheet would run as a formula"
        )
    if len(text) > MOST_TEXT or not text.isprintable():
        raise _Wrong(f"{column} must be at most {MOST_TEXT} printable characters")
    return text


def _moment(cells: Mapping[str, str], column: str) -> datetime:
    """Return a moment in UTC. Raises `_Wrong` unless it is one, to the second."""
    text = cells[column]
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError(text)
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _Wrong(
            f"{column} is '{text[:MOST_TEXT]}'; write a moment in UTC as 2026-11-01T00:00:00Z"
        ) from None
    if not FIRST_YEAR <= found.year < LAST_YEAR:
        raise _Wrong(f"{column} is {text}; years are from {FIRST_YEAR} to {LAST_YEAR - 1}")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _number(cells: Mapping[str, str], column: str, *, most: Decimal) -> Decimal:
    """Return a decimal number. Raises `_Wrong` unless it is one, within `most` of 0."""
    text = cells[column]
    if not _NUMBER.fullmatch(text):
        raise _Wrong(
            f"{column} is '{text[:MOST_TEXT]}'; write a number with a decimal point and without "
            "other separators, such as 1234.50"
        )
    value = Decimal(text)
    if abs(value) > most:
        raise _Wrong(f"{column} is {text}; at most {most:,}")
    return value

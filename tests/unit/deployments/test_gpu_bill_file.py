"""A GPU bill's file is read exactly, or refused with the line and what to write instead."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.errors import BillRejected
from gateway.wire.bills import gpu_bill
from gateway.wire.bills.gpu_bill import parse_gpu_bill

HEADER = "deployment,from,to,gpu_hours,amount,currency,invoice_id"
GOOD = "qwen,2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,48,148.80,USD,INV-1"


def parse(*rows: str, header: str = HEADER) -> tuple[gpu_bill.BillLine, ...]:
    text = "\n".join([header, *rows]) + "\n"
    return parse_gpu_bill(text.encode(), name="bill.csv", known={"qwen"})


def refused(data: bytes) -> str:
    with pytest.raises(BillRejected) as rejected:
        parse_gpu_bill(data, name="bill.csv", known={"qwen"})
    assert rejected.value.message.startswith("bill.csv is refused; nothing was imported.\n")
    return rejected.value.message


def test_a_line_is_read_exactly() -> None:
    """Money and hours never pass through a float."""
    (line,) = parse(GOOD)
    assert line == gpu_bill.BillLine(
        number=2,
        deployment="qwen",
        begin=datetime(2026, 11, 1, tzinfo=UTC),
        end=datetime(2026, 11, 2, tzinfo=UTC),
        gpu_ms=48 * 3_600_000,
        amount_nusd=148_800_000_000,
        invoice_id="INV-1",
    )


@pytest.mark.parametrize(
    "data",
    [
        f"\ufeff{HEADER}\r\n{GOOD}\r\n".encode(),
        f"{HEADER}\n\n{GOOD}\n,,,,,,\n".encode(),
        f"{HEADER.replace(',', ' , ').upper()}\n{GOOD.replace(',', ' , ')}".encode(),
        f"{HEADER}\r{GOOD}\r".encode(),
        b"amount,currency,deployment,from,to,invoice_id,gpu_hours\n"
        b'"148.8",usd,qwen,2026-11-01,2026-11-02 00:00,INV-1,4.8E1\n',
    ],
    ids=["BOM and CRLF", "empty lines", "spaces and capitals", "CR", "another order"],
)
def test_the_same_bill_in_another_dress_is_the_same(data: bytes) -> None:
    """Spreadsheets save what they like."""
    (line,) = parse_gpu_bill(data, name="bill.csv", known={"qwen"})
    (plain,) = parse(GOOD)
    assert (line.begin, line.end, line.gpu_ms, line.amount_nusd, line.invoice_id) == (
        plain.begin,
        plain.end,
        plain.gpu_ms,
        plain.amount_nusd,
        plain.invoice_id,
    )


def test_an_offset_names_a_moment_of_any_clock() -> None:
    """The hour that a clock change repeats is two hours of the bill."""
    first, second = parse(
        "qwen,2026-10-25T02:00:00+02:00,2026-10-25T03:00:00+02:00,1,3,USD,A",
        "qwen,2026-10-25T02:00:00+01:00,2026-10-25T03:00:00+01:00,1,3,USD,A",
    )
    assert (first.begin, second.begin) == (
        datetime(2026, 10, 25, 0, tzinfo=UTC),
        datetime(2026, 10, 25, 1, tzinfo=UTC),
    )


def test_credits_zeros_and_many_decimals_are_exact() -> None:
    """A cloud's export has negative lines, free hours and twelve decimals."""
    lines = parse(
        GOOD.replace("148.80", "-20.5"),
        GOOD.replace("148.80", "0").replace("48", "0"),
        GOOD.replace("148.80", "1.0000000005"),
    )
    assert [line.amount_nusd for line in lines] == [-20_500_000_000, 0, 1_000_000_000]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (GOOD.replace("qwen", "other"), "no self-hosted deployment 'other' (there is: qwen)"),
        (GOOD.replace("qwen", ""), "deployment is empty"),
        (GOOD.replace("INV-1", "=HYPERLINK(1)"), "a spreadsheet would run as a formula"),
        (GOOD.replace("INV-1", "x" * 300), "at most 200 printable characters"),
        (GOOD.replace("INV-1", "a\x07b"), "at most 200 printable characters"),
        (GOOD.replace("148.80", "=1+1"), "amount is '=1+1'; write a number"),
        (GOOD.replace("148.80", '"1.234,56"'), "amount is '1.234,56'; write a number"),
        (GOOD.replace("148.80", '"1,234.56"'), "amount is '1,234.56'; write a number"),
        (GOOD.replace("148.80", "NaN"), "write a number"),
        (GOOD.replace("148.80", "1e12"), "at most 1,000,000,000"),
        (GOOD.replace("48,148", "-48,148"), "hours are not negative"),
        (GOOD.replace("USD", "EUR"), "currency is 'EUR'; the ledger is in USD"),
        (GOOD.replace("2026-11-02", "2026-10-31"), "before it begins"),
        (GOOD.replace("2026-11-02", "2026-11-01"), "before it begins"),
        (GOOD.replace("2026-11-02", "2036-11-02"), "spans more than 1,100 days"),
        (GOOD.replace("2026-11-01T", "0001-01-01T"), "years are from 2000"),
        (GOOD.replace("00:00:00Z", "00:00:00 Europe/Berlin"), "write a moment in UTC"),
        (GOOD.replace("2026-11-02", "2026-11-31"), "write a moment in UTC"),
        (GOOD.replace("00:00:00Z", "00:00:00.5Z"), "write a moment in UTC"),
    ],
)
def test_a_wrong_line_is_named_with_its_remedy(row: str, problem: str) -> None:
    """Half an invoice in the ledger would be worse than none."""
    message = refused(f"{HEADER}\n{GOOD}\n{row}\n".encode())
    assert problem in message
    assert "line 3: " in message
    assert "line 2: " not in message


def test_every_wrong_line_is_listed_up_to_twenty() -> None:
    """Who corrects a file wants all of its errors; a file of another format has thousands."""
    rows = "\n".join(GOOD.replace("qwen", f"d{number}") for number in range(25))
    message = refused(f"{HEADER}\n{rows}\n".encode())
    assert "line 21: " in message
    assert message.endswith("and 5 more")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no line below the header"),
        (HEADER.encode(), "no line below the header"),
        (f"{HEADER}\n{GOOD},x\n".encode(), "line 2: it has 8 cells, the header has 7"),
        (f"{HEADER.replace(',', ';')}\n".encode(), "line 1: there is no column deployment"),
        (f"{HEADER},note\n{GOOD},x\n".encode(), "unknown column 'note'"),
        (f"{HEADER},to\n{GOOD},x\n".encode(), "column to stands there twice"),
        (f"{HEADER}\n{GOOD}\n".encode("utf-16"), "it is UTF-16 text"),
        (f"{HEADER}\nq\xe9{GOOD}\n".encode("latin-1"), "line 2: it is not UTF-8"),
        (f'{HEADER}\n"{GOOD}\n'.encode(), "it is no CSV"),
        (f"{HEADER}\n{GOOD}\n{GOOD}\n".encode(), "line 3: it repeats line 2"),
        (
            "\n".join([HEADER, *(GOOD.replace("148.80", f"{n}e8") for n in (8, 9))]).encode(),
            "add up to more than",
        ),
        (b"x" * (gpu_bill.MOST_BYTES + 1), "larger than 64 MiB"),
    ],
)
def test_a_file_that_is_no_bill_is_refused(data: bytes, problem: str) -> None:
    """The message says which line, and what a bill looks like."""
    assert problem in refused(data)


def test_a_file_with_too_many_hours_is_refused() -> None:
    """Each hour becomes a row: a mistyped year must not fill the database."""
    line = GOOD.replace("2026-11-02", "2029-10-31")
    rows = "\n".join(line.replace("INV-1", f"INV-{number}") for number in range(40))
    assert "more than 1,000,000 hours" in refused(f"{HEADER}\n{rows}\n".encode())


def test_lines_that_overlap_add_up() -> None:
    """Two GPUs, or a charge and its credit, cover the same hours."""
    lines = parse(GOOD, GOOD.replace("148.80", "-10"))
    assert sum(line.amount_nusd for line in lines) == 138_800_000_000

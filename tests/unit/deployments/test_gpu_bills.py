"""A GPU bill is spread and split without a nano-dollar lost, whatever its hours and usage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.deployments.engine_sample import UpSpan
from gateway.domain.deployments.gpu_bills import (
    HOUR_MS,
    BillLine,
    BillPiece,
    HourFacts,
    left_of,
    pieces_of,
    split_hour,
    spread,
    union,
)

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
AMOUNTS = st.integers(-(10**15), 10**15)


def span(begin_s: int, end_s: int) -> UpSpan:
    return UpSpan(begin=NOON + timedelta(seconds=begin_s), end=NOON + timedelta(seconds=end_s))


def line(begin_s: int = 0, end_s: int = 7200, *, gpu_ms: int = 0, amount: int = 100) -> BillLine:
    one = span(begin_s, end_s)
    return BillLine(
        number=2,
        deployment="qwen",
        begin=one.begin,
        end=one.end,
        gpu_ms=gpu_ms,
        amount_nusd=amount,
        invoice_id="4711",
    )


def hour(**changes: object) -> HourFacts:
    facts: dict[str, object] = {
        "attempts": 1,
        "applied_nusd": 0,
        "estimate_nusd": None,
        "imported_nusd": None,
        "gpu_ms": HOUR_MS,
        "usd_per_gpu_hour": None,
        "present_ms": HOUR_MS,
        "busy_ms": 0,
    }
    return HourFacts(**facts | changes)  # type: ignore[arg-type]  # each test gives its own


def test_the_units_left_go_to_the_largest_remainders() -> None:
    """100 over 3:3:1 is 42.86, 42.86 and 14.29: the first two get one unit each."""
    assert spread(100, [3, 3, 1]) == [43, 43, 14]
    assert spread(-100, [3, 3, 1]) == [-43, -43, -14]
    assert spread(2, [1, 1, 1]) == [1, 1, 0]


def test_an_amount_without_weights_is_spread_evenly() -> None:
    """A bill must not vanish because nothing says whose it is."""
    assert spread(5, [0, 0]) == [3, 2]


@given(AMOUNTS, st.lists(st.integers(0, 10**7), min_size=1, max_size=40))
def test_a_spread_adds_up_and_is_off_by_less_than_a_unit(amount: int, weights: list[int]) -> None:
    """No part may get more than its exact share, rounded up."""
    parts = spread(amount, weights)
    assert sum(parts) == amount
    if total := sum(weights):
        for part, weight in zip(parts, weights, strict=True):
            assert abs(part * total - amount * weight) < total


@given(AMOUNTS, st.integers(0, 10**12), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_lines_pieces_add_up_and_lie_in_one_hour_each(
    amount: int, gpu_ms: int, begin_s: int, length_s: int
) -> None:
    """An invoice of a month is hundreds of hours; their sum is the invoice."""
    one = line(begin_s, begin_s + length_s, gpu_ms=gpu_ms, amount=amount)
    pieces = pieces_of(one)
    assert sum(piece.amount_nusd for piece in pieces) == amount
    assert sum(piece.gpu_ms for piece in pieces) == gpu_ms
    assert [piece.hour for piece in pieces] == list(one.hours)
    assert [piece.span.end for piece in pieces[:-1]] == [piece.span.begin for piece in pieces[1:]]
    for piece in pieces:
        assert piece.hour <= piece.span.begin < piece.span.end
        assert piece.span.end <= piece.hour + timedelta(hours=1)


def test_a_piece_keeps_the_seconds_that_no_newer_bill_covers() -> None:
    """An invoice that ends at half past ten keeps its half hour when the next one begins there."""
    piece = BillPiece(hour=NOON, span=span(0, 3600), gpu_ms=3600, amount_nusd=1000)
    assert left_of(piece, [span(3600, 7200), span(-60, 0)]) is None
    assert left_of(piece, [span(-10, 9000)]) == []
    first, last = left_of(piece, [span(900, 1800), span(1800, 2700)]) or []
    assert (first.span, last.span) == (span(0, 900), span(2700, 3600))
    assert (first.amount_nusd, last.amount_nusd, first.gpu_ms) == (250, 250, 900)


@given(
    AMOUNTS,
    st.lists(st.tuples(st.integers(-100, 3700), st.integers(1, 2000)), min_size=1, max_size=6),
)
def test_a_cut_piece_never_grows(amount: int, cuts: list[tuple[int, int]]) -> None:
    """What is left lies outside of each cut, and is at most the piece."""
    piece = BillPiece(hour=NOON, span=span(0, 3600), gpu_ms=10**6, amount_nusd=amount)
    replaced = [span(begin, begin + length) for begin, length in cuts]
    parts = left_of(piece, replaced)
    if parts is None:
        assert all(piece.span.within(one) is None for one in replaced)
        return
    assert abs(sum(part.amount_nusd for part in parts)) <= abs(amount)
    for part in parts:
        assert all(part.span.within(one) is None for one in replaced)


def test_spans_that_touch_are_one() -> None:
    """Two GPUs at the same time are one hour of time, not two."""
    found = union([span(50, 60), span(0, 20), span(10, 15), span(20, 30)])
    assert found == [span(0, 30), span(50, 60)]


@given(
    attempts=st.integers(0, 3),
    applied=st.integers(0, 10**13),
    estimate=st.none() | st.integers(0, 10**13),
    imported=st.none() | AMOUNTS,
    gpu_ms=st.integers(0, 10**9),
    rate=st.none() | st.decimals("0.000000000001", "10000", places=12),
    present_ms=st.integers(0, HOUR_MS),
    busy_ms=st.integers(0, 2 * HOUR_MS),
)
def test_any_hours_bill_adds_up(
    attempts: int,
    applied: int,
    estimate: int | None,
    imported: int | None,
    gpu_ms: int,
    rate: Decimal | None,
    present_ms: int,
    busy_ms: int,
) -> None:
    """applied + empty + underfilled + variance = bill, and idle is never negative."""
    facts = hour(
        attempts=attempts,
        applied_nusd=applied if attempts else 0,
        estimate_nusd=estimate,
        imported_nusd=imported,
        gpu_ms=gpu_ms,
        usd_per_gpu_hour=rate,
        present_ms=present_ms,
        busy_ms=busy_ms,
    )
    found = split_hour(facts)
    if found is None:
        assert (estimate, imported) == (None, None)
        return
    parts = (found.applied_nusd, found.empty_nusd, found.underfilled_nusd, found.variance_nusd)
    assert sum(parts) == found.bill_nusd == (estimate if imported is None else imported)
    assert found.applied_nusd == facts.applied_nusd
    assert min(found.empty_nusd, found.underfilled_nusd) >= 0
    if imported is None:
        assert found.variance_nusd == min(found.bill_nusd - found.applied_nusd, 0)
    if not attempts:
        assert found.empty_nusd == max(found.bill_nusd, 0)
    if busy_ms >= present_ms > 0 and attempts:
        assert found.empty_nusd == 0


def test_idle_is_divided_by_the_time_in_flight() -> None:
    """A quarter of the hour in flight, and a tenth of the bill applied: the rest is idle."""
    found = split_hour(hour(applied_nusd=400, estimate_nusd=4000, busy_ms=HOUR_MS // 4))
    assert found is not None
    assert (found.empty_nusd, found.underfilled_nusd, found.variance_nusd) == (2700, 900, 0)


def test_a_dearer_invoice_is_variance_and_not_idle() -> None:
    """The GPUs idled at their declared rate; the invoice's surcharge is another finding."""
    dearer = hour(
        applied_nusd=10**9,
        estimate_nusd=3 * 10**9,
        imported_nusd=4 * 10**9,
        usd_per_gpu_hour=Decimal(3),
    )
    found = split_hour(dearer)
    assert found is not None
    assert (found.empty_nusd, found.variance_nusd) == (2 * 10**9, 10**9)


def test_more_work_than_capacity_is_negative_variance() -> None:
    """A standard cost that is too high must be seen."""
    found = split_hour(hour(applied_nusd=5, estimate_nusd=3, busy_ms=HOUR_MS))
    assert found is not None
    assert (found.empty_nusd, found.underfilled_nusd, found.variance_nusd) == (0, 0, -2)

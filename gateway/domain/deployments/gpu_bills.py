"""Spreads the lines of a GPU bill over hours, cuts what a newer bill replaces, and splits an hour's
bill into applied, empty, underfilled and variance; reads no file and no table.

All money is in nano-dollars and every split adds up exactly (largest remainder). The view
`finance.gpu_cost` does the arithmetic of `split_hour` in SQL; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from gateway.domain.deployments.engine_sample import MILLISECOND, UpSpan
from gateway.domain.money import EXACT, NUSD_PER_USD

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """One line of a GPU bill. `number` is its line in the file; `end` is exclusive.

    `gpu_ms` are GPU-milliseconds: 1 GPU hour is 3,600,000. `amount_nusd` is negative in a credit.
    """

    number: int
    deployment: str
    begin: datetime
    end: datetime
    gpu_ms: int
    amount_nusd: int
    invoice_id: str

    @property
    def hours(self) -> tuple[datetime, ...]:
        """Return the clock hours (UTC) that the line touches."""
        return tuple(hour for hour, _ in UpSpan(begin=self.begin, end=self.end).by_hour())


@dataclass(frozen=True, slots=True, kw_only=True)
class BillPiece:
    """The part of a bill line that lies in one clock hour."""

    hour: datetime
    span: UpSpan
    gpu_ms: int
    amount_nusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HourFacts:
    """The facts about one deployment's hour, from which its bill is split.

    `estimate_nusd` is uptime × rate, `imported_nusd` the imported bill; None is unknown.
    `gpu_ms` are the GPU-milliseconds of the bill that counts, `present_ms` the milliseconds of the
    hour that it is for, and `busy_ms` those in which an attempt was in flight. `usd_per_gpu_hour`
    is the declared rate; None if there is none or it changed within the hour.
    """

    attempts: int
    applied_nusd: int
    estimate_nusd: int | None
    imported_nusd: int | None
    gpu_ms: int
    usd_per_gpu_hour: Decimal | None
    present_ms: int
    busy_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HourSplit:
    """An hour's bill = applied + empty + underfilled + variance, in nano-dollars."""

    bill_nusd: int
    applied_nusd: int
    empty_nusd: int
    underfilled_nusd: int
    variance_nusd: int


def spread(amount: int, weights: Sequence[int]) -> list[int]:
    """Return whole parts of an amount in proportion to the weights, which add up to it exactly.

    Each part is rounded down in size; the units that are left go to the largest remainders, the
    first of equal ones. A negative amount is spread as its size. Without any weight the parts are
    equal.
    """
    total = sum(weights)
    if total == 0:
        weights, total = [1] * len(weights), len(weights)
    size, sign = abs(amount), -1 if amount < 0 else 1
    parts = [size * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(size * weights[place] % total))
    for place in by_remainder[: size - sum(parts)]:
        parts[place] += 1
    return [sign * part for part in parts]


def pieces_of(line: BillLine) -> list[BillPiece]:
    """Return a line's pieces by clock hour, spread by their milliseconds: they add up to the
    line.
    """
    whole = UpSpan(begin=line.begin, end=line.end)
    hours = list(whole.by_hour())
    spans = [
        UpSpan(begin=max(hour, line.begin), end=min(hour + timedelta(hours=1), line.end))
        for hour, _ in hours
    ]
    return _pieces(spans, gpu_ms=line.gpu_ms, amount_nusd=line.amount_nusd)


def left_of(piece: BillPiece, replaced: Iterable[UpSpan]) -> list[BillPiece] | None:
    """Return the parts of a piece that lie in none of the replaced spans; None if none of it is
    replaced.

    The piece's amount is spread by time over the replaced part and the parts that are left.
    """
    inside = [part for part in map(piece.span.within, replaced) if part is not None]
    cuts = union(inside)
    if not cuts:
        return None
    edges = [piece.span.begin, *(at for cut in cuts for at in (cut.begin, cut.end)), piece.span.end]
    gaps = [
        UpSpan(begin=begin, end=end)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
        if begin < end
    ]
    parts = _pieces([*gaps, *cuts], gpu_ms=piece.gpu_ms, amount_nusd=piece.amount_nusd)
    return parts[: len(gaps)]


def union(spans: Iterable[UpSpan]) -> list[UpSpan]:
    """Return the union of spans as separate spans, the earliest first."""
    joined: list[UpSpan] = []
    for span in sorted(spans, key=lambda one: (one.begin, one.end)):
        if joined and span.begin <= joined[-1].end:
            joined[-1] = UpSpan(begin=joined[-1].begin, end=max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def split_hour(hour: HourFacts) -> HourSplit | None:
    """Return the split of an hour's bill; None if the bill is unknown.

    The imported bill counts, else the estimate. Idle GPU time is valued at the declared rate:
    idle = GPU hours × rate - applied, at least 0. `variance` is the rest: the imported bill's
    difference to the declared rate, and what requests were charged beyond the GPU hours (negative).
    An hour without an attempt is wholly empty. Else idle is divided by time: `empty` while no
    attempt was in flight, `underfilled` for the rest.
    """
    bill = hour.estimate_nusd if hour.imported_nusd is None else hour.imported_nusd
    if bill is None:
        return None
    idle = max(_standard_nusd(hour, bill) - hour.applied_nusd, 0)
    if not hour.attempts or not hour.present_ms:
        empty, underfilled = idle, 0
    else:
        busy_ms = min(hour.busy_ms, hour.present_ms)
        empty, underfilled = spread(idle, [hour.present_ms - busy_ms, busy_ms])
    return HourSplit(
        bill_nusd=bill,
        applied_nusd=hour.applied_nusd,
        empty_nusd=empty,
        underfilled_nusd=underfilled,
        variance_nusd=bill - hour.applied_nusd - empty - underfilled,
    )


def _standard_nusd(hour: HourFacts, bill_nusd: int) -> int:
    """Return the value of the hour's GPU time at the declared rate; the bill itself if it is the
    estimate, if the rate is unknown, or if the hour had no attempt.
    """
    if hour.imported_nusd is None or hour.usd_per_gpu_hour is None or not hour.attempts:
        return bill_nusd
    twice = EXACT.multiply(Decimal(2 * hour.gpu_ms * NUSD_PER_USD), hour.usd_per_gpu_hour)
    return int(EXACT.divide_int(EXACT.add(twice, Decimal(HOUR_MS)), Decimal(2 * HOUR_MS)))


def _pieces(spans: Sequence[UpSpan], *, gpu_ms: int, amount_nusd: int) -> list[BillPiece]:
    """Return pieces with these spans, each within one hour; GPU time and amount are spread by
    time.
    """
    lengths = [(span.end - span.begin) // MILLISECOND for span in spans]
    shares = zip(spans, spread(gpu_ms, lengths), spread(amount_nusd, lengths), strict=True)
    return [
        BillPiece(
            hour=span.begin.replace(minute=0, second=0, microsecond=0),
            span=span,
            gpu_ms=own_gpu_ms,
            amount_nusd=own_nusd,
        )
        for span, own_gpu_ms, own_nusd in shares
    ]

"""Checks whether each request that ran while policies changed was decided by a single version.
Pure.

Four books that share no code are compared: the caller's answer, the ledger, the upstreams' records,
and the two documents. A request is mixed if any of them belongs to another document than the
version in its answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple

NANO = Decimal("0.000000001")
MTOK = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One document's terms for the route; the other document differs in all of them.

    `upstream` is its deployment's address.
    """

    sha256: str
    upstream: str
    deployment: str
    provider: str
    region: str
    model: str
    cost_centre: str
    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal

    def cost_usd(self, entry: Entry) -> Decimal:
        """Return the cost of an attempt's tokens by this document, each kind rounded once to the
        nano-dollar.
        """
        priced = (
            (entry.prompt, self.input_usd_per_mtok),
            (entry.generated, self.output_usd_per_mtok),
        )
        return sum((_rounded(tokens * rate / MTOK) for tokens, rate in priced), Decimal(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as its caller saw it.

    Times are seconds since the epoch; `late_s` is its delay after its scheduled time.

    `cost_usd` has the costs in its headers and body. `problem` is the reason for an incomplete
    answer.
    """

    is_stream: bool
    begun_s: float
    late_s: float
    ended_s: float = 0.0
    status: int = 0
    problem: str = ""
    request_id: str = ""
    version: int = 0
    deployment: str = ""
    provider: str = ""
    region: str = ""
    cost_usd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request in an upstream's book."""

    upstream: str
    request_id: str
    prompt: int
    generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """One apply: the time when the version was stored, the command's reported delay until it was
    live, and the end.

    `reported_s` is None if the command does not report that every gateway serves it.
    """

    version: int
    stored_s: float
    reported_s: float | None
    ended_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All books of a run.

    `terms` are by version; `events` are rows of `finance.usage_events`.
    """

    calls: tuple[Call, ...]
    events: tuple[Mapping[str, Any], ...]
    entries: tuple[Entry, ...]
    terms: Mapping[int, Terms]
    applied: tuple[Applied, ...] = ()


class Finding(NamedTuple):
    """A violation in one request: failed, mixed, lost, doubled or stale."""

    kind: str
    detail: str


def judge(books: Books) -> list[Finding]:
    """Compare the books."""
    events: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    entries: dict[str, list[Entry]] = defaultdict(list)
    for event in books.events:
        events[str(event["request_id"])].append(event)
    for entry in books.entries:
        entries[entry.request_id].append(entry)
    found: list[Finding] = []
    for call in books.calls:
        if call.status != 200 or call.problem:
            found.append(
                Finding("failed", f"{call.request_id or 'a request'}: {call.status} {call.problem}")
            )
            continue
        found += _judged(call, events[call.request_id], entries[call.request_id], books.terms)
        found += _stale(call, books.applied)
    return found


def spanning(books: Books) -> int:
    """Return the number of requests that ran while a newer version was already deciding others."""
    answered = [call for call in books.calls if call.version]
    first_s: dict[int, float] = {}
    for call in answered:
        first_s[call.version] = min(call.begun_s, first_s.get(call.version, call.begun_s))
    return sum(
        any(
            version > call.version and call.begun_s < at_s < call.ended_s
            for version, at_s in first_s.items()
        )
        for call in answered
    )


def latest_s(books: Books) -> float:
    """Return the longest time after which a request still began with the version before a stored
    one.
    """
    answered = [call for call in books.calls if call.version]
    after = (
        call.begun_s - one.stored_s
        for one in books.applied
        for call in answered
        if call.version < one.version
    )
    return max(0.0, *after, 0.0)


def not_found(books: Books) -> list[str]:
    """Plant each kind of fault in the books of a good run, and return those that are not found."""
    before = _kinds(books)
    return [name for name, kind, planted in plants(books) if _kinds(planted)[kind] <= before[kind]]


def plants(books: Books) -> Iterator[tuple[str, str, Books]]:
    """Yield every kind of fault with its kind of finding, in an answered request; none without
    one.
    """
    booked_at = {str(row["request_id"]): number for number, row in enumerate(books.events)}
    sent_at = {entry.request_id: number for number, entry in enumerate(books.entries)}
    whole = [
        number
        for number, call in enumerate(books.calls)
        if call.request_id in booked_at.keys() & sent_at.keys()
    ]
    if not whole:
        return
    place = whole[len(whole) // 2]
    call = books.calls[place]
    own, sent = booked_at[call.request_id], sent_at[call.request_id]
    event, entry, terms = books.events[own], books.entries[sent], books.terms[call.version]
    other = next(one for one in books.terms.values() if one.sha256 != terms.sha256)
    other_version = next(
        number for number, one in books.terms.items() if one.sha256 == other.sha256
    )

    def called(**changes: Any) -> Books:
        return replace(books, calls=_with(books.calls, place, replace(call, **changes)))

    def booked(**changes: Any) -> Books:
        return replace(books, events=_with(books.events, own, {**event, **changes}))

    yield "the other version told", "mixed", called(version=other_version)
    yield "the other deployment told", "mixed", called(deployment=other.deployment)
    yield "the other region told", "mixed", called(region=other.region)
    yield (
        "a nano-dollar more told",
        "mixed",
        called(cost_usd=(*call.cost_usd, str(Decimal(call.cost_usd[0]) + NANO))),
    )
    yield "no cost told", "mixed", called(cost_usd=())
    yield "the other version booked", "mixed", booked(policy_version=other_version)
    yield "the other deployment booked", "mixed", booked(deployment=other.deployment)
    yield "the other region booked", "mixed", booked(region=other.region)
    yield "the other cost centre booked", "mixed", booked(cost_centre=other.cost_centre)
    yield "the other price booked", "mixed", booked(cost_usd=other.cost_usd(entry))
    yield (
        "the other document booked",
        "mixed",
        booked(decision={**event["decision"], "policy": other.sha256}),
    )
    moved = replace(
        books, entries=_with(books.entries, sent, replace(entry, upstream=other.upstream))
    )
    yield "sent to the other upstream", "mixed", moved
    yield "no event", "lost", replace(books, events=books.events[:own] + books.events[own + 1 :])
    yield "two events", "doubled", replace(books, events=(*books.events, event))
    yield "sent twice", "doubled", replace(books, entries=(*books.entries, entry))
    yield "an error", "failed", called(status=503)
    yield "an answer that breaks off", "failed", called(problem="no [DONE]")
    later = Applied(
        version=call.version + 1, stored_s=0, reported_s=0, ended_s=call.begun_s - 0.001, took_s=0
    )
    yield (
        "a version that was told to be gone",
        "stale",
        replace(books, applied=(*books.applied, later)),
    )


def _judged(
    call: Call,
    events: Sequence[Mapping[str, Any]],
    entries: Sequence[Entry],
    terms: Mapping[int, Terms],
) -> Iterator[Finding]:
    """Check one answered request: one event and one entry, all of the version in its answer."""
    if len(events) != 1 or len(entries) != 1:
        kind = "doubled" if max(len(events), len(entries)) > 1 else "lost"
        yield Finding(
            kind, f"{call.request_id}: {len(events)} events, {len(entries)} sent upstream"
        )
        return
    wanted = terms.get(call.version)
    if wanted is None:
        yield Finding("mixed", f"{call.request_id}: nobody applied version {call.version}")
        return
    sides = _sides(call, events[0], entries[0], wanted)
    wrong = [f"{name} {shown}, not {right}" for name, shown, right in sides if shown != right]
    if wrong:
        yield Finding("mixed", f"{call.request_id}, version {call.version}: {'; '.join(wrong)}")


def _sides(
    call: Call, event: Mapping[str, Any], entry: Entry, wanted: Terms
) -> Iterator[tuple[str, object, object]]:
    """Yield each book's value with the document's value."""
    cost_usd = wanted.cost_usd(entry)
    yield "was sent to", entry.upstream, wanted.upstream
    for name in ("deployment", "provider", "region"):
        yield f"the caller was told {name}", getattr(call, name), getattr(wanted, name)
    yield "the caller was told costs", {Decimal(one) for one in call.cost_usd}, {cost_usd}
    yield "the event has version", event["policy_version"], call.version
    yield "the event has document", event["decision"].get("policy"), wanted.sha256
    for name in ("deployment", "provider", "region", "model", "cost_centre"):
        yield f"the event has {name}", event[name], getattr(wanted, name)
    yield (
        "the event has tokens",
        (event["input_tokens"], event["output_tokens"]),
        (entry.prompt, entry.generated),
    )
    yield "the event has cost", event["cost_usd"], cost_usd


def _kinds(books: Books) -> Counter[str]:
    return Counter(finding.kind for finding in judge(books))


def _stale(call: Call, applied: Sequence[Applied]) -> Iterator[Finding]:
    """Find requests begun after a command had reported that a newer version is in force
    everywhere.
    """
    newest = max(
        (
            one.version
            for one in applied
            if one.reported_s is not None and one.ended_s < call.begun_s
        ),
        default=0,
    )
    if call.version < newest:
        yield Finding(
            "stale",
            f"{call.request_id}: version {call.version}, after {newest} was said to be live",
        )


def _with(rows: tuple[Any, ...], place: int, row: Any) -> tuple[Any, ...]:
    return (*rows[:place], row, *rows[place + 1 :])


def _rounded(amount_usd: Decimal) -> Decimal:
    return amount_usd.quantize(NANO, ROUND_HALF_EVEN)

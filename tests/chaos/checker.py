"""Joins three books that share no code: the upstream's ledger, finance's view, and the callers'
records.

Pure. Its arithmetic is its own (fractions, not the gateway's decimals). Every run plants faults in
a copy of its input and demands that they are found, so that a blind checker cannot pass for a
correct gateway.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from math import inf
from typing import Any

from tests.chaos.client import Call
from tests.chaos.dialects import MORE_RATES
from tests.fake_upstream.faults import Fault, Kind
from tests.fake_upstream.ledger import CLIENT_GONE, COMPLETE, OPEN

Attempt = dict[str, Any]
Event = dict[str, Any]
# The upstream's name of a count, and the event's.
TRUE_TOKENS = {
    "input_tokens": "input_tokens",
    "cached_tokens": "cached_input_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "generated": "output_tokens",
    "reasoning": "reasoning_tokens",
}
MOST_UNKNOWN = 0.005
# A kill may be found by the journal's last progress, which is at most so old, or by the upstream so
# much later.
KILL_SLACK_S = 2.0
PROGRESS_EVERY_S = 1.0
# bytes that an engine sent this shortly before its end may never have been read: the caller had
# left, or the gateway had waited as long as it waits
ON_ITS_WAY_S = 0.2
OVERHEAD_TOKENS = 64  # the gateway's addition to a request's bytes for its hold
# The upstream's names of rarer counts, which the ledger has in one member.
PARTS = (
    *("cache_write_30m_tokens", "cache_write_1h_tokens", "cache_write_12h_tokens"),
    *("audio_input_tokens", "image_input_tokens", "audio_output_tokens", "image_output_tokens"),
    "web_search_calls",
)
# Of those that are paid, only these report usage on the way.
PAID_RUNNING = frozenset({"paid-gemini", "paid-vertex"})


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation. The self-test counts by `kind`."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The compared books. `rates` are USD per million tokens by model: input, cached input, output;
    `more_rates` those of rarer kinds, by the kind of a receipt's line.

    `on_its_way_s`: the latest arrival of an engine's bytes; more on a busy machine.
    """

    attempts: Sequence[Attempt]
    events: Sequence[Event]
    calls: Sequence[Call]
    kills_s: Sequence[float]
    rates: Mapping[str, Sequence[str]]
    more_rates: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MORE_RATES)
    counted: Sequence[Attempt] = ()  # the prompts that the upstream only counted
    most_unknown: float = MOST_UNKNOWN
    on_its_way_s: float = ON_ITS_WAY_S


@dataclass(slots=True)
class Verdict:
    """The findings and the counts."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    abandoned: Counter[str] = field(default_factory=Counter)

    def find(self, kind: str, detail: str) -> None:
        """Note something that must not be."""
        self.findings.append(Finding(kind, detail))

    @property
    def kinds(self) -> Counter[str]:
        """Findings by kind."""
        return Counter(finding.kind for finding in self.findings)


def check(books: Books) -> Verdict:
    """Return the verdict on one run."""
    verdict = Verdict()
    verdict.fired = Counter(attempt["fault"] for attempt in books.attempts if _has_fired(attempt))
    verdict.abandoned = Counter(call.ending for call in books.calls)
    pairs = _join(books, verdict)
    answered_s = {call.index: call.ended_s for call in books.calls}
    for attempt, event in pairs:
        _check_outcome(attempt, event, books, verdict, answered_s.get(attempt["index"], 0.0))
        _check_tokens(attempt, event, books, verdict)
    for event in books.events:
        _check_cost(event, books, verdict)
    _check_teams(pairs, books, verdict)
    _check_unknown(pairs, books, verdict)
    _check_callers(books, verdict)
    verdict.counts.update(
        {
            "requests": len(books.calls),
            "attempts": len(books.attempts),
            "events": len(books.events),
            "kills": len(books.kills_s),
            "lost": verdict.kinds["lost"],
            "doubled": verdict.kinds["doubled"],
        }
    )
    verdict.counts.update(Counter(f"kind {call.kind}" for call in books.calls))
    verdict.counts.update(Counter(f"at {attempt['model']}" for attempt in books.attempts))
    verdict.counts.update(Counter(f"source {event['usage_source']}" for event in books.events))
    verdict.counts.update(Counter(f"outcome {event['outcome']}" for event in books.events))
    return verdict


def self_test(books: Books) -> list[str]:
    """Plant faults in copies of the books; return the names of those that were not found, or could
    not be planted.
    """
    before = check(books).kinds
    missed = []
    for name, kind, plant in PLANTS:
        planted = plant(books)
        if planted is None or check(planted).kinds[kind] <= before[kind]:
            missed.append(name)
    return missed


# ---- the checks


def _has_fired(attempt: Attempt) -> bool:
    """A breaking fault has fired when the attempt ended by it; the harmless ones as soon as it was
    answered.
    """
    if attempt["fault"] == Fault.WILD:
        return bool(attempt["is_usage_final"])
    return (
        attempt["ending"] not in (OPEN, COMPLETE, CLIENT_GONE)
        or attempt["fault"] in (Fault.NONE, Fault.SPLIT, Fault.SLOW, Fault.NO_USAGE)
        or (attempt["fault"] == Fault.STALE and attempt["ending"] == COMPLETE)
    )


def _join(books: Books, verdict: Verdict) -> list[tuple[Attempt, Event]]:
    """Pair attempts with events by request and model, in order.

    An unpaired one is lost, doubled or an orphan.
    """
    arrived: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    booked: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for attempt in sorted(books.attempts, key=lambda a: float(a["arrived_s"])):
        arrived[attempt["request_id"], attempt["model"]].append(attempt)
    for event in sorted(books.events, key=lambda e: int(e["attempt"])):
        booked[str(event["request_id"]), event["model"]].append(event)
    pairs = []
    for key in arrived.keys() | booked.keys():
        attempts, events = arrived[key], booked[key]
        surplus = len(events) - len(attempts)
        if surplus > 0:
            # Unread bytes, and a connection that never was, count for no team, even if the next
            # attempt there was answered.
            events.sort(key=lambda event: (_is_unconnected(event), _may_be_unread(event)))
        pairs += list(zip(attempts, events, strict=False))
        for attempt in attempts[len(events) :]:
            verdict.find(
                "lost",
                f"{key[0]} at {key[1]}: {attempt['generated']} tokens out, {attempt['ending']}",
            )
        for event in events[len(attempts) :]:
            _check_orphan(event, has_twin=bool(attempts), books=books, verdict=verdict)
    _check_early_leavers(books, verdict)
    return pairs


def _check_orphan(event: Event, *, has_twin: bool, books: Books, verdict: Verdict) -> None:
    """An event that no attempt of the upstream's explains."""
    if event["usage_source"] == "none" and (not has_twin or _is_unconnected(event)):
        verdict.counts["never sent"] += 1  # there was no listener, or the permit was refused
    elif (
        event["outcome"] == "interrupted"
        and not has_twin
        and _near(float(_unix(event)), books.kills_s)
    ):
        verdict.counts["killed before it was sent"] += 1
    elif event["outcome"] == "client_gone" and not has_twin:
        verdict.counts["left before it arrived"] += 1
    elif _may_be_unread(event):
        verdict.counts["written into a closing connection"] += 1
    else:
        kind = "doubled" if has_twin else "orphan"
        verdict.find(
            kind,
            f"{event['request_id']} attempt {event['attempt']} ({event['outcome']}) at "
            f"{event['model']}",
        )


def _is_unconnected(event: Event) -> bool:
    """Return True if the gateway had no connection to the upstream, so nothing arrived there."""
    return bool(event["outcome"] == "upstream_unreachable" and event["usage_source"] == "none")


def _may_be_unread(event: Event) -> bool:
    """It may have been written into a connection that its upstream had just closed; their number is
    checked.
    """
    return bool(event["outcome"] == "upstream_error" and event["usage_source"] == "unknown")


def _check_early_leavers(books: Books, verdict: Verdict) -> None:
    """A caller may go when its request is already sent but not read there.

    No more events than such callers.
    """
    arrived = {attempt["index"] for attempt in books.attempts}
    callers = sum(
        call.ending == "left" and not call.request_id and call.index not in arrived
        for call in books.calls
    )
    closed = sum(attempt["fault"] == Fault.STALE for attempt in books.attempts)
    # The writer cannot know that its bytes were not read.
    if verdict.counts["written into a closing connection"] > closed:
        verdict.find(
            "orphan",
            f"{verdict.counts['written into a closing connection']} booked, only {closed} were "
            "closed",
        )
    if verdict.counts["left before it arrived"] > callers:
        verdict.find(
            "orphan",
            f"{verdict.counts['left before it arrived']} early leavers booked, only {callers} were",
        )


def _check_outcome(
    attempt: Attempt, event: Event, books: Books, verdict: Verdict, answered_s: float
) -> None:
    """Require a kill while an interrupted attempt was in the gateway's hands: from its start by the
    gateway's clock, as a crowded upstream reads it seconds later, until its caller had the end.
    """
    if event["outcome"] != "interrupted":
        return
    began_s, ended_s = _unix(event), max(attempt["ended_s"] or attempt["arrived_s"], answered_s)
    if not _near_span(began_s, ended_s, books.kills_s):
        before_s = min((began_s - kill for kill in books.kills_s if kill < began_s), default=inf)
        after_s = min((kill - ended_s for kill in books.kills_s if kill > ended_s), default=inf)
        verdict.find(
            "outcome",
            f"{_where(attempt, event)}: interrupted, with the next kills {before_s:.1f} s before "
            f"its start and {after_s:.1f} s after its end",
        )


def _where(attempt: Attempt, event: Event) -> str:
    """Return the name of an attempt in a finding."""
    return (
        f"{event['request_id']}/{event['attempt']} {event['model']} {event['outcome']} "
        f"({attempt['fault']})"
    )


def _check_tokens(attempt: Attempt, event: Event, books: Books, verdict: Verdict) -> None:
    """Compare the booked with the generated tokens."""
    where = _where(attempt, event)
    source = event["usage_source"]
    is_wild = (
        attempt["fault"] == Fault.WILD
        and attempt["is_usage_final"]
        and event["outcome"] != "interrupted"
        and not _was_on_its_way(attempt, event, books)
    )
    if is_wild and (not event["is_suspect"] or source == "provider"):
        verdict.find("suspect", f"{where}: booked as {source} and not flagged")
    if source == "none":
        # Ollama sends a call as a whole: an engine that dies while it writes one shows an error
        # alone, which is not billed.
        is_hidden = attempt["fault"] == Fault.IN_BAND and not attempt["has_shown"]
        if attempt["generated"] and not is_hidden:
            verdict.find(
                "free", f"{where}: {attempt['generated']} tokens were generated and nothing booked"
            )
        return
    if source == "provider":
        # A count for which a dialect has no word is unknown, and never 0.
        untold = attempt["untold"]
        true = tuple(None if name in untold else attempt[name] for name in TRUE_TOKENS)
        seen = tuple(
            event[its] if name in untold else event[its] or 0 for name, its in TRUE_TOKENS.items()
        )
        if seen != true:
            verdict.find("tokens", f"{where}: booked {seen}, generated {true}")
        detail = event["usage_detail"] or {}
        parts = {name: detail[name] for name in PARTS if detail.get(name)}
        verdict.counts.update({f"part {name}": count for name, count in parts.items()})
        if parts != attempt["parts"]:
            verdict.find("parts", f"{where}: booked {parts}, made {attempt['parts']}")
        return
    cost_nusd = true_nusd(attempt, rates=books.rates, more_rates=books.more_rates)
    if source == "unknown":
        if event["held_usd"] is None or _nusd(event["held_usd"]) < cost_nusd:
            verdict.find("hold", f"{where}: held {event['held_usd']}, true {cost_nusd} n$")
        return
    is_counted = source == "estimated" or (
        attempt["model"].startswith("paid") and attempt["model"] not in PAID_RUNNING
    )
    if not is_counted:  # a running figure of the engine: progress ≤ true
        # Each choice of a list says its own prompt's input: those that had not yet spoken are not
        # known.
        has_input = event["input_tokens"] == attempt["input_tokens"] or (
            attempt["prompts"] > 1 and event["input_tokens"] < attempt["input_tokens"]
        )
        if not has_input or not 0 <= (event["output_tokens"] or 0) <= attempt["generated"]:
            booked = (event["input_tokens"], event["output_tokens"])
            true = (attempt["input_tokens"], attempt["generated"])
            verdict.find("tokens", f"{where}: derived {booked}, true {true}")
    else:
        verdict.counts["counted by the gateway"] += 1
        verdict.counts["counted: tokens booked"] += event["output_tokens"] or 0
        verdict.counts["counted: tokens true"] += attempt["generated"]


def _check_cost(event: Event, books: Books, verdict: Verdict) -> None:
    """Cost is the sum of lines, each tokens × price rounded once, half to even."""
    where = f"{event['request_id']}/{event['attempt']}"
    plain, cached, output = (Fraction(rate) for rate in books.rates[event["model"]])
    rate_of = {
        "input": plain,
        "cached_input": cached,
        "cache_write": plain,
        "cache_write_1h": 2 * plain,  # as its page states; these prices list no rate of it
        "output": output,
        "reasoning": output,
        **{kind: Fraction(rate) for kind, rate in books.more_rates.get(event["model"], {}).items()},
    }
    lines = event["lines"]
    if event["cost_usd"] is None:
        if event["usage_source"] != "unknown" or event["held_usd"] is None:
            verdict.find(
                "cost", f"{where}: no cost, {event['usage_source']}, held {event['held_usd']}"
            )
        return
    total = 0
    for line in lines:
        # N$; round() is half to even.
        due = round(int(line["tokens"]) * rate_of[line["kind"]] * 1000)
        if due != int(line["cost_nusd"]):
            verdict.find("cost", f"{where}: line {line} should be {due} n$")
        total += due
    if total != _nusd(event["cost_usd"]):
        verdict.find(
            "cost", f"{where}: {event['cost_usd']} USD is not the sum of its lines, {total} n$"
        )
    tokens = [int(line["tokens"]) for line in lines if not line["kind"].endswith("_search")]
    if sum(tokens) != (event["input_tokens"] or 0) + (event["output_tokens"] or 0):
        verdict.find("cost", f"{where}: lines {lines} do not cover all tokens")


def _check_teams(pairs: Iterable[tuple[Attempt, Event]], books: Books, verdict: Verdict) -> None:
    """Compare provider-sourced tokens per team with the callers' own list."""
    team_of = {call.index: call.team for call in books.calls}
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for attempt, event in pairs:
        team = team_of.get(attempt["index"], "?")
        if event["team"] != team:
            verdict.find(
                "team", f"{event['request_id']}: booked on {event['team']}, asked by {team}"
            )
        if event["usage_source"] == "provider":
            seen = sums[event["team"]]
            seen[0] += event["input_tokens"]
            seen[1] += event["output_tokens"] or 0
            seen[2] += attempt["input_tokens"]
            seen[3] += attempt["generated"]
    for team, (booked_in, booked_out, true_in, true_out) in sorted(sums.items()):
        if (booked_in, booked_out) != (true_in, true_out):
            verdict.find(
                "team", f"{team}: booked {booked_in}/{booked_out}, generated {true_in}/{true_out}"
            )
        verdict.counts[f"tokens of {team}"] = booked_in + booked_out


def _check_unknown(pairs: Iterable[tuple[Attempt, Event]], books: Books, verdict: Verdict) -> None:
    """Require that usage is unknown only if none had come, and rarely."""
    # Implausible usage has rules of its own: it may be held for, if it is flagged.
    unknown = [(a, e) for a, e in pairs if e["usage_source"] == "unknown" and not e["is_suspect"]]
    verdict.counts["suspect, flagged"] = sum(bool(event["is_suspect"]) for event in books.events)
    for attempt, event in unknown:
        if not attempt["usage_s"]:
            continue
        age_s = attempt["ended_s"] - attempt["usage_s"]
        is_young = event["outcome"] == "interrupted" and age_s < PROGRESS_EVERY_S
        if not (is_young or _was_on_its_way(attempt, event, books)):
            verdict.find(
                "unknown",
                f"{event['request_id']}, {_cause(attempt, event)}: usage sent {age_s:.2f} s before",
            )
    # Only their provider can count a request with pictures: without its report the usage stays
    # unknown. A kill takes the text of an answer with it: what the upstream had not reported is
    # unknown, too.
    pictured = {call.index for call in books.calls if call.kind == Kind.PICTURES}
    by_picture = [pair for pair in unknown if pair[0]["index"] in pictured]
    by_kill = [
        (attempt, event)
        for attempt, event in unknown
        if attempt["index"] not in pictured
        and event["outcome"] == "interrupted"
        and not attempt["usage_s"]
    ]
    count = len(unknown) - len(by_picture) - len(by_kill)
    countable = sum(attempt["index"] not in pictured for attempt in books.attempts)
    share = count / max(countable, 1)
    verdict.counts["unknown per 100,000"] = round(share * 100_000)
    verdict.counts["unknown, with pictures"] = len(by_picture)
    verdict.counts["unknown, killed unreported"] = len(by_kill)
    verdict.counts.update(
        Counter(f"because {_cause(attempt, event)}" for attempt, event in unknown)
    )
    if share > books.most_unknown:
        verdict.find(
            "unknown",
            f"{share:.2%} of what can be counted is unknown, {books.most_unknown:.2%} may be",
        )


def _was_on_its_way(attempt: Attempt, event: Event, books: Books) -> bool:
    """Return True if the usage left an upstream just before the gateway closed the connection: its
    bytes may never have been read.

    It closes one at once at its time limit, and one to an engine when the caller leaves.
    """
    is_engine = not attempt["model"].startswith("paid")
    is_closed_at_once = event["outcome"] == "upstream_timeout" or (
        event["outcome"] == "client_gone" and is_engine
    )
    age_s: float = attempt["ended_s"] - attempt["usage_s"]
    return is_closed_at_once and age_s < books.on_its_way_s


def _cause(attempt: Attempt, event: Event) -> str:
    """Why usage may be unknown."""
    framing = "stream" if attempt["is_stream"] else "plain"
    model = attempt["model"].removesuffix("-a").removesuffix("-b")
    return (
        f"{model} {framing} {attempt['fault']} → {event['outcome']} "
        f"({min(attempt['generated'], 1)}+)"
    )


def _check_callers(books: Books, verdict: Verdict) -> None:
    """Require that callers' figures equal the booked ones."""
    by_request: dict[str, list[Event]] = defaultdict(list)
    for event in books.events:
        by_request[str(event["request_id"])].append(event)
    counted = {one["request_id"]: one["input_tokens"] for one in books.counted}
    verdict.counts["counted upstream"] = len(counted)
    for call in books.calls:
        where = f"request {call.index} ({call.request_id})"
        if call.ending in ("truncated", "no_answer", "refused", "open"):
            verdict.find("caller", f"{where}: {call.ending} after {call.took_s:.1f} s")
        if call.ending == "broken" and not _near_span(call.sent_s, call.ended_s, books.kills_s):
            verdict.find("caller", f"{where}: its connection broke and nothing was killed then")
        if call.status in (401, 402, 403, 404):
            verdict.find("caller", f"{where}: {call.status} {call.code} for a known key")
        events = by_request.get(call.request_id, [])
        if call.kind == Kind.COUNT:
            _check_count(call, events, counted, where, verdict)
            continue
        if call.ending == "complete" and events:
            _check_answer(call, events, where, verdict)


def _check_count(
    call: Call, events: list[Event], counted: Mapping[str, int], where: str, verdict: Verdict
) -> None:
    """Require that a count is never billed, and that it is the upstream's own or says that it is
    not.
    """
    if events:
        verdict.find("counted", f"{where}: a count of tokens has {len(events)} events")
    if call.ending != "complete":
        return
    own = counted.get(call.request_id)
    is_own = own is not None and call.counted == own and not call.is_estimated
    if not is_own and not (call.is_estimated and call.counted):
        verdict.find("counted", f"{where}: told {call.counted}, the upstream counted {own}")


def _check_answer(call: Call, events: list[Event], where: str, verdict: Verdict) -> None:
    last = max(events, key=lambda e: int(e["attempt"]))
    if last["outcome"] not in ("ok", "interrupted"):
        verdict.find("caller", f"{where}: a whole answer is booked as {last['outcome']}")
    if (
        call.usage is None
        or last["usage_source"] == "unknown"
        or last["outcome"] != "ok"
        or last["is_suspect"]
    ):
        return
    usage = call.usage
    if usage.get("estimated"):
        return  # the gateway's own count, before its ledger's tokenizer has counted
    shown = (usage.get("prompt_tokens", usage.get("input_tokens")), _shown_output(usage))
    if call.kind == Kind.MESSAGES and shown == (0, 0) and last["usage_source"] != "provider":
        return  # its dialect requires both counts: an unknown one is 0 there, without a cost
    if shown != (last["input_tokens"], last["output_tokens"] or 0):
        verdict.find(
            "caller",
            f"{where}: told {shown}, booked {(last['input_tokens'], last['output_tokens'])}",
        )
    cost = usage.get("cost_usd")
    if cost is not None and Decimal(str(cost)) != last["cost_usd"]:
        verdict.find("caller", f"{where}: told {cost} USD, booked {last['cost_usd']}")


def _shown_output(usage: Mapping[str, Any]) -> int:
    """Return the tokens of the whole answer in a caller's usage; xAI's chat counts reasoning beside
    the answer, and both in the total.
    """
    shown = usage.get("completion_tokens", usage.get("output_tokens")) or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    is_beside = usage.get("total_tokens") == usage.get("prompt_tokens", 0) + shown + reasoning
    return int(shown + reasoning if is_beside else shown)


# ---- arithmetic of its own


def true_nusd(
    attempt: Attempt,
    *,
    rates: Mapping[str, Sequence[str]],
    more_rates: Mapping[str, Mapping[str, str]],
) -> int:
    """Return the true cost of an attempt; its pictures at the rate of text."""
    plain, cached_rate, output_rate = (Fraction(rate) for rate in rates[attempt["model"]])
    more = more_rates.get(attempt["model"], {})
    counts = [(attempt["cached_tokens"], cached_rate), (attempt["generated"], output_rate)]
    longer = {
        kind: attempt["parts"].get(f"{kind}_tokens", 0)
        for kind in ("cache_write_30m", "cache_write_1h", "cache_write_12h")
    }
    counts += [(count, Fraction(more[kind])) for kind, count in longer.items() if count]
    rest = attempt["input_tokens"] - attempt["cached_tokens"] - sum(longer.values())
    return sum(round(count * rate * 1000) for count, rate in [*counts, (rest, plain)])


def _nusd(usd: Decimal) -> int:
    return int(usd * 10**9)


def _unix(event: Event) -> float:
    return float(event["started_at"].timestamp())


def _near(moment_s: float, kills_s: Sequence[float]) -> bool:
    return any(abs(kill_s - moment_s) < KILL_SLACK_S for kill_s in kills_s)


def _near_span(began_s: float, ended_s: float, kills_s: Sequence[float]) -> bool:
    return any(began_s - KILL_SLACK_S < kill_s < ended_s + KILL_SLACK_S for kill_s in kills_s)


# ---- faults planted by the self-test


def _with_events(books: Books, events: list[Event]) -> Books:
    return Books(
        attempts=books.attempts,
        events=events,
        calls=books.calls,
        kills_s=books.kills_s,
        rates=books.rates,
        more_rates=books.more_rates,
        counted=books.counted,
        most_unknown=books.most_unknown,
        on_its_way_s=books.on_its_way_s,
    )


def _charged(books: Books) -> Event | None:
    """The event of a whole answer, with tokens that the upstream explains."""
    arrived = {(attempt["request_id"], attempt["model"]) for attempt in books.attempts}
    found = (
        event
        for event in books.events
        if (event["usage_source"], event["outcome"]) == ("provider", "ok")
        and (str(event["request_id"]), event["model"]) in arrived
    )
    return next(found, None)


def _lose(books: Books) -> Books | None:
    victim = _charged(books)
    return (
        None
        if victim is None
        else _with_events(books, [event for event in books.events if event is not victim])
    )


def _double(books: Books) -> Books | None:
    victim = _charged(books)
    twin = {**(victim or {}), "attempt": -1}
    return None if victim is None else _with_events(books, [*books.events, twin])


def _changed(change: Callable[[Event], None]) -> Callable[[Books], Books | None]:
    def plant(books: Books) -> Books | None:
        victim = _charged(books)
        if victim is None:
            return None
        wrong = copy.deepcopy(victim)
        change(wrong)
        return _with_events(books, [wrong if event is victim else event for event in books.events])

    return plant


def _one_token_more(event: Event) -> None:
    event["input_tokens"] += 1  # embeddings have no output


def _with_a_part(books: Books) -> Books | None:
    """Let an attempt that is booked right have made a rarer token more."""
    victim = _charged(books)
    if victim is None:
        return None
    key = (str(victim["request_id"]), victim["model"])
    attempts = [
        {**one, "parts": {**one["parts"], "audio_input_tokens": 1}}
        if (one["request_id"], one["model"]) == key
        else one
        for one in books.attempts
    ]
    return replace(books, attempts=attempts)


def _with_a_counted(books: Books) -> Books | None:
    """Let an event be of a request whose prompt was only counted."""
    victim = _charged(books)
    if victim is None:
        return None
    counted = Call(
        index=0,
        team=victim["team"],
        route=victim["route"],
        is_stream=False,
        status=200,
        ending="complete",
        kind=Kind.COUNT,
        counted=1,
        request_id=str(victim["request_id"]),
    )
    return replace(books, calls=[*books.calls, counted])


def _one_nano_more(event: Event) -> None:
    event["cost_usd"] += Decimal("0.000000001")


def _another_team(event: Event) -> None:
    event["team"] = "nobody"


def _no_usage(event: Event) -> None:
    event.update(usage_source="unknown", cost_usd=None, held_usd=Decimal(10**6))


PLANTS: tuple[tuple[str, str, Callable[[Books], Books | None]], ...] = (
    ("a lost event", "lost", _lose),
    ("a doubled event", "doubled", _double),
    ("a token too many", "tokens", _changed(_one_token_more)),
    ("a nano-dollar too many", "cost", _changed(_one_nano_more)),
    ("a rarer token that is not booked", "parts", _with_a_part),
    ("an event of a prompt that was only counted", "counted", _with_a_counted),
    ("another team's event", "team", _changed(_another_team)),
    ("usage said and not booked", "unknown", _changed(_no_usage)),
)

"""Compares two books that share no code: what the upstream made, and what finance reads. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

USD_PER_TOKEN = (Decimal("0.000001"), Decimal("0.000004"))  # of the demo's policy: prompt, answer


@dataclass(kw_only=True)
class TeamBooks:
    """Tokens of one team: made by the upstream, charged, and made for attempts whose cost is
    unknown.
    """

    made: int = 0
    charged: int = 0
    made_for_unknown: int = 0
    held_usd: Decimal = Decimal(0)


@dataclass(kw_only=True)
class Outcome:
    """What the comparison found. The run is good if nothing is lost, doubled or wrong."""

    entries: int = 0
    events: int = 0
    lost: int = 0
    doubled: int = 0
    exact: int = 0
    derived: int = 0
    unknown: int = 0
    held_usd: Decimal = Decimal(0)
    not_reached: int = 0
    wrong: list[str] = field(default_factory=list)
    teams: dict[str, TeamBooks] = field(default_factory=lambda: defaultdict(TeamBooks))

    @property
    def is_good(self) -> bool:
        """True where every attempt is in the ledger once, and no figure is more than was made or
        less than held.
        """
        return not self.lost and not self.doubled and not self.wrong


def compare(entries: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> Outcome:
    """Join the books by request."""
    found = Outcome(entries=len(entries), events=len(events))
    made: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    booked: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in entries:
        made[entry["request_id"]].append(entry)
    for event in events:
        booked[str(event["request_id"])].append(event)
    for request_id in sorted(made.keys() | booked.keys()):
        _compare_request(found, request_id, made[request_id], booked[request_id])
    return found


def _compare_request(
    found: Outcome,
    request_id: str,
    made: Sequence[Mapping[str, Any]],
    booked: Sequence[Mapping[str, Any]],
) -> None:
    """The demo sends each request once: one entry and one event, or an event alone that never
    reached the upstream.
    """
    found.lost += max(0, len(made) - len(booked))
    found.doubled += max(0, len(booked) - max(1, len(made)))
    if not booked:
        return
    event, entry = booked[0], made[0] if made else {"prompt": 0, "generated": 0}
    found.not_reached += not made
    tokens = entry["prompt"] + entry["generated"]
    team = found.teams[event["team"]]
    team.made += tokens
    if event["cost_usd"] is None:
        _compare_unknown(found, team, request_id, event, entry)
        return
    charged = (event["input_tokens"] or 0, event["output_tokens"] or 0)
    team.charged += sum(charged)
    is_exact = event["usage_source"] in ("provider", "none")
    found.exact, found.derived = found.exact + is_exact, found.derived + (not is_exact)
    if charged[0] > entry["prompt"] or charged[1] > entry["generated"]:
        found.wrong.append(
            f"{request_id}: charged {charged}, made {entry['prompt']}, {entry['generated']}"
        )
    elif is_exact and sum(charged) != tokens:
        found.wrong.append(
            f"{request_id}: said to be final, but {charged} is not what was made: {entry}"
        )
    if event["cost_usd"] != _usd(*charged):
        found.wrong.append(f"{request_id}: {event['cost_usd']} USD for {charged} tokens")


def _compare_unknown(
    found: Outcome,
    team: TeamBooks,
    request_id: str,
    event: Mapping[str, Any],
    entry: Mapping[str, Any],
) -> None:
    found.unknown += 1
    found.held_usd += event["held_usd"]
    team.held_usd += event["held_usd"]
    team.made_for_unknown += entry["prompt"] + entry["generated"]
    if event["held_usd"] < _usd(entry["prompt"], entry["generated"]):
        found.wrong.append(
            f"{request_id}: {event['held_usd']} USD held, less than what was made: {entry}"
        )


def _usd(prompt: int, generated: int) -> Decimal:
    return prompt * USD_PER_TOKEN[0] + generated * USD_PER_TOKEN[1]

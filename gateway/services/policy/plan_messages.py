"""Phrases a replay's result as the sentence that a plan ends with, and as notes on the limits of
its figures; `replay.py` computes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from gateway.domain.money import format_usd, usd_from_nusd
from gateway.domain.policy.policy import Policy
from gateway.services.policy.replay import Replay

MOST_TEAMS = 3  # further teams are counted, not named
UNIONS = {"eu": "the EU", "eea": "the EEA", "europe": "Europe"}


def sentence(replay: Replay, policy: Policy, *, now: datetime) -> str:
    """Return the policy's effect on past requests in one sentence: cost, refusals and
    destinations.
    """
    if replay.first_at is None or replay.last_at is None:
        return "No request was made in this time, so there is nothing to compare."
    parts = [_cost(replay, now), _refused(replay), *_blocked(replay), *_places(replay, policy)]
    return f"{'; '.join(parts)}."


def notes(replay: Replay) -> tuple[str, ...]:
    """Return the limits of a replay's figures, in sentences."""
    return tuple(_notes(replay))


def _cost(replay: Replay, now: datetime) -> str:
    """Return the difference of the past cost under the new policy, as the beginning of the
    sentence.
    """
    change = replay.cost_after_nusd - replay.cost_before_nusd
    when = _when(replay, now)
    if not change:
        return f"{when} would have cost the same"
    return (
        f"{when} would have cost {format_usd(usd_from_nusd(abs(change)))} "
        f"{'more' if change > 0 else 'less'}"
    )


def _when(replay: Replay, now: datetime) -> str:
    """Return the time of the replayed requests in words, such as `October` or `3 May to 2 June`."""
    assert replay.first_at is not None, "asked for only where there are requests"
    assert replay.last_at is not None, "asked for only where there are requests"
    first, last = replay.first_at, replay.last_at
    year = "" if last.year == now.year else f" {last.year}"
    if (first.year, first.month) == (last.year, last.month):
        return f"{first:%B}{year}"
    return f"{first.day} {first:%B} to {last.day} {last:%B}{year}"


def _refused(replay: Replay) -> str:
    """Return the number of requests that would be refused, by team, as a part of the sentence."""
    refused: Counter[str] = Counter()
    for tally in replay.tallies:
        if tally.refusals:
            refused[tally.team] += tally.refusals
    if not refused:
        return "no request would be refused"
    if len(refused) > MOST_TEAMS:
        return f"{refused.total():,} requests of {len(refused)} teams would be refused"
    first, *others = refused.most_common()
    named = [f"{first[1]:,} {'request' if first[1] == 1 else 'requests'} of team {first[0]}"]
    named += [f"{count:,} of team {team}" for team, count in others]
    return f"{' and '.join(named)} would be refused"


def _blocked(replay: Replay) -> Iterator[str]:
    """Yield the number of requests without room in a hard budget, as a part of the sentence;
    nothing if there are none.
    """
    blocked = sum(tally.blocked.total() for tally in replay.tallies)
    if blocked:
        yield f"{blocked:,} would not fit {'its' if blocked == 1 else 'their'} budget"


def _places(replay: Replay, policy: Policy) -> Iterator[str]:
    """Yield the smallest union of regions that contains all destinations, in words; else the added
    and removed regions.
    """
    before, after = set(replay.regions_before), set(replay.regions_after)
    if not after:
        return
    for region, words in UNIONS.items():
        if all(policy.region_tree.covered(one, frozenset({region})) for one in after):
            yield f"nothing leaves {words}"
            return
    if new := sorted(after - before):
        yield f"some would also go to {', '.join(new)}"
    if gone := sorted(before - after):
        yield f"nothing would go to {', '.join(gone)} any more"
    if before == after:
        yield f"it all goes to the same regions: {', '.join(sorted(after))}"


def _notes(replay: Replay) -> Iterator[str]:
    """Yield a sentence for each reason why a replay's figures may be incomplete or too low."""
    yield (
        "A refused request leaves no event, so requests that this policy would newly admit are not "
        "counted."
    )
    unknown = sum(tally.unknown for tally in replay.tallies)
    if unknown:
        yield (
            f"{unknown:,} have no cost that is known both before and after: they are in "
            "neither figure."
        )
    if replay.earlier_attempts:
        cost = format_usd(usd_from_nusd(replay.earlier_cost_nusd))
        count = f"{replay.earlier_attempts:,} attempts"
        yield f"{count} failed before another answered: their cost, {cost}, is left out."
    to_other_models = sum(
        moved.to_other_model for tally in replay.tallies for moved in tally.ways.values()
    )
    if to_other_models:
        yield (
            f"{to_other_models:,} go to another model: their tokens are taken as they were, though "
            "it may count and answer otherwise."
        )
    used = {
        way.after for tally in replay.tallies for way, moved in tally.ways.items() if moved.requests
    }
    slow = sorted(
        name for name in used if name not in replay.speeds or replay.speeds[name].ttft_s is None
    )
    if slow:
        yield f"How fast {', '.join(slow)} answers is not known: no stream of this time went there."
    if any(tally.blocked for tally in replay.tallies):
        yield (
            "Budgets are walked one request after another; concurrent requests held more than is "
            "shown."
        )

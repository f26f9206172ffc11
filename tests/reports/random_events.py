"""Random but valid events, and each one's values of a dimension: the oracle of the property
tests.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.reports.dimensions import TIME, UNALLOCATED, Dimension, Split, TagKey
from tests.storage.factories import NOON, event

# Names that SQL, JSON, Markdown or a spreadsheet could take for something else.
TEAMS = ("payments", "o'brien; --", '"quoted"', "**bold** $x$", "=SUM(A1)", "チーム", "a=b")
TAGS = (("env", "prod"), ("env", "staging"), ("app", "a=b"), ("app=a", "b"), ("", ""), ("'", '"'))


def random_event(number: int, rng: Random) -> UsageEvent:
    """One attempt within three months; one in eight is unknown, one in eight derived."""
    at = NOON - timedelta(milliseconds=rng.randrange(80 * 86_400_000))
    source = rng.choices(
        [UsageSource.PROVIDER, UsageSource.DERIVED, UsageSource.UNKNOWN], [6, 1, 1]
    )[0]
    is_unknown = source is UsageSource.UNKNOWN
    whole, output = rng.randrange(10_000), rng.randrange(2_000)
    is_own = rng.random() < 0.4
    return event(
        number,
        at=at,
        attempt=1,
        team=rng.choice(TEAMS),
        project=rng.choice([None, "one", "(none)"]),
        cost_centre=rng.choice(["CC-1", "CC-2"]),
        key_id=rng.choice(["key0000001", "key0000002"]),
        end_user=rng.choice([None, "u-1"]),
        tags=dict(rng.sample(TAGS, rng.randrange(4))),
        route=rng.choice(["assistant", "embed"]),
        deployment="qwen-eu" if is_own else "gpt-eu",
        provider="vllm" if is_own else "openai",
        model=rng.choice(["m-1", "m-2"]),
        region=rng.choice(["eu", "us"]),
        is_self_hosted=is_own,
        usage_source=source,
        lines=(),
        usage=TokenUsage()
        if is_unknown
        else TokenUsage(
            input_tokens=whole,
            cached_input_tokens=rng.choice([None, whole // 2]),
            cache_write_tokens=None,
            output_tokens=output,
            reasoning_tokens=rng.choice([None, output // 3]),
        ),
        cost_nusd=None if is_unknown else rng.choice([0, 1, rng.randrange(10**9)]),
        held_nusd=rng.randrange(10**9) if is_unknown else None,
        ttft_s=rng.choice([None, rng.random()]),
    )


def parts_of(one: UsageEvent, dimension: Split) -> list[tuple[object, int]]:
    """The rows that an event is in, and how often it counts there: its tags in full, the rest in
    `unallocated`.
    """
    if dimension is Dimension.TAG and len(one.tags) != 1:
        return [
            *((f"{name}={value}", 1) for name, value in one.tags.items()),
            (UNALLOCATED, 1 - len(one.tags)),
        ]
    return [(value, 1) for value in values_of(one, dimension)]


def values_of(one: UsageEvent, dimension: Split) -> list[object]:
    """Return an event's values of a dimension: one value, or one for each of its tags."""
    if isinstance(dimension, TagKey):
        return [one.tags.get(dimension.key, UNALLOCATED)]
    if dimension is Dimension.TAG:
        return [f"{name}={value}" for name, value in one.tags.items()] or [UNALLOCATED]
    if dimension is Dimension.DAY:
        return [one.occurred_at.date()]
    if dimension is Dimension.WEEK:
        year, week, _ = one.occurred_at.isocalendar()
        return [f"{year}-W{week:02}"]
    if dimension in TIME:
        label = one.occurred_at.strftime(
            {
                Dimension.HOUR: "%Y-%m-%dT%H:00Z",
                Dimension.MONTH: "%Y-%m",
                Dimension.QUARTER: f"%Y-Q{(one.occurred_at.month + 2) // 3}",
            }[dimension]
        )
        return [label]
    if dimension is Dimension.DESTINATION:
        return ["self-hosted" if one.is_self_hosted else "external"]
    name = "key_id" if dimension is Dimension.KEY else dimension.value
    value = getattr(one, name)
    return [UNALLOCATED if value is None else str(value)]

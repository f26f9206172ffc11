"""docs/reference/providers.md is generated: from the table of providers, the price list and the
golden transcripts.

`TOLLGATE_WRITE_GOLDEN=1 pytest tests/unit/test_providers_page.py` writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.domain.operation import CONVERSATIONS, Operation
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.providers.place_prices import PLACE_RULES
from gateway.domain.providers.table import PROVIDERS, OutputLimit, ProviderFacts
from gateway.storage.policy import price_list

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "providers.md"
GOLDEN = ROOT / "tests" / "golden"
WRITES = bool(os.environ.get("TOLLGATE_WRITE_GOLDEN"))
AT = datetime(2026, 11, 24, tzinfo=UTC)  # some prices of the list start at a date
# Providers whose real server ran behind a gateway, and the suite that runs it.
REAL = {"vllm": "`make test`, `make engines`", "llamacpp": "`make engines`"}
HEAD = """# Providers

Generated from the [table of providers](../../gateway/domain/providers/table.py), the bundled
price list and the transcripts in `tests/golden/`. A provider that is missing here is
`openai_compatible`, or an entry by [this guide](../guides/add-a-provider.md). Sources of each
fact: [provider facts](../provider-facts.md).
"""
ADDRESSES = """
Words in capitals stand for your own names. `ollama` and `triton` also speak an API of their own,
at an address without a path: `http://HOST:11434` and `http://HOST:8000`.
"""
PLACES = """
List prices are multiplied by the factor of a deployment's place, on tokens and not on calls. The
first rule of the provider that matches counts. An `unknown` place, and a host of none of these,
takes the provider's largest factor as an estimate, unless the policy says `region: global`. `at
most` is an estimate too. Prices of the policy and of `price add` are never multiplied.
"""
MAXIMA = """
The maximum of a chat stands in these members if a hard budget or a token limit depends on it, and
if the chat is the translation of a message or a response. Any other chat has its caller's own
member; where `max_tokens` alone is read, a `max_completion_tokens` moves there. A deployment's
`output_limit` chooses otherwise.
"""
PROVEN = """
No key of a provider was available. An external API is proven by transcripts of its documented
or published shapes, which an upstream of the tests speaks over real sockets. `recorded` counts
bodies that somebody else published; `built` counts those that were written by hand from types or
a server's source. Each `case.json` has its source and date.
"""


def page() -> str:
    """Return the whole page."""
    rows = list(PROVIDERS.values())
    parts = (
        HEAD,
        "\n## Addresses and operations\n",
        ADDRESSES,
        table(
            ("provider", "base_url", "usual hosts", "key", "speaks", "translated to it"),
            map(place, rows),
        ),
        "\n## Usage, prices, and a caller who leaves\n",
        table(
            (
                "provider",
                "counts read from its answers",
                "usage on the way",
                "priced by the list",
                "when the caller leaves",
            ),
            map(meter, rows),
        ),
        "\n## Prices by place\n",
        PLACES,
        table(("provider", "place", "models", "times the list", "source"), by_place()),
        "\n## Differences from OpenAI's API\n",
        MAXIMA,
        table(("provider", "maximum of a chat", "members that it refuses"), map(limits, rows)),
        "\n## Proven against\n",
        PROVEN,
        "\n",
        table(("provider", "real server", "recorded", "built", "endings"), map(proven, rows)),
    )
    return "".join(parts)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def listed(names: Iterable[str], *, none: str = "none") -> str:
    """Return names in code style."""
    return ", ".join(f"`{name}`" for name in names) or none


def in_order(operations: Iterable[Operation]) -> list[str]:
    """Return operations in the order of their declaration."""
    found = set(operations)
    return [one.value for one in Operation if one in found]


def place(one: ProviderFacts) -> tuple[str, ...]:
    key = listed(filter(None, [one.key_header])) if one.needs_key else "if it has one"
    if one.takes_credentials:
        key += f", or `credentials` ({', '.join(one.takes_credentials)})"
    return (
        f"`{one.name}`",
        listed(one.addresses[:1]),
        listed(one.hosts, none="your own"),
        key,
        listed(in_order(one.native)),
        listed(in_order(CONVERSATIONS - one.native)),
    )


def meter(one: ProviderFacts) -> tuple[str, ...]:
    counted = {name for case in cases(one.name) for name in case.get("usage") or {}}
    counts = sorted(counted - {"unexplained_tokens", "unknown_units"})
    if one.is_engine:
        left = "closed at once"
    elif one.bills_after_disconnect is None:
        left = "read to its end: no source states that it stops"
    else:
        left = "read to its end" if one.bills_after_disconnect else "closed at once: it stops"
    return (
        f"`{one.name}`",
        listed(name.removesuffix("_tokens") for name in counts),
        "no" if one.running_usage is None else f"`{one.running_usage}`",
        listed(priced_kinds(one), none="its GPU hours" if one.is_engine else "no list"),
        left,
    )


def priced_kinds(one: ProviderFacts) -> list[str]:
    """Return the kinds of tokens and the service tiers that the list has prices for."""
    if one.listed_as is None:
        return []
    keys = (key for key in price_list.all_keys() if key.provider == one.listed_as)
    prices = [price for key in keys if (price := price_list.listed_price(key, AT)) is not None]
    kinds = {rate.kind for price in prices for rate in price.rates}
    return [kind.value for kind in TokenKind if kind in kinds] + tiers(prices)


def tiers(prices: Iterable[Price]) -> list[str]:
    found = {tier for price in prices for tier in price.service_tiers}
    return [f"service_tier={tier}" for tier in sorted(found)]


def by_place() -> Iterator[tuple[str, ...]]:
    """Yield a row for each rule of each provider, in the order in which they are asked."""
    for name, row in PLACE_RULES.items():
        for rule in row:
            patterns = (*rule.hosts, *(f"locations/{one}" for one in rule.locations))
            regions = tuple(f"region: {one}" for one in rule.regions)
            where = listed((*patterns, *regions), none="")
            if rule.factor is None:
                factor = "unknown: the dearest above"
            else:
                factor = f"at most {rule.factor}" if rule.is_most else str(rule.factor)
            models = "some" if rule.models else "all"
            place = f"{rule.place}: {where}" if where else rule.place
            yield f"`{name}`", place, models, factor, rule.source


def limits(one: ProviderFacts) -> tuple[str, ...]:
    both = one.output_limit is OutputLimit.BOTH
    sent = listed(one.output_limit.members, none="none")
    return f"`{one.name}`", f"{sent}{' (both)' if both else ''}", listed(sorted(one.refuses))


def proven(one: ProviderFacts) -> tuple[str, ...]:
    found = list(cases(one.name))
    built = [case for case in found if is_built(case)]
    endings = sorted({str(case["ending"]) for case in found})
    return (
        f"`{one.name}`",
        REAL.get(one.name, "no"),
        str(len(found) - len(built)),
        str(len(built)),
        listed(endings),
    )


def is_built(case: dict[str, Any]) -> bool:
    words = ("by hand", "built", "written", "assembled from")
    return any(word in str(case.get("source", "")) for word in words)


def cases(provider: str) -> Iterator[dict[str, Any]]:
    """Yield the golden transcripts of a provider; `ending` is the name of its folder."""
    for path in sorted((GOLDEN / provider).glob("*/case.json")):
        yield {"ending": path.parent.name} | json.loads(path.read_text(encoding="utf-8"))


def test_the_page_is_generated_from_the_table() -> None:
    if WRITES:
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_provider_has_a_transcript_of_each_kind_with_its_source() -> None:
    """Plain, streamed, and an error."""
    for name, one in PROVIDERS.items():
        found = list(cases(name))
        assert all(case.get("source") for case in found), name
        kinds = {
            "error"
            if "error" in case["ending"]
            else ("stream" if "stream" in case["ending"] else "plain")
            for case in found
        }
        missing = {"error", "plain", "stream"} - kinds
        assert not missing or (missing == {"stream"} and not one.native & CONVERSATIONS), (
            name,
            missing,
        )

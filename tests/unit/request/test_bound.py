"""An attempt's maximum cost, and whether anything bounds it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.request.bound import UNBOUNDED_OUTPUT_TOKENS, Bound, bound_of
from gateway.domain.request.rounds import MOST_TOOL_CALLS
from gateway.domain.request.unpriced import Unpriced
from tests import factories


def bound(
    *, route: dict[str, Any] | None = None, deployment: dict[str, Any] | None = None, **asked: Any
) -> Bound:
    """The bound of a request of 1,000 bytes at one deployment."""
    facts = factories.facts(**{"output_bound_tokens": None, "body_bytes": 1000} | asked)
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",), **(route or {})),
        deployment=factories.deployment(**(deployment or {})),
        price=factories.price(),
    )


@pytest.mark.parametrize(
    ("asked", "route", "deployment", "output_tokens", "cap_tokens", "is_certain"),
    [
        (
            {"output_bound_tokens": 50},
            {"max_output_tokens": 9},
            {"max_output_tokens": 8},
            50,
            None,
            True,
        ),
        ({"output_bound_tokens": 50, "choices": 3}, {}, {}, 150, None, True),
        ({}, {"max_output_tokens": 9}, {"max_output_tokens": 8}, 8, 8, True),
        ({}, {"max_output_tokens": 9}, {}, 9, 9, True),
        ({"choices": 2}, {"max_output_tokens": 9}, {}, 18, 9, True),
        ({}, {}, {"context_window": 4096}, 4096, None, True),
        ({"output_bound_tokens": 9000}, {}, {"context_window": 4096}, 4096, None, True),
        ({}, {}, {}, UNBOUNDED_OUTPUT_TOKENS, None, False),
        ({}, {}, {"provider": "anthropic"}, 32_000, 32_000, True),
        ({}, {}, {"provider": "anthropic", "max_output_tokens": 8}, 8, 8, True),
        ({"operation": Operation.EMBEDDINGS}, {"max_output_tokens": 9}, {}, 0, None, True),
    ],
)
def test_the_answer_is_bounded_by_the_first_that_says(
    asked: dict[str, Any],
    route: dict[str, Any],
    deployment: dict[str, Any],
    output_tokens: int,
    cap_tokens: int | None,
    is_certain: bool,
) -> None:
    """The caller, else the lower cap of route and deployment, which is sent, else the maximum of a
    dialect that requires one, else the context window, else nothing.
    """
    found = bound(route=route, deployment=deployment, **asked)
    assert (found.output_tokens, found.output_cap_tokens, found.is_certain) == (
        output_tokens,
        cap_tokens,
        is_certain,
    )


def test_a_prompt_has_no_more_tokens_than_bytes_and_template_nor_than_the_window() -> None:
    """Both are bounds: the lower one holds."""
    assert bound().input_tokens == 1064
    assert bound(deployment={"context_window": 500}).input_tokens == 500


@pytest.mark.parametrize("feature", ["stored_state", "hosted_tools", "remote_media"])
def test_a_prompt_that_is_not_all_in_the_body_is_bounded_by_the_window_alone(feature: str) -> None:
    """The part that the upstream fetches or stores can be far more than the body."""
    unseen = {"features": frozenset({feature}), "output_bound_tokens": 10}
    assert not bound(**unseen).is_certain
    known = bound(deployment={"context_window": 32_768}, **unseen)
    assert (known.input_tokens, known.is_certain) == (32_768, True)


@pytest.mark.parametrize("feature", ["rerouting", "other_maximum"])
def test_a_request_that_another_model_or_maximum_may_answer_has_no_bound(feature: str) -> None:
    """`models` and `provider` of some upstreams name a dearer one, and no price here covers it;
    `n_predict` may overrule the maximum that is sent.
    """
    asked = {"features": frozenset({feature}), "output_bound_tokens": 10}
    assert not bound(deployment={"context_window": 4096}, **asked).is_certain


def test_each_prompt_of_a_list_is_answered_and_has_a_window_of_its_own() -> None:
    """A batch is bounded like as many requests."""
    listed: dict[str, Any] = {
        "operation": Operation.COMPLETIONS,
        "output_bound_tokens": 50,
        "choices": 2,
    }
    assert bound(prompts=7, **listed).output_tokens == 700
    window = {"context_window": 100}
    assert bound(deployment=window, prompts=7, **listed).input_tokens == 700
    assert bound(deployment=window, prompts=7, operation=Operation.COMPLETIONS).output_tokens == 700
    embedded = bound(deployment=window, prompts=20, operation=Operation.EMBEDDINGS)
    assert (embedded.input_tokens, embedded.output_tokens, embedded.is_certain) == (1064, 0, True)


def test_prompts_that_cannot_be_counted_have_no_bound() -> None:
    """The window bounds each of them, and their number is unknown."""
    found = bound(deployment={"context_window": 100}, prompts=None, output_bound_tokens=5)
    assert (found.input_tokens, found.is_certain) == (1064, False)


@pytest.mark.parametrize(
    "unseen", [{"capabilities": frozenset({"vision"})}, {"expansion_tokens": None}]
)
def test_pictures_and_pages_hold_the_window(unseen: dict[str, Any]) -> None:
    """Providers charge them by their pixels, so that the bytes of the body bound nothing."""
    assert not bound(output_bound_tokens=5, **unseen).is_certain
    known = bound(deployment={"context_window": 32_768}, output_bound_tokens=5, **unseen)
    assert (known.input_tokens, known.is_certain) == (32_768, True)


def test_the_hold_covers_the_template_and_the_prediction() -> None:
    """The one is read as prompt, the other is charged as output on top of the maximum."""
    found = bound(expansion_tokens=500, predicted_bytes=70, output_bound_tokens=30, choices=2)
    assert (found.input_tokens, found.output_tokens) == (1564, 200)


@pytest.mark.parametrize(
    ("asked", "deployment", "sent", "sent_in_all"),
    [
        ({"output_bound_tokens": 50, "choices": 2}, {}, 50, 100),
        ({"output_bound_tokens": 9000}, {"context_window": 4096}, 4096, 4096),
        ({}, {"max_output_tokens": 8}, 8, 8),
        ({}, {"context_window": 4096}, None, None),
        ({}, {}, None, None),
        ({"operation": Operation.EMBEDDINGS}, {"max_output_tokens": 8}, None, None),
    ],
)
def test_a_bound_that_is_relied_on_is_sent(
    asked: dict[str, Any], deployment: dict[str, Any], sent: int | None, sent_in_all: int | None
) -> None:
    """A maximum in a member that the upstream does not know is none.

    Of a window the engine knows itself.
    """
    facts = factories.facts(**{"output_bound_tokens": None} | asked)
    found = bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**deployment),
        price=factories.price(),
        is_relied_on=True,
    )
    assert (found.output_cap_tokens, found.sent_output_tokens) == (sent, sent_in_all)


def test_hosted_tools_are_held_for_by_the_call() -> None:
    """A search costs by the call, and the model decides how often it searches."""
    search = Rate(kind=TokenKind.WEB_SEARCH, usd_per_mtok=Decimal(10_000))  # ten dollars a thousand
    priced = replace(factories.price(), rates=(*factories.price().rates, search))
    facts = factories.facts(
        features=frozenset({"hosted_tools"}), output_bound_tokens=1, body_bytes=0
    )
    route = Route(name="assistant", deployments=("one",))
    held = bound_of(facts, route=route, deployment=factories.deployment(), price=priced)
    assert held.nusd >= MOST_TOOL_CALLS * 10_000_000
    assert MOST_TOOL_CALLS > 10, "a request seldom makes ten"


def test_prompt_and_answer_count_together() -> None:
    """A limit of tokens per minute takes both."""
    assert bound(output_bound_tokens=50).tokens == 1114


def hard(
    price: Price, features: dict[str, str] | None = None, lifetimes: str = "none", **deployment: Any
) -> Bound:
    """The bound of a request of 1,000 bytes under a hard budget, by the places of its features."""
    named = features or {}
    asked = frozenset() if lifetimes == "none" else frozenset(lifetimes.split(","))
    facts = factories.facts(
        body_bytes=1000,
        output_bound_tokens=10,
        features=frozenset(named),
        named=tuple(named.items()),
        cache_lifetimes=asked,
    )
    made = {
        "provider": "openai",
        "model": "gpt-4o",
        "is_self_hosted": False,
        "context_window": 1000,
    }
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**(made | deployment)),
        price=price,
        is_relied_on=True,
        bounds_rounds=True,
    )


def priced(*kinds: TokenKind, tier: str | None = None) -> Price:
    """A price of a dollar for a million tokens, with more kinds at nine, and a tier."""
    plain = factories.price("1", "1")
    more = [Rate(kind=kind, usd_per_mtok=Decimal(9)) for kind in kinds]
    if tier is not None:
        more += [replace(rate, service_tier=tier) for rate in plain.rates]
    return replace(plain, rates=(*plain.rates, *more))


WRITE, HOUR = TokenKind.CACHE_WRITE, TokenKind.CACHE_WRITE_1H
SPOKEN, HEARD = TokenKind.AUDIO_OUTPUT, TokenKind.AUDIO_INPUT


@pytest.mark.parametrize(
    ("features", "price", "missing"),
    [
        ({"audio": "modalities"}, priced(), "audio_input_usd_per_mtok"),
        ({"audio": "modalities"}, priced(HEARD), "audio_output_usd_per_mtok"),
        ({"audio": "audio"}, priced(HEARD), "audio_output_usd_per_mtok"),
        ({"audio": "modalities"}, priced(HEARD, SPOKEN), None),
        ({"audio": "messages: input_audio"}, priced(SPOKEN), "audio_input_usd_per_mtok"),
        ({"audio": "messages: input_audio"}, priced(HEARD), None),
        ({"service_tier=priority": "service_tier"}, priced(), "service_tiers"),
        ({"service_tier=priority": "service_tier"}, priced(tier="priority"), None),
        ({"service_tier=fast": "speed"}, priced(tier="priority"), "service_tiers"),
        ({"service_tier=flex": "service_tier"}, priced(), None),
        ({"service_tier": "service_tier"}, priced(tier="priority"), "service_tiers"),
        ({"store": "store"}, priced(), None),
    ],
)
def test_a_kind_without_a_rate_has_no_bound(
    features: dict[str, str], price: Price, missing: str | None
) -> None:
    """Speech was held at the rate of text, and a dearer tier at that of the standard one."""
    found = hard(price, features)
    ((_, where),) = features.items()
    name = where.rpartition(": ")[2]
    expected = None if missing is None else Unpriced(where=where, field=missing, listed_as=name)
    assert (found.unpriced, found.is_certain) == (expected, missing is None)
    assert hard(price, features, is_self_hosted=True).unpriced is None
    assert hard(price, features, listed=frozenset({name})).unpriced is None


@pytest.mark.parametrize(
    ("provider", "model", "usd_per_mtok"),
    [
        ("openai", "gpt-5.6-sol", "1.25"),
        ("openai", "gpt-6", "1.25"),
        ("openai", "o5-mini", "1.25"),
        ("azure_openai", "chat-of-ours", "1.25"),  # a name of its own hides the model
        ("openrouter", "openai/gpt-5.10", "1.25"),
        *(
            ("openai", model, "1")
            for model in (
                "gpt-4o",
                "gpt-3.5-turbo",
                "gpt-5",
                "gpt-5-mini",
                "gpt-5.5",
                "gpt-5.4-pro",
            )
        ),
        *(("openai", model, "1") for model in ("o1", "o3-pro", "o4-mini", "gpt-oss-120b")),
        ("openrouter", "openai/gpt-4.1", "1"),
        ("openrouter", "mistralai/large", "1"),
        ("anthropic", "claude-opus-4-8", "1"),
    ],
)
def test_writes_to_a_cache_that_nobody_asked_for_are_held(
    provider: str, model: str, usd_per_mtok: str
) -> None:
    """A price of one's own without a rate of writes was held as input alone."""
    at = {"provider": provider, "model": model}
    if provider == "azure_openai":
        at["base_url"] = "https://one.openai.azure.com/openai/v1"
    answer_nusd = 10 * 1000
    held = hard(priced(), **at).nusd - answer_nusd
    assert 0 <= held - 1000 * Decimal(usd_per_mtok) * 1000 <= 2
    assert hard(priced(), **at, is_self_hosted=True).nusd - answer_nusd <= 1000 * 1000 + 2
    assert hard(priced(WRITE), **at).nusd - answer_nusd <= 9 * 1000 * 1000 + 2


@pytest.mark.parametrize(
    ("lifetimes", "price", "usd_per_mtok"),
    [
        ("none", priced(), "1"),
        ("", priced(), "1.25"),
        ("5m", priced(), "1.25"),
        ("30m", priced(), "1.25"),
        ("1h", priced(), "2"),
        ("5m,1h", priced(), "2"),
        ("?", priced(), "2"),
        ("5m", priced(WRITE), "9"),
        ("1h", priced(WRITE), "9"),
        ("1h", priced(WRITE, HOUR), "9"),
        ("1h", factories.price("1", "1", cache_write="1.25"), "2"),
        ("5m", factories.price("1", "1", cache_write="1.1"), "1.1"),
        ("?", factories.price("1", "1", cache_write="1.25"), "2"),
    ],
)
def test_writes_to_the_cache_are_held_at_the_listed_or_the_stated_rate(
    lifetimes: str, price: Price, usd_per_mtok: str
) -> None:
    """A price without their rate held them as plain input, and the provider bills up to twice."""
    found = hard(price, lifetimes=lifetimes)
    output = price.dearest(TokenKind.OUTPUT) * 10
    assert found.is_certain
    assert 0 <= found.nusd - (1000 * Decimal(usd_per_mtok) + output) * 1000 <= 2
    own = hard(price, lifetimes=lifetimes, is_self_hosted=True)
    assert own.nusd == hard(price).nusd


@pytest.mark.parametrize(
    ("provider", "model", "kind"),
    [
        *(
            ("gemini", model, TokenKind.IMAGE_OUTPUT)
            for model in (
                "gemini-2.0-flash-preview-image-generation",
                "gemini-2.5-flash-image",
                "gemini-3-pro-image-preview",
                "imagen-4.0-generate-001",
            )
        ),
        ("openai", "gpt-image-1", TokenKind.IMAGE_OUTPUT),
        ("openai", "chatgpt-image-latest", TokenKind.IMAGE_OUTPUT),
        ("openrouter", "google/gemini-2.5-flash-image", TokenKind.IMAGE_OUTPUT),
        ("openrouter", "openai/GPT-5-Image-mini", TokenKind.IMAGE_OUTPUT),
        ("xai", "grok-2-image-1212", TokenKind.IMAGE_OUTPUT),
        *(
            ("vertex", model, SPOKEN)
            for model in (
                "gemini-2.5-flash-native-audio-preview-09-2025",
                "gemini-2.5-pro-preview-tts",
                "gemini-live-2.5-flash",
            )
        ),
        ("openai", "gpt-4o-audio-preview", SPOKEN),
        ("openai", "gpt-audio-mini", SPOKEN),
        ("openai", "tts-1-hd", SPOKEN),
        ("gemini", "gemini-2.5-flash", None),
        ("openai", "gpt-4o", None),
        ("anthropic", "claude-opus-4-8", None),
    ],
)
def test_a_model_that_draws_or_speaks_unasked_needs_the_rate(
    provider: str, model: str, kind: TokenKind | None
) -> None:
    """Its pictures cost twelve times its text, and a plain request was held at the rate of text."""
    at = {"provider": provider, "model": model}
    if kind is None:
        assert hard(priced(), **at).is_certain
        return
    missing = Unpriced(where=f"model: {kind}", field=f"{kind}_usd_per_mtok", listed_as=kind)
    found = hard(priced(), **at)
    assert (found.unpriced, found.is_certain) == (missing, False)
    assert hard(priced(kind), **at).nusd >= 10 * 9 * 1000
    for more in ({"listed": frozenset({str(kind)})}, {"is_self_hosted": True}):
        assert hard(priced(), **at, **more).is_certain
    route = Route(name="assistant", deployments=("one",))
    vectors = factories.facts(Operation.EMBEDDINGS, output_bound_tokens=None)
    of = factories.deployment(is_self_hosted=False, **at)
    found = bound_of(vectors, route=route, deployment=of, price=priced(), bounds_rounds=True)
    assert found.unpriced is None, "vectors have no answer"


def test_a_lifetime_that_nothing_prices_has_no_bound() -> None:
    """OpenAI's list has no figure for twelve hours."""
    missing = hard(priced(), lifetimes="12h").unpriced
    assert missing == Unpriced(
        where="ttl=12h", field="cache_write_12h_usd_per_mtok", listed_as="ttl=12h"
    )
    assert hard(priced(TokenKind.CACHE_WRITE_12H), lifetimes="12h").is_certain


@pytest.mark.parametrize(
    ("model", "times", "more"),
    [
        ("gpt-4o-mini-2024-07-18", 34, {}),
        ("openai/gpt-4o-mini", 34, {"provider": "openrouter"}),
        ("gpt-4o", 1, {}),
        ("gpt-4o-mini", 1, {"is_self_hosted": True}),
    ],
)
def test_pictures_that_are_billed_beyond_the_window_are_held(
    model: str, times: int, more: dict[str, Any]
) -> None:
    """One at high detail costs up to 48,000 tokens there, and takes 1,500 of the window."""
    made = {
        "provider": "openai",
        "model": "gpt-4o",
        "is_self_hosted": False,
        "context_window": 1000,
    }
    deployment = factories.deployment(**(made | {"model": model} | more))
    route = Route(name="assistant", deployments=("one",))
    price = factories.price("1", "0")
    for capabilities, held in ((frozenset({"vision"}), times), (frozenset[str](), 1)):
        facts = factories.facts(body_bytes=2000, output_bound_tokens=10, capabilities=capabilities)
        found = bound_of(facts, route=route, deployment=deployment, price=price, bounds_rounds=True)
        assert found.input_tokens == 1000
        assert 0 <= found.nusd - 1_000_000 * held <= 4

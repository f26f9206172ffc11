"""Declares the prices of each provider by place, and finds the factor of a deployment's place. It
is on tokens, cached and written ones too, never on calls.

A provider's rules are asked in order, and the first one that matches counts. A rule without a
factor says that no page states it. Such a place, and one that no rule covers, takes the dearest
known factor of the provider's model, and is an estimate. The list's own rates are those of the
first place of each row: factor 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.domain.places.regions import GLOBAL, OTHER_PLACE
from gateway.domain.providers.facts import host_of, provider_facts_of

ONE = Decimal(1)
_TENTH_MORE = Decimal("1.1")
# Google and the cloud resellers of OpenAI name the location in the path of an address.
_LOCATION = re.compile(r"/locations/([^/]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRule:
    """One rule: the factor at some places for some models; None is unknown.

    `hosts` and `locations` (in the path) are patterns. `regions` are patterns of the policy's
    region, for providers whose address does not show the place. `geos` are the words in which an
    answer states its place. A condition that is empty always holds. `models` is a regular
    expression for the beginning of the model's name, in lower case. `is_most`: the factor is the
    dearest of several that the address cannot tell apart, so it is an estimate.
    """

    place: str
    source: str
    factor: Decimal | None = ONE
    hosts: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    geos: tuple[str, ...] = ()
    models: str = ""
    is_most: bool = False

    def is_for(self, model: str) -> bool:
        """Return True if the rule is about this model."""
        return re.match(self.models, model.lower()) is not None

    def is_at(self, host: str, location: str, region: str) -> bool:
        """Return True if the rule is about this place, as far as a request shows it in advance."""
        named = ((self.hosts, host), (self.locations, location), (self.regions, region))
        return not self.geos and all(
            not patterns or any(fnmatchcase(word, pattern) for pattern in patterns)
            for patterns, word in named
        )


class PlacePremium(NamedTuple):
    """The factor on the list's rates at one place, and the page that states it."""

    place: str
    factor: Decimal
    source: str
    is_estimated: bool = False

    @property
    def words(self) -> str:
        """Return the factor as a part of a price's source."""
        guess = "estimated, " if self.is_estimated else ""
        return f"tokens × {self.factor.normalize():f} at {self.place} ({guess}{self.source})"


NO_PREMIUM = PlacePremium("", ONE, "")

_OPENAI = "https://developers.openai.com/api/docs/guides/data-residency, 2026-11-28"
# «for models released on or after March 5, 2026»: GPT-5.4 is the first one.
_BEFORE_MARCH_2026 = (
    r"(ft:)?(gpt-3|gpt-4|gpt-5($|:|-(?![4-9]))|gpt-5\.[1-3]($|[-.:])|chatgpt-4o|o[134]($|[-:])|ada|babbage"
    r"|curie|davinci|text-|tts-|whisper|gpt-oss|codex-mini|computer-use|gpt-audio|gpt-realtime($|-mini))"
)
_ANTHROPIC = "https://platform.claude.com/docs/en/api/service-tiers, 2026-11-28"
_BEFORE_CLAUDE_46 = (
    r"claude-(v?[12]|instant|3|(opus|sonnet|haiku)-4($|[-@]2|[-.][015]($|[-@:]))"
    r"|4-(opus|sonnet)($|-2)|4[-.][15]-)"
)
_VERTEX = "litellm 1.110.2, regional_endpoint_uplift_multiplier, 2026-11-28"
_VERTEX_CLAUDE = "https://docs.claude.com/en/docs/build-with-claude/claude-on-vertex-ai, 2026-11-28"
_AZURE = "Azure's retail price list of 2026-08-11 in azure-genai-prices 0.2.0, 2026-11-28"
_BEDROCK = "litellm 1.110.2, the entries of Bedrock by region, 2026-11-28"
_BY_PROFILE = "genai-prices lists the profile of each model by itself, 2026-11-28"
_MISTRAL = "https://docs.mistral.ai/studio/regional-inference, 2026-11-24"
_XAI = "https://docs.x.ai/developers/advanced-api-usage/regions.md, 2026-11-24"
_OPENROUTER = "https://openrouter.ai/docs/guides/features/in-region-routing, 2026-11-28"
_FIREWORKS = "https://docs.fireworks.ai/serverless/us-only-serverless.md, 2026-11-24"
# Models of Bedrock that the list names once for `global.` profiles and once for all others.
_LISTED_TWICE = (
    r"((us|eu|apac|au|jp|in|ca|uk|sa)\.)?(anthropic\.claude|claude|moonshotai\.kimi-k3|zai\.glm-5\.3"
    r"|openai\.gpt-(5\.6|6))"
)
_VERTEX_BEFORE_3 = (
    r"(gemini-(1|2|pro|flash-1|embedding|live-2)|text-|multimodal|gemma-[23]"
    r"|claude-(3|4-(opus|sonnet)|(opus|sonnet)-4($|[-@](2|[01]($|[-@])))))"
)
_VERTEX_CLAUDES = r"claude-"
_VERTEX_GEMINIS = r"gemini-(3\.1-flash|3\.[5-9]|4)"

PLACE_RULES: Mapping[str, tuple[PlaceRule, ...]] = {
    "openai": (
        PlaceRule(place="api.openai.com", hosts=("api.openai.com",), source=_OPENAI),
        PlaceRule(place="any host", models=_BEFORE_MARCH_2026, source=_OPENAI),
        PlaceRule(
            place="a regional host",
            hosts=("*.api.openai.com",),
            factor=_TENTH_MORE,
            source=_OPENAI,
        ),
    ),
    "azure_openai": (
        PlaceRule(place="a Global deployment", regions=(GLOBAL,), source=_AZURE),
        PlaceRule(
            place="a data zone or region of the EU or US",
            regions=(
                "eu",
                "us",
                "us-*",
                "eastus*",
                "westus*",
                "*centralus",
                "de",
                "es",
                "it",
                "pl",
            ),
            factor=_TENTH_MORE,
            source=_AZURE,
        ),
        PlaceRule(
            place="a data zone or region",
            is_most=True,
            regions=("au", "in", "kr"),
            factor=Decimal("1.2"),
            source=_AZURE,
        ),
        PlaceRule(
            place="a data zone or region",
            is_most=True,
            regions=("fr", "se", "ch", "gb", "uk", "ca", "jp", "no", "za", "ae"),
            factor=Decimal("1.21"),
            source=_AZURE,
        ),
        PlaceRule(
            place="a data zone or region",
            is_most=True,
            regions=("ie", "nl", "sg"),
            factor=Decimal("1.32"),
            source=_AZURE,
        ),
        PlaceRule(place="another place", factor=None, source=_AZURE),
    ),
    "anthropic": (
        PlaceRule(place="any place", models=_BEFORE_CLAUDE_46, source=_ANTHROPIC),
        PlaceRule(place="inference_geo global", geos=(GLOBAL, "not_available"), source=_ANTHROPIC),
        PlaceRule(
            place="inference_geo us",
            geos=("us",),
            factor=_TENTH_MORE,
            source=_ANTHROPIC,
        ),
        # The workspace's default decides; whoever needs the United States promises them.
        PlaceRule(place="inference_geo global", regions=(GLOBAL,), source=_ANTHROPIC),
        PlaceRule(place="an unstated place", factor=None, source=_ANTHROPIC),
    ),
    "vertex": (
        PlaceRule(place="the global endpoint", locations=(GLOBAL,), source=_VERTEX),
        PlaceRule(place="any endpoint", models=_VERTEX_BEFORE_3, source=_VERTEX),
        PlaceRule(
            place="a regional endpoint",
            hosts=("*aiplatform*.googleapis.com",),
            models=_VERTEX_CLAUDES,
            factor=_TENTH_MORE,
            source=_VERTEX_CLAUDE,
        ),
        PlaceRule(
            place="a regional endpoint",
            hosts=("*aiplatform*.googleapis.com",),
            models=_VERTEX_GEMINIS,
            factor=_TENTH_MORE,
            source=_VERTEX,
        ),
        PlaceRule(
            place="a regional endpoint",
            hosts=("*aiplatform*.googleapis.com",),
            factor=None,
            source=_VERTEX,
        ),
    ),
    "gemini": (
        PlaceRule(place="its one host", source="no page was found that states another, 2026-11-28"),
    ),
    "bedrock": (
        PlaceRule(place="its profile", models=r"global\.", source=_BY_PROFILE),
        PlaceRule(
            place="AWS GovCloud",
            is_most=True,
            hosts=("*.us-gov-*.amazonaws.com",),
            factor=Decimal("1.2"),
            source=_BEDROCK,
        ),
        PlaceRule(place="its profile", models=_LISTED_TWICE, source=_BY_PROFILE),
        PlaceRule(
            place="the United States",
            hosts=("bedrock-runtime*.us-*.amazonaws.com",),
            source=_BEDROCK,
        ),
        PlaceRule(
            place="Canada",
            is_most=True,
            hosts=("bedrock-runtime*.ca-*.amazonaws.com",),
            factor=Decimal("1.17"),
            source=_BEDROCK,
        ),
        PlaceRule(
            place="London",
            is_most=True,
            hosts=("bedrock-runtime*.eu-west-2.amazonaws.com",),
            factor=Decimal("1.6"),
            source=_BEDROCK,
        ),
        PlaceRule(
            place="Europe and Asia",
            is_most=True,
            hosts=("bedrock-runtime*.eu-*.amazonaws.com", "bedrock-runtime*.ap-*.amazonaws.com"),
            factor=Decimal("1.34"),
            source=_BEDROCK,
        ),
        PlaceRule(
            place="South America",
            is_most=True,
            hosts=("bedrock-runtime*.sa-*.amazonaws.com",),
            factor=Decimal("1.69"),
            source=_BEDROCK,
        ),
        PlaceRule(
            place="another region",
            hosts=("bedrock-runtime*.amazonaws.com",),
            factor=None,
            source=_BEDROCK,
        ),
    ),
    "mistral": (
        PlaceRule(place="api.mistral.ai", hosts=("api.mistral.ai",), source=_MISTRAL),
        PlaceRule(
            place="a regional host",
            hosts=("api.eu.mistral.ai", "api.us.mistral.ai"),
            factor=_TENTH_MORE,
            source=_MISTRAL,
        ),
    ),
    "xai": (
        PlaceRule(place="api.x.ai", hosts=("api.x.ai",), source=_XAI),
        PlaceRule(place="the US host", hosts=("us.api.x.ai",), factor=_TENTH_MORE, source=_XAI),
        PlaceRule(place="another regional host", hosts=("*.api.x.ai",), factor=None, source=_XAI),
    ),
    "fireworks": (
        PlaceRule(place="api.fireworks.ai", hosts=("api.fireworks.ai",), source=_FIREWORKS),
        PlaceRule(place="any host", models=r".*-us$", source=_FIREWORKS),  # listed by itself
        PlaceRule(
            place="the US host",
            hosts=("us.api.fireworks.ai",),
            factor=_TENTH_MORE,
            source=_FIREWORKS,
        ),
    ),
    "openrouter": (
        PlaceRule(place="openrouter.ai", hosts=("openrouter.ai",), source=_OPENROUTER),
        # The providers behind charge a tenth more in a region; its page has prices of its own.
        PlaceRule(
            place="a regional host",
            is_most=True,
            hosts=("*.openrouter.ai",),
            factor=_TENTH_MORE,
            source=_OPENROUTER,
        ),
    ),
    "groq": (
        PlaceRule(place="any place", source="no page was found that states another, 2026-11-28"),
    ),
    "deepseek": (
        PlaceRule(
            place="any place",
            source="https://api-docs.deepseek.com/quick_start/pricing states none, 2026-11-28",
        ),
    ),
    "together": (
        PlaceRule(place="any place", source="no page was found that states another, 2026-11-28"),
    ),
    "cerebras": (
        PlaceRule(
            place="any place",
            source="no page was found that states another, 2026-11-28",
        ),
    ),
}


def premium_at(provider: str, base_url: str, region: str, *, model: str) -> PlacePremium:
    """Return the factor of a deployment's place, before any answer states one.

    Without an address it is the list's own place. A server of somebody else's own (a proxy) is an
    unknown place, unless the policy says that its region is `global`.
    """
    row, host = PLACE_RULES.get(provider_facts_of(provider, base_url).name), host_of(base_url)
    if row is None or not host:
        return NO_PREMIUM
    location = _LOCATION.search(urlsplit(base_url).path)
    for rule in row:
        if rule.is_for(model) and rule.is_at(host, location[1] if location else "", region):
            return _premium(rule, row, host)
    return NO_PREMIUM if region == GLOBAL else _unknown(f"the unknown host {host}", row)


def stated_premiums(
    provider: str, base_url: str, *, model: str
) -> Iterator[tuple[str, PlacePremium]]:
    """Yield the factor of each geography that answers of a model may state, and that of any other
    one under `*`; nothing if no statement matters.
    """
    row = PLACE_RULES.get(provider_facts_of(provider, base_url).name, ())
    rules = [rule for rule in row if rule.is_for(model)]
    if not host_of(base_url) or not rules or not any(rule.geos for rule in rules):
        return
    if rules[0].is_at("", "", ""):  # one price everywhere
        return
    for rule in rules:
        for geo in rule.geos:
            yield geo, _premium(rule, row, "")
    yield OTHER_PLACE, _unknown("an unlisted inference_geo", row)


def factors_of(provider: str) -> Mapping[Decimal, str]:
    """Return the factors above 1 that a provider charges, each with its places and source."""
    found: dict[Decimal, str] = {}
    for rule in PLACE_RULES.get(provider, ()):
        if rule.factor is not None and rule.factor != ONE:
            found.setdefault(rule.factor, f"{rule.place} ({rule.source})")
    return found


def _premium(rule: PlaceRule, row: Sequence[PlaceRule], host: str) -> PlacePremium:
    """Return a rule's factor; the dearest of the provider's for a rule without one. A place that a
    host decides is called by the host.
    """
    place = host if rule.hosts else rule.place
    if rule.factor is None:
        return _unknown(place, row)
    return PlacePremium(place, rule.factor, rule.source, rule.is_most)


def _unknown(place: str, row: Sequence[PlaceRule]) -> PlacePremium:
    """Return the dearest known factor of a provider for a place that no rule prices."""
    dearest = max(row, key=lambda rule: rule.factor or ONE)
    factor = dearest.factor or ONE
    return PlacePremium(place, factor, dearest.source, is_estimated=factor != ONE)

"""Declares the bundled data on providers' hosts: the stated places of processing, storage and
telemetry, each with source and date.

Only sourced statements are here. A host whose name does not determine the place (Azure's
kinds of deployment, and any that is not listed) has no entry: for it the policy's own
statement counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase

from gateway.domain.places.regions import GLOBAL, UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement about a deployment besides its processing region. None: nothing is stated about
    that.

    `source` names the author or page, `as_of` the date; both or neither.
    """

    at_rest: str | None = None
    telemetry: str | None = None
    retention_days: int | None = None
    sub_processor: str | None = None
    source: str = ""
    as_of: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlace:
    """A host, or a pattern of hosts.

    `unknown` means that a search found no promise of a place.

    `caveat` is a contradicting statement on another page of the same provider.
    """

    host: str
    provider: str
    processing: str
    statement: Statement
    caveat: str = ""


_CHECKED = date(2026, 11, 20)
_OPENAI = "https://developers.openai.com/api/docs/guides/data-residency"
_ANTHROPIC = "https://platform.claude.com/docs/en/manage-claude/data-residency"
_VERTEX = "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/learn/locations"
_VERTEX_RESIDENCY = (
    "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/learn/data-residency"
)
_AI_STUDIO = "https://ai.google.dev/gemini-api/terms"
_VERTEX_TABLE = (
    "Google's page on locations says that an endpoint alone does not guarantee residency; see "
    f"whether {_VERTEX_RESIDENCY} lists your model"
)
# The guide names the region Europe and gives no list; the help page (2025) names these.
_OPENAI_HELP = (
    "OpenAI's help centre says 'the European Economic Area and Switzerland' of this host "
    "(https://help.openai.com/en/articles/10503543-data-residency-for-the-openai-api); where only "
    "the Union may process, see what your contract says, and name it in 'residency': 'source' and "
    "'as_of'"
)
_LATER = date(2026, 11, 24)
_MISTRAL = "https://docs.mistral.ai/studio/regional-inference"
_XAI = "https://docs.x.ai/developers/advanced-api-usage/regions.md"
_OPENROUTER = "https://openrouter.ai/docs/guides/features/in-region-routing"
_FIREWORKS = "https://docs.fireworks.ai/serverless/us-only-serverless.md"
_BEDROCK = "https://docs.aws.amazon.com/bedrock/latest/userguide/inference-profiles-support.html"
_OLLAMA = "https://docs.ollama.com/cloud"
_OLLAMA_HOST = "ollama.com"
_NO_SOURCE = "no primary source was found"


def _openai_region(region: str) -> KnownPlace:
    """Return the bundled facts about one regional host of OpenAI, for example
    `eu.api.openai.com`.
    """
    # Usage, billing and structured-output schemas are outside of its residency; its retention is
    # set per project.
    statement = Statement(at_rest=region, telemetry=GLOBAL, source=_OPENAI, as_of=_CHECKED)
    return KnownPlace(
        host=f"{region}.api.openai.com",
        provider="openai",
        processing=region,
        statement=statement,
        caveat=_OPENAI_HELP if region == "eu" else "",
    )


def _unplaced_host(
    host: str, provider: str, processing: str, source: str, *, as_of: date = _CHECKED
) -> KnownPlace:
    """Return the bundled facts about a host whose provider promises no single place: processing is
    `global` or `unknown`, nothing else is stated.
    """
    statement = Statement(source=source, as_of=as_of)
    return KnownPlace(host=host, provider=provider, processing=processing, statement=statement)


def _regional(
    host: str, provider: str, region: str, source: str, *, at_rest: str | None = None
) -> KnownPlace:
    """Return the facts about a host that processes in one region."""
    statement = Statement(at_rest=at_rest, source=source, as_of=_LATER)
    return KnownPlace(host=host, provider=provider, processing=region, statement=statement)


KNOWN_PLACES: tuple[KnownPlace, ...] = (
    *(_openai_region(region) for region in ("us", "eu", "au", "in", "jp")),
    _unplaced_host("api.openai.com", "openai", GLOBAL, _OPENAI),
    # Without `inference_geo`, which is not sent, inference runs anywhere; there is no value for the
    # EU.
    _unplaced_host("api.anthropic.com", "anthropic", GLOBAL, _ANTHROPIC, as_of=_LATER),
    _unplaced_host("aiplatform.googleapis.com", "google", GLOBAL, _VERTEX),
    # A multi-region processes within it, for the models in the table.
    *(
        KnownPlace(
            host=f"aiplatform.{region}.rep.googleapis.com",
            provider="google",
            processing=region,
            statement=Statement(source=_VERTEX_RESIDENCY, as_of=_LATER),
            caveat=_VERTEX_TABLE,
        )
        for region in ("eu", "us")
    ),
    _unplaced_host("generativelanguage.googleapis.com", "google", GLOBAL, _AI_STUDIO),
    # "Endpoints don't guarantee residency": a table by model decides.
    _unplaced_host("*-aiplatform.googleapis.com", "google", UNKNOWN, _VERTEX),
    _unplaced_host("*.groq.com", "groq", UNKNOWN, _NO_SOURCE),
    # The host names where a request enters. The model's name decides where it runs: a profile
    # (`eu.`, `us.`, `global.`) runs it in any region of its group.
    _unplaced_host("bedrock-runtime.*.amazonaws.com", "bedrock", UNKNOWN, _BEDROCK, as_of=_LATER),
    # Regional inference is chosen by the host; storage is not in its promise.
    _regional("api.eu.mistral.ai", "mistral", "eu", _MISTRAL),
    _regional("api.us.mistral.ai", "mistral", "us", _MISTRAL),
    _unplaced_host("api.mistral.ai", "mistral", GLOBAL, _MISTRAL),
    # "The US guarantee covers API request handling, inference, moderation, and retained request
    # data"; without it "the processing location is not guaranteed".
    _regional("us.api.x.ai", "xai", "us", _XAI, at_rest="us"),
    _unplaced_host("api.x.ai", "xai", GLOBAL, _XAI),
    # Its European host routes within the EEA, the United Kingdom and Switzerland.
    _unplaced_host("*.openrouter.ai", "openrouter", UNKNOWN, _OPENROUTER, as_of=_LATER),
    _unplaced_host("openrouter.ai", "openrouter", GLOBAL, _OPENROUTER, as_of=_LATER),
    _unplaced_host("api.fireworks.ai", "fireworks", UNKNOWN, _FIREWORKS),
    _unplaced_host("api.together.ai", "together", UNKNOWN, _NO_SOURCE),
    _unplaced_host("api.together.xyz", "together", UNKNOWN, _NO_SOURCE),
    _unplaced_host("api.deepseek.com", "deepseek", UNKNOWN, _NO_SOURCE),
    _unplaced_host("api.cerebras.ai", "cerebras", UNKNOWN, _NO_SOURCE),
    _unplaced_host(_OLLAMA_HOST, "ollama", UNKNOWN, _OLLAMA, as_of=date(2026, 11, 29)),
)
KNOWN_PROVIDERS = frozenset(place.provider for place in KNOWN_PLACES)
_MAY_BE_OLLAMA = frozenset({"ollama", "openai_compatible"})


def known_place(host: str) -> KnownPlace | None:
    """Return the bundled facts about a host in lower case, None for an unknown host."""
    return next((place for place in KNOWN_PLACES if fnmatchcase(host, place.host)), None)


def cloud_place(provider: str, host: str, model: str) -> KnownPlace | None:
    """Return the bundled facts about Ollama's cloud if a deployment's model runs there; else None.

    A server of Ollama sends a request for such a model on, whatever its own address is.
    """
    is_there = host == _OLLAMA_HOST or names_cloud_model(provider, model)
    return known_place(_OLLAMA_HOST) if is_there else None


def names_cloud_model(provider: str, model: str) -> bool:
    """Return True if Ollama, or a server of OpenAI's dialect that may be one, sends requests for
    this model on to its cloud.

    The tag decides: `cloud`, or one that ends in `-cloud` (ollama, internal/modelref). A name that
    ends so without a tag counts at Ollama alone; `NAME:latest` is the same model, kept locally.
    """
    name, _, tag = model.strip().lower().rpartition(":")
    if name and "/" not in tag:
        return provider in _MAY_BE_OLLAMA and (tag == "cloud" or tag.endswith("-cloud"))
    return provider == "ollama" and tag.endswith("-cloud")

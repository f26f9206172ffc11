"""The providers' statements about their hosts, written down from their pages once more.

Shares no code with the gateway's table. `company` is a name by which a rule may deny the host,
`provider` the dialect's own name. A host of Azure's or a model of Bedrock's does not name its
place: the kind of deployment (global, data zone, regional) or the profile (`eu.`, `us.`, `global.`)
does, so the document alone can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIRST, LATER = "2026-11-20", "2026-11-24"


def _openai(region: str) -> dict[str, Any]:
    # https://developers.openai.com/api/docs/guides/data-residency
    return {
        "provider": "openai",
        "processing": region,
        "at_rest": region,
        "telemetry": "global",
        "as_of": FIRST,
    }


def _placeless(provider: str, processing: str, as_of: str = FIRST) -> dict[str, Any]:
    return {"provider": provider, "processing": processing, "as_of": as_of}


HOSTS: Mapping[str, Mapping[str, Any]] = {
    "api.openai.com": _placeless("openai", "global"),
    **{f"{one}.api.openai.com": _openai(one) for one in ("us", "eu", "au", "in", "jp")},
    # Named in OpenAI's SDK, and nothing is stated about it.
    "ae.api.openai.com": {"provider": "openai"},
    # Without `inference_geo`: https://platform.claude.com/docs/en/manage-claude/data-residency
    "api.anthropic.com": _placeless("anthropic", "global", LATER),
    # https://ai.google.dev/gemini-api/terms
    "generativelanguage.googleapis.com": _placeless("gemini", "global"),
    # https://docs.cloud.google.com/vertex-ai/generative-ai/docs/learn/locations: the location
    # `global` is at the first one; an endpoint of a region guarantees no residency.
    "aiplatform.googleapis.com": _placeless("vertex", "global"),
    "europe-west4-aiplatform.googleapis.com": _placeless("vertex", "unknown"),
    "us-central1-aiplatform.googleapis.com": _placeless("vertex", "unknown"),
    # .../learn/data-residency: a multi-region processes within it.
    "aiplatform.eu.rep.googleapis.com": _placeless("vertex", "eu", LATER),
    "aiplatform.us.rep.googleapis.com": _placeless("vertex", "us", LATER),
    # https://docs.aws.amazon.com/bedrock/latest/userguide/inference-profiles-support.html
    "bedrock-runtime.eu-central-1.amazonaws.com": _placeless("bedrock", "unknown", LATER),
    "bedrock-runtime.us-east-1.amazonaws.com": _placeless("bedrock", "unknown", LATER),
    "payments.openai.azure.com": {"provider": "azure_openai"},
    "payments.services.ai.azure.com": {"provider": "azure_openai"},
    "payments.cognitiveservices.azure.com": {"provider": "azure_openai"},
    "api.groq.com": _placeless("groq", "unknown"),
    # https://docs.mistral.ai/studio/regional-inference
    "api.mistral.ai": _placeless("mistral", "global"),
    "api.eu.mistral.ai": _placeless("mistral", "eu", LATER),
    "api.us.mistral.ai": _placeless("mistral", "us", LATER),
    # https://docs.x.ai/developers/advanced-api-usage/regions.md
    "api.x.ai": _placeless("xai", "global"),
    "us.api.x.ai": {**_placeless("xai", "us", LATER), "at_rest": "us"},
    "eu-west-1.api.x.ai": {"provider": "xai"},
    # https://openrouter.ai/docs/guides/features/in-region-routing: the EEA, the United Kingdom
    # and Switzerland, which is no region of its own.
    "openrouter.ai": _placeless("openrouter", "global", LATER),
    "eu.openrouter.ai": _placeless("openrouter", "unknown", LATER),
    "api.fireworks.ai": _placeless("fireworks", "unknown"),
    "api.together.ai": _placeless("together", "unknown"),
    "api.together.xyz": _placeless("together", "unknown"),
    "api.deepseek.com": _placeless("deepseek", "unknown"),
    "api.cerebras.ai": _placeless("cerebras", "unknown"),
    # https://docs.ollama.com/cloud: no page names its places.
    "ollama.com": _placeless("ollama", "unknown", "2026-11-29"),
    "llm.partner.example": {},
}
# A document's statements of a host without a source of its own: the same place, or a larger one.
WIDER = {"eu": ("eu", "eea", "europe")}

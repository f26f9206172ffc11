"""Reads a request of any dialect into the members that the fake upstream goes by: those of
OpenAI's dialect, with `dialect` beside them.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from tests.fake_upstream.dialects.anthropic import AnthropicWording
from tests.fake_upstream.dialects.bedrock import BedrockWording
from tests.fake_upstream.dialects.gemini import GeminiWording
from tests.fake_upstream.dialects.ollama import OllamaWording
from tests.fake_upstream.dialects.triton import TritonWording
from tests.fake_upstream.dialects.wording import Wording
from tests.fake_upstream.faults import Behaviour
from tests.fake_upstream.openai import OpenAIWording

WORDINGS: dict[str, type[Wording]] = {
    "anthropic": AnthropicWording,
    "gemini": GeminiWording,
    "bedrock": BedrockWording,
    "ollama": OllamaWording,
    "triton": TritonWording,
}
_GEMINI = re.compile(r".*/models/([^/:]+):(generateContent|streamGenerateContent\?alt=sse)")
_BEDROCK = re.compile(r".*/model/([^/]+)/(converse|converse-stream)")
_TRITON = re.compile(r".*/v2/models/([^/]+)/(generate|generate_stream)")


def read_request(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a request; one of OpenAI's dialect stays as it is."""
    if path.partition("?")[0].endswith(("/v1/messages", "/v1/messages/count_tokens")):
        return {**body, "dialect": "anthropic"}
    if found := _GEMINI.fullmatch(path):
        config = body.get("generationConfig") or {}
        made = _made("gemini", body, found, config.get("maxOutputTokens"))
        return {**made, "n": config.get("candidateCount")}
    if found := _BEDROCK.fullmatch(path):
        return _made("bedrock", body, found, (body.get("inferenceConfig") or {}).get("maxTokens"))
    if found := _TRITON.fullmatch(path):
        return _made("triton", body, found, body.get("max_tokens"))
    if path == "/api/chat":
        most = (body.get("options") or {}).get("num_predict")
        is_stream = body.get("stream", True)  # Ollama streams unless it is told not to
        return {**body, "dialect": "ollama", "max_tokens": most, "stream": is_stream}
    return body


def wording_of(
    asked: dict[str, Any], *, number: int, model: str, behaviour: Behaviour
) -> Wording | OpenAIWording:
    """Return the words for an answer in the request's dialect."""
    dialect = asked.get("dialect")
    if dialect in WORDINGS:
        return WORDINGS[dialect](number=number, model=model, behaviour=behaviour)
    return OpenAIWording(
        number=number,
        model=model,
        behaviour=behaviour,
        options=asked.get("stream_options") or {},
        asks_timings=bool(asked.get("timings_per_token")),
        keeps=bool(asked.get("store", True)),
    )


def _made(
    dialect: str, body: dict[str, Any], found: re.Match[str], most: int | None
) -> dict[str, Any]:
    """Return the members of a request whose address names the model and the method."""
    is_stream = "stream" in found[2]
    named = {"dialect": dialect, "model": unquote(found[1]), "stream": is_stream}
    return {**body, **named, "max_tokens": most}

"""Shapes of the golden transcripts against the providers' own SDKs: each answer and event that a caller
gets, each request that Google and AWS get, and each member of a usage that we say they send.
"""  # noqa: E501

from __future__ import annotations

import json
from typing import Any

import botocore.session
import pytest
from anthropic.types import Message
from anthropic.types.beta import BetaUsage
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from botocore.validate import ParamValidator
from google.genai import types as google
from openai.types import CompletionUsage, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.oracles.transcripts import Transcript, transcripts

ALL = transcripts()
WHOLE = {"chat": ChatCompletion, "responses": Response, "messages": Message}
EVENTS = {
    "chat": TypeAdapter(ChatCompletionChunk),
    "responses": TypeAdapter(ResponseStreamEvent),
    "messages": TypeAdapter(RawMessageStreamEvent),
}
# Members that the SDKs' types of today lack, and their source.
NEWER = {"serviceTier": "the usage of both Google dialects; litellm 1.109.1 reads it, too"}
# Words of a provider that a pass-through keeps: Groq names its tier `on_demand`.
PASSED_THROUGH = dict.fromkeys(("groq/chat", "groq/chat-compound"), ("service_tier",))


@pytest.mark.parametrize("one", [one for one in ALL if one.case["operation"] in WHOLE], ids=str)
def test_an_answer_has_the_official_types(one: Transcript) -> None:
    """Strictly: no number as a text. Errors and pings of streams have no type: SDKs skip them."""
    operation = one.case["operation"]
    is_stream = not (one.folder / "answer.json").exists()
    for answer in map(known, one.answers):
        for member in PASSED_THROUGH.get(one.name, ()):
            answer.pop(member)
        if not is_stream:
            WHOLE[operation].model_validate_json(json.dumps(answer), strict=True)
        elif "error" not in answer and answer.get("type") not in ("error", "ping"):
            EVENTS[operation].validate_json(json.dumps(answer), strict=True)


@pytest.mark.parametrize("one", [one for one in ALL if one.name.startswith("bedrock/")], ids=str)
def test_a_request_is_valid_by_botocores_model(one: Transcript) -> None:
    """The service's own model refuses unknown members and wrong types."""
    service = botocore.session.Session().get_service_model("bedrock-runtime")
    shape = service.operation_model("Converse").input_shape
    report = ParamValidator().validate({"modelId": one.case["model"], **one.sent}, shape)
    assert not report.has_errors(), report.generate_report()


@pytest.mark.parametrize(
    "one", [one for one in ALL if one.name.startswith(("gemini/", "vertex/"))], ids=str
)
def test_a_request_is_valid_by_googles_types(one: Transcript) -> None:
    """They refuse unknown members."""
    kinds: dict[str, Any] = {
        "contents": TypeAdapter(list[google.Content]),
        "systemInstruction": TypeAdapter(google.Content),
        "tools": TypeAdapter(list[google.Tool]),
        "toolConfig": TypeAdapter(google.ToolConfig),
        "generationConfig": TypeAdapter(google.GenerationConfig),
        "safetySettings": TypeAdapter(list[google.SafetySetting]),
        "serviceTier": TypeAdapter(str),
    }
    for name, value in one.sent.items():
        kinds[name].validate_json(json.dumps(value))


@pytest.mark.parametrize("one", ALL, ids=str)
def test_a_usage_has_members_of_the_official_type(one: Transcript) -> None:
    """A transcript proves nothing by a member that no provider sends."""
    provider = one.name.partition("/")[0]
    body = one.upstream.read_bytes() if one.upstream.suffix != ".bin" else b""
    texts = [body] if one.upstream.suffix == ".json" else _events(body)
    for usage in (usage for text in texts for usage in _usages(json.loads(text))):
        if provider == "anthropic":
            assert set(usage) <= set(BetaUsage.model_fields)
        elif provider in ("gemini", "vertex"):
            known = {name: value for name, value in usage.items() if name not in NEWER}
            google.GenerateContentResponseUsageMetadata.model_validate_json(json.dumps(known))
        elif one.name == "openai/chat":
            CompletionUsage.model_validate_json(json.dumps(usage), strict=True)
        elif provider == "bedrock":
            service = botocore.session.Session().get_service_model("bedrock-runtime")
            assert set(usage) <= set(service.shape_for("TokenUsage").members)


@pytest.mark.parametrize(
    "one", [one for one in ALL if one.case["operation"] == "embeddings"], ids=str
)
def test_embeddings_have_the_official_type(one: Transcript) -> None:
    """Vectors in base64 are texts, which the type does not show."""
    for answer in one.answers:
        for item in answer["data"]:
            item["embedding"] = item["embedding"] if isinstance(item["embedding"], list) else [0.0]
        CreateEmbeddingResponse.model_validate(answer)


def known(answer: Any) -> Any:
    """Return an answer with a number for each count that is null because nothing states it."""
    if isinstance(answer, list):
        return [known(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    counts = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens")
    found = {name: known(value) for name, value in answer.items()}
    for name, value in found.items():
        if value is None and name in counts:
            found[name] = 1
        elif value is None and name == "input_tokens_details":
            found[name] = {"cached_tokens": 1}
        elif value is None and name == "output_tokens_details" and "total_tokens" in found:
            found[name] = {"reasoning_tokens": 1}
    if isinstance(details := found.get("input_tokens_details"), dict):
        details.setdefault("cache_write_tokens", 1)
    return found


def _events(body: bytes) -> list[bytes]:
    return [line[5:] for line in body.splitlines() if line.startswith(b"data: {")]


def _usages(value: Any) -> list[dict[str, Any]]:
    """Return each usage object in an upstream's JSON."""
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in ("usage", "usageMetadata") if isinstance(value.get(name), dict)]
    return own + [one for name in ("message",) for one in _usages(value.get(name))]

"""Each pair of a caller and an upstream's dialect: the plain answer of a content equals its stream,
and each kind of content that a dialect publishes is shown or named.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from openai.types.chat import ChatCompletionMessage

from gateway.wire.dialect import written
from tests.event_messages import event
from tests.oracles.foreign_answers import (
    CALLERS,
    PAIRS,
    PNG,
    TARGETS,
    Content,
    assembled,
    content_of,
    translated,
    writer_for,
)

SEEDS = range(150)
SPECS = Path(__file__).parents[2] / "oracles" / "requests" / "specs"
# Members of Google's parts that say more of the content in another one.
BESIDE_AT_GOOGLE = {
    *("thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"),
    *("documentMetadata", "spreadsheetMetadata", "audioMetadata", "speechMetadata"),
    "mediaProcessing",
}


def comparable(caller: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what only its plain form, or only its stream, has to have."""
    if caller == "messages":
        beside = ("cache_creation", "inference_geo", "service_tier")
        usage = answer["usage"]
        kept = {name for name in usage if name not in beside or usage[name] is not None}
        return answer | {"usage": {name: usage[name] for name in kept}}
    if caller == "responses":
        return answer
    choice = answer["choices"][0]
    message = {name: value for name, value in choice["message"].items() if value not in (None, "")}
    logprobs = choice["logprobs"]
    return {
        "head": [answer[name] for name in ("id", "created", "model")],
        "message": message | {"annotations": []},
        "logprobs": logprobs["content"] if isinstance(logprobs, dict) else logprobs,
        "finish_reason": choice["finish_reason"],
        "usage": answer.get("usage"),
    }


@pytest.mark.parametrize(("caller", "target"), PAIRS)
def test_a_plain_answer_equals_its_stream(caller: str, target: str) -> None:
    """However the stream is cut: a caller may not get less by asking for the other form."""
    for seed in SEEDS:
        plain, stream = translated(caller, TARGETS[target], seed, step=1 + seed * 7)
        assert comparable(caller, assembled(caller, stream)) == comparable(caller, plain), seed


@pytest.mark.parametrize(("caller", "target"), PAIRS)
def test_no_part_of_an_answer_is_lost(caller: str, target: str) -> None:
    """Its text and bytes stand in the answer, or its kind stands in `omitted`."""
    for seed in SEEDS:
        plain, _ = translated(caller, TARGETS[target], seed, step=10**6)
        text = json.dumps(plain, ensure_ascii=False)
        holder = plain["choices"][0]["message"] if caller == "chat" else plain
        for part in content_of(TARGETS[target], seed).parts:
            is_text = part.kind in ("text", "cited", "thought", "refusal")
            shown = part.name or (
                part.text if is_text or part.kind in ("sealed", "picture") else ""
            )
            if part.kind == "picture" and caller == "messages":
                shown = "image/png"
            elif not shown or part.kind == "cited":
                assert holder["omitted"], (seed, part)
            if part.kind == "sealed" and target == "bedrock":
                continue  # its bytes are encoded once more
            assert json.dumps(shown, ensure_ascii=False)[1:-1] in text, (seed, part)


def omitted(target: str, body: Any, *, caller: str) -> tuple[list[str], str]:
    """Return the names of the omitted content of a plain answer, and the answer."""
    events = TARGETS[target].events(json.dumps(body).encode())
    answer = json.loads(written(writer_for(caller).whole(events), lambda _: None))
    holder = answer["choices"][0]["message"] if caller == "chat" else answer
    return holder.get("omitted", []), json.dumps(holder)


def bedrock_shape(name: str) -> list[str]:
    """Return the members of a shape in AWS's own service model."""
    model: Any = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    return list(model.shape_for(name).members)


SHOWN_BY_BEDROCK = {
    "text": "canary",
    "toolUse": {"toolUseId": "t", "name": "canary", "input": {}},
    "reasoningContent": {"reasoningText": {"text": "canary"}},
    "image": {"format": "png", "source": {"bytes": PNG}},
    "citationsContent": {"content": [{"text": "canary"}]},
}


@pytest.mark.parametrize("kind", bedrock_shape("ContentBlock"))
def test_each_block_that_bedrock_publishes_is_shown_or_named(kind: str) -> None:
    """A block of tomorrow is named, too."""
    value = SHOWN_BY_BEDROCK.get(kind, {"of": "a kind"})
    body = {"output": {"message": {"content": [{kind: value}]}}, "stopReason": "end_turn"}
    names, text = omitted("bedrock", body, caller="chat")
    if kind in SHOWN_BY_BEDROCK:
        assert names == []
        assert "canary" in text or PNG in text
    else:
        assert names == [kind]


@pytest.mark.parametrize("kind", bedrock_shape("ContentBlockDelta"))
def test_each_piece_that_bedrock_publishes_is_shown_or_named(kind: str) -> None:
    """In a stream, citations and results of tools have pieces of their own."""
    starts: dict[str, Any] = {
        "image": {"image": {"format": "png"}},
        "toolUse": {"toolUse": {"toolUseId": "t", "name": "canary"}},
    }
    deltas: dict[str, Any] = {
        "text": "canary",
        "toolUse": {"input": "{}"},
        "reasoningContent": {"text": "canary"},
        "image": {"source": {"bytes": PNG}},
    }
    place = {"contentBlockIndex": 0}
    sent = [event("messageStart", {"role": "assistant"})]
    if kind in starts:
        sent.append(event("contentBlockStart", {**place, "start": starts[kind]}))
    value = deltas.get(kind, {"of": "a kind"})
    sent.append(event("contentBlockDelta", {**place, "delta": {kind: value}}))
    sent += [event("contentBlockStop", place), event("messageStop", {"stopReason": "end_turn"})]
    reader, writer = TARGETS["bedrock"].reader(), writer_for("chat")
    parts = writer.write([*reader.feed(b"".join(sent)), *reader.end()])
    text = b"".join(written(part, lambda _: None) for part in parts)
    found = assembled("chat", text)["choices"][0]["message"]
    assert found.get("omitted") == (None if kind in deltas else [kind])
    assert kind not in deltas or b"canary" in text or PNG.encode() in text


def google_part() -> list[str]:
    """Return the members of a part in Google's discovery document."""
    described = json.loads(
        gzip.decompress((SPECS / "google-generate-content.json.gz").read_bytes())
    )
    schema = described["schemas"]["GoogleCloudAiplatformV1beta1Part"]
    return sorted(schema["properties"])


@pytest.mark.parametrize("kind", google_part())
def test_each_part_that_google_publishes_is_shown_or_named(kind: str) -> None:
    shown: dict[str, Any] = {
        "text": "canary",
        "functionCall": {"name": "canary", "args": {}},
        "inlineData": {"mimeType": "image/png", "data": PNG},
    }
    part = {kind: shown.get(kind, {"of": "a kind"})}
    body = {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}
    names, text = omitted("gemini", body, caller="chat")
    if kind in shown:
        assert names == []
        assert "canary" in text or PNG in text
    else:
        assert names == ([] if kind in BESIDE_AT_GOOGLE else [kind])


def anthropic_blocks() -> list[str]:
    """Return the types of the blocks of Anthropic's answers."""
    described = json.loads(gzip.decompress((SPECS / "anthropic-messages.json.gz").read_bytes()))
    blocks = {name: one for name, one in described["$defs"].items() if name.endswith("Block")}
    kinds = (one["properties"].get("type", {}).get("const") for one in blocks.values())
    return sorted({kind for kind in kinds if kind})


@pytest.mark.parametrize("caller", ["chat", "responses"])
@pytest.mark.parametrize("kind", anthropic_blocks())
def test_each_block_that_anthropic_publishes_is_shown_or_named(kind: str, caller: str) -> None:
    shown: dict[str, Any] = {
        "text": {"text": "canary"},
        "thinking": {"thinking": "canary", "signature": "c2ln"},
        "redacted_thinking": {"data": "canary"},
        "tool_use": {"id": "t", "name": "canary", "input": {}},
    }
    body = {"content": [{"type": kind, **shown.get(kind, {})}], "stop_reason": "end_turn"}
    names, text = omitted("messages", body, caller=caller)
    assert names == ([] if kind in shown else [kind])
    assert kind not in shown or "canary" in text


@pytest.mark.parametrize("caller", ["messages", "responses"])
@pytest.mark.parametrize("kind", sorted({*ChatCompletionMessage.model_fields} - {"role"}))
def test_each_member_of_a_chat_message_is_shown_or_named(kind: str, caller: str) -> None:
    call = {"name": "canary", "arguments": "{}"}
    shown: dict[str, Any] = {
        "content": "canary",
        "refusal": "canary",
        "function_call": call,
        "tool_calls": [{"id": "t", "type": "function", "function": call}],
    }
    others = {"annotations": [{"type": "url_citation"}], "audio": {"data": "AAAA"}}
    message = {"role": "assistant", kind: (shown | others)[kind]}
    body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    names, text = omitted("chat", body, caller=caller)
    assert names == ([] if kind in shown else [kind])
    assert kind not in shown or "canary" in text


def test_every_caller_meets_every_other_dialect() -> None:
    """A dialect without a generator would be judged by nothing."""
    assert {caller for caller, _ in PAIRS} == {*CALLERS}
    assert all(isinstance(content_of(one, 1), Content) for one in TARGETS.values())

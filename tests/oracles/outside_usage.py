"""litellm reads the usage of each transcript as a client of the provider; every count that differs
from the hand-checked one is listed in `disagreements.json` with who is right and why.

litellm does not tell an unknown count from 0, so both are 0 here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no price list from the network

import litellm
import openai
import pytest

from tests.oracles.replay import replayed
from tests.oracles.transcripts import Transcript, transcripts

LISTED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("disagreements.json").read_text()
)
PREFIXES = {
    "vllm": "hosted_vllm",
    "lmstudio": "lm_studio",
    "together": "together_ai",
    "fireworks": "fireworks_ai",
    "bedrock": "bedrock/converse",
    "vertex": "gemini",
    "azure_openai": "openai",
    "sglang": "openai",
    "trtllm": "openai",
    "llamacpp": "openai",
    "triton": "openai",
    "openai_compatible": "openai",
    "ollama": "openai",
}
MODEL = "claude-sonnet-4-5-20250929"
NO_JUDGE = ("rerank", "score")  # litellm reports no tokens for them


def chosen(one: Transcript) -> str:
    """Return litellm's name of the model, which decides the dialect that it speaks."""
    provider, case = one.name.split("/")
    if one.case["operation"] == "messages":
        return f"anthropic/{MODEL}"
    if case.startswith("native-"):
        return "ollama_chat/m"
    if case.startswith("generate"):
        return "triton/m"
    if one.case["operation"] == "responses":
        return f"{PREFIXES.get(provider, provider)}/gpt-4.1"  # one that it knows to stream
    return f"{PREFIXES.get(provider, provider)}/{one.case.get('model', 'm')}"


def base(model: str, url: str) -> str:
    """Return the address that litellm takes as the API's base."""
    if model.startswith("triton/"):
        return f"{url}/generate"
    return (
        url if model.startswith(("ollama_chat", "bedrock", "gemini", "anthropic")) else f"{url}/v1"
    )


def read_by_litellm(one: Transcript) -> dict[str, Any]:
    """Return the usage object that litellm makes of the provider's bytes."""
    model = chosen(one)
    is_stream = one.upstream.suffix != ".json"
    with replayed(one.upstream) as url:
        common: dict[str, Any] = {
            "api_base": base(model, url),
            "api_key": "sk-oracle",
            "max_retries": 0,
            "timeout": 20,
        }
        if model.startswith("bedrock"):
            common = {
                "aws_bedrock_runtime_endpoint": url,
                "aws_access_key_id": "A",
                "aws_secret_access_key": "s",
                "aws_region_name": "eu-central-1",
                "timeout": 20,
            }
        messages = [{"role": "user", "content": "Hi"}]
        options = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
        operation = one.case["operation"]
        if operation == "embeddings":
            answer = litellm.embedding(model=model, input=["Hi"], **common)
        elif operation == "responses" and "responses-to-chat" not in one.name:
            answer = litellm.responses(model=model, input="Hi", stream=is_stream, **common)
            if is_stream:
                ended = [event for event in answer if hasattr(event, "response")]
                answer = ended[-1].response
        elif operation == "completions" and not model.startswith("triton"):
            name = "text-completion-openai/" + model.partition("/")[2]
            answer = litellm.text_completion(model=name, prompt="Hi", **options, **common)
            if is_stream:
                parts = [part.usage for part in answer if getattr(part, "usage", None)]
                return dict(parts[-1].model_dump()) if parts else {}
        else:
            answer = litellm.completion(model=model, messages=messages, **options, **common)
            if is_stream:
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
    usage = getattr(answer, "usage", None)
    return {} if usage is None else dict(usage.model_dump())


def normal(usage: dict[str, Any]) -> dict[str, int]:
    """Return litellm's counts under our names."""
    prompt = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    answer = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    tools = usage.get("server_tool_use") or {}
    counts = {
        "input_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
        "cached_input_tokens": prompt.get("cached_tokens"),
        "cache_write_tokens": prompt.get("cache_creation_tokens")
        or prompt.get("cache_write_tokens")
        or usage.get("cache_creation_input_tokens"),
        "cache_write_1h_tokens": (prompt.get("cache_creation_token_details") or {}).get(
            "ephemeral_1h_input_tokens"
        ),
        "audio_input_tokens": prompt.get("audio_tokens"),
        "image_input_tokens": prompt.get("image_tokens"),
        "output_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
        "reasoning_tokens": answer.get("reasoning_tokens"),
        "audio_output_tokens": answer.get("audio_tokens"),
        "image_output_tokens": answer.get("image_tokens"),
        "web_search_calls": tools.get("web_search_requests") or prompt.get("web_search_requests"),
    }
    return {name: count or 0 for name, count in counts.items()}


def differing(one: Transcript) -> dict[str, list[Any]]:
    """Return each count that differs: ours, then litellm's."""
    theirs, ours = normal(read_by_litellm(one)), one.case["usage"] or {}
    return {
        name: [ours.get(name) or 0, count]
        for name, count in theirs.items()
        if (ours.get(name) or 0) != count
    }


JUDGED = [one for one in transcripts() if one.case["operation"] not in NO_JUDGE]


@pytest.mark.parametrize("one", JUDGED, ids=str)
def test_litellm_reads_the_same_usage(one: Transcript) -> None:
    """Or differs as `disagreements.json` says."""
    listed = {
        entry["count"]: [entry["ours"], entry["theirs"]]
        for entry in LISTED
        if one.name in entry["cases"]
    }
    try:
        found = differing(one)
    except openai.APIError as failure:  # litellm raises for an answer that ends in an error
        found = {"raised": ["metered", type(failure).__name__]}
    # It counts a tool call's made-up id, too, so this figure differs with each run.
    varying = {name for name, (_, theirs) in listed.items() if theirs == "varies"}
    shown = {
        name: [ours, "varies"] if name in varying else [ours, theirs]
        for name, (ours, theirs) in found.items()
    }
    assert shown == listed


def test_each_disagreement_names_who_is_right() -> None:
    """And transcripts that exist."""
    names = {one.name for one in JUDGED}
    for entry in LISTED:
        assert set(entry["cases"]) <= names
        assert entry["right"] in ("ours", "theirs", "both")
        assert entry["why"]

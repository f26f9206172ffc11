"""The table of providers: one entry for each name that a deployment may have under `provider`.

Policy reader, price list, residency, abandoned answers and adapters read it. A provider with a
dialect that exists is one entry here and one folder of golden transcripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from gateway.domain.operation import OF_OPENAI, Operation


class OutputLimit(StrEnum):
    """The member that carries the maximum tokens of a chat's answer."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    BOTH = "both"

    @property
    def members(self) -> tuple[str, ...]:
        """Return the members that are set; of a chat's two members the other one is left out."""
        return _LIMIT_MEMBERS if self is OutputLimit.BOTH else (self.value,)


_LIMIT_MEMBERS = ("max_tokens", "max_completion_tokens")


OPENAI_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast"})


class RunningUsage(StrEnum):
    """The member that asks an upstream for its running usage, on every chunk of a stream."""

    USAGE = "continuous_usage_stats"  # in `stream_options`; answered by `usage`, per choice
    TIMINGS = "timings_per_token"  # llama.cpp's; answered by `timings`, per choice


class TextForms(StrEnum):
    """The forms in which a tokenizer may read a text."""

    NONE = "none"  # the bytes that were sent
    NFC = "nfc"
    ANY = "any"  # all of them, in any order: an unknown tokenizer's


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """One provider.

    `hosts` are patterns of its usual hosts. `addresses` are forms of its `base_url`, the usual one
    first; words in capitals stand for names of one's own. `is_engine`: deployments of it are
    self-hosted unless the policy says otherwise. `needs_key`: it refuses requests without a
    credential, which goes in `key_header`. `listed_as` is its name in the price list, None to find
    it by the address; `place_prices` has its prices by place.
    `bills_after_disconnect`: whether a stream that its caller closed is billed to its end; None
    if no source states it. `running_usage`: how it reports the usage of a stream on the way;
    None if it does not. `base_path` completes an address without a path. `refuses` are members
    of OpenAI's requests that make it refuse them. `needs_tool_choice`: without the member it
    calls no tool. `needs_declared_tools`: it refuses calls in earlier turns of a request without
    tools, so that these are declared. `most_call_id_chars` bounds the ids of tool calls, which have
    just as many letters and digits if `exact_call_ids`, and
    `most_stops` the stops of a chat. `checks_tools`: it refuses a tool with a long name, or with
    alternatives at the top of its schema. `takes_developer`: a message may have that role; else it
    goes as `system`, which that role replaced. `takes_schemas`: an answer may have a schema.
    `needs_thoughts`: a turn of the model that calls tools goes back with its thoughts.
    `takes_late_system`: system messages may stand between turns. `marks_prefix`: it continues a
    last turn of the model that is marked by `prefix`, and refuses any other. `documents_by_url`:
    the part of a document is a `document_url`. `tiers` are the service tiers of its chats.
    `switches_thinking`: its models think unless `thinking` is disabled, which no effort does, and
    refuse a forced call while they think. These, `output_limit`,
    `takes_stream_options` and the statuses with a meaning of their own are differences from
    OpenAI's API. `adapts_requests`: a request of an operation that it speaks may have to change for
    it. `native` are the operations that it speaks itself. `company` is set if it differs from the
    name: a residency rule may deny either.
    `takes_credentials` are the forms of `credentials` that it takes instead of a key: `ambient`,
    `keys`. `key_is_exchanged`: its key fetches access tokens, and goes in no header.
    `takes_api_version`: an address may go with a version of the API, in the query.
    `takes_conversations`: chats, responses and messages can be sent to it, translated at least.
    `is_own_dialect`: an address without a path is spoken to in a dialect of its own.
    `default_output_tokens` is the maximum of an answer that is sent where its dialect requires one
    and nothing else bounds it. `salted` are the operations whose requests take `cache_salt`, which
    keeps the cached prompts of one salt from those of another; `salts_if_stated`: older versions
    refuse it, so only a policy that says `prompt_cache: separate` sends it. `text_forms` are the
    forms in which its tokenizers read a text; without a source, any. `tier_header` is a header of
    its answers that states the served service tier. `reasoning_is_beside`: its chats count
    reasoning beside `completion_tokens`, which decides for a usage without a total; None if no
    source states it. `bills_refused` are the operations in which it bills a request whose content
    it refuses, `refusal_fees_usd` the fees of those that have one, and `refusal_words` are parts of
    the message of such an error if nothing else in it says so. `bills_too_long`: it may bill a
    prompt beyond the context window, too. `sources` say who states all this.
    """

    name: str
    title: str
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ("http://HOST:PORT/v1",)
    is_engine: bool = False
    needs_key: bool = False
    key_header: str = "authorization"
    listed_as: str | None = None
    bills_after_disconnect: bool | None = None
    running_usage: RunningUsage | None = None
    output_limit: OutputLimit = OutputLimit.BOTH
    takes_stream_options: bool = True
    refuses: frozenset[str] = frozenset()
    needs_tool_choice: bool = False
    needs_declared_tools: bool = False
    most_call_id_chars: int | None = None
    exact_call_ids: bool = False
    most_stops: int | None = None
    checks_tools: bool = False
    takes_developer: bool = True
    takes_late_system: bool = True
    marks_prefix: bool = False
    documents_by_url: bool = False
    tiers: frozenset[str] = OPENAI_TIERS
    takes_schemas: bool = True
    needs_thoughts: bool = False
    switches_thinking: bool = False
    base_path: str = ""
    context_length_statuses: frozenset[int] = frozenset()
    overloaded_statuses: frozenset[int] = frozenset()
    account_statuses: frozenset[int] = frozenset()
    sources: tuple[str, ...] = ()
    native: frozenset[Operation] = OF_OPENAI
    company: str = ""
    takes_credentials: tuple[str, ...] = ()
    key_is_exchanged: bool = False
    takes_api_version: bool = False
    is_own_dialect: bool = False
    takes_conversations: bool = True
    default_output_tokens: int | None = None
    salted: frozenset[Operation] = frozenset()
    salts_if_stated: bool = False
    text_forms: TextForms = TextForms.ANY
    tier_header: str | None = None
    bills_refused: frozenset[Operation] = frozenset()
    refusal_fees_usd: Mapping[Operation, Decimal] = field(default_factory=dict)
    bills_too_long: bool = False
    refusal_words: tuple[str, ...] = ()
    reasoning_is_beside: bool | None = None
    adapts_requests: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note whether any request has to change: nearly none, and each one asks."""
        adapts = (
            bool(self.refuses)
            or self.most_call_id_chars is not None
            or not self.takes_developer
            or self.is_own_dialect
        )
        object.__setattr__(self, "adapts_requests", adapts)

    @property
    def silence_is_standard(self) -> bool:
        """Return True if an answer that states no service tier was served in the standard one,
        whatever was asked for: an engine has no other. No page of a company says so of its own.
        """
        return self.is_engine

    def is_address_path(self, path: str) -> bool:
        """Return True if an address at one of its hosts may have this path."""
        written = (urlsplit(one).path for one in self.addresses)
        return any(re.fullmatch(re.sub("[A-Z]+", "[^/]+", one), path) for one in written)

    def may_lack_role(self, body: bytes) -> bool:
        """Return True if a body may have a role that the provider does not know. A search for the
        word costs a fraction of reading the body.
        """
        return not self.takes_developer and b'"developer"' in body

    def may_shorten_ids(self, body: bytes) -> bool:
        """Return True if a body may have ids of tool calls that are too long for the provider."""
        return self.most_call_id_chars is not None and b'"tool_call_id"' in body


OPENAI_COMPATIBLE = "openai_compatible"
# OpenRouter lists the providers that stop, and bill to there, when a stream is closed. Of those
# that it does not list as stopping, the whole answer is expected on the bill.
_STOPPING = "https://openrouter.ai/docs/api-reference/streaming, 2026-11-24"
# Members of OpenAI's chats and completions that no engine with a closed list of members knows.
_OF_ITS_PLATFORM = frozenset(
    {
        "audio",
        "client_metadata",
        "metadata",
        "modalities",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "verbosity",
        "web_search_options",
    }
)
# Chats with a longer id of a call were refused ("Expected a string with maximum length 40",
# https://github.com/BerriAI/litellm/issues/17343 and 18160); one of 51 letters passed in July 2026
# (https://github.com/vercel/ai/pull/17233). A short one passes at any rate.
_OPENAI_ID_CHARS = 40
_OPENAI_STOPS = 4  # `StopConfiguration` of its description
_MULTI_REGION = "aiplatform.*.rep.googleapis.com"
_OF_OPENAI_ITSELF = frozenset(
    {Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES, Operation.EMBEDDINGS}
)
_ENTRIES = (
    ProviderFacts(
        name="vllm",
        title="vLLM",
        reasoning_is_beside=False,
        is_engine=True,
        bills_after_disconnect=False,
        running_usage=RunningUsage.USAGE,
        native=OF_OPENAI | {Operation.MESSAGES},  # vllm 0.33.0, entrypoints/anthropic
        salted=(OF_OPENAI | {Operation.MESSAGES}) - {Operation.EMBEDDINGS},
    ),
    ProviderFacts(
        name="anthropic",
        title="Anthropic",
        addresses=("https://api.anthropic.com/v1",),
        hosts=("api.anthropic.com",),
        needs_key=True,
        key_header="x-api-key",
        listed_as="anthropic",
        context_length_statuses=frozenset({413}),
        native=frozenset({Operation.MESSAGES}),
        # The least that a model from Claude 4 on writes at most (Opus 4 and 4.1).
        default_output_tokens=32_000,
        sources=(
            "anthropic 2.13.0, types/ and _base_client.py, 2026-11-24",
            "https://platform.claude.com/docs/de/api/errors.md, 2026-11-24",
        ),
    ),
    ProviderFacts(
        name="openai",
        title="OpenAI",
        reasoning_is_beside=False,
        addresses=("https://api.openai.com/v1",),
        native=_OF_OPENAI_ITSELF,
        hosts=("api.openai.com", "*.api.openai.com"),
        needs_key=True,
        listed_as="openai",
        # Newer models refuse `max_tokens`, and all models refuse both.
        output_limit=OutputLimit.MAX_COMPLETION_TOKENS,
        most_call_id_chars=_OPENAI_ID_CHARS,
        most_stops=_OPENAI_STOPS,
        checks_tools=True,
        text_forms=TextForms.NONE,
        sources=(
            "https://github.com/openai/openai-openapi, commit f85dbe223d40, 2026-08-21",
            "tiktoken 0.14.0, core.py: it encodes the text as it is, 2026-11-28",
        ),
    ),
    ProviderFacts(
        name="azure_openai",
        title="Azure OpenAI",
        reasoning_is_beside=False,
        addresses=("https://NAME.openai.azure.com/openai/v1",),
        native=_OF_OPENAI_ITSELF,
        hosts=("*.openai.azure.com", "*.services.ai.azure.com", "*.cognitiveservices.azure.com"),
        needs_key=True,
        key_header="api-key",
        takes_credentials=("ambient",),
        takes_api_version=True,
        listed_as="azure",
        output_limit=OutputLimit.MAX_COMPLETION_TOKENS,
        most_call_id_chars=_OPENAI_ID_CHARS,
        most_stops=_OPENAI_STOPS,
        checks_tools=True,
        # A 400 of its content filter: "a charge for both the prompt and completion tokens will
        # occur" (azure-docs, articles/ai-services/openai/concepts/content-filter.md).
        bills_refused=_OF_OPENAI_ITSELF,
        # "A 400 error due to a content filter or input limit" may be charged (azure-docs,
        # articles/ai-services/openai/how-to/manage-costs.md, 2026-11-29).
        bills_too_long=True,
        sources=(
            "https://learn.microsoft.com/en-us/azure/foundry/openai/api-version-lifecycle, "
            "2026-11-24",
            "openai-python 3.57.0, lib/azure.py",
        ),
    ),
    ProviderFacts(
        name="groq",
        title="Groq",
        reasoning_is_beside=False,
        addresses=("https://api.groq.com/openai/v1",),
        native=frozenset({Operation.CHAT, Operation.RESPONSES, Operation.EMBEDDINGS}),
        hosts=("api.groq.com",),
        needs_key=True,
        listed_as="groq",
        bills_after_disconnect=True,
        output_limit=OutputLimit.MAX_COMPLETION_TOKENS,  # `max_tokens` is deprecated there
        overloaded_statuses=frozenset({498}),  # the flex tier is full
        sources=(
            "https://console.groq.com/docs/openai, 2026-11-24",
            "https://console.groq.com/docs/errors, 2026-11-24",
            "groq 1.7.0",
            _STOPPING,
        ),
    ),
    ProviderFacts(
        name="gemini",
        title="Gemini on AI Studio",
        addresses=(
            "https://generativelanguage.googleapis.com/v1beta",
            "https://generativelanguage.googleapis.com/v1",
        ),
        hosts=("generativelanguage.googleapis.com",),
        company="google",
        needs_key=True,
        key_header="x-goog-api-key",
        listed_as="google",
        # A request over its limit of priority is served, and billed, as standard.
        tier_header="x-gemini-service-tier",
        bills_after_disconnect=True,
        native=frozenset(),
        sources=(
            "google-genai 3.6.1",
            "https://ai.google.dev/api, 2026-11-24",
            "https://ai.google.dev/gemini-api/docs/priority-inference.md, 2026-11-28",
            _STOPPING,
        ),
    ),
    ProviderFacts(
        name="vertex",
        title="Gemini on Vertex AI",
        addresses=tuple(
            f"https://LOCATION-aiplatform.googleapis.com/{version}/projects/PROJECT/locations/LOCATION"
            for version in ("v1", "v1beta1")
        ),
        hosts=("*-aiplatform.googleapis.com", "aiplatform.googleapis.com", _MULTI_REGION),
        company="google",
        needs_key=True,  # a service account's, which is exchanged for an access token
        key_is_exchanged=True,
        takes_credentials=("ambient",),
        listed_as="google",
        bills_after_disconnect=True,
        native=frozenset(),
        sources=(
            "google-genai 3.6.1",
            "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/learn/locations, "
            "2026-11-24",
            _STOPPING,
        ),
    ),
    ProviderFacts(
        name="mistral",
        title="Mistral",
        reasoning_is_beside=False,
        addresses=("https://api.mistral.ai/v1",),
        native=frozenset({Operation.CHAT, Operation.RESPONSES, Operation.EMBEDDINGS}),
        hosts=("api.mistral.ai", "api.eu.mistral.ai", "api.us.mistral.ai"),
        needs_key=True,
        listed_as="mistral",
        bills_after_disconnect=True,
        # It refuses members that it does not know; its last chunk has usage anyway.
        output_limit=OutputLimit.MAX_TOKENS,
        takes_stream_options=False,
        refuses=_OF_ITS_PLATFORM - {"metadata", "prediction", "prompt_cache_key", "service_tier"}
        | {"logit_bias", "seed", "user"},
        # "Tool call id was X but must be a-z, A-Z, 0-9, with a length of 9", of most models.
        most_call_id_chars=9,
        exact_call_ids=True,
        takes_late_system=False,
        marks_prefix=True,
        documents_by_url=True,
        tiers=frozenset({"auto", "standard_only"}),
        takes_developer=False,  # mistralai 3.7.0: system, user, assistant, tool
        sources=(
            "https://docs.mistral.ai/studio/regional-inference, 2026-11-24",
            "mistralai 3.7.0, models/chatcompletionstreamrequest.py",
            "mistral_common 1.13.1, protocol/instruct/validator.py, 2026-11-29",
            _STOPPING,
        ),
    ),
    ProviderFacts(
        name="deepseek",
        title="DeepSeek",
        reasoning_is_beside=False,
        addresses=(
            "https://api.deepseek.com/v1",
            "https://api.deepseek.com",
        ),
        native=frozenset({Operation.CHAT}),
        hosts=("api.deepseek.com",),
        needs_key=True,
        listed_as="deepseek",
        output_limit=OutputLimit.MAX_TOKENS,
        takes_developer=False,  # "expected one of `system`, `user`, `assistant`, `tool`"
        takes_schemas=False,  # `text` and `json_object` alone
        needs_thoughts=True,
        switches_thinking=True,
        sources=(
            "https://platform.deepseek.com/api-docs, 2026-11-24",
            "https://api-docs.deepseek.com/guides/thinking_mode.md, 2026-11-29",
            "https://github.com/deepseek-ai/DeepSeek-V3/issues/1376 (forced calls), 2026-11-29",
            "https://github.com/llm-exe/llm-exe/issues/662 (schemas), 2026-11-29",
            "https://github.com/theopenco/llmgateway/pull/3462 (developer), 2026-11-29",
        ),
    ),
    ProviderFacts(
        name="openrouter",
        title="OpenRouter",
        reasoning_is_beside=False,
        addresses=("https://openrouter.ai/api/v1",),
        native=_OF_OPENAI_ITSELF,
        hosts=("openrouter.ai", "*.openrouter.ai"),
        needs_key=True,
        listed_as="openrouter",
        bills_after_disconnect=True,  # it depends on the provider behind it
        sources=("openrouter 1.3.84, components/chatrequest.py", _STOPPING),
    ),
    ProviderFacts(
        name="together",
        title="Together",
        addresses=("https://api.together.ai/v1",),
        native=frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.EMBEDDINGS}),
        hosts=("api.together.ai", "api.together.xyz"),
        needs_key=True,
        listed_as="together",
        output_limit=OutputLimit.MAX_TOKENS,
        context_length_statuses=frozenset({403}),
        sources=(
            "https://docs.together.ai/docs/error-codes, 2026-11-24",
            "together 3.1.1, types/chat/completion_create_params.py",
        ),
    ),
    ProviderFacts(
        name="fireworks",
        title="Fireworks",
        addresses=("https://api.fireworks.ai/inference/v1",),
        native=frozenset({Operation.CHAT, Operation.COMPLETIONS}),
        hosts=("api.fireworks.ai",),
        needs_key=True,
        listed_as="fireworks",
        output_limit=OutputLimit.MAX_TOKENS,  # both together are refused
        takes_developer=False,  # "system, user, or assistant" in its SDK's types
        account_statuses=frozenset({412}),  # suspended, or out of credit
        sources=(
            "https://docs.fireworks.ai/tools-sdks/openai-compatibility.md, 2026-11-24",
            "https://docs.fireworks.ai/troubleshooting/status_error_codes/inference_error_code, "
            "2026-11-24",
            "fireworks-ai 1.2.30",
        ),
    ),
    ProviderFacts(
        name="xai",
        title="xAI",
        reasoning_is_beside=True,
        addresses=("https://api.x.ai/v1",),
        native=frozenset({Operation.CHAT, Operation.RESPONSES}),
        hosts=("api.x.ai", "*.api.x.ai"),
        needs_key=True,
        listed_as="x-ai",
        output_limit=OutputLimit.MAX_TOKENS,
        # "For violations that are caught before generation in the Responses API, we will charge a
        # $0.05 usage guideline violation fee per request." The code is that of a missing right.
        # Elsewhere: "we will still charge for the generation of the request".
        bills_refused=frozenset({Operation.CHAT, Operation.RESPONSES}),
        refusal_fees_usd={Operation.RESPONSES: Decimal("0.05")},
        refusal_words=("violates usage guidelines", "SAFETY_CHECK_TYPE_"),
        sources=(
            "https://docs.x.ai/developers/advanced-api-usage/regions.md, 2026-11-24",
            "https://docs.x.ai/developers/cost-tracking.md, 2026-11-24",
            "https://docs.x.ai/docs/pricing, 2026-11-29",
        ),
    ),
    ProviderFacts(
        name="cerebras",
        title="Cerebras",
        addresses=("https://api.cerebras.ai/v1",),
        hosts=("api.cerebras.ai",),
        needs_key=True,
        listed_as="cerebras",
        output_limit=OutputLimit.MAX_COMPLETION_TOKENS,  # `max_tokens` is deprecated there
        native=frozenset({Operation.CHAT, Operation.COMPLETIONS}),
        sources=(
            "https://inference-docs.cerebras.ai/resources/openai, 2026-11-24",
            "https://inference-docs.cerebras.ai/support/error, 2026-11-24",
            "cerebras_cloud_sdk 1.91.0, types/chat/completion_create_params.py",
        ),
    ),
    ProviderFacts(
        name="bedrock",
        title="AWS Bedrock",
        addresses=("https://bedrock-runtime.REGION.amazonaws.com",),
        company="amazon",
        hosts=("bedrock-runtime.*.amazonaws.com",),
        needs_key=True,
        listed_as="aws",
        bills_after_disconnect=True,
        native=frozenset(),  # Converse is no caller's dialect
        needs_declared_tools=True,
        takes_credentials=("keys", "ambient"),
        tier_header="x-amzn-bedrock-service-tier",
        sources=(
            "botocore 1.44.8, data/bedrock-runtime/2023-09-30/service-2.json, 2026-11-24",
            "https://github.com/BerriAI/litellm/issues/36008, 2026-11-24",
            _STOPPING,
        ),
    ),
    ProviderFacts(
        name="sglang",
        title="SGLang",
        reasoning_is_beside=False,
        is_engine=True,
        bills_after_disconnect=False,
        running_usage=RunningUsage.USAGE,
        sources=(
            "sglang 0.5.23, srt/entrypoints/openai/protocol.py",
            "sglang 0.5.23, srt/entrypoints/openai/serving_chat.py",
            # Builds before 2026-04-21 ignore the salt.
            "https://github.com/sgl-project/sglang/pull/23300, 2026-11-28",
        ),
        salted=frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES}),
    ),
    ProviderFacts(
        name="trtllm",
        title="TensorRT-LLM's trtllm-serve",
        is_engine=True,
        bills_after_disconnect=False,
        running_usage=RunningUsage.USAGE,
        # Either member is taken, both together are refused.
        output_limit=OutputLimit.MAX_TOKENS,
        # `user` is known; `suffix` has a member and is refused.
        refuses=_OF_ITS_PLATFORM | {"function_call", "functions", "suffix"},
        # Before 2026 the choice was `none` by default; newer builds choose by themselves.
        needs_tool_choice=True,
        native=frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES}),
        # Its completions refuse the member, and so do the chats of older builds.
        salted=frozenset({Operation.CHAT}),
        salts_if_stated=True,
        sources=(
            "TensorRT-LLM, tensorrt_llm/serve/openai_protocol.py, commit 0076e9390e1e, 2026-11-24",
            "TensorRT-LLM, tensorrt_llm/serve/postprocess_handlers.py, commit 01bf19231d29",
        ),
    ),
    ProviderFacts(
        name="llamacpp",
        title="llama.cpp's llama-server",
        reasoning_is_beside=False,
        native=_OF_OPENAI_ITSELF | {Operation.RERANK},
        is_engine=True,
        bills_after_disconnect=False,
        running_usage=RunningUsage.TIMINGS,
        # Builds before 2026-02-23 ignore `max_completion_tokens`.
        sources=(
            "https://github.com/ggml-org/llama.cpp/pull/19831",
            "llama.cpp, tools/server/README.md, commit 00dc8057ab28",
        ),
    ),
    ProviderFacts(
        name="lmstudio",
        title="LM Studio",
        native=_OF_OPENAI_ITSELF,
        is_engine=True,
        bills_after_disconnect=False,
        sources=("https://lmstudio.ai/docs/api/openai-api, 2026-11-24",),
    ),
    ProviderFacts(
        name="ollama",
        title="Ollama",
        addresses=(
            "http://HOST:11434/v1",
            "http://HOST:11434",
        ),
        native=_OF_OPENAI_ITSELF,
        is_engine=True,
        bills_after_disconnect=False,
        # It ignores `max_completion_tokens`, and then nothing bounds the answer.
        output_limit=OutputLimit.MAX_TOKENS,
        base_path="/v1",  # its address is written without a path
        sources=(
            "ollama, openai/openai.go, commit fb3076099687, 2026-08-21",
            "ollama, server/routes.go, commit fb3076099687, 2026-08-21",
        ),
    ),
    ProviderFacts(
        name="triton",
        title="Triton's OpenAI frontend",
        addresses=(
            "http://HOST:9000/v1",
            "http://HOST:8000",
        ),
        is_engine=True,
        bills_after_disconnect=False,
        refuses=_OF_ITS_PLATFORM | {"parallel_tool_calls", "reasoning_effort"},
        takes_developer=False,  # its schema has no such role, and forbids others
        native=frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.EMBEDDINGS}),
        sources=(
            "triton-inference-server/server, python/openai/openai_frontend/schemas/openai.py, "
            "commit e1db8a603d86, 2026-08-19",
        ),
    ),
    # Servers know only the one member or only the other, and ignore unknown members.
    ProviderFacts(name=OPENAI_COMPATIBLE, title="another server of OpenAI's dialect"),
)
PROVIDERS: Mapping[str, ProviderFacts] = {entry.name: entry for entry in _ENTRIES}
# The same servers at an address without a path: they speak a dialect of their own there.
AT_ROOT: Mapping[str, ProviderFacts] = {
    "ollama": ProviderFacts(
        name="ollama",
        title="Ollama",
        is_engine=True,
        bills_after_disconnect=False,
        output_limit=OutputLimit.MAX_TOKENS,
        base_path="/v1",  # of the operations that go in OpenAI's dialect
        is_own_dialect=True,
        native=frozenset({Operation.COMPLETIONS, Operation.EMBEDDINGS}),
        sources=("ollama 0.6.3, _types.py", PROVIDERS["ollama"].sources[1]),
    ),
    "triton": ProviderFacts(
        name="triton",
        title="Triton's generate extension",
        is_engine=True,
        bills_after_disconnect=False,
        output_limit=OutputLimit.MAX_TOKENS,
        is_own_dialect=True,
        takes_conversations=False,  # it has no roles, and the template is the model's own
        native=frozenset({Operation.COMPLETIONS}),
        sources=(
            "triton-inference-server/server, docs/protocol/extension_generate.md, commit "
            "0bd93bc80166",
        ),
    ),
}


def provider_of(name: str, host: str) -> ProviderFacts:
    """Return the provider of a deployment. A host that the table knows says more than
    `openai_compatible` does.
    """
    known = provider_at(host) if name == OPENAI_COMPATIBLE else None
    return known or PROVIDERS[name]


def provider_at(host: str) -> ProviderFacts | None:
    """Return the provider whose usual host this is, None for any other host."""
    return next(
        (entry for entry in _ENTRIES if any(fnmatchcase(host, at) for at in entry.hosts)), None
    )

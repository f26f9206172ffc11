"""Lists the request fields that need a deployment's permission, by feature: they store, fetch or
send data elsewhere, or control the engine.

They are refused unless the chosen deployment lists the feature under `allows`. A field that is
neither here nor in `known_members` passes untouched if no residency rule applies; under one it
needs permission too.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.pricing.pricing import STANDARD_TIERS, tier_name


@dataclass(frozen=True, slots=True)
class Feature:
    """A kind of field that needs permission. `leaves_region` decides the error: 403 residency, else
    400.

    `members` are top-level members that need it for any value; `fields` are others that may need
    it.
    """

    name: str
    fields: tuple[str, ...]
    leaves_region: bool
    why: str
    members: tuple[str, ...] = ()


REROUTING = "rerouting"
# Of its members these name a place, whose price the answer's own statement selects.
PLACE_MEMBERS = frozenset({"inference_geo", "region", "region_name", "aws_region_name"})

FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature(
            "store",
            fields=("store",),
            members=("background", "deferred"),
            leaves_region=True,
            why="the provider would keep the answer",
        ),
        Feature(
            "stored_state",
            fields=("prompt", "file_id", "item_reference", "audio.id", "diagnostics"),
            members=(
                "previous_response_id",
                "conversation",
                "cached_content",
                "cachedContent",
                "thread",
            ),
            leaves_region=True,
            why="it fetches data kept elsewhere",
        ),
        Feature(
            "hosted_tools",
            fields=("tools",),
            members=(
                "web_search_options",
                "plugins",
                "search_parameters",
                "search_settings",
                "compound_custom",
                "enable_search",
                "search_options",
                "web_search",
                "data_sources",
                "dataSources",
                "mcp_servers",
                "container",
                "skills",
            ),
            leaves_region=True,
            why="a tool run by the provider sends data elsewhere",
        ),
        Feature(
            REROUTING,
            fields=("tools",),
            members=(
                "models",
                "route",
                "provider",
                "transforms",
                "fallbacks",
                "context_window_fallbacks",
                "context_window_fallback_dict",
                "content_policy_fallbacks",
                "api_base",
                "base_url",
                "api_key",
                "api_version",
                "api_type",
                "billing_policy",
                "fallback_credit_token",
                "organization",
                "custom_llm_provider",
                "model_list",
                "user_config",
                "extra_body",
                "extra_headers",
                "extra_query",
                "inference_geo",
                "region",
                "region_name",
                "aws_region_name",
                "aws_bedrock_runtime_endpoint",
                "vertex_project",
                "vertex_location",
                "vertex_credentials",
                "azure_ad_token",
            ),
            leaves_region=True,
            why="the upstream would send it to another model, account or place",
        ),
        Feature(
            "remote_media",
            fields=("messages", "input", "prompt", "instructions"),
            leaves_region=True,
            why="the upstream would fetch an address the caller names",
        ),
        Feature(
            "unknown_fields",
            fields=("any other member, under a residency rule",),
            leaves_region=True,
            why="the effect of this field is unknown, and a residency rule applies",
        ),
        Feature(
            "engine_control",
            fields=("chat_template_kwargs", "uuid", "image_embeds", "audio_embeds"),
            members=(
                "kv_transfer_params",
                "priority",
                "cache_salt",
                "chat_template",
                "request_id",
                "vllm_xargs",
                "mm_processor_kwargs",
                "media_io_kwargs",
                "data_parallel_rank",
                "ec_transfer_params",
                "prompt_embeds",
                "logits_processors",
                "structured_outputs",
                "lora_request",
                "prompt_logprobs",
                "use_beam_search",
                # SGLang (0.5.23), llama.cpp (0177c34227eb) and TensorRT-LLM (0076e9390e1e): the
                # siblings of vLLM's members above.
                "agent_hierarchy",
                "bootstrap_host",
                "bootstrap_port",
                "bootstrap_room",
                "conversation_params",
                "custom_logit_processor",
                "custom_params",
                "disagg_prefill_dp_rank",
                "disaggregated_params",
                "embed_overrides",
                "extra_key",
                "id_slot",
                "images_config",
                "injected_chat_template_kwargs",
                "item_embed_overrides",
                "lora",
                "lora_path",
                "query_embed_overrides",
                "response_fields",
                "rid",
                "routed_dp_rank",
                "session_params",
                "verbose",
                "video_config",
            ),
            leaves_region=False,
            why="it steers an engine that other teams share",
        ),
        Feature(
            "other_maximum",
            fields=("context_management", "input"),
            members=(
                "compaction",
                "n_predict",
                "num_predict",
                "max_new_tokens",
                "max_length",
                "max_gen_len",
                "max_tokens_to_sample",
                "max_output_length",
                "maxOutputTokens",
                "generationConfig",
                "generation_config",
                "sampling_params",
                "parameters",
                "options",
                "num_return_sequences",
                "candidate_count",
                "candidateCount",
                "num_beams",
                "beam_width",
            ),
            leaves_region=False,
            why="some servers let it overrule the maximum that budgets and limits rely on",
        ),
        Feature(
            "service_tier",
            fields=("service_tier", "speed"),
            leaves_region=False,
            why="this tier has another price, which is not known here",
        ),
        Feature(
            "audio",
            fields=("modalities", "messages", "input"),
            members=("audio",),
            leaves_region=False,
            why="audio tokens have no price here yet",
        ),
    )
}

# Members that make an upstream answer later or elsewhere, so that the usage comes after the answer:
# refused whatever is allowed. `background`: openai 3.57.0, types/responses/
# response_create_params.py. `deferred`: "create a chat completion, get a response_id, and retrieve
# the response at a later time" (docs.x.ai/docs/guides/deferred-chat-completions, 2026-11-29).
ANSWERED_LATER = frozenset({"background", "deferred"})

# Another model may answer, at another price, or a server may write more than the maximum that is
# sent.
WITHOUT_BOUND = frozenset({REROUTING, "other_maximum"})

# Top-level members that need permission for any value (null and false excepted).
FEATURE_OF_MEMBER: dict[str, str] = {
    member: feature.name for feature in FEATURES.values() for member in feature.members
}

# The needs that only a residency rule creates, and their permission: the effect of an unknown field
# cannot be known.
UNKNOWN_FIELDS, UNKNOWN_TOOLS = "unknown_fields", "unknown_tools"
NEEDED_UNDER_RULES = {UNKNOWN_FIELDS: "unknown_fields", UNKNOWN_TOOLS: "hosted_tools"}

# Tool types that the caller runs itself, and those that a provider runs on its own side. Any other
# type counts as unknown. Under a residency rule it needs `hosted_tools`; without one, tomorrow's
# types must work today.
OWN_TOOLS = frozenset({"function", "custom"})
HOSTED_TOOL_PREFIXES = (
    "browser",
    "codeexecution",
    "codeinterpreter",
    "collectionssearch",
    "enterprisewebsearch",
    "filesearch",
    "googlemaps",
    "googlesearch",
    "imagegeneration",
    "livesearch",
    "mcp",
    "openrouter:",
    "programmatictoolcalling",
    "retrieval",
    "urlcontext",
    "visitwebsite",
    "webfetch",
    "websearch",
    "wolfram",
    "xsearch",
)
# Of these the caller runs one: "The caller's browser state after a browser toolset member call"
# (anthropic 2.14.0, types/beta/beta_browser_state_block_param.py, 2026-11-29).
_RUN_BY_CALLER = "browsertoolset"
# The request's own members that bound the rounds of hosted tools, or release them: facts of
# `domain.providers.hosted_tools`.
ROUND_LIMITS = ("max_tool_calls", "max_turns", "stop_server_tools_when")
MOST_TOOL_NAME_CHARS = 64  # of a caller's type of a tool that is kept
# OpenAI runs `shell` in these, on the provider's side.
HOSTED_ENVIRONMENTS = ("container_auto", "container_reference")

# Keyword arguments of a chat template that reach the tokenizer's own parameters
# (GHSA-69j4-grxj-j64p).
TEMPLATE_CONTROLS = frozenset(
    {
        "chat_template",
        "conversation",
        "documents",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)

# Service tiers that prices name. A deployment whose price covers the tier may receive it without
# more permission: its feature then is `service_tier=flex`. Only these names count, so that a caller
# cannot invent features without end.
KNOWN_TIERS = frozenset({"flex", "priority", "scale", "fast", "performance"})
_TIER_MARK = "="


def is_hosted_tool(name: str) -> bool:
    """Return True if a tool's type, or the name of its member, means a tool that the provider runs.

    Providers spell the same tool `web_search`, `web-search` and `webSearch`.
    """
    folded = folded_tool(name)
    return folded.startswith(HOSTED_TOOL_PREFIXES) and not folded.startswith(_RUN_BY_CALLER)


def folded_tool(name: str) -> str:
    """Return a tool's type, or the name of its member, in the one spelling that tables use."""
    return name.lower().replace("-", "").replace("_", "")


def tier_feature(service_tier: str) -> str | None:
    """Return the feature that asking for this service tier needs; None for the standard one."""
    if service_tier in STANDARD_TIERS:
        return None
    name = tier_name(service_tier)
    return f"service_tier{_TIER_MARK}{name}" if name in KNOWN_TIERS else "service_tier"


def feature_and_tier(feature: str) -> tuple[str, str | None]:
    """Return a feature's name in `FEATURES`, and its service tier if it is a known tier's
    feature.
    """
    name, _, tier = feature.partition(_TIER_MARK)
    return name, tier or None

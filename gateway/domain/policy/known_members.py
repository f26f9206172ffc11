"""Lists the top-level request members that pass without permission under any rule, and folds
different spellings of a name into one.

Under a residency rule, a member that is neither here nor in `request_fields` needs permission: it
may route, fetch or store. A member that one operation knows is known on all, except those of rerank
and score: the contents of `input` are checked on chat as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.domain.policy.request_fields import FEATURE_OF_MEMBER
from gateway.domain.providers.members.effects import COUNTED

# The request schemas of https://github.com/openai/openai-openapi at commit f85dbe223d40
# (2026-08-21).
OPENAI_MEMBERS = frozenset(
    {
        "best_of",
        "context_management",
        "dimensions",
        "echo",
        "encoding_format",
        "frequency_penalty",
        "function_call",
        "functions",
        "include",
        "input",
        "instructions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "max_tool_calls",
        "messages",
        "metadata",
        "modalities",
        "model",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "suffix",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
        "verbosity",
    }
)
# Members that clients of the dialect also send: Codex (`client_metadata`), the AI SDK, LangChain
# and aider.
CLIENT_MEMBERS = frozenset(
    {
        "client_metadata",
        "enable_thinking",
        "include_reasoning",
        "prompt_mode",
        "random_seed",
        "reasoning_format",
        "safe_prompt",
        "thinking",
        "thinking_budget",
        "usage",
    }
)
# Sampling members of vLLM and llama.cpp: they only change how tokens are drawn or shown.
SAMPLING_MEMBERS = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "bad_words",
        "cache_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "ignore_eos",
        "include_stop_str_in_output",
        "input_type",
        "length_penalty",
        "min_p",
        "min_tokens",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "normalize",
        "repeat_penalty",
        "repetition_penalty",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "thinking_token_budget",
        "timings_per_token",
        "top_k",
        "truncate_prompt_tokens",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
    }
)
# The texts of rerank and score: the two sides of a pair, in vLLM's four spellings.
SCORED_TEXTS = (
    "query",
    "documents",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "queries",
    "items",
)
# Of rerank and score alone: vLLM 0.32 (entrypoints/pooling/scoring/protocol.py), Jina and Cohere.
# On a chat `documents` or `query` may be a search.
SCORING_MEMBERS = frozenset(
    {
        *SCORED_TEXTS,
        "instruction",
        "max_tokens_per_doc",
        "max_tokens_per_query",
        "padding",
        "return_documents",
        "top_n",
        "truncation_side",
        "use_activation",
    }
)
# The members of Anthropic's messages that neither fetch nor send anything (anthropic 2.13.0,
# types/message_create_params.py and types/beta/message_create_params.py, 2026-11-24).
ANTHROPIC_MEMBERS = frozenset(
    {
        "cache_control",
        "diagnostics",  # the request before, which it may name, needs `stored_state`
        "output_config",
        "output_format",
        "speed",
        "stop_sequences",
        "system",
    }
)
KNOWN_MEMBERS = OPENAI_MEMBERS | CLIENT_MEMBERS | SAMPLING_MEMBERS | ANTHROPIC_MEMBERS


def folded(name: str) -> str:
    """Return a name as the most tolerant parser compares it: `STREAM`, `ſtream` and `stream` are
    one name.

    Go folds case by Unicode (the long s, the Kelvin sign), Java also the Turkish i with and without
    its dot.
    """
    return name.upper().casefold().replace("\u0307", "")


def by_folded(names: Iterable[str]) -> Mapping[str, str]:
    """Return names by their folded form, to find the name that another spelling means."""
    return {folded(name): name for name in names}


NAMED_MEMBERS = by_folded([*KNOWN_MEMBERS, *SCORING_MEMBERS, *FEATURE_OF_MEMBER, *COUNTED])

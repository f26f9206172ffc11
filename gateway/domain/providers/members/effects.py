"""Judges the effect of each published member of a request on the bound of an attempt's tokens and
cost, and which members of members are known; a name without a judgement is not known.

`bench.member_tables` finds new names in newer schemas. A test holds that each one is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gateway.domain.operation import Operation


class Effect(StrEnum):
    """The effect of a member on the bound of an attempt."""

    NOTHING = "nothing"
    MULTIPLIES = "multiplies"  # the answers, or the passes over the prompt
    REPLACES_MAXIMUM = "replaces_maximum"
    ADDS_INPUT = "adds_input"
    UNBOUNDED = "unbounded"  # other models or fees, or no statement


_NAMES: Mapping[Effect, str] = {
    Effect.NOTHING: """
    _debug_render_only adaptive_decay adaptive_target add_generation_prompt
    add_special_tokens agent_hierarchy allowed_token_ids apply_softmax audio audioTimestamp
    audioTranscriptionConfig background backend_sampling bad_words bootstrap_host bootstrap_port
    bootstrap_room cache_control cache_prompt cache_salt chat_format chat_parser citation_options
    clear_thinking client_metadata compliance context_length_exceeded_behavior
    context_management continue_final_message conversation_params custom_labels
    custom_logit_processor custom_params
    data_parallel_rank debug detokenize diagnostics dimensions disable_reasoning
    disable_tool_validation disagg_prefill_dp_rank disaggregated_params dry_allowed_length dry_base
    dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range
    early_stopping ebnf ec_transfer_params echo echo_last embed_dtype embed_override_token_id
    embed_overrides enable_response_messages enable_thinking encoding_format endianness
    exclude_domains extra_key format frequencyPenalty frequency_penalty grammar grammar_lazy
    grammar_root grammar_triggers grammar_type guidelines id_slot ignore_eos images_config include
    include_domains include_reasoning include_stop_str_in_output injected_chat_template_kwargs
    input_type item_embed_overrides item_first keep_alive kv_transfer_params label_token_ids labels
    length_penalty logit_bias logprob_token_ids logprobs lora lora_path lora_request
    max_dynamic_patch max_tokens_per_doc max_tokens_per_query max_tool_calls max_turns
    mediaResolution media_io_kwargs metadata min_completion_tokens min_dynamic_patch min_keep min_p
    min_tokens mirostat mirostat_eta mirostat_lr mirostat_target mirostat_tau mm_payload
    mm_processor_kwargs modalities model modelId moderation n_cache_reuse n_discard n_indent n_keep
    n_probs no_stop_trim normalize output_config output_dimension output_dtype output_format
    padding parallel_tool_calls parse_tool_calls perf_metrics_in_response post_sampling_probs
    presencePenalty presence_penalty preserved_tokens priority prompt_cache_isolation_key
    prompt_cache_key prompt_cache_options prompt_cache_retention prompt_ignore_length
    prompt_logprobs prompt_mode prompt_truncate_len query_embed_overrides random_seed raw_output
    reasoning reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message
    reasoning_budget_start_tag reasoning_budget_tokens reasoning_control reasoning_effort
    reasoning_format reasoning_history regex repeat_last_n repeat_penalty repetition_detection
    repetition_penalty requestMetadata request_id responseLogprobs responseMimeType
    response_fields return_cached_tokens_details return_context_logits return_documents
    return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 return_hidden_states
    return_input_ids_in_sglext return_meta_info return_mm_kwargs return_output_ids_in_sglext
    return_pooled_hidden_states return_progress return_prompt_text return_prompt_token_ids
    return_raw_tokens return_routed_experts return_sampling_mask return_spec_tokens_details
    return_text return_token_ids return_token_logprobs return_token_offsets return_tokens
    return_tokens_as_token_ids return_weight_versions rid routed_dp_rank
    routed_experts_prompt_start routed_experts_start_len safe_prompt safe_tokenization
    safetySettings safety_identifier samplers sampling_logprobs_mode score_extraction_token seed
    separate_reasoning serviceTier service_tier session_id shift skip_special_tokens
    spaces_between_special_tokens speed sse_ping_interval stop stopSequences stop_regex
    stop_sequences stop_token_ids store store_messages stream stream_interval stream_options
    stream_reasoning structured_outputs t_max_predict_ms task temperature think thinking
    thinkingConfig thinking_budget thinking_token_budget timings_per_token toolConfig tool_choice
    topK topP top_a top_k top_logprobs top_n top_n_sigma top_p top_p_min top_prompt_logprobs trace
    truncate truncate_prompt_tokens truncation truncation_side typical_p usage use_activation
    use_audio_in_video use_beam_search use_encrypted_content user verbose verbosity video_config
    vllm_xargs watermark watermarking xtc_probability xtc_threshold
    """,
    # The readers count `n`, `best_of` and `n_cmpl`.
    Effect.MULTIPLIES: "agent_count best_of candidateCount n n_cmpl",
    Effect.REPLACES_MAXIMUM: """
    generationConfig inferenceConfig maxOutputTokens max_completion_tokens max_output_tokens
    max_tokens n_predict options
    """,
    # Those that stand in the body are bounded by its bytes, and those of `ELSEWHERE` by the window.
    Effect.ADDS_INPUT: """
    cachedContent chat_template chat_template_kwargs content contents conversation data_1 data_2
    documents function_call functions generation_prompt images input input_ids inputs instruct
    instruction instructions items json_schema messages outputConfig prediction
    previous_input_messages previous_response_id prompt promptVariables prompt_embeds
    prompt_token_ids prompt_token_ids_b64 queries query responseJsonSchema responseSchema
    response_format session_params speculation suffix system systemInstruction text text_1 text_2
    texts thread tools
    """,
    # Of OpenAI's, `access_programs` and `background_options` came after its last published
    # description; of OpenRouter's, the conditions that end its own tools may let them run longer.
    Effect.UNBOUNDED: """
    access_programs additionalModelRequestFields additionalModelResponseFieldPaths
    background_options billing_policy compaction compound_custom container
    continuationToken deferred_tools fallback_credit_token fallbacks guardrailConfig guardrails
    image imageConfig image_config inference_geo mcp_servers modelArmorConfig modelConfig
    model_parameters models performanceConfig plugins provider responseModalities routingConfig
    safety_model search_parameters search_settings speechConfig stop_server_tools_when
    web_search_options
    """,
}
EFFECTS: Mapping[str, Effect] = {
    name: effect for effect, names in _NAMES.items() for name in names.split()
}
# Members that the readers of OpenAI's dialect count, whatever the operation.
COUNTED = frozenset({"n", "best_of", "n_cmpl"})
# Members that state a budget of thinking, with the members of an object that do. A maximum above
# the budget includes it. Beside a smaller one the budget may count: with tools and interleaved
# thinking, Claude's may be above it, and then the context window is the limit
# (docs.anthropic.com/en/docs/build-with-claude/extended-thinking; AWS says the same of Bedrock).
# OpenRouter hands `reasoning.max_tokens` on to Claude (openrouter.ai/docs/use-cases/
# reasoning-tokens). An engine counts all tokens that it draws. 2026-11-29.
THINKING_BUDGETS: Mapping[str, tuple[str, ...]] = {
    "reasoning": ("max_tokens",),
    "reasoning_budget_tokens": (),
    "thinking": ("budget_tokens", "token_budget"),
    "thinking_budget": (),
    "thinking_token_budget": (),
}
# Members with input whose size the body does not show: an earlier prompt, encoded pictures or
# tensors, a conversation in another engine's form. The prompt then counts as the context window.
ELSEWHERE = frozenset({"session_params", "images", "previous_input_messages", "prompt_embeds"})
# The maximum that each operation has of its own; any other one may win over it.
OWN_MAXIMA: Mapping[Operation, frozenset[str]] = {
    Operation.CHAT: frozenset({"max_tokens", "max_completion_tokens"}),
    Operation.COMPLETIONS: frozenset({"max_tokens"}),
    Operation.RESPONSES: frozenset({"max_output_tokens"}),
    Operation.MESSAGES: frozenset({"max_tokens"}),
}

# The members of small objects that a bound relies on (OpenAI's description of 2026-08-21, openai
# 3.57.0, anthropic 2.13.0, openrouter 1.3.84, vllm 0.33.0, sglang 0.5.23, TensorRT-LLM of
# 0076e9390e1e; 2026-11-28). No other one is known to do nothing.
PARTS: Mapping[str, frozenset[str]] = {
    "stream_options": frozenset({"include_usage", "include_obfuscation", "continuous_usage_stats"}),
    "reasoning": frozenset(
        {"context", "effort", "enabled", "exclude", "generate_summary", "max_tokens", "mode"}
        | {"summary"}
    ),
    "thinking": frozenset(
        {"block_binding", "budget_tokens", "display", "effort", "include_thoughts", "keep", "type"}
        | {"clear_thinking"}
    ),
    "response_format": frozenset(
        {"ebnf", "format", "grammar", "json_schema", "name", "pattern", "regex", "schema"}
        | {"strict", "structures", "triggers", "type"}
    ),
    "text": frozenset({"format", "verbosity"}),
    "output_config": frozenset({"effort", "format", "task_budget"}),
    "output_format": frozenset({"type", "schema"}),
    "prompt_cache_options": frozenset({"mode", "ttl"}),
}
# The known values of members whose value chooses the treatment. Any other value but null is not
# known, of whatever type. `reasoning.mode: pro` has no statement on the maximum that bounds it, and
# each lifetime of the cache has its own price.
VALUES: Mapping[tuple[str, str], frozenset[str]] = {
    ("reasoning", "mode"): frozenset({"standard"}),
    ("thinking", "type"): frozenset({"adaptive", "auto", "between_tools", "disabled", "enabled"}),
    ("response_format", "type"): frozenset(
        {"ebnf", "grammar", "json", "json_object", "json_schema", "regex", "structural_tag"}
        | {"python", "text"}
    ),
    ("output_format", "type"): frozenset({"json_schema", "json_object", "text"}),
    ("prompt_cache_options", "mode"): frozenset({"explicit", "implicit"}),
    ("prompt_cache_options", "ttl"): frozenset({"12h", "30m"}),
}
# Edits of a context: those that leave something out, and those that need a permission.
EDITS = frozenset(
    {"clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112", "compaction"}
)
MODALITIES = frozenset({"text", "audio"})
# Betas of Anthropic's messages: those of the SDK (anthropic 2.13.0, types/anthropic_beta_param.py)
# and those that Claude Code 2.1.293 sends. A beta opens members and tools, which have rules of
# their own; the larger window needs a permission.
_BETAS = (
    "admin-user-sign-out-2026-10-08 advanced-tool-use-2025-11-20 advisor-tool-2026-03-01 "
    "afk-mode-2026-01-31 agent-memory-2026-07-22 analytics-usage-cost-2026-08-24 "
    "cache-diagnosis-2026-04-07 ce-claude-code-managed-settings-2026-10-06 ce-plugins-2026-09-01 "
    "ce-user-management-2026-07-13 claude-code-20250219 code-execution-2025-05-22 "
    "code-execution-2025-08-25 compact-2026-01-12 compact-2026-09-04 computer-use-2024-10-22 "
    "computer-use-2025-01-24 computer-use-2025-11-24 context-1m-2025-08-07 "
    "context-management-2025-06-27 dangerous-tool-use-2026-09-03 dev-full-thinking-2025-05-14 "
    "dreaming-2026-04-21 effort-2025-11-24 efs-2026-10-01 experimental-claude-tag-2026-10-21 "
    "extended-cache-ttl-2025-04-11 fallback-credit-2026-06-01 fallback-credit-2026-07-01 "
    "fast-mode-2026-02-01 files-api-2025-04-14 fine-grained-tool-streaming-2025-05-14 "
    "inline-tools-2026-09-15 interleaved-thinking-2025-05-14 managed-agents-2026-04-01 "
    "max-tokens-3-5-sonnet-2024-07-15 mcp-client-2025-04-04 mcp-client-2025-11-20 "
    "mcp-client-2026-09-15 mcp-tunnels-2026-06-22 message-batches-2024-09-24 "
    "message-threads-2026-08-12 mid-conversation-output-config-2026-07-01 "
    "mid-conversation-system-2026-04-07 mid-conversation-system-clear-at-2026-08-21 "
    "mid-conversation-tool-changes-2026-07-01 model-context-window-exceeded-2025-08-26 "
    "oauth-2025-04-20 output-128k-2025-02-19 output-300k-2026-03-24 pdfs-2024-09-25 "
    "per-turn-control-2026-07-01 prompt-caching-2024-07-31 prompt-caching-scope-2026-01-05 "
    "redact-thinking-2026-02-12 server-side-fallback-2026-06-01 server-side-fallback-2026-07-01 "
    "skills-2025-10-02 spend-limit-reads-2026-09-26 structured-outputs-2025-09-17 "
    "structured-outputs-2025-11-13 structured-outputs-2025-12-15 task-budgets-2026-03-13 "
    "telemetry-destinations-2026-08-11 thinking-binding-controls-2026-08-01 "
    "thinking-display-updates-2026-08-18 thinking-token-count-2026-05-13 "
    "token-counting-2024-11-01 token-efficient-tools-2025-02-19 tool-search-tool-2025-10-19 "
    "user-profiles-2026-03-24 user-profiles-2026-08-18 user-profiles-2026-09-04 "
    "user-profiles-billing-2026-10-01 web-fetch-2025-09-10 web-search-2025-03-05 "
    "webhooks-2026-10-07 "
)
BETAS = frozenset(_BETAS.split())


def is_bounded(operation: Operation, name: str) -> bool:
    """Return True if the hold of a request with this member is an upper bound of its cost; False
    for an effect that nothing counts, and for a name without a judgement.
    """
    effect = EFFECTS.get(name)
    return (
        effect is Effect.NOTHING
        or effect is Effect.ADDS_INPUT
        or (name in COUNTED and operation is not Operation.MESSAGES)
        or name in OWN_MAXIMA.get(operation, ())
    )

"""Lists the members of hosted providers' requests by provider and operation, as their published
schemas name them; judges none.

Made by `python -m bench.member_tables` on 2026-11-28: change that file instead.
"""

from __future__ import annotations

from collections.abc import Mapping

SOURCES: Mapping[str, str] = {
    "openai": ("openai-openapi, commit f85dbe223d40, 2026-08-21, and openai 3.57.0, types/"),
    "anthropic": (
        "anthropic 2.13.0, types/message_create_params.py and "
        "types/beta/message_create_params.py; the three sampling parameters of anthropic-version "
        "2023-06-01"
    ),
    "groq": ("groq 1.7.0, types/"),
    "mistral": ("mistralai 3.7.0, client/models/"),
    "openrouter": ("openrouter 1.3.84, components/"),
    "together": ("together 3.1.1, types/"),
    "fireworks": ("fireworks-ai 1.2.30, types/"),
    "xai": ("xai-sdk 1.21.0, proto/v6/chat_pb2.pyi (the same names as over REST)"),
    "cerebras": ("cerebras_cloud_sdk 1.91.0, types/"),
    "gemini": ("google-genai 3.6.1, models.py (the members that it writes)"),
    "bedrock": ("botocore, data/bedrock-runtime/2023-09-30/service-2.json"),
}
NAMES: Mapping[str, Mapping[str, str]] = {
    "openai": {
        "chat": (
            "audio frequency_penalty function_call functions logit_bias logprobs "
            "max_completion_tokens max_tokens messages metadata modalities model moderation n "
            "parallel_tool_calls prediction presence_penalty prompt_cache_key "
            "prompt_cache_options prompt_cache_retention reasoning_effort response_format "
            "safety_identifier seed service_tier stop store stream stream_options temperature "
            "tool_choice tools top_logprobs top_p user verbosity web_search_options"
        ),
        "completions": (
            "best_of echo frequency_penalty logit_bias logprobs max_tokens model n "
            "presence_penalty prompt seed stop stream stream_options suffix temperature top_p "
            "user"
        ),
        "responses": (
            "access_programs background background_options context_management conversation image "
            "include input instructions max_output_tokens max_tool_calls metadata model "
            "moderation parallel_tool_calls previous_response_id prompt prompt_cache_key "
            "prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier "
            "store stream stream_options temperature text tool_choice tools top_logprobs top_p "
            "truncation user"
        ),
        "embeddings": ("dimensions encoding_format input model user"),
    },
    "anthropic": {
        "messages": (
            "billing_policy cache_control compaction container context_management diagnostics "
            "fallback_credit_token fallbacks inference_geo max_tokens mcp_servers messages "
            "metadata model output_config service_tier speed stop_sequences stream system "
            "temperature thinking thread tool_choice tools top_k top_p"
        ),
    },
    "groq": {
        "chat": (
            "citation_options compound_custom disable_tool_validation documents exclude_domains "
            "frequency_penalty function_call functions include_domains include_reasoning "
            "logit_bias logprobs max_completion_tokens max_tokens messages metadata model n "
            "parallel_tool_calls presence_penalty reasoning_effort reasoning_format "
            "response_format search_settings seed service_tier stop store stream temperature "
            "tool_choice tools top_logprobs top_p user"
        ),
        "embeddings": ("encoding_format input model user"),
    },
    "mistral": {
        "chat": (
            "frequency_penalty guardrails logprobs max_tokens messages metadata min_tokens model "
            "n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_logprobs "
            "prompt_mode random_seed reasoning_effort repetition_penalty response_format "
            "safe_prompt service_tier stop stream temperature tool_choice tools top_k "
            "top_logprobs top_p top_prompt_logprobs"
        ),
        "embeddings": ("encoding_format input inputs metadata model output_dimension output_dtype"),
        "responses": (
            "background conversation input instructions max_output_tokens max_tool_calls metadata "
            "model moderation parallel_tool_calls previous_response_id prompt prompt_cache_key "
            "reasoning store stream temperature text tool_choice tools top_logprobs top_p "
            "truncation"
        ),
    },
    "openrouter": {
        "chat": (
            "cache_control debug deferred_tools frequency_penalty image_config logit_bias "
            "logprobs max_completion_tokens max_tokens messages metadata min_p modalities model "
            "models parallel_tool_calls plugins prediction presence_penalty prompt_cache_key "
            "prompt_cache_options provider reasoning reasoning_effort repetition_penalty "
            "response_format seed service_tier session_id stop stop_server_tools_when stream "
            "stream_options temperature tool_choice tools top_a top_k top_logprobs top_p trace "
            "user"
        ),
        "responses": (
            "background cache_control debug deferred_tools frequency_penalty image_config include "
            "input instructions max_output_tokens max_tool_calls metadata modalities model models "
            "parallel_tool_calls plugins presence_penalty previous_response_id prompt "
            "prompt_cache_key prompt_cache_options provider reasoning safety_identifier "
            "service_tier session_id stop stop_server_tools_when store stream temperature text "
            "tool_choice tools top_k top_logprobs top_p trace truncation user"
        ),
    },
    "together": {
        "chat": (
            "chat_template_kwargs compliance context_length_exceeded_behavior echo "
            "frequency_penalty function_call logit_bias logprobs max_tokens messages min_p model "
            "n presence_penalty reasoning reasoning_effort repetition_penalty response_format "
            "safety_model seed stop stream temperature tool_choice tools top_k top_p"
        ),
        "completions": (
            "echo frequency_penalty logit_bias logprobs max_tokens min_p model n presence_penalty "
            "prompt repetition_penalty safety_model seed stop stream temperature top_k top_p"
        ),
        "embeddings": ("input model"),
    },
    "fireworks": {
        "chat": (
            "context_length_exceeded_behavior echo echo_last frequency_penalty function_call "
            "functions ignore_eos logit_bias logprobs max_completion_tokens max_tokens messages "
            "metadata min_p mirostat_lr mirostat_target model n parallel_tool_calls "
            "perf_metrics_in_response prediction presence_penalty prompt_cache_isolation_key "
            "prompt_cache_key prompt_truncate_len raw_output reasoning_effort reasoning_history "
            "repetition_penalty response_format return_token_ids safe_tokenization seed "
            "service_tier speculation stop stream temperature thinking tool_choice tools top_k "
            "top_logprobs top_p typical_p user"
        ),
        "completions": (
            "context_length_exceeded_behavior echo echo_last frequency_penalty ignore_eos images "
            "logit_bias logprobs max_completion_tokens max_tokens metadata min_p mirostat_lr "
            "mirostat_target model n perf_metrics_in_response prediction presence_penalty prompt "
            "prompt_cache_isolation_key prompt_cache_key raw_output reasoning_effort "
            "reasoning_history repetition_penalty response_format return_token_ids seed "
            "service_tier speculation stop stream temperature thinking top_k top_logprobs top_p "
            "typical_p user"
        ),
    },
    "xai": {
        "chat": (
            "agent_count frequency_penalty guidelines include logprobs max_tokens max_turns "
            "messages model n parallel_tool_calls presence_penalty previous_response_id "
            "reasoning_effort response_format safety_identifier search_parameters seed "
            "service_tier stop store_messages stream temperature tool_choice tools top_logprobs "
            "top_p use_encrypted_content user"
        ),
    },
    "cerebras": {
        "chat": (
            "clear_thinking disable_reasoning frequency_penalty logit_bias logprobs "
            "max_completion_tokens max_tokens messages min_completion_tokens min_tokens model "
            "model_parameters n parallel_tool_calls prediction presence_penalty prompt_cache_key "
            "reasoning_effort reasoning_format response_format seed service_tier stop stream "
            "stream_options temperature tool_choice tools top_logprobs top_p user"
        ),
        "completions": (
            "best_of echo frequency_penalty grammar_root logit_bias logprobs max_tokens "
            "min_tokens model n presence_penalty prompt prompt_cache_key reasoning_format "
            "return_raw_tokens seed stop stream stream_options suffix temperature top_p user"
        ),
    },
    "gemini": {
        "generateContent": (
            "audioTimestamp audioTranscriptionConfig cachedContent candidateCount contents "
            "continuationToken frequencyPenalty generationConfig imageConfig labels logprobs "
            "maxOutputTokens mediaResolution modelArmorConfig modelConfig outputConfig "
            "presencePenalty responseJsonSchema responseLogprobs responseMimeType "
            "responseModalities responseSchema routingConfig safetySettings seed serviceTier "
            "speechConfig stopSequences systemInstruction temperature thinkingConfig toolConfig "
            "tools topK topP"
        ),
    },
    "bedrock": {
        "converse": (
            "additionalModelRequestFields additionalModelResponseFieldPaths guardrailConfig "
            "inferenceConfig messages modelId outputConfig performanceConfig promptVariables "
            "requestMetadata serviceTier system toolConfig"
        ),
    },
}

"""Lists the members of engines' requests by provider and operation, as their published
schemas name them; judges none.

Made by `python -m bench.member_tables` on 2026-11-28: change that file instead.
"""

from __future__ import annotations

from collections.abc import Mapping

SOURCES: Mapping[str, str] = {
    "vllm": ("vllm 0.33.0, entrypoints/"),
    "sglang": ("sglang 0.5.23, srt/entrypoints/openai/protocol.py"),
    "trtllm": ("TensorRT-LLM, tensorrt_llm/serve/openai_protocol.py, commit 0076e9390e1e"),
    "llamacpp": (
        "llama.cpp, tools/server/server-schema.cpp, commit 0177c34227eb, and server-common.cpp, "
        "commit 006639c3ff51"
    ),
    "ollama": (
        "ollama, openai/openai.go, openai/responses.go and api/types.go, commit fb3076099687, "
        "2026-08-21"
    ),
    "triton": (
        "triton-inference-server/server, python/openai/openai_frontend/schemas/openai.py, commit "
        "e1db8a603d86, 2026-08-19"
    ),
}
NAMES: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "chat": (
            "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt "
            "chat_template chat_template_kwargs continue_final_message documents "
            "ec_transfer_params echo frequency_penalty ignore_eos include_reasoning "
            "include_stop_str_in_output kv_transfer_params length_penalty logit_bias "
            "logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages "
            "min_p min_tokens mm_payload mm_processor_kwargs model n parallel_tool_calls "
            "presence_penalty priority prompt_logprobs reasoning_effort repetition_detection "
            "repetition_penalty request_id response_format return_mm_kwargs return_prompt_text "
            "return_token_ids return_token_offsets return_tokens_as_token_ids "
            "return_weight_versions routed_experts_prompt_start seed session_id "
            "skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream "
            "stream_interval stream_options structured_outputs temperature thinking_token_budget "
            "tool_choice tools top_k top_logprobs top_p truncate_prompt_tokens truncation_side "
            "use_beam_search user vllm_xargs watermarking"
        ),
        "completions": (
            "add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo "
            "frequency_penalty ignore_eos include_stop_str_in_output kv_transfer_params "
            "length_penalty logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens "
            "mm_payload model n presence_penalty priority prompt prompt_embeds prompt_logprobs "
            "repetition_detection repetition_penalty request_id response_format return_mm_kwargs "
            "return_token_ids return_token_offsets return_tokens_as_token_ids "
            "return_weight_versions routed_experts_prompt_start seed session_id "
            "skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream "
            "stream_interval stream_options structured_outputs suffix temperature "
            "thinking_token_budget top_k top_p truncate_prompt_tokens truncation_side "
            "use_beam_search user vllm_xargs watermarking"
        ),
        "responses": (
            "background cache_salt chat_template_kwargs ec_transfer_params "
            "enable_response_messages frequency_penalty ignore_eos include include_reasoning "
            "include_stop_str_in_output input instructions kv_transfer_params logit_bias "
            "max_output_tokens max_tool_calls media_io_kwargs metadata min_p mm_payload "
            "mm_processor_kwargs model parallel_tool_calls presence_penalty "
            "previous_input_messages previous_response_id priority prompt prompt_cache_key "
            "prompt_cache_options prompt_cache_retention reasoning repetition_penalty request_id "
            "return_mm_kwargs safety_identifier seed service_tier session_id skip_special_tokens "
            "spaces_between_special_tokens stop stop_token_ids store stream structured_outputs "
            "temperature text tool_choice tools top_k top_logprobs top_p truncation user "
            "vllm_xargs watermarking"
        ),
        "embeddings": (
            "add_generation_prompt add_special_tokens cache_salt chat_template "
            "chat_template_kwargs continue_final_message dimensions embed_dtype encoding_format "
            "endianness input media_io_kwargs messages mm_processor_kwargs model padding priority "
            "request_id truncate_prompt_tokens truncation_side use_activation user"
        ),
        "rerank": (
            "cache_salt chat_template_kwargs documents instruction max_tokens_per_doc "
            "max_tokens_per_query mm_processor_kwargs model padding priority query request_id "
            "top_n truncate_prompt_tokens truncation_side use_activation user"
        ),
        "score": (
            "cache_salt chat_template_kwargs data_1 data_2 documents instruction items "
            "max_tokens_per_doc max_tokens_per_query mm_processor_kwargs model padding priority "
            "queries request_id text_1 text_2 truncate_prompt_tokens truncation_side "
            "use_activation user"
        ),
        "messages": (
            "cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params max_tokens "
            "messages metadata mm_payload model output_config return_mm_kwargs stop_sequences "
            "stream system temperature thinking tool_choice tools top_k top_p vllm_xargs "
            "watermarking"
        ),
    },
    "sglang": {
        "chat": (
            "bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs "
            "continue_final_message custom_logit_processor custom_params data_parallel_rank "
            "disagg_prefill_dp_rank ebnf extra_key frequency_penalty ignore_eos images_config "
            "input_ids logit_bias logprobs lora_path max_completion_tokens max_dynamic_patch "
            "max_tokens messages min_dynamic_patch min_p min_tokens mm_processor_kwargs model n "
            "no_stop_trim parallel_tool_calls presence_penalty priority reasoning_effort regex "
            "repetition_penalty response_format return_cached_tokens_details "
            "return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 "
            "return_hidden_states return_input_ids_in_sglext return_meta_info "
            "return_output_ids_in_sglext return_prompt_token_ids return_routed_experts "
            "return_sampling_mask return_spec_tokens_details return_token_ids rid routed_dp_rank "
            "routed_experts_start_len sampling_logprobs_mode seed separate_reasoning session_id "
            "session_params skip_special_tokens stop stop_regex stop_token_ids stream "
            "stream_options stream_reasoning task temperature thinking tool_choice tools top_k "
            "top_logprobs top_p use_audio_in_video user video_config watermark"
        ),
        "completions": (
            "best_of bootstrap_host bootstrap_port bootstrap_room cache_salt custom_labels "
            "custom_logit_processor custom_params data_parallel_rank disagg_prefill_dp_rank ebnf "
            "echo extra_key frequency_penalty ignore_eos images_config json_schema logit_bias "
            "logprobs lora_path max_tokens min_p min_tokens mm_processor_kwargs model n "
            "no_stop_trim presence_penalty priority prompt regex repetition_penalty "
            "response_format return_cached_tokens_details return_hidden_states "
            "return_routed_experts return_spec_tokens_details return_token_ids rid routed_dp_rank "
            "routed_experts_start_len seed session_id session_params skip_special_tokens stop "
            "stop_regex stop_token_ids stream stream_options suffix temperature top_k top_p user "
            "watermark"
        ),
        "responses": (
            "background bootstrap_host bootstrap_port bootstrap_room cache_salt "
            "chat_template_kwargs data_parallel_rank disagg_prefill_dp_rank extra_key "
            "frequency_penalty include input instructions max_output_tokens max_tool_calls "
            "metadata min_p model parallel_tool_calls presence_penalty previous_response_id "
            "priority reasoning repetition_penalty request_id routed_dp_rank service_tier "
            "session_id stop store stream temperature text tool_choice tools top_k top_logprobs "
            "top_p truncation user"
        ),
        "embeddings": (
            "dimensions embed_override_token_id embed_overrides encoding_format input lora_path "
            "model priority rid user"
        ),
        "rerank": ("documents instruct query return_documents top_n"),
        "score": (
            "apply_softmax embed_override_token_id item_embed_overrides item_first items "
            "label_token_ids model query query_embed_overrides return_pooled_hidden_states "
            "return_token_logprobs score_extraction_token temperature"
        ),
    },
    "trtllm": {
        "chat": (
            "add_generation_prompt add_special_tokens agent_hierarchy best_of cache_salt "
            "chat_template chat_template_kwargs conversation_params detokenize "
            "disaggregated_params documents early_stopping echo frequency_penalty ignore_eos "
            "include_stop_str_in_output injected_chat_template_kwargs length_penalty logit_bias "
            "logprobs lora_request max_completion_tokens max_tokens media_io_kwargs messages "
            "min_p min_tokens mm_processor_kwargs model n parallel_tool_calls presence_penalty "
            "priority prompt_ignore_length prompt_token_ids prompt_token_ids_b64 reasoning_effort "
            "repetition_penalty response_format return_context_logits seed skip_special_tokens "
            "spaces_between_special_tokens stop stop_token_ids stream stream_options temperature "
            "thinking thinking_token_budget tool_choice tools top_k top_logprobs top_p top_p_min "
            "truncate_prompt_tokens use_beam_search user"
        ),
        "completions": (
            "add_special_tokens best_of conversation_params detokenize disaggregated_params "
            "early_stopping echo frequency_penalty ignore_eos include_stop_str_in_output "
            "length_penalty logit_bias logprobs lora_request max_tokens min_p min_tokens model n "
            "presence_penalty priority prompt prompt_ignore_length repetition_penalty "
            "response_format return_context_logits seed skip_special_tokens "
            "spaces_between_special_tokens stop stop_token_ids stream stream_options suffix "
            "temperature thinking_token_budget top_k top_p top_p_min truncate_prompt_tokens "
            "use_beam_search user"
        ),
        "responses": (
            "background include input instructions max_output_tokens max_tool_calls metadata "
            "model parallel_tool_calls previous_response_id prompt reasoning request_id "
            "service_tier store stream temperature text thinking_token_budget tool_choice tools "
            "top_logprobs top_p truncation user"
        ),
    },
    "llamacpp": {
        "chat": (
            "adaptive_decay adaptive_target add_generation_prompt backend_sampling cache_prompt "
            "chat_format chat_parser chat_template_kwargs continue_final_message "
            "dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers "
            "dynatemp_exponent dynatemp_range echo frequency_penalty generation_prompt grammar "
            "grammar_lazy grammar_triggers grammar_type id_slot ignore_eos json_schema logit_bias "
            "logprobs lora max_completion_tokens max_tokens messages min_keep min_p mirostat "
            "mirostat_eta mirostat_tau modalities model n n_cache_reuse n_cmpl n_discard n_indent "
            "n_keep n_predict n_probs parallel_tool_calls parse_tool_calls post_sampling_probs "
            "presence_penalty preserved_tokens reasoning_budget_end_tag reasoning_budget_end_tags "
            "reasoning_budget_message reasoning_budget_start_tag reasoning_budget_tokens "
            "reasoning_control reasoning_format repeat_last_n repeat_penalty response_fields "
            "response_format return_progress return_tokens samplers seed sse_ping_interval stop "
            "stream stream_options t_max_predict_ms temperature timings_per_token tool_choice "
            "tools top_k top_logprobs top_n_sigma top_p typical_p verbose xtc_probability "
            "xtc_threshold"
        ),
        "completions": (
            "adaptive_decay adaptive_target backend_sampling best_of cache_prompt chat_format "
            "chat_parser continue_final_message dry_allowed_length dry_base dry_multiplier "
            "dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range echo "
            "frequency_penalty generation_prompt grammar grammar_lazy grammar_triggers "
            "grammar_type id_slot ignore_eos json_schema logit_bias logprobs lora "
            "max_completion_tokens max_tokens min_keep min_p mirostat mirostat_eta mirostat_tau "
            "model n n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict n_probs "
            "parse_tool_calls post_sampling_probs presence_penalty preserved_tokens prompt "
            "reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message "
            "reasoning_budget_start_tag reasoning_budget_tokens reasoning_control "
            "reasoning_format repeat_last_n repeat_penalty response_fields return_progress "
            "return_tokens samplers seed sse_ping_interval stop stream stream_options suffix "
            "t_max_predict_ms temperature timings_per_token top_k top_n_sigma top_p typical_p "
            "verbose xtc_probability xtc_threshold"
        ),
        "responses": (
            "adaptive_decay adaptive_target add_generation_prompt backend_sampling cache_prompt "
            "chat_format chat_parser chat_template_kwargs continue_final_message "
            "dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers "
            "dynatemp_exponent dynatemp_range echo frequency_penalty generation_prompt grammar "
            "grammar_lazy grammar_triggers grammar_type id_slot ignore_eos input instructions "
            "json_schema logit_bias logprobs lora max_completion_tokens max_output_tokens "
            "max_tokens messages min_keep min_p mirostat mirostat_eta mirostat_tau modalities "
            "model n n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict n_probs "
            "parallel_tool_calls parse_tool_calls post_sampling_probs presence_penalty "
            "preserved_tokens previous_response_id reasoning reasoning_budget_end_tag "
            "reasoning_budget_end_tags reasoning_budget_message reasoning_budget_start_tag "
            "reasoning_budget_tokens reasoning_control reasoning_format repeat_last_n "
            "repeat_penalty response_fields response_format return_progress return_tokens "
            "samplers seed sse_ping_interval stop stream stream_options t_max_predict_ms "
            "temperature timings_per_token tool_choice tools top_k top_logprobs top_n_sigma top_p "
            "typical_p verbose xtc_probability xtc_threshold"
        ),
        "embeddings": ("content dimensions encoding_format input model user"),
        "rerank": ("documents model query return_text texts top_n"),
    },
    "ollama": {
        "chat": (
            "_debug_render_only frequency_penalty logprobs max_tokens messages model "
            "presence_penalty reasoning reasoning_effort response_format seed stop stream "
            "stream_options temperature tools top_logprobs top_p"
        ),
        "completions": (
            "_debug_render_only frequency_penalty logprobs max_tokens model presence_penalty "
            "prompt seed stop stream stream_options suffix temperature top_p"
        ),
        "responses": (
            "background conversation include input instructions max_output_tokens model reasoning "
            "stream temperature text tools top_p truncation"
        ),
        "embeddings": ("dimensions encoding_format input model"),
        "api/chat": (
            "_debug_render_only format keep_alive logprobs messages model options shift stream "
            "think tools top_logprobs truncate"
        ),
    },
    "triton": {
        "chat": (
            "frequency_penalty function_call functions ignore_eos logit_bias logprobs "
            "max_completion_tokens max_tokens messages min_tokens model n presence_penalty "
            "response_format seed stop stream stream_options temperature tool_choice tools "
            "top_logprobs top_p user"
        ),
        "completions": (
            "best_of echo frequency_penalty ignore_eos logit_bias logprobs max_tokens min_tokens "
            "model n presence_penalty prompt seed stop stream stream_options suffix temperature "
            "top_p user"
        ),
        "embeddings": ("dimensions encoding_format input model user"),
    },
}

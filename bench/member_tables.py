"""Writes `gateway/domain/providers/members/hosted.py` and `engines.py`: the members of each
provider's requests, read from the published schemas in a folder, without running them.

    pip download --no-deps --dest FOLDER anthropic==2.13.0 openai==3.57.0 groq==1.7.0 …
    python -m bench.member_tables FOLDER

The folder holds each package unpacked under its own name (`FOLDER/groq/groq/types/…`), OpenAI's
description as `openapi.json.gz`, and the files of `git` sources under `FOLDER/git`.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

DAY = "2026-11-28"
TARGET = Path(__file__).parents[1] / "gateway/domain/providers/members"
Read = Callable[[Path], Iterable[str]]


@dataclass(frozen=True)
class Schema:
    """A provider's schema: its source, and for each operation the readers of its members."""

    provider: str
    source: str
    operations: dict[str, tuple[Read, ...]]


def python(file: str, *classes: str) -> Read:
    """Return the reader of the annotated members of classes in a Python file, and of their bases
    there.
    """

    def read(folder: Path) -> Iterator[str]:
        tree = ast.parse((folder / file).read_text())
        found = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        todo = list(classes)
        while todo:
            node = found[todo.pop()]
            todo += [base.id for base in node.bases if isinstance(base, ast.Name)]
            todo = [name for name in todo if name in found]
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    names = (one.target.id, *_aliases(one))
                    yield from (name for name in names if not name.startswith("_"))

    return read


def _aliases(member: ast.AnnAssign) -> Iterator[str]:
    """Yield the names under which pydantic also reads a member."""
    for call in ast.walk(member):
        if isinstance(call, ast.Call):
            for word in call.keywords:
                if word.arg in ("alias", "validation_alias") and isinstance(
                    word.value, ast.Constant
                ):
                    yield str(word.value.value)


def json_schema(file: str, *names: str) -> Read:
    """Return the reader of the properties of schemas in an OpenAPI description."""

    def read(folder: Path) -> Iterator[str]:
        known = json.loads(gzip.decompress((folder / file).read_bytes()))["components"]["schemas"]
        todo = [known[name] for name in names]
        while todo:
            schema = todo.pop()
            if "$ref" in schema:
                todo.append(known[schema["$ref"].rsplit("/", 1)[-1]])
            todo += schema.get("allOf", ())
            yield from schema.get("properties", {})

    return read


def botocore(shape: str) -> Read:
    """Return the reader of the members of a shape of the Bedrock runtime in botocore."""

    def read(_: Path) -> Iterator[str]:
        import botocore.loaders

        model = botocore.loaders.Loader().load_service_model("bedrock-runtime", "service-2")
        yield from model["shapes"][shape]["members"]

    return read


def go(file: str, *structs: str) -> Read:
    """Return the reader of the JSON names of Go structs."""

    def read(folder: Path) -> Iterator[str]:
        text = (folder / file).read_text()
        for struct in structs:
            body = re.search(rf"^type {struct} struct {{\n(.*?)^}}", text, re.M | re.S)
            assert body is not None, struct
            yield from re.findall(r'`json:"([^",]+)', body[1])

    return read


def pattern(file: str, start: str, end: str, name: str) -> Read:
    """Return the reader of the names that a pattern finds in a part of a file."""

    def read(folder: Path) -> Iterator[str]:
        part = (folder / file).read_text().split(start, 1)[1].split(end, 1)[0]
        yield from re.findall(name, part)

    return read


def words(text: str) -> Read:
    """Return the reader of names that were read by hand, because no file of them is to be had."""
    return lambda _: text.split()


def _stainless(folder: str, *, chat: str = "CompletionCreateParamsBase") -> Read:
    return python(f"{folder}/types/chat/completion_create_params.py", chat)


# Arguments that the SDKs send as headers, a pydantic setting, and a constant.
_NO_MEMBERS = {
    *("betas", "user_profile_id", "workspace_id", "CF-RAY", "X-Amz-Cf-Id", "X-delay-time"),
    *("cf_ray", "x_amz_cf_id", "x_delay_time", "model_config", "STORE"),
}
_STREAM = words("stream")  # stands in the streaming variants of these classes
_ONE = "CompletionCreateParams"
_VLLM = "vllm/vllm/entrypoints"
_SGLANG = "sglang/sglang/srt/entrypoints/openai/protocol.py"
_OPENAI = "openai/openai/types"
_TRITON = "git/triton_openai.py"
# llama.cpp, tools/server: the schema of server-schema.cpp, and the members of a chat that
# server-common.cpp reads.
_LLAMACPP = """
adaptive_decay adaptive_target backend_sampling cache_prompt chat_format chat_parser
continue_final_message dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
dry_sequence_breakers dynatemp_exponent dynatemp_range echo frequency_penalty generation_prompt
grammar grammar_lazy grammar_triggers grammar_type ignore_eos json_schema logit_bias logprobs lora
max_completion_tokens max_tokens min_keep min_p mirostat mirostat_eta mirostat_tau model n
n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict n_probs parse_tool_calls
post_sampling_probs presence_penalty preserved_tokens reasoning_budget_end_tag
reasoning_budget_end_tags reasoning_budget_message reasoning_budget_start_tag
reasoning_budget_tokens reasoning_control reasoning_format repeat_last_n repeat_penalty
response_fields return_progress return_tokens samplers seed sse_ping_interval stop stream
stream_options t_max_predict_ms temperature timings_per_token top_k top_n_sigma top_p typical_p
verbose xtc_probability xtc_threshold id_slot
"""
_LLAMACPP_CHAT = """
add_generation_prompt chat_template_kwargs messages modalities parallel_tool_calls response_format
tool_choice tools top_logprobs
"""
# TensorRT-LLM, tensorrt_llm/serve/openai_protocol.py.
_TRTLLM = """
add_special_tokens best_of conversation_params detokenize disaggregated_params early_stopping echo
frequency_penalty ignore_eos include_stop_str_in_output length_penalty logit_bias logprobs
lora_request max_tokens min_p min_tokens model n presence_penalty priority prompt_ignore_length
repetition_penalty response_format return_context_logits seed skip_special_tokens
spaces_between_special_tokens stop stop_token_ids stream stream_options temperature
thinking_token_budget top_k top_p top_p_min truncate_prompt_tokens use_beam_search user
"""
_TRTLLM_CHAT = """
add_generation_prompt agent_hierarchy cache_salt chat_template chat_template_kwargs documents
injected_chat_template_kwargs max_completion_tokens media_io_kwargs messages mm_processor_kwargs
parallel_tool_calls prompt_token_ids prompt_token_ids_b64 reasoning_effort thinking tool_choice
tools top_logprobs
"""
_TRTLLM_RESPONSES = """
background include input instructions max_output_tokens max_tool_calls metadata model
parallel_tool_calls previous_response_id prompt reasoning request_id service_tier store stream
temperature text thinking_token_budget tool_choice tools top_logprobs top_p truncation user
"""

HOSTED = (
    Schema(
        "openai",
        "openai-openapi, commit f85dbe223d40, 2026-08-21, and openai 3.57.0, types/",
        {
            "chat": (
                json_schema("openapi.json.gz", "CreateChatCompletionRequest"),
                _stainless(_OPENAI.removesuffix("/types")),
                _STREAM,
            ),
            "completions": (
                json_schema("openapi.json.gz", "CreateCompletionRequest"),
                python(f"{_OPENAI}/completion_create_params.py", "CompletionCreateParamsBase"),
                _STREAM,
            ),
            "responses": (
                json_schema("openapi.json.gz", "CreateResponse"),
                python(
                    f"{_OPENAI}/responses/response_create_params.py", "ResponseCreateParamsBase"
                ),
                _STREAM,
            ),
            "embeddings": (
                json_schema("openapi.json.gz", "CreateEmbeddingRequest"),
                python(f"{_OPENAI}/embedding_create_params.py", "EmbeddingCreateParams"),
            ),
        },
    ),
    Schema(
        "anthropic",
        "anthropic 2.13.0, types/message_create_params.py and types/beta/message_create_params.py; "
        "the three sampling parameters of anthropic-version 2023-06-01",
        {
            "messages": (
                python(
                    "anthropic/anthropic/types/message_create_params.py", "MessageCreateParamsBase"
                ),
                python(
                    "anthropic/anthropic/types/beta/message_create_params.py",
                    "MessageCreateParamsBase",
                ),
                words("stream temperature top_k top_p"),
            )
        },
    ),
    Schema(
        "groq",
        "groq 1.7.0, types/",
        {
            "chat": (_stainless("groq/groq", chat=_ONE),),
            "embeddings": (
                python("groq/groq/types/embedding_create_params.py", "EmbeddingCreateParams"),
            ),
        },
    ),
    Schema(
        "mistral",
        "mistralai 3.7.0, client/models/",
        {
            "chat": (
                python(
                    "mistralai/mistralai/client/models/chatcompletionrequest.py",
                    "ChatCompletionRequest",
                ),
            ),
            "embeddings": (
                python("mistralai/mistralai/client/models/embeddingrequest.py", "EmbeddingRequest"),
            ),
            "responses": (
                python(
                    "mistralai/mistralai/client/models/createresponserequest.py",
                    "CreateResponseRequest",
                ),
            ),
        },
    ),
    Schema(
        "openrouter",
        "openrouter 1.3.84, components/",
        {
            "chat": (python("openrouter/openrouter/components/chatrequest.py", "ChatRequest"),),
            "responses": (
                python("openrouter/openrouter/components/responsesrequest.py", "ResponsesRequest"),
            ),
        },
    ),
    Schema(
        "together",
        "together 3.1.1, types/",
        {
            "chat": (_stainless("together/together"), _STREAM),
            "completions": (
                python(
                    "together/together/types/completion_create_params.py",
                    "CompletionCreateParamsBase",
                ),
                _STREAM,
            ),
            "embeddings": (
                python(
                    "together/together/types/embedding_create_params.py", "EmbeddingCreateParams"
                ),
            ),
        },
    ),
    Schema(
        "fireworks",
        "fireworks-ai 1.2.30, types/",
        {
            "chat": (_stainless("fireworks_ai/fireworks"), _STREAM),
            "completions": (
                python(
                    "fireworks_ai/fireworks/types/completion_create_params.py",
                    "CompletionCreateParamsBase",
                ),
                _STREAM,
            ),
        },
    ),
    Schema(
        "xai",
        "xai-sdk 1.21.0, proto/v6/chat_pb2.pyi (the same names as over REST)",
        {
            "chat": (
                pattern(
                    "xai_sdk/xai_sdk/proto/v6/chat_pb2.pyi",
                    "class GetCompletionsRequest(_message.Message):\n    __slots__ = (",
                    ")",
                    r'"(\w+)"',
                ),
                _STREAM,
            )
        },
    ),
    Schema(
        "cerebras",
        "cerebras_cloud_sdk 1.91.0, types/",
        {
            "chat": (_stainless("cerebras_cloud_sdk/cerebras/cloud/sdk", chat=_ONE),),
            "completions": (
                python(
                    "cerebras_cloud_sdk/cerebras/cloud/sdk/types/completion_create_params.py", _ONE
                ),
            ),
        },
    ),
    Schema(
        "gemini",
        "google-genai 3.6.1, models.py (the members that it writes)",
        {
            "generateContent": (
                pattern(
                    "google_genai/google/genai/models.py",
                    "def _GenerateContentConfig_to_vertex(",
                    "def _GenerateContentParameters_to_mldev(",
                    r"setv\(\s*(?:parent_object|to_object),\s*\[\s*'(\w+)'",
                ),
                words("contents generationConfig"),
            )
        },
    ),
    Schema(
        "bedrock",
        "botocore, data/bedrock-runtime/2023-09-30/service-2.json",
        {"converse": (botocore("ConverseRequest"),)},
    ),
)
ENGINES = (
    Schema(
        "vllm",
        "vllm 0.33.0, entrypoints/",
        {
            "chat": (
                python(
                    f"{_VLLM}/openai/chat_completion/protocol.py",
                    "ChatCompletionRequest",
                ),
            ),
            "completions": (python(f"{_VLLM}/openai/completion/protocol.py", "CompletionRequest"),),
            "responses": (python(f"{_VLLM}/openai/responses/protocol.py", "ResponsesRequest"),),
            "embeddings": (
                python(f"{_VLLM}/pooling/embed/protocol.py", "EmbeddingCompletionRequest"),
                python(f"{_VLLM}/pooling/embed/protocol.py", "EmbeddingChatRequest"),
                python(
                    f"{_VLLM}/pooling/base/protocol.py",
                    "PoolingBasicRequestMixin",
                    "CompletionRequestMixin",
                    "ChatRequestMixin",
                    "EncodingRequestMixin",
                    "EmbedRequestMixin",
                ),
            ),
            "rerank": (
                python(f"{_VLLM}/pooling/scoring/protocol.py", "RerankRequest"),
                python(f"{_VLLM}/pooling/base/protocol.py", "PoolingBasicRequestMixin"),
                python(f"{_VLLM}/pooling/base/protocol.py", "ClassifyRequestMixin"),
            ),
            "score": (
                python(
                    f"{_VLLM}/pooling/scoring/protocol.py",
                    "ScoreDataRequest",
                    "ScoreQueriesDocumentsRequest",
                    "ScoreQueriesItemsRequest",
                    "ScoreTextRequest",
                ),
                python(f"{_VLLM}/pooling/base/protocol.py", "PoolingBasicRequestMixin"),
                python(f"{_VLLM}/pooling/base/protocol.py", "ClassifyRequestMixin"),
            ),
            "messages": (python(f"{_VLLM}/anthropic/protocol.py", "AnthropicMessagesRequest"),),
        },
    ),
    Schema(
        "sglang",
        "sglang 0.5.23, srt/entrypoints/openai/protocol.py",
        {
            "chat": (python(_SGLANG, "ChatCompletionRequest"),),
            "completions": (python(_SGLANG, "CompletionRequest"),),
            "responses": (python(_SGLANG, "ResponsesRequest"),),
            "embeddings": (python(_SGLANG, "EmbeddingRequest"),),
            "rerank": (python(_SGLANG, "V1RerankReqInput"),),
            "score": (python(_SGLANG, "ScoringRequest"),),
        },
    ),
    Schema(
        "trtllm",
        "TensorRT-LLM, tensorrt_llm/serve/openai_protocol.py, commit 0076e9390e1e",
        {
            "chat": (words(_TRTLLM), words(_TRTLLM_CHAT)),
            "completions": (words(_TRTLLM), words("prompt suffix")),
            "responses": (words(_TRTLLM_RESPONSES),),
        },
    ),
    Schema(
        "llamacpp",
        "llama.cpp, tools/server/server-schema.cpp, commit 0177c34227eb, and server-common.cpp, "
        "commit 006639c3ff51",
        {
            "chat": (words(_LLAMACPP), words(_LLAMACPP_CHAT)),
            "completions": (words(_LLAMACPP), words("prompt suffix best_of")),
            "responses": (
                words(_LLAMACPP),
                words(_LLAMACPP_CHAT),
                words("input instructions max_output_tokens reasoning previous_response_id"),
            ),
            "embeddings": (words("input model encoding_format dimensions user content"),),
            "rerank": (words("query documents texts top_n return_text model"),),
        },
    ),
    Schema(
        "ollama",
        "ollama, openai/openai.go, openai/responses.go and api/types.go, commit fb3076099687, "
        "2026-08-21",
        {
            "chat": (go("git/ollama/openai/openai.go", "ChatCompletionRequest"),),
            "completions": (go("git/ollama/openai/openai.go", "CompletionRequest"),),
            "responses": (go("git/ollama/openai/responses.go", "ResponsesRequest"),),
            "embeddings": (go("git/ollama/openai/openai.go", "EmbedRequest"),),
            "api/chat": (go("git/ollama/api/types.go", "ChatRequest"),),
        },
    ),
    Schema(
        "triton",
        "triton-inference-server/server, python/openai/openai_frontend/schemas/openai.py, commit "
        "e1db8a603d86, 2026-08-19",
        {
            "chat": (python(_TRITON, "CreateChatCompletionRequest"),),
            "completions": (python(_TRITON, "CreateCompletionRequest"),),
            "embeddings": (python(_TRITON, "CreateEmbeddingRequest"),),
        },
    ),
)


def written(schemas: Iterable[Schema], folder: Path, *, of: str) -> str:
    """Return the module with the tables of some providers."""
    lines = [
        f'"""Lists the members of {of}\' requests by provider and operation, as their published',
        "schemas name them; judges none.",
        "",
        f"Made by `python -m bench.member_tables` on {DAY}: change that file instead.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Mapping",
        "",
        "SOURCES: Mapping[str, str] = {",
    ]
    for schema in schemas:
        lines += [f'    "{schema.provider}": (', *_quoted(f"{schema.source}", 8), "    ),"]
    lines += ["}", "NAMES: Mapping[str, Mapping[str, str]] = {"]
    for schema in schemas:
        lines.append(f'    "{schema.provider}": {{')
        for operation, readers in schema.operations.items():
            names = sorted({n for read in readers for n in read(folder)} - _NO_MEMBERS)
            lines += [f'        "{operation}": (', *_quoted(" ".join(names), 12), "        ),"]
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str, indent: int) -> list[str]:
    """Return a long text as adjacent string literals of at most 100 columns."""
    parts = textwrap.wrap(text, 96 - indent, break_long_words=False, break_on_hyphens=False)
    ends = [" "] * (len(parts) - 1) + [""]
    return [f'{" " * indent}"{part}{end}"' for part, end in zip(parts, ends, strict=True)]


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name, schemas, of in (
        ("hosted.py", HOSTED, "hosted providers"),
        ("engines.py", ENGINES, "engines"),
    ):
        (TARGET / name).write_text(written(schemas, root, of=of))

"""Finds the capabilities and permissions that nested parts need: images, files, audio, stored
items, addresses that an upstream would fetch.

Most prompts are text alone: their type shows it, and nothing else is inspected. Any other value is
decoded once and every member of it is inspected, in whichever top-level member it is.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.domain.policy.known_members import by_folded
from gateway.domain.policy.request_fields import UNKNOWN_FIELDS, UNKNOWN_TOOLS
from gateway.errors import InvalidRequest
from gateway.wire.data_urls import LOOKED_AT, holds_all, is_base64, is_file_name
from gateway.wire.json_bounds import MAX_LOOKED_AT, check_values, is_numeric
from gateway.wire.openai.request.hosted import hosted_tool
from gateway.wire.openai.request.member_names import refuse_variant
from gateway.wire.openai.request.needs import Needs
from gateway.wire.openai.request.sounds import (
    Sound,
    sound_of_data_url,
    sound_of_name,
    sound_of_type,
)
from gateway.wire.openai.request.tools import features_of_tools

_TOKENS = ("input", "prompt")  # may be arrays of numbers
# Top-level members with names and values chosen by the caller: schemas, labels, and members that
# other code reads.
FREE_MEMBERS = frozenset(
    {
        "chat_template_kwargs",
        "client_metadata",
        "function_call",
        "functions",
        "metadata",
        "response_format",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
    }
)
# The same below the top level, and the sources cited by an earlier answer: they are not fetched
# again.
_FREE = frozenset(
    {
        "annotations",
        "arguments",
        "citations",
        "client_metadata",
        "input_examples",
        "input_schema",
        "json_schema",
        "metadata",
        "output_schema",
        "parameters",
        "schema",
    }
)
# Past calls and their results, by the type of their item: nothing is called or fetched again.
_PAST = {
    "mcp_tool_use": "input",
    "search_result": "source",
    "server_tool_use": "input",
    "tool_use": "input",
    "web_fetch_result": "url",
    "web_search_call": "action",
    "web_search_result": "url",
}
# Types of items and parts besides texts and pictures (openai 3.57.0 and anthropic 2.13.0, types/,
# 2026-11-28, vLLM's and Codex' own). Under a residency rule any other one needs a permission:
# its members may hold anything.
_KNOWN = (
    "additional_tools audio audio_embeds audio_url browser_state compaction_trigger "
    "computer_screenshot configuration_update container_upload document fallback file "
    "ghost_snapshot image_generation_call input_audio input_file item_reference "
    "mcp_approval_request mcp_approval_response mcp_list_tools mcp_tool_listing mcp_tool_reference "
    "mcp_toolset_reference program skill_reference tool_addition tool_definition tool_reference "
    "text_editor_code_execution_view_result tool_removal "
)
_KNOWN_TYPES = frozenset(_KNOWN.split())
# Members that hold one tool (anthropic 2.14.0, types/beta/beta_request_tool_addition_block_param.py
# and beta_tool_change_tool_definition_param.py): all of it is judged, unless it only names a tool
# that is defined elsewhere, or holds it in its `definition`.
_TOOLS_IN = frozenset({"tool", "definition"})
_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint", "prompt_cache_options"})
_NAMES_A_TOOL = frozenset(
    {"mcp_tool_reference", "mcp_toolset_reference", "tool_definition", "tool_reference"}
)
# Members in which the type of a tool defines none: lists that are judged as such, the caller of an
# earlier call, and earlier calls.
_NO_TOOL_IN = frozenset({"caller", "executed_tools", "tool_calls", "tools"})
_ADDRESSES = ("http:", "https:", "file:", "ftp:", "gs:", "s3:", "//", "\\\\", "/\\", "\\/")
_DROPPED = dict.fromkeys(map(ord, "\t\r\n"))  # by URL parsers, anywhere in an address
_MOST_SCHEME_CHARS = 64
_LOOKED_AT_TEXT = 512  # letters in which an address begins
# Members with the bytes of a file or a sound, and the objects whose `data` holds them.
_BYTES = frozenset({"file_data", "fileData"})
_HOLD_BYTES = frozenset({"inline_data", "inlineData", "input_audio"})
_MEDIA_TYPES = frozenset({"media_type", "mediaType", "mime_type", "mimeType"})
_FILE_NAMES = frozenset({"filename", "file_name", "fileName"})
_BLANKS = "".join(map(chr, range(33))) + "\x7f\x85\xa0\u2028\u2029\u3000\ufeff"
# Members with text for the model, in items and parts that contain text.
_WORDS = frozenset(
    {
        "arguments",
        "code",
        "content",
        "diff",
        "encrypted_content",
        "id",
        "input",
        "instructions",
        "name",
        "output",
        "prompt",
        "query",
        "reasoning",
        "reasoning_content",
        "refusal",
        "role",
        "stop",
        "stop_sequences",
        "summary",
        "text",
        "thinking",
        "title",
        "type",
    }
)
_WORDY_ENDS = (
    "text",
    "message",
    "refusal",
    "thinking",
    "reasoning",
    "_call",
    "_output",
    "_result",
    "_use",
)
_WORDY_TYPES = frozenset({"function", "custom", "content", "compaction"})
# Items and parts that are known to be text, so that their bytes bound their tokens: any other one
# may be a picture, a film or a sound, and counts as the window. Of responses and chats (openai
# 3.57.0, types/responses/response_input_item_param.py and response_output_item.py, types/chat),
# Codex' own, Anthropic's (anthropic 2.14.0, types/beta/beta_content_block_param.py) and Mistral's
# and xAI's calls (mistralai 3.7.0; docs.x.ai/developers/tools), 2026-11-29. Their pictures and
# files are parts of their own. Not text: the picture of an `image_generation_call`, and a file that
# Anthropic's code viewed.
_TEXTS = """
    agent_message apply_patch_call apply_patch_call_output code_interpreter_call compaction
    computer_call computer_call_output content context_compaction custom custom_tool_call
    custom_tool_call_output file_search_call function function_call function_call_output input_text
    local_shell_call local_shell_call_output logs mcp_call message output_text program_output
    reasoning reasoning_text refusal shell_call shell_call_output summary_text text thinking
    tool_search_call tool_search_output web_search_call
    code_execution_call collections_search_call x_search_call
    advisor_redacted_result advisor_result advisor_tool_result advisor_tool_result_error
    bash_code_execution_output bash_code_execution_result bash_code_execution_tool_result
    bash_code_execution_tool_result_error code_execution_output code_execution_result
    code_execution_tool_result code_execution_tool_result_error encrypted_code_execution_result
    mcp_tool_result mcp_tool_use mid_conv_system redacted_thinking search_result server_tool_use
    text_editor_code_execution_create_result text_editor_code_execution_str_replace_result
    text_editor_code_execution_tool_result text_editor_code_execution_tool_result_error
    tool_result tool_search_tool_result tool_search_tool_result_error
    tool_search_tool_search_result tool_use web_fetch_result web_fetch_tool_result
    web_fetch_tool_result_error web_search_result web_search_tool_result
    web_search_tool_result_error
"""
TEXT_TYPES = frozenset(_TEXTS.split())
OWN_THOUGHT = "rs_tg_"
"""The beginning of the ids of thoughts that the gateway wrote. A provider has stored nothing under
one, forged or not.
"""
_SEALED = frozenset({"reasoning", "compaction"})  # their content is read back by the provider
# Writes a summary of the conversation, beside the answer's maximum.
_COMPACTION_TRIGGER = "compaction_trigger"
_MESSAGE_MEMBERS = ("role", "content")
# Members that contain items and their parts.
_PARTS = frozenset({"content", "input", "messages", "output", "parts", "prompt"})
_PICTURE_TYPES = ("image", "input_image", "video", "input_video")
_PICTURES = frozenset(
    {"image", "images", "image_url", "imageUrl", "input_image", "video", "video_url", "videoUrl"}
)
_FILE_TYPES = frozenset({"document", "file", "input_file"})
_SOUNDS = frozenset({"input_audio", "audio_url", "audioUrl"})
_FILES = frozenset({"file_id", "file_ids", "fileId", "fileIds"})
_TENSORS = frozenset({"image_embeds", "audio_embeds"})
# Members with a document, a recording or a similar file, in any dialect; a page is charged as a
# picture.
_DOCUMENTS = frozenset(
    {
        "document",
        "document_url",
        "file",
        "fileData",
        "file_data",
        "inlineData",
        "inline_data",
        "source",
    }
)
# The names that matter: no other capitalisation of them may occur beside them.
_NAMED = (
    _PICTURES
    | _SOUNDS
    | _FILES
    | {"audio", "content", "file", "file_data", "file_url", "id", "role", "source"}
    | _FILE_NAMES
)
_NAMED |= {"text", "tool_calls", "tools", "type", "url", "uuid"} | _TENSORS | _DOCUMENTS
_FOLDED = by_folded(_NAMED)


class _Object(tuple[tuple[str, Any], ...]):
    """An object as written, including its duplicate members."""


def note_needs(top: str, value: bytes, needs: Needs) -> None:
    """Record the capabilities and permissions that a top-level object or array of a request needs.

    Raises `InvalidRequest` if it has too many values, or an object that could be read in two ways.
    """
    if top in _TOKENS and is_numeric(value):
        return
    members = check_values(top, value, most=MAX_LOOKED_AT)
    if _walk(top, msgspec.json.decode(value), needs) != members:
        _refuse_doubles(top, value)


def _walk(top: str, tree: Any, needs: Needs) -> int:
    """Record the needs of every member below a decoded value, without recursion. Return their
    number.
    """
    count = 0
    todo: list[tuple[str, Any, bool]] = [(top, tree, True)]
    free: list[Any] = []
    judged = set(_NAMED)
    while todo:
        key, value, is_wordy = todo.pop()
        if type(value) is str:
            if not (is_wordy and key in _WORDS):
                _note_address(top, key, value, needs)
        elif type(value) is list:
            todo.extend([(key, item, is_wordy) for item in value])
        elif type(value) is dict:
            count += len(value)
            kind = value.get("type")
            words = type(kind) is not str or _is_wordy(kind)
            if kind is not None or key == "input":
                _note_item(top, key, value, kind=str(kind or ""), needs=needs)
            if key in _MARKS:
                needs.note_mark(value)
            elif key in _TOOLS_IN or not words:
                _note_definition(top, key, value, kind=kind, needs=needs)
            past = _PAST.get(kind) if type(kind) is str else None
            if not _BYTES.isdisjoint(value):
                _note_untyped(top, value, needs)
            for name, inner in value.items():
                if name in _FREE or name == past:
                    free.append(inner)
                    continue
                if name in _NAMED:
                    _note_member(top, name, inner, needs)
                elif name not in judged:
                    refuse_variant(name, _FOLDED, where=f"'{top}'")
                    judged.add(name)
                todo.append((name, inner, words))
    return count + _members_below(free)


def _is_wordy(kind: str) -> bool:
    """Return True if the type of a message's item or part is that of a text by its name: the words
    in it are no addresses, and it defines no tool.
    """
    return kind.endswith(_WORDY_ENDS) or kind in _WORDY_TYPES


def _note_item(top: str, key: str, item: Mapping[str, Any], *, kind: str, needs: Needs) -> None:
    """Record the needs of a message's item or part, by its type.

    An item with only an id is stored at the provider.
    """
    if key in _PARTS and kind and kind not in TEXT_TYPES:
        # An unknown type, or another dialect's; pictures and sounds also need permission.
        needs.is_sized = False
        if kind not in _KNOWN_TYPES and not kind.startswith(_PICTURE_TYPES):
            needs.leave(UNKNOWN_FIELDS, f"{top}: {kind[:64]}")
    if kind in _FILE_TYPES:
        needs.has_files = True
    if kind == _COMPACTION_TRIGGER:
        needs.leave("other_maximum", f"{top}: {kind}")
    if kind.startswith(_PICTURE_TYPES) and not kind.endswith("_call"):
        needs.capabilities.add("vision")
        if "video" in kind:
            needs.hear(Sound.MAYBE, f"{top}: {kind[:64]}")
    source = item.get("source")
    if isinstance(source, dict) and "data" in source:
        _note_source(top, source, needs, is_document=kind == "document")
    if kind in _SEALED:
        is_own = str(item.get("id")).startswith(OWN_THOUGHT)
        is_whole = is_own or item.get("encrypted_content") or item.get("content")
        is_kept = "id" in item and not is_whole
    else:
        is_kept = kind == "item_reference" or (
            kind == "image_generation_call" and not item.get("result")
        )
    if is_kept or (
        not kind
        and key == "input" == top
        and "id" in item
        and item.keys().isdisjoint(_MESSAGE_MEMBERS)
    ):
        needs.leave("stored_state", f"{top}: item_reference")


def _note_definition(
    top: str, key: str, item: Mapping[str, Any], *, kind: object, needs: Needs
) -> None:
    """Record the needs of a tool that is defined inside a prompt, wherever a provider may read it:
    in a member for one, or as any other object with the type of a tool that a provider runs.
    """
    if key in _TOOLS_IN:
        if type(kind) is str and kind in _NAMES_A_TOOL:
            return
        found = needs.judge_tool(item)
    elif key in _NO_TOOL_IN or kind in _KNOWN_TYPES or str(kind).endswith("_error"):
        return
    else:
        found = needs.judge_tool({"type": kind, "environment": item.get("environment")})
        if found is not None and found[0] == UNKNOWN_TOOLS:
            return  # a part of another kind
    if found is not None:
        feature, where = found
        needs.note_tool(feature, hosted_tool(item, where=f"{top}: {where}", index=None))


def _note_source(top: str, source: Mapping[str, Any], needs: Needs, *, is_document: bool) -> None:
    """Record the needs of the bytes in a block of Anthropic's messages: a translation, and engines
    that speak that dialect, write them as a `data:` URL.

    vLLM does so whatever the source's type is, for a JPEG by default (vllm 0.33.0,
    entrypoints/anthropic/serving.py). Only a document may have its text as it is.
    """
    media_type, data = source.get("media_type"), source["data"]
    if not isinstance(data, str):
        return  # no server reads it
    if is_document and source.get("type") == "text":
        media_type = "text/plain" if media_type is None else media_type
        data = b64encode(data[:LOOKED_AT].encode("utf-8", "replace")).decode()
    elif media_type is None:
        media_type = "application/pdf" if is_document else "image/jpeg"
    start = f"data:{media_type};base64,{data[:LOOKED_AT]}"
    if not holds_all(start, is_document=is_document):
        needs.leave("remote_media", f"{top}: source")


def _note_member(top: str, name: str, value: Any, needs: Needs) -> None:
    """Record the needs of a member of a message's item or part, by its name."""
    if name in _PICTURES:
        needs.capabilities.add("vision")
        if name.startswith("video"):
            needs.hear(Sound.MAYBE, f"{top}: {name}")
    elif name in _SOUNDS:
        needs.leave("audio", f"{top}: {name}")
    elif name in _FILES or (name == "audio" and isinstance(value, dict) and "id" in value):
        needs.leave("stored_state", f"{top}: {name}")
        if name == "audio":  # an earlier answer, which is read again as a sound
            needs.hear(Sound.YES, f"{top}: audio.id")
    elif name == "uuid" or name in _TENSORS:  # vLLM finds pictures by it, of any team
        needs.leave("engine_control", f"{top}: {name}")
    elif name in _DOCUMENTS:
        needs.is_sized = False
    elif name == "tools":
        for feature, tool in features_of_tools(value, needs.judge_tool):
            needs.note_tool(feature, replace(tool, where=f"{top}: {tool.where}", index=None))
    if name in _BYTES:
        _note_bytes(top, name, value, needs)
    elif name in _HOLD_BYTES and isinstance(value, dict):
        _note_bytes(top, name, value.get("data"), needs)
    elif name in _FILE_NAMES and isinstance(value, str):
        if not is_file_name(value):
            needs.leave("remote_media", f"{top}: {name}")
        if sound_of_name(value) is Sound.YES:
            needs.hear(Sound.YES, f"{top}: {name}")


def _note_untyped(top: str, file: Mapping[str, Any], needs: Needs) -> None:
    """Record that the bytes of a file may be a sound, if neither the bytes nor a member beside them
    state their type: a translation sends them as a PDF, other servers look at them.
    """
    names = [file[name] for name in _FILE_NAMES | _MEDIA_TYPES if isinstance(file.get(name), str)]
    for name in _BYTES & file.keys():
        data = file[name]
        is_typed = not isinstance(data, str) or ":" in data[:_MOST_SCHEME_CHARS]  # an address
        if not is_typed and all(sound_of_name(one) and sound_of_type(one) for one in names):
            needs.hear(Sound.MAYBE, f"{top}: {name}")


def _note_bytes(top: str, name: str, value: Any, needs: Needs) -> None:
    """Record the needs of a member that holds a file: anything but its bytes may be an address."""
    if isinstance(value, str) and value and not (is_base64(value) or value[:5].lower() == "data:"):
        needs.leave("remote_media", f"{top}: {name}")  # a `data:` URL is judged with the others


def _note_address(top: str, key: str, text: str, needs: Needs) -> None:
    """Record the needs of a text that is not for the model: an upstream may fetch it, or it is a
    picture.
    """
    if key in _MEDIA_TYPES:
        needs.hear(sound_of_type(text), f"{top}: {key}")
    looked_at = text.lstrip(_BLANKS)[:_LOOKED_AT_TEXT].translate(_DROPPED).lower()
    start = looked_at[:11]
    if start.startswith("data:"):
        if start.startswith(("data:image", "data:video")):
            needs.capabilities.add("vision")
        needs.is_sized = False
        needs.hear(sound_of_data_url(looked_at), f"{top}: {key[:64]}")
        if not holds_all(text.lstrip(_BLANKS), is_document=key in _DOCUMENTS):
            needs.leave("remote_media", f"{top}: {key[:64]}")
    elif (
        start.startswith(_ADDRESSES)
        or "://" in looked_at.partition(" ")[0]
        or (start and key[-3:].lower() in ("url", "uri"))
    ):
        needs.leave("remote_media", f"{top}: {key[:64]}")
        needs.hear(sound_of_name(text), f"{top}: {key[:64]}")


def _members_below(values: list[Any]) -> int:
    """Return the number of members below caller-defined values, which are not inspected."""
    count = 0
    while values:
        value = values.pop()
        if isinstance(value, dict):
            count += len(value)
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return count


def _refuse_doubles(top: str, encoded: bytes) -> None:
    """Raise `InvalidRequest` if an object in a request names a member twice, except in
    caller-defined values.
    """
    todo = [json.loads(encoded, object_pairs_hook=_Object, parse_int=str, parse_float=str)]
    while todo:
        value = todo.pop()
        if isinstance(value, _Object):
            if len(dict(value)) < len(value):
                name = Counter(name for name, _ in value).most_common(1)[0][0]
                raise InvalidRequest(
                    f"'{top}' has an object that names '{name[:64]}' twice. Parsers differ in "
                    "which one counts, so it could be read in two ways. Nothing was sent. Name "
                    "each member once.",
                    param=top,
                )
            todo.extend(inner for name, inner in value if name not in _FREE)
        elif isinstance(value, list):
            todo.extend(value)

"""Lists, by tool that a provider runs, the arguments that do not change the fee of a call; any
other one may.

Facts only: `domain.request.rounds` decides with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Of any tool: its name, its bounds and its callers (openai 3.57.0, types/responses/tool_param.py;
# anthropic 2.14.0, types/beta/beta_tool_union_param.py; 2026-11-29).
_OF_ALL = frozenset(
    {"allowed_callers", "cache_control", "defer_loading", "description", "environment", "max_uses"}
    | {"name", "strict", "type"}
)
# By the beginning of a tool's folded type. The fee of a search or a call of code is the same
# whatever its filters (developers.openai.com/api/docs/pricing, platform.claude.com/docs/en/
# about-claude/pricing, docs.x.ai/developers/pricing, 2026-11-28); a container's memory is a part of
# its tool's name. A picture costs by its size and quality, its model and its drafts, and
# OpenRouter's searches by their engine and their results. 2026-11-29.
_HARMLESS: Mapping[str, frozenset[str]] = {
    tool: frozenset(names.split())
    for tool, names in {
        "attachmentsearch": "limit max_num_results",
        "codeexecution": "container",
        "container": "id skills",
        "codeinterpreter": "container",
        "collectionssearch": """
            collection_ids filters instructions limit max_num_results ranking_options retrieval_mode
            vector_store_ids
        """,
        "filesearch": "filters max_num_results ranking_options vector_store_ids",
        # The server that is asked, and the tools of it, have no fee at the provider (as above).
        "mcp": """
            allowed_tools authorization authorization_token configs connector_id default_config
            headers mcp_server_name require_approval server_description server_label server_url
            tool_configuration tools tunnel_id url
        """,
        "imagegeneration": "action background moderation output_compression output_format",
        "openrouter:": "allowed_domains excluded_domains user_location",
        "plugins": "enabled exclude_domains include_domains search_prompt",
        "skills": "skill_id version",
        "websearch": """
            allowed_domains blocked_domains enable_image_understanding excluded_domains
            external_web_access filters search_content_types user_location
        """,
        "xsearch": """
            allowed_x_handles enable_image_understanding enable_video_understanding
            excluded_x_handles from_date to_date
        """,
    }.items()
}
# Values of other arguments that ask for no more than the tool does without them.
_DEFAULTS: Mapping[str, frozenset[str]] = {
    "engine": frozenset({"auto"}),
    "id": frozenset({"web"}),
    "input_fidelity": frozenset({"low"}),
    "partial_images": frozenset({"0"}),
    "quality": frozenset({"auto", "low"}),
    "search_context_size": frozenset({"low", "medium"}),
    "size": frozenset({"1024x1024", "auto"}),
}
_ITSELF = ""  # the name of a member's value that is no object
_INSIDE = "parameters"  # OpenRouter's tools have theirs in it
_SHORT = re.compile(r"[A-Za-z0-9_.-]{1,48}")
_MOST = 16  # arguments that are named


def fee_arguments(tool: str, kind: str, members: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of a tool that may change the fee of its calls, as `TYPE.NAME=VALUE`, or
    `TYPE.NAME` for a value that is no short word. `tool` is its folded type, and `kind` the type as
    its caller wrote it. The value of a member that is a tool, and no object, is `MEMBER=VALUE`;
    `true` asks for the tool and nothing else.
    """
    harmless = next((names for one, names in _HARMLESS.items() if tool.startswith(one)), _OF_ALL)
    found: list[str] = []
    for name, value in _flat(members):
        is_wish = name == _ITSELF and isinstance(value, bool)
        if value is None or is_wish or name in _OF_ALL or name in harmless:
            continue
        word = _word(value)
        if word is None or word not in _DEFAULTS.get(name, ()):
            named = kind if name == _ITSELF else f"{kind}.{name[:48]}"
            found.append(named + ("" if word is None else f"={word}"))
    return tuple(found[:_MOST])


def _flat(members: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a tool, with those that stand in its parameters."""
    for name, value in members.items():
        if name == _INSIDE and isinstance(value, Mapping):
            yield from ((str(inner), one) for inner, one in value.items())
        else:
            yield name, value


def _word(value: object) -> str | None:
    """Return a short value as a word, None for any other one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        word = str(value)
        return word if _SHORT.fullmatch(word) else None
    return None

"""Items and parts whose bytes bound their tokens: those that a published schema knows as text. A
picture inside an `image_generation_call`, and any type whose name ended in `_call`, `_output`,
`_result` or `text`, was sized as text: 276 bytes for 1,659 tokens.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.chat import ChatCompletionContentPartParam, ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.request.bound import bound_of
from gateway.domain.request.request import RequestFacts
from gateway.wire.openai.request.media import TEXT_TYPES
from tests import factories

WINDOW = 100_000
# Items and parts of the SDK that are no text, or stand for something elsewhere.
NO_TEXT = """
    additional_tools compaction_trigger computer_screenshot configuration_update file
    image_generation_call image_url input_audio input_file input_image item_reference
    mcp_approval_request mcp_approval_response mcp_list_tools program
"""
# The blocks of Anthropic's messages that are no text (types/beta/beta_content_block_param.py).
NO_TEXT_OF_ANTHROPIC = """
    container_upload document fallback image text_editor_code_execution_view_result
"""
GENERATED = [
    *(
        "video_generation_call",
        "screenshot_result",
        "audio_output",
        "picture_text",
        "drawn_message",
    ),
    *("image_search_call", "screen_use", "spoken_thinking", "seen_reasoning", "of_tomorrow"),
]
PICTURE = "iVBORw0KGgo=" * 20


def types_in(annotation: Any, seen: set[Any] | None = None) -> Iterator[str]:
    """Yield the types of the items and of the parts in their members, by a schema of the SDK."""
    seen = set() if seen is None else seen
    if typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for inner in typing.get_args(annotation):
            yield from types_in(inner, seen)
        return
    if not isinstance(annotation, type) or annotation in seen:
        return
    seen.add(annotation)
    if not hasattr(annotation, "__annotations__") or annotation.__module__ == "builtins":
        return
    if not annotation.__module__.startswith("openai"):
        return
    fields = getattr(annotation, "model_fields", None)  # of an answer's items
    hints = (
        typing.get_type_hints(annotation)
        if fields is None
        else {name: field.annotation for name, field in fields.items()}
    )
    kind = hints.get("type")
    if kind is not None:
        yield from words_in(kind)
    for name in ("content", "output", "summary", "input"):  # their parts are judged by themselves
        if name in hints:
            yield from types_in(hints[name], seen)


def words_in(annotation: Any) -> Iterator[str]:
    """Yield the words of a type's literal."""
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
        return
    for inner in typing.get_args(annotation):
        yield from words_in(inner)


def of_the_sdk() -> set[str]:
    """Return every type of an item or a part in the installed SDK."""
    found: set[str] = set()
    for schema in (
        ResponseInputItemParam,
        ResponseOutputItem,
        ChatCompletionContentPartParam,
        ChatCompletionMessageParam,
    ):
        found.update(types_in(schema))
    return found


def read(item: dict[str, Any], operation: Operation = Operation.RESPONSES) -> RequestFacts:
    """Return the facts of a request with an item or a part."""
    if operation is Operation.RESPONSES:
        body: dict[str, Any] = {"model": "m", "input": [item]}
    else:
        body = {"model": "m", "messages": [{"role": "user", "content": [item]}]}
        body |= {"max_tokens": 10} if operation is Operation.MESSAGES else {}
    return factories.read(json.dumps(body).encode(), operation).facts


def held_tokens(facts: RequestFacts, **deployment: Any) -> int:
    """Return the held tokens of the prompt at a deployment with a window."""
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(
            context_window=WINDOW, is_self_hosted=False, native=frozenset({facts.operation})
        ),
        price=factories.price("1", "1"),
        is_relied_on=True,
        bounds_rounds=True,
    ).input_tokens


def test_every_type_of_the_sdk_is_judged() -> None:
    """A new one is read, and then listed."""
    found = of_the_sdk()
    assert len(found) > 40
    assert found - TEXT_TYPES == set(NO_TEXT.split())


@pytest.mark.parametrize("kind", sorted(TEXT_TYPES))
def test_a_type_that_is_known_as_text_is_sized_by_its_bytes(kind: str) -> None:
    """Ordinary turns of agents hold their text, not a window."""
    facts = read({"type": kind, "text": "hello", "id": "x", "content": "y"})
    assert facts.expansion_tokens is not None
    assert not facts.features
    assert held_tokens(facts) < 1000


@pytest.mark.parametrize(
    "operation", [Operation.RESPONSES, Operation.CHAT, Operation.MESSAGES], ids=str
)
@pytest.mark.parametrize("kind", [*GENERATED, "image_generation_call"])
def test_any_other_type_holds_the_window(kind: str, operation: Operation) -> None:
    """Its members may be a picture, a film or a sound."""
    facts = read({"type": kind, "id": "x", "result": PICTURE}, operation)
    assert held_tokens(facts) == WINDOW


@pytest.mark.parametrize("kind", NO_TEXT_OF_ANTHROPIC.split())
def test_the_pictures_and_files_of_anthropic_hold_the_window(kind: str) -> None:
    """A file that its code viewed may be a picture."""
    assert held_tokens(read({"type": kind, "content": PICTURE}, Operation.MESSAGES)) == WINDOW


@pytest.mark.parametrize("kind", ["image_generation_call", *GENERATED])
def test_no_type_needs_a_permission_that_it_did_not_need(kind: str) -> None:
    """Only a residency rule asks for one, for a type that no schema has."""
    needed = read({"type": kind, "id": "x", "result": PICTURE}).features
    assert needed <= {"unknown_fields"}

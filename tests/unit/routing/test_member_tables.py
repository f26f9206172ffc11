"""The tables of request members: each name is judged, and the official SDKs are listed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from gateway.domain.operation import Operation
from gateway.domain.policy.known_members import KNOWN_MEMBERS, SCORING_MEMBERS
from gateway.domain.policy.listed_members import SOURCES, TABLES, bounded_members
from gateway.domain.policy.request_fields import FEATURE_OF_MEMBER
from gateway.domain.providers import members
from gateway.domain.providers.members.effects import (
    COUNTED,
    EFFECTS,
    PARTS,
    VALUES,
    Effect,
    is_bounded,
)
from gateway.domain.providers.table import PROVIDERS
from gateway.wire.members import decode_members
from gateway.wire.openai.request.fast_path import PLAIN
from gateway.wire.openai.request.scoring import FIRST, SECOND
from gateway.wire.openai.request.size import PROMPTS_IN
from gateway.wire.openai.request.unlisted_parts import unlisted_parts
from tests import factories

PUBLISHED = {
    (provider, operation, name)
    for provider, operations in TABLES.items()
    for operation, names in operations.items()
    for name in names.split()
}
# Members whose price or bound no published word states (OpenAI's newest, of November 2026).
NOT_KNOWN = {"access_programs", "background_options", "image", "extra_headers"}
SDK = {
    Operation.CHAT: chat_create_params.CompletionCreateParamsBase,
    Operation.COMPLETIONS: completion_create_params.CompletionCreateParamsBase,
    Operation.RESPONSES: response_create_params.ResponseCreateParamsBase,
    Operation.EMBEDDINGS: embedding_create_params.EmbeddingCreateParams,
}


def test_every_published_member_is_judged() -> None:
    """A newer schema brings names; one without a judgement is refused, never taken for nothing."""
    assert sorted({name for _, _, name in PUBLISHED} - EFFECTS.keys()) == []
    known = KNOWN_MEMBERS | SCORING_MEMBERS
    assert sorted(known - EFFECTS.keys()) == []


def test_every_provider_has_a_table_or_takes_that_of_all() -> None:
    """Those without a schema of their own are named here, so that a new provider is one too."""
    same = {"azure_openai": "openai", "vertex": "gemini"}
    without = {name for name in PROVIDERS if same.get(name, name) not in TABLES}
    assert without == {"deepseek", "lmstudio", "openai_compatible"}
    assert TABLES.keys() == SOURCES.keys()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("operation", SDK)
def test_every_ordinary_member_of_the_official_sdk_is_taken(
    provider: str, operation: Operation
) -> None:
    """An ordinary client is served under a hard budget, wherever its request goes."""
    members = set(get_type_hints(SDK[operation])) | {"stream"}
    assert sorted(members - bounded_members(provider, operation) - NOT_KNOWN) == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_ordinary_member_of_messages_is_taken(provider: str) -> None:
    """The members of `anthropic` are read from its package in `make oracles`; these are its plain
    ones.
    """
    plain = (
        "cache_control max_tokens messages metadata model output_config service_tier "
        "stop_sequences stream system temperature thinking tool_choice tools top_k top_p"
    )
    assert bounded_members(provider, Operation.MESSAGES).issuperset(plain.split())


@pytest.mark.skipif(
    # A folder of these tests has the name, too; a package has an origin.
    getattr(importlib.util.find_spec("anthropic"), "origin", None) is None,
    reason="the SDK is in the oracles' environment",
)
def test_every_ordinary_member_of_anthropics_sdk_is_taken() -> None:
    """As far as it is installed here."""
    from anthropic.types import message_create_params  # type: ignore[import-not-found]

    members = set(message_create_params.MessageCreateParamsBase.__annotations__)
    assert sorted(members - bounded_members("anthropic", Operation.MESSAGES)) == []


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_member_without_a_bound_is_taken(provider: str, operation: Operation) -> None:
    """But for those that a permission decides on."""
    taken = bounded_members(provider, operation) - FEATURE_OF_MEMBER.keys()
    assert [name for name in taken if not is_bounded(operation, name)] == []
    unbounded = {name for name, effect in EFFECTS.items() if effect is Effect.UNBOUNDED}
    assert taken.isdisjoint(unbounded)


PROMPTS: dict[Operation, dict[str, object]] = {
    Operation.CHAT: {"messages": [{"role": "user", "content": "x"}]},
    Operation.COMPLETIONS: {"prompt": "x"},
    Operation.RESPONSES: {"input": "x"},
    Operation.MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}


@pytest.mark.parametrize("name", sorted(COUNTED))
@pytest.mark.parametrize("operation", list(PROMPTS))
def test_a_number_of_answers_is_taken_where_it_is_counted(operation: Operation, name: str) -> None:
    """`best_of` in Anthropic's messages was taken, and multiplied there by an engine."""
    body = json.dumps({"model": "m", name: 7, **PROMPTS[operation]}).encode()
    is_counted = factories.read(body, operation).facts.choices == 7
    taken = [one for one in PROVIDERS if name in bounded_members(one, operation)]
    assert is_counted or not taken


def test_the_maximum_of_another_operation_is_not_taken() -> None:
    """llama.cpp's responses obey `max_tokens` before their own maximum."""
    for operation, other in (
        (Operation.RESPONSES, "max_tokens"),
        (Operation.COMPLETIONS, "max_completion_tokens"),
        (Operation.CHAT, "max_output_tokens"),
    ):
        assert other in PLAIN[operation].__struct_fields__
        assert all(other not in bounded_members(name, operation) for name in PROVIDERS)


def test_the_tables_say_where_they_come_from() -> None:
    """A fact has a source and a day."""
    folder = Path(members.__path__[0])
    for name in ("hosted.py", "engines.py"):
        assert "Made by `python -m bench.member_tables` on 2026-" in (folder / name).read_text()


# Members that add input to each prompt, or whose size the body does not show, by operation: no
# list of prompts.
IN_EACH_PROMPT = {
    Operation.COMPLETIONS: "generation_prompt images json_schema prediction prompt_embeds "
    "response_format session_params speculation suffix",
    Operation.EMBEDDINGS: "chat_template chat_template_kwargs",
    Operation.RERANK: "chat_template_kwargs instruct instruction",
    Operation.SCORE: "chat_template_kwargs instruction",
}


@pytest.mark.parametrize("operation", IN_EACH_PROMPT)
def test_every_published_list_of_prompts_is_counted(operation: Operation) -> None:
    """llama.cpp's `content` and `texts` were one prompt: a new member is decided about here."""
    counted = PROMPTS_IN.get(operation, ()) + FIRST.get(operation, ()) + SECOND.get(operation, ())
    published = {name for _, of, name in PUBLISHED if of == operation}
    adding = {name for name in published if EFFECTS[name] is Effect.ADDS_INPUT}
    assert sorted(adding - set(counted)) == sorted(IN_EACH_PROMPT[operation].split())


KNOWN_VALUES = sorted(VALUES)
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("type"), inner),
    max_leaves=4,
)


def parts(**members: object) -> frozenset[str]:
    """The unlisted parts of a request."""
    return unlisted_parts(decode_members(json.dumps(members).encode()))


@given(st.sampled_from(KNOWN_VALUES), ANY_VALUE)
def test_a_member_whose_value_counts_has_known_values_alone(
    name: tuple[str, str], value: object
) -> None:
    """`reasoning.mode` took a list with the word that it refused."""
    top, inner = name
    is_known = value is None or (isinstance(value, str) and value in VALUES[name])
    assert (parts(**{top: {inner: value}}) == frozenset()) is is_known


@given(st.sampled_from(sorted({*PARTS, "modalities", "context_management"})), ANY_VALUE)
def test_no_form_of_a_member_passes_unread(top: str, value: object) -> None:
    """Null and switches choose nothing; any other form is read whole, or is refused by name."""
    found = parts(**{top: value})
    if value is None or isinstance(value, bool):
        assert found == (frozenset() if top in PARTS or value is None else {f"{top}=?"})
    elif isinstance(value, int) or (isinstance(value, list) and top in PARTS):
        assert found == {f"{top}=?"}
    elif isinstance(value, str):
        assert (found == frozenset()) is (value in VALUES.get((top, "type"), ()))


def test_edits_of_a_context_are_known_by_their_type() -> None:
    """One that is not read may write a summary, and one beside an odd one passed unread."""
    name = "context_management"
    known = [{"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 3}}]
    for value in ({"edits": known}, known, {"edits": []}, {}, [], None):
        assert parts(context_management=value) == frozenset()
    for value in ({"edits": [{"type": "new"}]}, [{"type": "new"}]):
        assert parts(context_management=value) == {f"{name}=new"}
    odd = ({"edits": [*known, 5]}, [{"type": 5}], [{}], {"edits": {}}, {"new": 1}, "new", 7)
    for value in odd:
        assert parts(context_management=value) == {f"{name}=?"}


def test_a_member_that_cannot_be_read_is_left_to_the_reader() -> None:
    """It refuses half a surrogate pair for every team."""
    assert unlisted_parts({"reasoning": Raw(rb'{"\ud83d": 1}')}) == frozenset()

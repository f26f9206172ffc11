"""The bounds of rounds in a sent request: members set, tools bounded and left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.request.request import HostedTool, RequestBody
from gateway.domain.request.rounds import Rounds
from gateway.wire.translation.sent_rounds import with_rounds
from tests import factories

OWN = {"type": "function", "name": "f"}
SEARCH = {"type": "web_search"}
BODY = {"model": "a", "input": "x"}
LEFT_OUT = (HostedTool(name="websearch", where="tools: web_search", index=0),)


def body(**members: Any) -> RequestBody:
    """A responses request."""
    return factories.read(json.dumps(BODY | members).encode(), Operation.RESPONSES)


def sent(read: RequestBody, rounds: Rounds) -> Any:
    """The sent request, once its members stand at their places."""
    found = with_rounds(read, rounds)
    for name, place in found.members.items():
        assert found.body[place.name_start : place.start].startswith(b'"' + name.encode())
    return json.loads(found.body)


def test_members_are_set_and_replaced() -> None:
    """Every other byte stays."""
    rounds = Rounds(members=(("max_tool_calls", 4), ("parallel_tool_calls", False)))
    read = body(tools=[SEARCH], max_tool_calls=9)
    assert sent(read, rounds) == {
        **BODY,
        "tools": [SEARCH],
        "max_tool_calls": 4,
        "parallel_tool_calls": False,
    }
    assert with_rounds(read, Rounds(members=rounds.members[:1])).body == read.body.replace(
        b'"max_tool_calls": 9', b'"max_tool_calls": 4'
    )


def test_each_tool_has_its_own_bound_of_calls() -> None:
    """The others keep their bytes."""
    read = body(tools=[SEARCH, OWN, {**SEARCH, "max_uses": 8}])
    bounded = sent(read, Rounds(uses=((0, 2), (2, 3))))
    assert bounded["tools"] == [{**SEARCH, "max_uses": 2}, OWN, {**SEARCH, "max_uses": 3}]


@pytest.mark.parametrize(
    ("choice", "is_kept"),
    [
        ("auto", True),
        ({"type": "function", "name": "f"}, True),
        ({"type": "auto"}, True),
        ({"type": "tool", "name": "f"}, True),
        (SEARCH, False),
        ({"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}, False),
        ({"type": "tool", "name": "web_search"}, False),
    ],
)
def test_a_choice_of_a_tool_that_is_left_out_goes_with_it(choice: Any, is_kept: bool) -> None:
    """A provider refuses a choice of a tool that it does not get."""
    search = {**SEARCH, "name": "web_search"}
    found = sent(body(tool_choice=choice, tools=[search, OWN]), Rounds(left_out=LEFT_OUT))
    assert found["tools"] == [OWN]
    assert ("tool_choice" in found) is is_kept


def test_without_any_tool_nothing_of_tools_is_sent() -> None:
    """An empty list is refused, and so is a choice beside none."""
    read = body(parallel_tool_calls=True, tool_choice="auto", tools=[SEARCH])
    assert sent(read, Rounds(left_out=LEFT_OUT)) == BODY
    assert sent(body(tools=[SEARCH]), Rounds(left_out=LEFT_OUT)) == BODY
    member = HostedTool(name="plugins", where="plugins", member="plugins")
    chat = factories.read(b'{"plugins":[{"id":"web"}],"model":"a","messages":[]}')
    assert sent(chat, Rounds(left_out=(member,))) == {"model": "a", "messages": []}

"""Security F6: members that route, fetch or search in another region passed under class
`restricted`.

The test sends the rows of the audit's table through a gateway to an endpoint that counts the
arriving members. On commit e47127a all of them arrive. `make residency` sends a larger corpus.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.domain.policy.policy import ResidencyRule
from tests.residency.cases import TEAM, TODAY, Ask
from tests.residency.corpus import BODIES, PATHS, URL, policy
from tests.residency.lane import Lane, Reply

ASK = Ask(data_class=None, data_tags=(), gateway_region="de", day=TODAY)
USER = {"role": "user"}
ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chat", {"models": ["other"]}),
    ("chat", {"route": "fallback"}),
    ("chat", {"provider": {"order": ["other"]}}),
    ("chat", {"plugins": [{"id": "web"}]}),
    ("chat", {"transforms": ["middle-out"]}),
    ("chat", {"search_parameters": {"mode": "on"}}),
    ("chat", {"tools": [{"type": "browser_search"}]}),
    ("chat", {"tools": [{"googleSearch": {}}]}),
    ("chat", {"tools": [{"type": "web-search"}]}),
    ("responses", {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
    ("responses", {"tools": [{"type": "namespace", "tools": [{"type": "web_search"}]}]}),
    ("chat", {"data_sources": [{"endpoint": "https://elsewhere.example"}]}),
    ("chat", {"api_base": "https://elsewhere.example"}),
    ("chat", {"base_url": "https://elsewhere.example"}),
    ("chat", {"fallbacks": ["other"]}),
    ("chat", {"extra_body": {"models": ["other"]}}),
    ("chat", {"mcp_servers": [{"url": "https://elsewhere.example"}]}),
    ("chat", {"inference_geo": "us"}),
    ("chat", {"region": "us"}),
    ("chat", {"container": "c"}),
    ("chat", {"cached_content": "c"}),
    ("chat", {"skills": ["s"]}),
    ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("chat", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
    (
        "chat",
        {
            "messages": [
                {**USER, "content": [{"type": "image", "source": {"type": "url", "url": URL}}]}
            ]
        },
    ),
    ("chat", {"messages": [{**USER, "content": [{"type": "image", "image": URL}]}]}),
    ("chat", {"messages": [{**USER, "content": [{"type": "file", "file": {"file_data": URL}}]}]}),
    (
        "chat",
        {"messages": [{**USER, "content": [{"type": "image_url", "image_url": [{"url": URL}]}]}]},
    ),
    ("chat", {"messages": [{**USER, "content": [{"type": "image_url", "imageUrl": URL}]}]}),
    ("responses", {"instructions": [{"content": [{"type": "input_image", "image_url": URL}]}]}),
    ("responses", {"messages": [{"content": [{"type": "input_image", "image_url": URL}]}]}),
    ("chat", {"input": [{"content": [{"type": "input_image", "image_url": URL}]}]}),
    ("embeddings", {"input": [{"image_url": URL}]}),
)
ENGINE: tuple[dict[str, Any], ...] = (
    {"chat_template_kwargs": {"chat_template": "x"}},
    {"chat_template_kwargs": {"tokenize": True}},
    {"prompt_embeds": "AA"},
    {"logits_processors": ["x"]},
    {"structured_outputs": {"regex": "x"}},
    {"lora_request": {}},
    {"prompt_logprobs": 10**6},
    {"use_beam_search": True},
)
UNKNOWN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("chat", {"tomorrow": {"a": 1}}, "tomorrow"),
    ("embeddings", {"tomorrow": 1}, "tomorrow"),
    ("responses", {"tools": [{"type": "tomorrow"}]}, "tools: tomorrow"),
)


def answers(
    document: dict[str, Any], *bodies: tuple[str, dict[str, Any]]
) -> list[tuple[Reply, int]]:
    """Return the answer to each body under a policy, and how often each one reached the
    endpoint.
    """

    async def ask() -> list[tuple[Reply, int]]:
        lane = Lane()
        await lane.open()
        lane.clock.day = TODAY
        found = []
        try:
            lane.apply(lane.at(document))
            for operation, members in bodies:
                lane.endpoints[0].touched = 0
                sent = json.dumps({**BODIES[operation], **members}).encode()
                reply = await lane.ask(ASK, path=PATHS[operation], body=sent)
                found.append((reply, lane.endpoints[0].touched))
        finally:
            await lane.close()
        return found

    return asyncio.run(ask())


def message(reply: Reply) -> str:
    return str(json.loads(reply.body)["error"]["message"])


def test_no_row_of_the_table_reaches_an_upstream_under_a_rule() -> None:
    """Each row is refused before a connection is made, although the endpoint itself is allowed."""
    for (_, members), (reply, touched) in zip(
        ROWS, answers(policy(is_ruled=True), *ROWS), strict=True
    ):
        assert (reply.status, reply.code, touched) == (403, "residency_denied", 0), members
    engine = [("chat", members) for members in ENGINE]
    for (_, members), (reply, touched) in zip(
        engine, answers(policy(is_ruled=True), *engine), strict=True
    ):
        assert (reply.status, reply.code, touched) == (400, "invalid_request", 0), members


@pytest.mark.parametrize("mode", ["class", "tag", "team"])
def test_an_unknown_member_needs_permission_and_the_refusal_names_it(mode: str) -> None:
    """The rule may belong to the class, to a data tag or to the team: each of them can deny
    something.
    """
    document = policy(is_ruled=mode == "class")
    rule = {"deny_providers": ["openai"]}
    if mode == "tag":
        document["data_tags"] = {"phi": rule}
        document["teams"][0]["data_tags"] = ["phi"]
    if mode == "team":
        document["teams"][0]["residency"] = rule
    found = answers(document, *[(operation, members) for operation, members, _ in UNKNOWN])
    for (_, _, name), (reply, touched) in zip(UNKNOWN, found, strict=True):
        assert (reply.status, reply.code, touched) == (403, "residency_denied", 0)
        assert f"In this request: {name}. " in message(reply)


def test_a_leave_of_the_deployment_lets_it_through() -> None:
    """With `allows: [unknown_fields]` or `allows: [hosted_tools]`, an admin declares them
    harmless for that deployment.
    """
    document = policy(is_ruled=True, allows=("unknown_fields", "hosted_tools"))
    found = answers(document, *[(operation, members) for operation, members, _ in UNKNOWN])
    assert [reply.status for reply, _ in found] == [200, 200, 200]


@pytest.mark.parametrize(
    "rule",
    [
        {"regions": ["any"]},
        {"regions": ["any"], "at_rest": ["any"]},
        {"regions": ["eu"], "mode": "shadow"},
    ],
)
def test_without_a_rule_that_can_deny_tomorrows_fields_work_today(rule: dict[str, Any]) -> None:
    """`regions: [any]` without another condition denies nothing, and neither does a rule in
    shadow mode.
    """
    document = policy(is_ruled=False)
    document["classes"]["restricted"] = rule
    found = answers(document, *[(operation, members) for operation, members, _ in UNKNOWN])
    assert [reply.status for reply, _ in found] == [200, 200, 200]


def test_a_refusal_by_place_also_names_the_field_that_is_in_the_way() -> None:
    """The caller can leave out the field, and an admin can allow it; neither moves a deployment.

    Codex sends hosted tools each time: its users can only ask the admin.
    """
    document = policy(is_ruled=True)
    other = {**document["deployments"][0], "name": "d-1", "region": "us"}
    document["deployments"].append(other)
    document["routes"][0]["deployments"] = ["d-1", "d-0"]
    [(reply, touched)] = answers(document, ("chat", {"tomorrow": 1}))
    assert (reply.status, reply.code, touched) == (403, "residency_denied", 0)
    assert (
        "A deployment that is allowed may not be sent tomorrow: leave that out. An admin can also "
        "list the feature under 'allows': d-0 does not allow unknown_fields: the effect of this "
        "field is unknown, and a residency rule applies."
    ) in message(reply)
    assert "d-1 does not allow" not in message(reply)


def conditions() -> Iterator[tuple[dict[str, Any], bool]]:
    any_place, eu = frozenset({"any"}), frozenset({"eu"})
    for field in ("regions", "at_rest", "telemetry", "gateway_regions"):
        yield {field: any_place}, False
        yield {field: eu}, True
        yield {field: frozenset()}, True
    for field in ("deny_regions", "deny_providers"):
        yield {field: frozenset()}, False
        yield {field: eu}, True
    yield {"self_hosted_only": True}, True
    yield {"max_retention_days": 0}, True
    yield {"regions": eu, "is_shadow": True}, False
    yield {}, False


@pytest.mark.parametrize(("condition", "restricts"), list(conditions()), ids=str)
def test_which_rules_can_deny_something(condition: dict[str, Any], restricts: bool) -> None:
    """Each condition alone makes a restricting rule, unless it allows every region."""
    assert ResidencyRule(rule_id=f"team:{TEAM}", **condition).restricts is restricts

"""A policy in several files is one document: lists are joined, and nothing overrides anything."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Finding, PolicyRejected
from gateway.wire.parsed_policy import parse, parse_files
from gateway.wire.yaml_blocks.joined import SourceFile
from gateway.wire.yaml_blocks.nodes import MAX_CHARACTERS
from tests.policy.documents import ALLOWED, EXAMPLE

BASE = EXAMPLE.partition("teams:\n")[0]
PAYMENTS = """\
# Owned by payments
teams:  # one file a team
  # ticket 4711
  - name: payments   # pays
    cost_centre: 'CC-1207'
    data_class: confidential
    routes: [assistant]
"""
SEARCH = """\
---
teams:
- {name: search, cost_centre: CC-0042, data_class: internal, routes: [assistant, partner-chat]}
# the end
...
"""


def files(*texts: str) -> list[SourceFile]:
    """Return texts as files a.yaml, b.yaml and so on."""
    return [SourceFile(f"{chr(97 + at)}.yaml", text) for at, text in enumerate(texts)]


def errors(*texts: str) -> list[str]:
    with pytest.raises(PolicyRejected) as rejected:
        parse_files(files(*texts))
    return [str(finding) for finding in rejected.value.findings]


def test_the_joined_files_mean_the_same_as_one_document() -> None:
    """A team's own file must not change the meaning of its block."""
    parsed = parse_files(files(BASE, PAYMENTS, SEARCH))
    assert parsed.policy == parse(EXAMPLE).policy
    assert parse(parsed.text).policy == parsed.policy


def test_the_joined_text_keeps_comments_quotes_and_order() -> None:
    """The stored document is read by people in `policy show`: the reasons stand in comments."""
    text = parse_files(files(BASE, PAYMENTS, SEARCH)).text
    assert (
        text
        == BASE
        + """\
# Owned by payments
teams:
# one file a team
  # ticket 4711
  - name: payments   # pays
    cost_centre: 'CC-1207'
    data_class: confidential
    routes: [assistant]
  - {name: search, cost_centre: CC-0042, data_class: internal, routes: [assistant, partner-chat]}
  # the end
"""
    )


def test_one_file_is_read_as_ever() -> None:
    """Neither its text nor its findings may change: its hash is in the history."""
    text = "\ufeff" + EXAMPLE.replace("\n", "\r\n")
    assert parse_files(files(text)) == parse(text)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (
            "version: 1\n",
            "b.yaml, line 1: error: version: is there twice (first in a.yaml, line 1)",
        ),
        (
            "\nteams:\n  - {name: payments, cost_centre: X, data_class: internal, routes: []}\n",
            "b.yaml, line 3: error: teams[0].name: team 'payments' is there twice (first in "
            "a.yaml, line 37)",
        ),
        (
            "classes: {public: {regions: [any]}}\n",
            "b.yaml, line 1: error: classes.public: is there twice (first in a.yaml, line 7)",
        ),
        (
            "# all retired\nteams:\n",
            "b.yaml, line 2: error: teams: is nothing here and a list in a.yaml, line 37",
        ),
        ("teams: {a: 1}\n", "b.yaml, line 1: error: teams: is a mapping here and a list in a.yaml"),
        ("- a\n", "b.yaml, line 1: error: document: must be a mapping of names to values, not"),
        ("", "b.yaml, line 1: error: document: the document is empty"),
        ("? [a]\n: b\n", "b.yaml, line 1: error: document: a field name must be text, not a list"),
        ("teams:\n\t- x\n", "b.yaml, line 2: error: document: a tab indents this line"),
        (
            "teams:\n  - {name: a, cost_centre: X, data_class: internal, routes: [asistant]}\n"
            "  - {name: b, cost_centre: X, data_class: internal, routes: [asistant]}\n",
            "b.yaml, line 3: error: teams[1].routes[0]: there is no route 'asistant'; did you mean",
        ),
    ],
)
def test_an_error_names_its_file_and_its_line_there(other: str, expected: str) -> None:
    """A line of the joined text is found in no editor; an override would be found by nobody."""
    assert any(one.startswith(expected) for one in errors(EXAMPLE, other)), errors(EXAMPLE, other)


def test_the_errors_of_all_files_come_at_once() -> None:
    """An author of sixty files does not want sixty runs."""
    assert [one.partition(":")[0] for one in errors("a: [\n", EXAMPLE, "b: *x\n")] == [
        "a.yaml, line 2",
        "c.yaml, line 1",
    ]


def test_a_missing_member_is_an_error_of_the_first_file() -> None:
    """It has no line of its own."""
    assert errors("routes: []\n", "teams: []\n")[0].startswith("a.yaml, line 1: error: version: ")


def test_notes_name_their_file_and_the_item_in_it() -> None:
    """A note on the fortieth team is looked for in that team's file."""
    idle = "teams:\n  - {name: idle, cost_centre: X, data_class: internal, routes: []}\n"
    notes = parse_files(files(EXAMPLE, idle)).notes
    assert (
        Finding(
            2, "teams[0].routes", "team 'idle' may call nothing: it lists no route", False, "b.yaml"
        )
        in notes
    )


def test_files_that_are_too_large_together_are_refused() -> None:
    """The gateways read the joined text, and refuse it if it is longer."""
    comment = "#" * (MAX_CHARACTERS // 2)
    assert "the files have more than" in errors(f"{EXAMPLE}{comment}", f"teams: []\n{comment}\n")[0]


@pytest.mark.parametrize(
    "other",
    [
        "{teams: [{name: x, cost_centre: X, data_class: internal, routes: []}]}",
        "? teams\n: - {name: x, cost_centre: X, data_class: internal, routes: []}",
        "teams: [{name: x, cost_centre: X,   # why\n  data_class: internal, routes: []}, # that\n]",
        "teams:\n    - name: x\n      cost_centre: >-\n        a\n        b\n\n"
        "      data_class: internal\n      routes: []\n\n# c\n",
    ],
)
def test_any_layout_can_be_joined(other: str) -> None:
    """Braces, brackets and folded texts are YAML too."""
    parsed = parse_files(files(EXAMPLE, other))
    assert list(parsed.policy.teams) == ["payments", "search", "x"]
    assert parse(parsed.text).policy == parsed.policy


def test_files_that_grow_too_long_side_by_side_are_written_out() -> None:
    """The items of one file go as deep as those of another, and its comments with them."""
    member = "name: {}, cost_centre: X, data_class: internal, routes: []"
    deep = f"teams:\n{' ' * 60}- {{{member.format('deep')}}}\n"
    long = "teams:\n" + "#\n" * 20_000 + f"- {{{member.format('long')}}}\n"
    parsed = parse_files(files(EXAMPLE, deep, long))
    assert list(parsed.policy.teams) == ["payments", "search", "deep", "long"]
    assert "#" not in parsed.text
    assert parse(parsed.text).policy == parsed.policy


LISTS = ("deployments", "routes", "teams", "cost_centres")
MAPPINGS = ("classes", "regions")


@st.composite
def split_documents(draw: st.DrawFn) -> list[SourceFile]:
    """Return the example in several files of several layouts."""
    whole: dict[str, Any] = yaml.load(ALLOWED, Loader=yaml.CSafeLoader)
    count = draw(st.integers(2, 4))
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    place = st.integers(0, count - 1)
    for name, value in whole.items():
        if name in LISTS:
            for item in value:
                parts[draw(place)].setdefault(name, []).append(item)
        elif name in MAPPINGS:
            for key, item in value.items():
                parts[draw(place)].setdefault(name, {})[key] = item
        else:
            parts[draw(place)][name] = value
    return files(*(_laid_out(draw, part) for part in parts if part))


def _laid_out(draw: st.DrawFn, part: dict[str, Any]) -> str:
    """Return a part of a document as YAML in one of the layouts that people use."""
    text = yaml.safe_dump(
        part,
        sort_keys=False,
        default_flow_style=draw(st.sampled_from([None, False, False, True])),
        indent=draw(st.sampled_from([2, 4])),
        width=draw(st.sampled_from([20, 200])),
    )
    head = draw(st.sampled_from(["", "# é: [\n", "---\n", "---\n# x\n\n", "%YAML 1.1\n---\n"]))
    tail = draw(st.sampled_from(["", "\n\n", "# end: {", "  # end\n...\n"]))
    return (head + text + tail).replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@settings(max_examples=60, deadline=None)
@given(split_documents())
def test_a_document_in_any_files_is_the_same_policy(parts: list[SourceFile]) -> None:
    """The text that gateways read must mean the files that were checked, in every layout."""
    parsed, whole = parse_files(parts), parse(ALLOWED).policy
    stored = parse(parsed.text).policy
    assert stored == parsed.policy
    assert (parsed.policy.teams, parsed.policy.routes) == (whole.teams, whole.routes)
    assert parsed.policy == whole  # mappings: their order does not count

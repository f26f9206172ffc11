"""`policy set` changes one value in a text: every other byte stays, and nothing else it means."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BadUsage, NothingFound, PolicyRejected
from gateway.wire.parsed_policy import parse
from gateway.wire.yaml_blocks.edit import set_value
from gateway.wire.yaml_blocks.nodes import read_document
from gateway.wire.yaml_blocks.trees import is_same
from tests.policy.documents import ALLOWED

Leaf = tuple[str, int, int]  # the path of a value, and the beginning and the end of its text
PLAIN = ["1", "80", "0.50", "eu-de", "a b", "x#y", "é", "true", "2026-11-20", "https://x/y"]
NEW = [
    *PLAIN,
    "a, b",
    "x: y",
    "a]",
    "# no",
    "",
    "it's",
    'say "hi"',
    "*",
    "&a b",
    "!x",
    "- a",
    "[a, 'b']",
    "{a: 1, b: [2]}",
    '"80"',
    "'80'",
    "null",
    "back\\slash",
    "|",
    "%a",
    "@a",
]


class Writer:
    """Writes a drawn document in drawn layouts, and notes the text of each value."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.line_break = draw(st.sampled_from(["\n", "\n", "\r\n"]))
        self.text = draw(st.sampled_from(["", "", "\ufeff", "# é: {x\n"]))
        self.text = self.text.replace("\n", self.line_break)
        self.leaves: list[Leaf] = []

    def any_of(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def name(self, number: int) -> str:
        return self.any_of("a", "b-1", "c.d", "é", "a.b") + str(number)

    def line_end(self) -> None:
        self.text += self.any_of("", "", "  # it's {a: 1}", " ") + self.line_break

    def mapping(self, path: str, indent: int, depth: int, *, named: str = "") -> None:
        """Write the members of a block mapping; the first stands on a line that has begun."""
        names = [self.name(number) for number in range(self.draw(st.integers(1, 3)))]
        if named:
            self.text += f"name: {named}"
            self.line_end()
        for number, name in enumerate(names):
            if number or named:
                if self.draw(st.booleans()):
                    self.text += self.any_of("", "# why: 'x", "      # [") + self.line_break
                self.text += " " * indent
            self.text += f"{name}:"
            self.value(f"{path}.{name}" if path else name, indent, depth)

    def value(self, path: str, indent: int, depth: int) -> None:
        kind = self.any_of("scalar", "flow", "block", "list") if depth else "scalar"
        deeper = indent + self.draw(st.sampled_from([1, 2, 4]))
        if kind == "scalar":
            self.text += self.any_of(" ", "   ")
            self.scalar(path)
            self.line_end()
        elif kind == "flow":
            self.text += " "
            self.flow(path)
            self.line_end()
        elif kind == "block":
            self.line_end()
            self.text += " " * deeper
            self.mapping(path, deeper, depth - 1)
        else:
            self.line_end()
            for number in range(self.draw(st.integers(1, 2))):
                name = self.name(number)
                self.text += " " * deeper + "- "
                self.mapping(f"{path}.{name}", deeper + 2, depth - 1, named=name)

    def flow(self, path: str) -> None:
        """Write a mapping in braces or a list in brackets, which may be on several lines."""
        start, is_list = len(self.text), self.draw(st.booleans())
        self.text += "[" if is_list else "{"
        for number in range(self.draw(st.integers(1, 3))):
            self.text += self.any_of(", ", f",  # x{self.line_break}   ") if number else ""
            name = self.name(number)
            self.text += "" if is_list else f"{name}: "
            self.scalar(f"{path}[{number}]" if is_list else f"{path}.{name}")
        self.text += self.any_of("", " ", ",") + ("]" if is_list else "}")
        self.leaves.append((path, start, len(self.text)))

    def scalar(self, path: str) -> None:
        start, plain = len(self.text), self.draw(st.sampled_from(PLAIN))
        self.text += self.any_of(plain, f"'{plain}'", f'"{plain}"')
        self.leaves.append((path, start, len(self.text)))


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, list[Leaf]]:
    """Return a document and its values' places."""
    writer = Writer(draw)
    writer.mapping("", 0, 3)
    return writer.text, writer.leaves


def loaded(text: str) -> Any:
    return yaml.safe_load(text.removeprefix("\ufeff"))


@settings(max_examples=80, deadline=None)
@given(documents(), st.data())
def test_one_value_changes_and_nothing_else(
    drawn: tuple[str, list[Leaf]], data: st.DataObject
) -> None:
    """Comments, quotes, order and line breaks are the author's: a diff must have one line."""
    text, leaves = drawn
    path, start, end = data.draw(st.sampled_from(leaves))
    value = data.draw(st.sampled_from(NEW))
    edit = set_value(text, path, value)
    behind = len(text) - end
    assert edit.text[:start] == text[:start]
    assert edit.text[len(edit.text) - behind :] == text[end:]
    written = edit.text[start : len(edit.text) - behind]
    meant = loaded(written)
    assert meant in _meanings(value)
    # The same text with a word that occurs nowhere: the only difference is that word's place.
    word = "the-value-itself"
    expected = loaded(text[:start] + word + text[end:])
    assert loaded(edit.text) == _replaced(expected, word, meant)
    assert edit.line == text.count("\n", 0, start) + 1
    assert not edit.is_new


def _meanings(value: str) -> list[Any]:
    """Return all that a person can mean by a value: its text, or its YAML."""
    try:
        return [value, loaded(value)]
    except yaml.YAMLError:
        return [value]


def _replaced(document: Any, word: str, value: Any) -> Any:
    if isinstance(document, dict):
        return {key: _replaced(inner, word, value) for key, inner in document.items()}
    if isinstance(document, list):
        return [_replaced(inner, word, value) for inner in document]
    return value if document == word else document


@settings(max_examples=40, deadline=None)
@given(documents(), st.data(), st.sampled_from(["new", "a.b", "no", "1", "x y"]))
def test_a_missing_member_is_added_and_nothing_else_changes(
    drawn: tuple[str, list[Leaf]], data: st.DataObject, name: str
) -> None:
    """A limit that a team does not have yet is the commonest change of all."""
    text, leaves = drawn
    path = data.draw(st.sampled_from(leaves))[0]
    above, dot, _ = path.rpartition(".") if not path.endswith("]") else ("", "", "")
    try:
        edit = set_value(text, f'{above}{dot}"{name}"', "80")
    except (BadUsage, NothingFound):
        return  # a list, or a part of a name with a dot
    assert edit.is_new
    more = len(edit.text) - len(text)
    pairs = enumerate(zip(edit.text, text, strict=False))
    same = next((at for at, (new, old) in pairs if new != old), len(text))
    assert any(
        edit.text[:at] + edit.text[at + more :] == text
        for at in range(max(0, same - more), same + 1)
    )
    assert _counted(loaded(edit.text)) == _counted(loaded(text)) + 1


def _counted(document: Any) -> int:
    """Return the number of scalars in a document."""
    if isinstance(document, dict | list):
        inner = document.values() if isinstance(document, dict) else document
        return sum(map(_counted, inner))
    return 1


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        ("teams.payments.limits.concurrent", "80", "concurrent: 50}", "concurrent: 80}"),
        ("teams.payments.cost_centre", "CC: 9", "cost_centre: CC-1207", 'cost_centre: "CC: 9"'),
        ("deployments.gpt-eu.model", "gpt-6", "model: gpt-5.5", "model: gpt-6"),
        ("deployments[1].model", "gpt-6", "model: gpt-5.5", "model: gpt-6"),
        ("deployments.gpt-eu.api_key", "env:X", '"env:OPENAI_API_KEY"', '"env:X"'),
        (
            "teams.payments.budgets.month.limit_usd",
            "7000.5",
            "limit_usd: 5000,",
            "limit_usd: 7000.5,",
        ),
        ("teams.payments.budgets.pilot-2026.period", "month", "period: once", "period: month"),
        ("teams.payments.keys.*.limits.requests_per_minute", "9", "minute: 60}", "minute: 9}"),
        (
            'teams."search".routes',
            "[assistant]",
            "routes: [assistant, partner-chat]",
            "routes: [assistant]",
        ),
        ("classes.public.regions[0]", "eu", "{regions: [any]}", "{regions: [eu]}"),
        ("teams.search.priority", "low", "partner-chat]}\n", "partner-chat], priority: low}\n"),
        (
            "teams.search.limits.concurrent",
            "8",
            "partner-chat]}\n",
            "partner-chat], limits: {concurrent: 8}}\n",
        ),
        (
            "teams.payments.priority",
            "high",
            "name: night-job}]}\n",
            "name: night-job}]}\n    priority: high\n",
        ),
        ("facts_valid_days", "90", 'ALERT_SECRET"}\n', 'ALERT_SECRET"}\nfacts_valid_days: 90\n'),
    ],
)
def test_a_policy_is_changed_in_one_place(path: str, value: str, before: str, after: str) -> None:
    """These are the paths that the reference shows."""
    at = "  - {name: search" if "search" in path else ""
    head, _, tail = ALLOWED.partition(at) if at else ("", "", ALLOWED)
    assert before in tail
    edit = set_value(ALLOWED, path, value)
    assert edit.text == head + at + tail.replace(before, after, 1)
    parse(edit.text)


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("a:\n", "a", "1", "a: 1\n"),
        ("a:  # later\nb: 1", "a", "1", "a: 1  # later\nb: 1"),
        ("a:\n", "a.b.c", "1", "a: {b: {c: 1}}\n"),
        ("a: {}\n", "a.b", "1", "a: {b: 1}\n"),
        ("a: {b: 1,}\n", "a.c", "2", "a: {b: 1, c: 2,}\n"),
        (
            "a:\n  b: 1  # x\n  # y\n\nc: 3\n",
            "a.d",
            "2",
            "a:\n  b: 1  # x\n  d: 2\n  # y\n\nc: 3\n",
        ),
        ("a:\r\n  b: 1", "a.c", "2", "a:\r\n  b: 1\r\n  c: 2"),
        ("- name: x\n  b: 1\n", "x.c", "2", "- name: x\n  b: 1\n  c: 2\n"),
        ("a: |\n  x\n  y\nb: 1\n", "a", "z", "a: z\nb: 1\n"),
        ("a: >-\n  x\n\n\nb: 1\n", "c", "2", "a: >-\n  x\n\n\nb: 1\nc: 2\n"),
        ("a: x\n  y\nb: 1\n", "a", "z", "a: z\nb: 1\n"),
        ("{a: 1, b: [2]}", "b[0]", "3", "{a: 1, b: [3]}"),
        ("---\na: 1\n...\n", "b", "2", "---\na: 1\nb: 2\n...\n"),
        ("a: 1\n", '"b.c"', "2", "a: 1\nb.c: 2\n"),
        ("a: 1\n", '"no"', "x", 'a: 1\n"no": x\n'),
        ("? [a, b]\n: 1\nc: 2\n", "c", "3", "? [a, b]\n: 1\nc: 3\n"),
        ("a: 1\n", '"b\\q"', "3", 'a: 1\n"\\"b\\\\q\\"": 3\n'),  # no escape of JSON
        ("a: [b, c]\n", "a[0]", "x, *y", 'a: ["x, *y", c]\n'),  # an alias in brackets
        ("a: [b, c]\n", "a[0]", "x, y", 'a: ["x, y", c]\n'),
    ],
)
def test_each_layout_is_kept(text: str, path: str, value: str, after: str) -> None:
    """A file is changed in the style that it has."""
    assert set_value(text, path, value).text == after


@pytest.mark.parametrize(
    ("path", "value", "error", "message"),
    [
        (
            "teams.paymnts.priority",
            "low",
            NothingFound,
            "has no item 'paymnts'; did you mean 'payments'?",
        ),
        ("teams.search.name.x", "1", NothingFound, "teams.search.name (line 53) is a single value"),
        ("teams.payments", "x", BadUsage, "a block of several lines. Set one value in it"),
        ("teams.payments.limits.", "1", BadUsage, "is no path. Write names with dots"),
        ("teams.payments.limits[0]", "1", BadUsage, "is no path. Write names with dots"),
        ("", "1", BadUsage, "The path is empty."),
        ("version", "1\n2", BadUsage, "VALUE must be one line"),
        ("version", "\udcff", BadUsage, "VALUE must be one line"),
    ],
)
def test_a_place_that_cannot_be_set_is_refused(
    path: str, value: str, error: type[Exception], message: str
) -> None:
    """The message leads to the place and to the next step."""
    with pytest.raises(error) as refused:
        set_value(ALLOWED, path, value)
    assert message in str(refused.value)


def test_a_path_that_means_two_values_is_refused() -> None:
    """The first of two could be the wrong one."""
    text = "a: [{name: x, v: 1}, {name: x, v: 2}]\n"
    with pytest.raises(BadUsage, match=r"means several values, in lines 1, 1\. Write the position"):
        set_value(text, "a.x.v", "3")
    assert set_value(text, "a[1].v", "3").text == text.replace("2", "3")


def test_a_text_that_is_no_plain_yaml_is_rejected() -> None:
    """Its places cannot be trusted."""
    with pytest.raises(PolicyRejected):
        set_value("a: &x 1\nb: *x\n", "b", "2")


def test_a_text_that_would_change_elsewhere_is_left_alone() -> None:
    """A block without a line break at its end would get one from the member behind it."""
    with pytest.raises(BadUsage, match=r"b \(line 1\) cannot be set to that without changing"):
        set_value("a: |\n  x", "b", "2")


def test_equal_texts_of_other_types_are_not_the_same() -> None:
    """A number in quotes is text to the reader of a policy."""
    one, other = (read_document(text).node for text in ("a: 1", "a: '1'"))
    assert is_same(one, one)
    assert not is_same(one, other)

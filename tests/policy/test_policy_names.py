"""Each name that a policy allows works where it is needed: as a part of a file's name, as a word of
a shell, in a header and in Postgres. A text that cannot is refused by name, or noted.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import attribution
from gateway.domain import names
from gateway.domain.budgets.budgets import (
    Account,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    PeriodSpan,
    rule_id,
)
from gateway.domain.budgets.messages import exhausted
from gateway.domain.reports.schedule import file_name
from gateway.errors import PolicyRejected
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import to_yaml
from tests.policy.documents import ALLOWED, changed
from tests.policy.test_policy_reference import example

HARD = (
    *("..", "../../etc/passwd", "a/b", "a\\b", "%2F", "100%", "a+b", "#1", "?x=1", "a b", "a:b"),
    *("'q'", '"q"', "`id`", "$(id)", "$HOME", "a;b", "a|b", "a&b", "*", "~", "!x", "{x}", "%s"),
    *("ä", "支払い", "\U0001f600", "\U00020000" * 100, "\ud55c", "\u1112\u1161\u11ab", "l" * 100),
    *("CC", "cc", "Cc", "-x", "--help", "CON", "nul.txt", "null", "true", "1e5", "all", "=1+1"),
    *("a\tb", "a\x07b", "a\rb", "a\x85b", "a\u2028b", "\u202ea", "\ufeff", "\u200b", "x\uffff"),
)
texts = st.sampled_from(HARD) | st.from_regex(names.line(100), fullmatch=True)
projects = st.from_regex(names.PROJECT, fullmatch=True)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def file_of(name: str, among: list[str]) -> str:
    return file_name(name, among=among, month=date(2026, 10, 1), version=1, suffix=".pdf")


@given(st.lists(texts, min_size=2, unique=True))
def test_each_cost_centre_has_a_file_of_its_own(centres: list[str]) -> None:
    """A folder may ignore case and how letters are composed, and takes 255 bytes; the folder's
    writer adds ten of its own.
    """
    files = [file_of(one, centres) for one in centres]
    assert len({unicodedata.normalize("NFD", one).casefold() for one in files}) == len(files)
    for one in files:
        assert re.fullmatch(r"[\w-]+\.pdf", one), one
        assert len(one.encode()) <= 245


def test_all_hard_names_have_files_of_their_own() -> None:
    """The drawn lists have a few of them each."""
    files = {unicodedata.normalize("NFD", file_of(one, [*HARD])).casefold() for one in HARD}
    assert len(files) == len(HARD)
    assert file_of("CC-1207", ["CC-1207", "marketing"]) == "statement-CC-1207-2026-10-v1.pdf"
    assert file_of("marketing", ["CC-1207"]) == "statement-marketing-2026-10-v1.pdf"


@given(projects | texts, st.sampled_from([BudgetScope.PROJECT, BudgetScope.COST_CENTRE]))
def test_a_budgets_command_can_be_copied_into_a_shell(owner: str, scope: BudgetScope) -> None:
    """A blank split the account, and a cost centre such as `$(id)` ran."""
    budget = rule_id(scope, team="payments", owner=owner, period=BudgetPeriod.MONTH)
    rule = BudgetRule(
        rule_id=budget,
        scope=scope,
        team="payments",
        owner=owner,
        period=BudgetPeriod.MONTH,
        limit_nusd=10**9,
    )
    refused = exhausted(
        Account(account_id=budget, rule=rule),
        PeriodSpan(NOON, None),
        limit_nusd=10**9,
        spent_nusd=10**9,
        held_nusd=0,
        hold_nusd=10**7,
    )
    command = refused[refused.index("tollgate budget grant") :]
    assert shlex.split(command)[:4] == ["tollgate", "budget", "grant", budget]


@given(projects)
def test_each_project_of_a_policy_is_one_of_a_header(project: str) -> None:
    """HTTP takes the blanks around a value away, so one at a project's end is noted."""
    team = changed("{name: checkout,", f"{{name: {project!r},", text=ALLOWED)
    parsed = parse(team)
    assert project in parsed.policy.teams["payments"].projects
    sent = {"x-tollgate-project": project.strip(" ")}
    is_noted = any("no header can name" in note.message for note in parsed.notes)
    assert is_noted == (attribution.project(sent, None) != project)


@pytest.mark.parametrize("name", ["all", "unallocated", "(none)"])
def test_a_cost_centre_called_as_a_word_of_the_reports_is_noted(name: str) -> None:
    """It stays valid: a policy may have it already."""
    parsed = parse(changed("cost_centre: CC-1207", f"cost_centre: {name!r}", text=ALLOWED))
    assert [note.field for note in parsed.notes if "another name" in note.message] == [
        "teams[0].cost_centre"
    ]


@pytest.mark.parametrize("model", ["models/gemini-2.5-flash", "google/gemini-2.5-flash"])
def test_a_model_of_gemini_with_its_path_is_noted(model: str) -> None:
    """Google's list has names with `models/`, and its address has that already: a 404."""
    text = changed("provider: openai\n", "provider: gemini\n", text=ALLOWED)
    price = "price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}"
    named = changed("model: gpt-5.5\n", f"model: {model}\n    {price}\n", text=text)
    (found,) = (note for note in parse(named).notes if note.field == "deployments[1].model")
    assert "write 'gemini-2.5-flash'" in found.message


def texts_of(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each text in a document."""
    members = node.items() if isinstance(node, dict) else enumerate(node)
    for at, value in members:
        if isinstance(value, dict | list):
            yield from texts_of(value, (*path, at))
        elif isinstance(value, str):
            yield (*path, at)


@pytest.mark.parametrize("text", [ALLOWED, example()], ids=["allowed", "reference"])
def test_no_text_of_a_policy_has_a_nul(text: str) -> None:
    """Postgres stores none: `policy apply` ended with an internal error."""
    document = yaml.safe_load(to_yaml(parse(text).policy))
    paths = list(texts_of(document))
    assert len(paths) > 40
    for path in paths:
        broken = yaml.safe_load(yaml.safe_dump(document))
        place = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] += "\0x"
        with pytest.raises(PolicyRejected):
            parse(yaml.safe_dump(broken, allow_unicode=True))

"""Sixty teams in eight files of eight habits are one document, and one command changes one value.

`POLICY_TEAMS` sets the number of teams.
"""

from __future__ import annotations

import os
from datetime import date, timedelta
from fractions import Fraction
from random import Random

import pytest

from gateway.errors import PolicyRejected
from gateway.wire.parsed_policy import parse, parse_files
from gateway.wire.yaml_blocks.edit import set_value
from gateway.wire.yaml_blocks.joined import SourceFile
from tests.policy.documents import EXAMPLE

TEAMS = int(os.environ.get("POLICY_TEAMS", "60"))
FILES = 8
BASE = EXAMPLE.partition("teams:\n")[0]
MOVE = date(2026, 12, 1)


def name(number: int) -> str:
    """Return a team's name; some have dots, as hosts do, and one begins as another does."""
    return f"eu.team-{number}" if number % 5 == 0 else f"team-{number}"


def block(number: int) -> str:
    """Return a team that moves on 1 December and then shares its cost."""
    return f"""\
  # owner of {number}: Zoë, "ask first"
  - name: {name(number)}   # team: {{x}}
    cost_centre:
      - {{name: CC-{number}}}
      - {{name: CC-{number}, share: 0.613, from: {MOVE}}}
      - name: CC-{number + 1000}
        share: 0.387   # it's the rest
        from: {MOVE}
    data_class: internal
    routes: [assistant]
    limits:
      requests_per_minute: 60{number}

      concurrent: {number + 1}
    budgets:
      - {{period: month, limit_usd: 5000, kind: hard, alert_at: [0.5, 1.0]}}
"""


def flow(number: int) -> str:
    """Return the same team in braces, on one line and a half."""
    return (
        f"  - {{name: {name(number)}, cost_centre: [{{name: CC-{number}}},\n"
        f"      {{name: 'CC-{number}', share: 0.613, from: {MOVE}}}, # it's the larger part\n"
        f"      {{name: CC-{number + 1000}, share: 0.387, from: {MOVE}}}], data_class: internal,\n"
        f"     routes: [assistant], limits: {{requests_per_minute: 60{number}, "
        f"concurrent: {number + 1}}},\n"
        "     budgets: [{period: month, limit_usd: 5000, kind: hard, alert_at: [0.5, 1.0]}]}\n"
    )


def team_files() -> list[SourceFile]:
    """Return the files of a company: each is written by another person, on another system."""
    made = [SourceFile("base.yaml", BASE)]
    for file in range(FILES):
        numbers = [number for number in range(TEAMS) if number % FILES == file]
        text = "teams:\n" + "".join((flow if file % 2 else block)(number) for number in numbers)
        text += "cost_centres:\n" + "".join(
            f"  - {{name: CC-{number + more}, title: 'Zoë & Co, {number}', owner: z@x.example}}\n"
            for number in numbers
            for more in (0, 1000)
        )
        text = "---\n# division: [" + "\n" + text if file % 3 == 0 else text
        text = text.replace("\n", "\r\n") if file % 4 == 1 else text
        text = "\ufeff" + text if file % 4 == 2 else text
        made.append(SourceFile(f"division-{file}.yaml", text.rstrip() if file == 3 else text))
    return made


def test_many_files_are_one_document() -> None:
    """Five people edit them: the stored text must mean what each of them wrote."""
    parsed = parse_files(team_files())
    assert len(parsed.policy.teams) == TEAMS
    assert parse(parsed.text).policy == parsed.policy
    for number in range(TEAMS):
        team = parsed.policy.teams[name(number)]
        assert team.shares_on(MOVE - timedelta(days=1)) == {f"CC-{number}": 1}
        assert team.shares_on(MOVE) == {
            f"CC-{number}": Fraction(613, 1000),
            f"CC-{number + 1000}": Fraction(387, 1000),
        }
    assert parsed.policy.cost_centres["CC-1003"].full_name == "Zoë & Co, 3"


def test_one_value_of_one_team_changes(rng: Random) -> None:
    """A pull request then has one line, in each person's style, and the document one difference."""
    files = team_files()
    before = parse_files(files).policy
    for number in rng.sample(range(TEAMS), 6):
        at = 1 + number % FILES
        path = f"teams.{name(number)}.limits.concurrent"
        old, edit = files[at].text, set_value(files[at].text, path, "4711")
        cut = edit.text.index("4711")
        assert old == edit.text[:cut] + str(number + 1) + edit.text[cut + 4 :]
        assert old.encode().count(b"\r\n") == edit.text.encode().count(b"\r\n")
        again = [*files[:at], SourceFile(files[at].path, edit.text), *files[at + 1 :]]
        after = parse_files(again).policy
        assert {one for one in after.teams if after.teams[one] != before.teams[one]} == {
            name(number)
        }
        assert after.teams[name(number)].limits.concurrent == 4711
        assert after.routes == before.routes


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_name_given_twice_names_both_lines(number: int) -> None:
    """The second file would win silently elsewhere."""
    other = f"teams:\n\n{block(number)}"
    files = [*team_files(), SourceFile("mine.yaml", other)]
    with pytest.raises(PolicyRejected) as rejected:
        parse_files(files)
    first = files[1 + number % FILES]
    line = first.text.replace("\r\n", "\n").split("name: " + name(number))[0].count("\n") + 1
    assert str(rejected.value.findings[0]) == (
        f"mine.yaml, line 4: error: teams[0].name: team '{name(number)}' is there twice (first in "
        f"{first.path}, line {line})"
    )

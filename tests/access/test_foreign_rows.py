"""The readers of some teams get no foreign row by any question; `make foreign-rows` asks 10,000
times.
"""

from __future__ import annotations

from random import Random

import pytest
from sqlalchemy import text

from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.reports.scope import NO_TEAM, WHOLE_ORGANISATION, Scope
from gateway.storage.postgres.database import Database
from tests.access.drawn_requests import draw, problem_of
from tests.access.planted import FOREIGN, OWN, planted_ids

REQUESTS = 100


def test_random_requests_find_no_foreign_row(seen: Reports, twin: Reports) -> None:
    """Each answer is that of a database that never had the foreign rows."""
    rng = Random(20261126)
    asked = [draw(rng) for _ in range(REQUESTS)]
    assert [found for one in asked if (found := problem_of(one, seen, twin))] == []


def test_the_search_finds_what_it_looks_for(seen: Reports, twin: Reports) -> None:
    """A search that finds nothing for readers of everything would prove nothing."""
    rng, everything = Random(20261126), seen.seen_by(WHOLE_ORGANISATION)
    asked = [draw(rng) for _ in range(40)]
    found = [problem for one in asked if (problem := problem_of(one, everything, twin))]
    assert len(found) > 10
    assert any("not the answer of the twin" in problem for problem in found)


def test_a_team_gets_its_own_figures(seen: Reports) -> None:
    """No foreign row is not enough: an empty page would pass."""
    everything = seen.seen_by(WHOLE_ORGANISATION)
    for team in OWN:
        asked = ask(month="all", by=["model"], where={"team": team})
        own = seen.seen_by(Scope.of_teams([team])).run("spend", ask(month="all", by=["model"]))
        whole = everything.run("spend", asked)
        assert own.rows == whole.rows
        assert own.total["attempts"]


def test_without_a_team_there_is_no_row(seen: Reports) -> None:
    """The connections of the dashboard are opened for no team."""
    assert seen.seen_by(NO_TEAM).run("spend", ask(month="all")).rows == ()
    others = Scope.of_teams(["payment", "PAYMENTS", "{payments}", '"'])
    assert seen.seen_by(others).run("spend", ask(month="all")).rows == ()


def test_a_name_that_looks_like_a_list_is_one_name(seen: Reports) -> None:
    """A setting carries the names; one with a comma must not become two."""
    name = f"{OWN[0]},{FOREIGN[0]}"
    assert seen.seen_by(Scope.of_teams([name])).run("spend", ask(month="all")).rows == ()


def test_a_connection_of_a_team_is_one_of_finance_again(seen: Reports) -> None:
    """The pool is shared: neither role nor teams may outlive a question."""
    everything = seen.seen_by(WHOLE_ORGANISATION)
    for _ in range(3):
        rows = everything.run("spend", ask(month="all")).rows
        assert {str(row[0]) for row in rows} >= {*OWN, *FOREIGN}
        assert {str(row[0]) for row in seen.run("spend", ask(month="all")).rows} == set(OWN)


def test_a_foreign_request_has_no_receipt(seen: Reports) -> None:
    """An id may come from a log."""
    everything = seen.seen_by(WHOLE_ORGANISATION)
    ids = list(planted_ids())
    assert all(seen.receipt(one) is None for one in ids)
    assert any(everything.receipt(one) is not None for one in ids)


def test_a_team_sees_its_share_of_idle_cost_and_no_bill(seen: Reports) -> None:
    """The whole GPU bill would tell the spending of others."""
    asked = ask(month="2026-11", by=["team"])
    idle = {row["team"]: row["idle_usd"] for row in seen.run("spend", asked).records()}
    whole = seen.seen_by(WHOLE_ORGANISATION).run("spend", asked)
    assert idle["payments"] == {row["team"]: row["idle_usd"] for row in whole.records()}["payments"]
    assert seen.run("gpu", ask(month="2026-11")).rows == ()
    assert not any("bill of" in note for note in seen.run("spend", asked).notes)


@pytest.mark.parametrize("setting", [None, ""])
def test_the_role_shows_nothing_without_the_setting(planted_url: str, setting: str | None) -> None:
    """A forgotten setting must hide everything, never show everything."""
    database = Database(planted_url)
    with database.begin() as connection:
        if setting is not None:
            connection.execute(
                text("SELECT set_config('tollgate.teams', :teams, true)"), {"teams": setting}
            )
        connection.execute(text("SET LOCAL ROLE tollgate_team_reader"))
        for view in ("usage_events", "spend_daily_detail", "budgets", "api_keys", "adjustments"):
            assert connection.execute(text(f"SELECT count(*) FROM team.{view}")).scalar_one() == 0
    database.close()

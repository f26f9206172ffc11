"""Each page with data, without, and while the database is away."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from streamlit.testing.v1 import AppTest

from dashboard import charts, display
from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.reports.report import Column, ColumnKind
from gateway.storage.deployments.engine_samples import EngineSamples
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.ledger.demo_organisations import DemoOrganisationTable
from gateway.storage.postgres.database import Database
from tests import factories
from tests.dashboard.conftest import TIMEOUT_S, Open
from tests.storage.factories import event, request_id

UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 40_000_000,
}
Write = Callable[..., None]


def latency_page() -> None:
    from dashboard.views import latency

    latency.show()


def engines_page() -> None:
    from dashboard.views import engines

    engines.show_samples()


def teams_page() -> None:
    from dashboard.views.spend import teams

    teams.show()


def models_page() -> None:
    from dashboard.views.spend import models

    models.show()


def events_page() -> None:
    from dashboard.views import events

    events.show()


def receipt_page() -> None:
    from dashboard.views import receipt

    receipt.show()


def page(look: Open, script: Callable[[], None], /, **address: str) -> AppTest:
    """Run one page alone, on the database that `look` set."""
    look()
    app = AppTest.from_function(script, default_timeout=TIMEOUT_S)
    for name, value in address.items():
        app.query_params[name] = value
    return app.run()


def texts(app: AppTest) -> str:
    """Everything a reader can read outside charts and tables."""
    found = [
        *app.title,
        *app.subheader,
        *app.markdown,
        *app.caption,
        *app.text,
        *app.error,
        *app.warning,
        *app.info,
    ]
    metrics = [f"{metric.label} {metric.value} {metric.delta}" for metric in app.metric]
    return "\n".join(
        [*(str(each.value) for each in found), *metrics, *(str(code.value) for code in app.code)]
    )


def test_the_first_page_shows_the_months_total(look: Open, write: Write) -> None:
    """The first figure finance looks for; and who makes it up."""
    write(event(1), event(2, team="research", is_self_hosted=True, deployment="qwen-eu"))
    app = look()
    assert not app.exception
    assert app.metric[0].value == "\\$0.001200"
    assert "Idle GPU cost not included" in texts(app)
    assert "Complete until 2026" in texts(app)


def test_teams_shows_each_team_and_the_total(look: Open, write: Write) -> None:
    """A column that does not add up on the page is added up by hand."""
    write(event(1), event(2, team="research"))
    app = page(look, teams_page)
    assert not app.exception
    table = app.dataframe[0].value
    assert table["Team"].tolist() == ["payments", "research", "Total"]
    assert table["Total, USD"].tolist() == [Decimal("0.0006"), Decimal("0.0006"), Decimal("0.0012")]
    assert table["Share"].tolist() == [Decimal("0.5"), Decimal("0.5"), Decimal(1)]


def test_a_legend_fits_a_narrow_screen(look: Open, write: Write) -> None:
    """Four names in one line were cut at the chart's edge, and the last was not seen."""
    write(event(1))
    app = page(look, teams_page)
    (chart,) = app.get("vega_lite_chart")
    columns = json.loads(chart.proto.spec)["encoding"]["color"]["legend"]["columns"]
    assert "floor(width" in columns["expr"], "as many as fit"


def test_an_unknown_cost_is_written_as_unknown(look: Open, write: Write) -> None:
    """Never 0, never NaN, never None."""
    write(event(1, **UNKNOWN))
    for app in (look(), page(look, teams_page), page(look, models_page)):
        assert not app.exception
        assert app.metric[0].value == "unknown"
        assert "\\$0.04" in [metric.value for metric in app.metric]
        for word in ("nan", "None"):
            assert word not in texts(app)


def test_demo_data_is_shown_on_demand_and_says_so(look: Open, write: Write) -> None:
    """A made-up figure is never seen without the banner, a real one never with it."""
    write(event(1), event(2, team="demo-team", is_demo=True))
    real, demo = look(), look(data="demo")
    assert real.metric[0].value == "\\$0.0006000"
    assert demo.metric[0].value == "\\$0.0006000"
    teams = [json.loads(app.get("vega_lite_chart")[-1].proto.spec) for app in (real, demo)]
    assert "demo-team" not in str(teams[0])
    assert "Demo data" in demo.warning[0].value
    assert not real.warning


def test_a_demo_ledger_has_a_banner(look: Open, write: Write, database: Database) -> None:
    """Its events count as real ones, so the page itself must say that they are not."""
    write(event(1))
    assert not look().warning
    DemoOrganisationTable(database).begin("a", is_ledger=False, last_day=date(2026, 11, 19))
    assert not look().warning
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.demo_organisations (organisation, is_ledger, last_day) "
                "VALUES ('a', true, '2026-11-19')"
            )
        )
    marked, demo = look(), look(data="demo")
    assert "Demo ledger" in marked.warning[0].value
    assert marked.metric[0].value == "\\$0.0006000"
    assert ["Demo data" in one.value for one in demo.warning] == [True]


@pytest.mark.parametrize(
    "split", ["model", "tag", "project", "region", "key", "day", "cost_centre"]
)
def test_spend_can_be_split_by_anything(look: Open, write: Write, split: str) -> None:
    """Every split draws, even if the dimension is missing on an event; the address chooses it."""
    write(event(1, tags={}, project=None), event(2))
    app = page(look, teams_page, by=split)
    assert not app.exception
    assert len(app.dataframe[0].value) == (3 if split in ("tag", "project") else 2)


def test_no_data_yet_shows_how_to_send_the_first_request(look: Open) -> None:
    """An empty page is a dead end."""
    app = look()
    assert not app.exception
    assert "No requests yet" in texts(app)
    assert "/v1/chat/completions" in texts(app)
    assert "tollgate demo-data" in texts(look(data="demo"))


def test_an_unreachable_database_is_reported_with_its_remedy(look: Open) -> None:
    """No figure rather than a wrong one, and the remedy beside it."""
    app = look("postgresql://nobody@127.0.0.1:9/none")
    assert not app.exception
    assert "cannot be asked" in texts(app)
    assert "fix TOLLGATE_DATABASE_URL" in texts(app)
    assert not app.metric


def test_a_dashboard_without_an_address_says_how_it_is_started(look: Open) -> None:
    """Started by hand, it must not show a traceback."""
    app = look(None)
    assert not app.exception
    assert "tollgate dashboard" in texts(app)


def test_latency_shows_percentiles_with_units(look: Open, write: Write) -> None:
    """Seconds and milliseconds are a factor of a thousand."""
    write(event(1, ttft_s=0.238, tpot_s=0.0102), event(2, ttft_s=None, tpot_s=None))
    app = page(look, latency_page)
    assert not app.exception
    assert [metric.value for metric in app.metric] == ["0.24 s", "0.24 s", "10.2 ms", "1"]
    assert app.metric[3].delta == "of 2 attempts"


def test_engines_shows_each_engine_with_its_queue(look: Open, database: Database) -> None:
    """The newest sample of a gateway; without any, the page says so."""
    app = page(look, engines_page)
    assert "No engine of your own was sampled yet" in texts(app)
    at = datetime(2026, 11, 26, tzinfo=UTC)
    sample = EngineSample(deployment="qwen", at=at, is_up=True, running=2, waiting=3)
    EngineSamples(database).record([sample], factories.version(), at=at)
    app = page(look, engines_page)
    assert not app.exception
    assert app.dataframe[0].value["Deployment"].tolist() == ["qwen"]


def test_a_total_opens_its_events(look: Open, write: Write) -> None:
    """Filters of the address choose the events; one that has no picker can be taken away."""
    write(event(1), event(2, team="research"), event(3, team="research", tags={"env": "prod"}))
    app = page(look, events_page, team="research", tag="env=prod")
    assert not app.exception
    assert app.dataframe[0].value["Request"].tolist() == [str(request_id(3))]
    app.button(key="without_tag").click().run()
    assert len(app.dataframe[0].value) == 2


def test_a_filter_that_is_no_value_is_refused_in_words(look: Open, write: Write) -> None:
    """An address can be typed by anybody."""
    write(event(1))
    app = page(look, events_page, day="yesterday")
    assert not app.exception
    assert "is not a day" in texts(app)
    assert "No events match" in texts(page(look, events_page, day="1999-01-01"))


def test_a_receipt_shows_price_source_and_arithmetic(look: Open, write: Write) -> None:
    """Who doubts a cost can redo it here."""
    write(event(1))
    app = page(look, receipt_page, request=str(request_id(1)))
    assert not app.exception
    assert (
        app.dataframe[0].value["Arithmetic"].tolist()[0]
        == "400 × 0.25 USD / 1,000,000 = 0.0001 USD"
    )
    assert "Attempt total \\$0\\.0006" in texts(app)


def test_a_receipt_shows_the_cost_that_was_entered_later(
    look: Open, write: Write, database: Database
) -> None:
    """It stated that the hold was the most that it could cost, after finance had settled it."""
    write(event(1, **UNKNOWN))
    app = page(look, receipt_page, request=str(request_id(1)))
    assert (app.metric[0].label, app.metric[0].value) == ("Total, USD", "unknown")
    assert "is held, which is the most it can cost" in texts(app)
    resolve(database, request_id(1), attempt=None, cost=30_000_000, reason="invoice 4711")
    app = page(look, receipt_page, request=str(request_id(1)))
    assert app.metric[0].value == "\\$0\\.03"
    assert "is held" not in texts(app)
    assert "Adjusted by \\$0\\.03" in texts(app)
    assert "invoice 4711" in texts(app)


@pytest.mark.parametrize(
    ("typed", "message"),
    [("", "Enter the"), ("x", "not a request id"), (str(request_id(9)), "No such")],
)
def test_a_receipt_that_cannot_be_found_says_why(
    look: Open, write: Write, typed: str, message: str
) -> None:
    """A typo, an unknown id and no id are three things."""
    write(event(1))
    app = page(look, receipt_page, request=typed)
    assert not app.exception
    assert message in texts(app)


@pytest.mark.parametrize(
    "name", ["**bold**", "$x$", ":red[x]", "[a](http://b)", "<b>x</b>", "# x", "`x`", "~~x~~"]
)
def test_a_name_is_only_a_name(look: Open, write: Write, name: str) -> None:
    """A team's name comes from a file that many edit: it must not format, link or typeset
    anything.
    """
    write(event(1, team=name))
    app = page(look, receipt_page, request=str(request_id(1)))
    assert not app.exception
    assert app.metric[2].value == display.inert(name)
    assert all(not c.isalnum() for c in display.inert(name).replace(name, "")[:1])
    assert not look().exception


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (ColumnKind.MONEY, Decimal("1234.5"), "$1,234.50"),
        (ColumnKind.MONEY, Decimal("0.000123456"), "$0.0001235"),
        (ColumnKind.MONEY, None, "unknown"),
        (ColumnKind.COUNT, 1234567, "1,234,567"),
        (ColumnKind.COUNT, None, "unknown"),
        (ColumnKind.SHARE, Decimal("0.000001"), "< 0.01 %"),
        (ColumnKind.SHARE, Decimal("0.125"), "12.50 %"),
        (ColumnKind.SECONDS, 0.0213, "21.3 ms"),
        (ColumnKind.SECONDS, 1.5, "1.50 s"),
        (ColumnKind.SECONDS, None, "–"),
        (ColumnKind.TEXT, None, "–"),
    ],
)
def test_cells_read_as_people_write_them(kind: ColumnKind, value: object, read: str) -> None:
    """Units, separators, and no figure for a missing one."""
    assert display.cell(Column(name="x", unit="", kind=kind), value) == read  # type: ignore[arg-type]


def test_small_groups_become_one_and_nothing_is_lost() -> None:
    """A chart has fewer colours than a company has teams; the merged groups must still add up."""
    points = [{"day": 1, "team": f"t{n}", "cost_usd": Decimal(n)} for n in range(20)]
    merged = charts.keep_largest(points, group="team", size="cost_usd")
    assert len(merged) == len(charts.COLOURS)
    assert sum(point["cost_usd"] for point in merged) == sum(range(20))
    assert charts.order(merged, group="team")[-1] == charts.OTHER


def test_merged_groups_without_a_known_cost_stay_unknown() -> None:
    """A tooltip with $0.00 for an unknown cost is a wrong figure."""
    points = [{"day": 1, "team": f"t{n}", "cost_usd": None} for n in range(20)]
    assert {
        point["cost_usd"] for point in charts.keep_largest(points, group="team", size="cost_usd")
    } == {None}


def test_models_shows_what_prompt_caches_saved(look: Open, write: Write) -> None:
    """Finance looks for the caches' worth on the page of the money, not in a receipt."""
    plain = Line(kind=TokenKind.INPUT, tokens=1, usd_per_mtok=Decimal(3), cost_nusd=3_000)
    cached = Line(
        kind=TokenKind.CACHED_INPUT, tokens=10**6, usd_per_mtok=Decimal("0.3"), cost_nusd=3 * 10**8
    )
    usage = TokenUsage(
        input_tokens=10**6 + 1, cached_input_tokens=10**6, cache_write_tokens=0, output_tokens=0
    )
    write(event(1, usage=usage, lines=(plain, cached), cost_nusd=300_003_000))

    app = page(look, models_page)
    app.button_group(key="look").set_value("Prompt caches").run()

    assert not app.exception
    assert "Saved \\$2.70" in texts(app)


def test_models_without_cached_tokens_says_so(look: Open, write: Write) -> None:
    """A table of zeros would hide that no provider reported cached tokens."""
    write(event(1, usage=TokenUsage(input_tokens=400, output_tokens=50)))
    app = page(look, models_page)
    app.button_group(key="look").set_value("Prompt caches").run()

    assert "No provider reported cached tokens" in texts(app)


@pytest.mark.parametrize(
    ("usd", "text"), [("0.8", "$0.80"), ("3", "$3.00"), ("0.287037037037", "$0.287037037037")]
)
def test_a_rate_keeps_its_digits(usd: str, text: str) -> None:
    """A rounded rate is another rate, and one with a single digit looks like a slip."""
    assert display.rate(Decimal(usd)) == text


def test_notes_name_columns_by_their_headings(look: Open, write: Write) -> None:
    """A reader of the page does not know the names in the files."""
    write(event(1))
    app = page(look, models_page, look="Prompt caches")
    assert "_usd" not in texts(app).replace("\\", "")

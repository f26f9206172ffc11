"""Roll-ups are disposable: in any state, the events read beside them complete the sums, to the
nano-dollar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from random import Random
from uuid import uuid4

import pytest
from sqlalchemy import text

from gateway.domain.ledger.records import Written
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.storage.ledger import adjustments, rollups
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock
from tests.reports.random_events import random_event
from tests.storage.factories import NOON, event
from tests.waiting import eventually

HOUR = timedelta(hours=1)
# Each view of sums with the same sums over the events, by their common dimensions.
FIGURES = (
    "sum(attempts), sum(known_attempts), sum(unknown_attempts), sum(derived_attempts), "
    "sum(failed_attempts), sum(unreported_attempts), sum(input_tokens), sum(cached_input_tokens), "
    "sum(cache_write_tokens), sum(output_tokens), sum(reasoning_tokens), "
    "sum(uncached_input_tokens), sum(plain_output_tokens), sum(total_tokens), sum(cost_usd), "
    "sum(held_usd), sum(requests), sum(split_input_tokens)"
)
OF_EVENTS = (
    "count(*), count(cost_usd), count(*) FILTER (WHERE is_unsettled), count(*) FILTER (WHERE "
    "usage_source IN ('derived', 'estimated')), count(*) FILTER (WHERE outcome <> 'ok'), count(*) "
    "FILTER (WHERE input_tokens IS NULL), sum(input_tokens), sum(cached_input_tokens), "
    "sum(cache_write_tokens), sum(output_tokens), sum(reasoning_tokens), sum(input_tokens - "
    "coalesce(cached_input_tokens, 0) - coalesce(cache_write_tokens, 0)), sum(output_tokens - "
    "coalesce(reasoning_tokens, 0)), sum(input_tokens + output_tokens), sum(cost_usd), "
    "sum(held_usd) FILTER (WHERE is_unsettled), count(*) FILTER (WHERE attempt = 1), "
    "sum(input_tokens) FILTER (WHERE cached_input_tokens IS NOT NULL)"
)
MORE_FIGURES = (
    ", sum(error_attempts), sum(degraded_attempts), min(ttft_bound_s), "
    "sum(ttft_bound_attempts), sum(ttft_missed), sum(cost_bound_attempts), sum(ttft_measured), "
    "sum(cost_missed), sum(retry_attempts), sum(retry_usd), sum(failed_usd)"
)
TTFT_BOUND = "(decision->'bounds'->>'ttft_p95_s')::float8"
COST_BOUND = "(decision->'bounds'->>'max_cost_nusd')::numeric * 0.000000001"
MORE_OF_EVENTS = (
    ", count(*) FILTER (WHERE outcome NOT IN ('ok', "
    "'client_gone', 'gateway_stopped')), count(degraded), "
    f"min({TTFT_BOUND}), count({TTFT_BOUND} + ttft_s), count(*) FILTER (WHERE ttft_s > "
    f"{TTFT_BOUND}), count({COST_BOUND} + cost_usd), count(ttft_s), count(*) FILTER (WHERE "
    f"cost_usd > {COST_BOUND}), count(*) FILTER (WHERE attempt > 1), sum(cost_usd) FILTER (WHERE "
    "attempt > 1), sum(cost_usd) FILTER (WHERE outcome <> 'ok')"
)
SPLITS = {
    "spend_daily_detail": (
        "day",
        "(occurred_at AT TIME ZONE 'UTC')::date",
        "team, project, cost_centre, route, deployment, provider, model, region, is_self_hosted, "
        "data_class, outcome, usage_source, posted_period",
    ),
    "spend_hourly_detail": (
        "hour",
        "date_trunc('hour', occurred_at, 'UTC')",
        "team, project, cost_centre, key_id, route, deployment, provider, model, region, "
        "is_self_hosted, data_class, outcome, usage_source, posted_period",
    ),
    "spend_daily_by_key": (
        "day",
        "(occurred_at AT TIME ZONE 'UTC')::date",
        "team, project, cost_centre, key_id, route, deployment, provider, model, region, "
        "is_self_hosted, data_class, outcome, usage_source, posted_period",
    ),
    "spend_daily_by_end_user": (
        "day",
        "(occurred_at AT TIME ZONE 'UTC')::date",
        "team, project, cost_centre, end_user, route, deployment, provider, model, region, "
        "is_self_hosted, posted_period",
    ),
    "spend_monthly_detail": (
        "posted_period",
        "posted_period",
        "team, project, cost_centre, route, deployment, provider, model, region, is_self_hosted, "
        "data_class, outcome, usage_source",
    ),
    "spend_monthly_by_key": (
        "posted_period",
        "posted_period",
        "team, project, cost_centre, key_id, route, deployment, provider, model, region, "
        "is_self_hosted, data_class, outcome, usage_source",
    ),
    "spend_monthly_by_end_user": (
        "posted_period",
        "posted_period",
        "team, project, cost_centre, end_user, route, deployment, provider, model, region, "
        "is_self_hosted",
    ),
}


def rows(database: Database, statement: str) -> list[tuple[object, ...]]:
    with database.begin() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


def assert_agree(database: Database, views: Sequence[str] = tuple(SPLITS)) -> None:
    """Require that every view of sums equals its events, group by group, at one moment."""
    with database.engine.connect() as plain:
        connection = plain.execution_options(isolation_level="REPEATABLE READ")
        for view in views:
            bucket, moment, splits = SPLITS[view]
            is_detail = view.endswith(("_detail", "_by_key"))
            figures = FIGURES + (MORE_FIGURES if is_detail else "")
            of_events = OF_EVENTS + (MORE_OF_EVENTS if is_detail else "")
            summed = (
                f"SELECT {bucket}, {splits}, {figures} FROM finance.{view} GROUP BY "
                f"{bucket}, {splits}"
            )
            events = (
                f"SELECT {moment}, {splits}, {of_events} FROM finance.usage_events GROUP "
                f"BY {moment}, {splits}"
            )
            found, expected = (
                Counter(map(tuple, connection.execute(text(asked)))) for asked in (summed, events)
            )
            assert found == expected, view


def dirty(database: Database) -> set[object]:
    return {hour for (hour,) in rows(database, "SELECT hour FROM finance.dirty_hours")}


def test_whatever_was_summed_up_the_views_equal_the_events(database: Database, rng: Random) -> None:
    """With late events, runs in between and expired holds, a total must equal its events at
    every moment.
    """
    ledger, number = Ledger(database), 0
    for _ in range(6):
        batch = [random_event(number + n, rng) for n in range(40)]
        number += len(batch)
        ledger.write(batch)
        match rng.randrange(4):
            case 0:
                rollups.refresh(database)
            case 1:  # some hours of many
                with database.begin() as connection:
                    connection.execute(
                        text("SELECT tollgate.refresh_hours(7), tollgate.refresh_days(2)")
                    )
                    connection.execute(text("SELECT tollgate.refresh_months(1)"))
            case 2:  # a hold expires in an hour that is already summed up
                rollups.refresh(database)
                unknown = next(one for one in batch if one.cost_nusd is None)
                adjustments.resolve(
                    database, unknown.request_id, attempt=None, cost=rng.randrange(99), reason="x"
                )
            case _:
                pass
        assert_agree(database)
    rollups.refresh(database)
    assert_agree(database)
    assert (dirty(database), rollups.check(database)) == (set(), ())
    assert number == 240


def test_a_run_returns_how_many_hours_it_summed_up(database: Database) -> None:
    """The next run must have nothing to do."""
    assert rollups.refresh(database) == 0
    Ledger(database).write([event(n, at=NOON - n * HOUR) for n in range(100)])
    assert len(dirty(database)) == 100
    assert rollups.refresh(database) == 100
    assert rollups.refresh(database) == 0


def test_only_new_events_make_an_hour_dirty(database: Database) -> None:
    """Otherwise a journal that is written again would cause a new sum of everything."""
    Ledger(database).write([event(1), event(2, at=NOON - HOUR)])
    rollups.refresh(database)
    Ledger(database).write([event(1), event(2, at=NOON - HOUR), event(3, at=NOON - 2 * HOUR)])
    assert dirty(database) == {NOON - 2 * HOUR}


def test_events_that_come_while_it_sums_up_are_not_lost(database: Database) -> None:
    """One statement empties the log and the next makes the sums; an event in between keeps its
    own log line.
    """
    ledger = Ledger(database)

    def write(part: int) -> None:
        for n in range(30):
            ledger.write([event(part * 1000 + n)])

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, part) for part in range(3)]
        while not all(task.done() for task in writing):
            rollups.refresh(database)
            assert_agree(database, ("spend_hourly_detail",))
        for task in writing:
            task.result()
    rollups.refresh(database)
    assert rows(database, "SELECT sum(attempts) FROM tollgate.spend_rollup") == [(90,)]
    assert rollups.check(database) == ()


def test_an_event_that_comes_between_log_and_sums_is_summed_up_again(database: Database) -> None:
    """The job waits between its two statements. An event that is committed meanwhile is in the
    sums and still in the log.
    """
    Ledger(database).write([event(1)])
    with ThreadPoolExecutor(1) as pool, database.engine.connect() as reader:
        reader.execute(text("LOCK TABLE tollgate.spend_rollup IN SHARE MODE"))
        running = pool.submit(rollups.refresh, database)
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND "
            "wait_event_type = 'Lock'"
        )
        eventually(lambda: rows(database, waiting), "the job at the roll-up's lock")
        Ledger(database).write([event(2)])
        reader.rollback()
        assert running.result() == 1
    assert rows(database, "SELECT sum(attempts) FROM tollgate.spend_rollup") == [(2,)]
    assert dirty(database) == {NOON}
    assert_agree(database)


def test_two_jobs_at_once_count_nothing_twice(database: Database) -> None:
    """Every worker runs the job; one at a time does the work."""
    Ledger(database).write([event(n, at=NOON - (n % 60) * HOUR) for n in range(300)])
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: rollups.refresh(database), range(6)))
    rollups.refresh(database)
    assert rows(
        database, "SELECT sum(attempts), count(DISTINCT hour) FROM tollgate.spend_rollup"
    ) == [(300, 60)]
    assert_agree(database)


def test_a_job_that_fails_half_way_has_done_nothing(database: Database) -> None:
    """If it is killed between emptying the log and making the sums, the next run must find the
    log unchanged.
    """
    Ledger(database).write([event(1)])
    with database.engine.connect() as connection:
        connection.execute(text("SELECT tollgate.refresh_hours(48)"))
        connection.rollback()
    assert dirty(database) == {NOON}
    assert_agree(database)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE tollgate.spend_rollup SET cost_nusd = cost_nusd + 1 WHERE hour = :hour",
        "UPDATE tollgate.spend_rollup SET team = 'others' WHERE hour = :hour",
        "UPDATE tollgate.spend_rollup SET ttft_buckets[3] = 9 WHERE hour = :hour",
        "DELETE FROM tollgate.spend_rollup WHERE hour = :hour",
        "INSERT INTO tollgate.spend_rollup SELECT * FROM tollgate.spend_rollup WHERE hour = :hour",
    ],
)
def test_the_check_finds_a_broken_roll_up(database: Database, damage: str) -> None:
    """A check that passes a broken roll-up is worse than no check."""
    Ledger(database).write([event(n, at=NOON - n * HOUR) for n in range(3)])
    rollups.refresh(database)
    assert rollups.check(database) == ()
    with database.begin() as connection:
        connection.execute(text(damage), {"hour": NOON - HOUR})
    assert rollups.check(database) == (NOON - HOUR,)
    assert rollups.check(database, since=NOON) == ()
    with database.begin() as connection:
        connection.execute(
            text("INSERT INTO tollgate.dirty_hours (hour) VALUES (:hour)"), {"hour": NOON - HOUR}
        )
    assert rollups.check(database) == (), "an hour that waits to be summed up is not wrong"
    rollups.refresh(database)
    assert rollups.check(database) == ()


def test_a_histogram_counts_every_measurement_in_its_bucket(database: Database) -> None:
    """A month's percentiles are computed from these; a missing or misplaced measurement would
    change them.
    """
    latencies = [None, 0.0, 0.0005, 0.001, 0.2, 0.2, 5.0, 10_000.0]
    Ledger(database).write(
        [event(n, ttft_s=value, tpot_s=None) for n, value in enumerate(latencies)]
    )
    rollups.refresh(database)
    ((ttft, tpot, duration),) = rows(
        database, "SELECT ttft_buckets, tpot_buckets, duration_buckets FROM tollgate.spend_rollup"
    )
    expected = [0] * 56
    for value in latencies:
        if value is not None:
            expected[sum(0.0005 * 1.3**n <= value + 1e-9 for n in range(55))] += 1
    assert (ttft, tpot, sum(duration)) == (expected, [0] * 56, len(latencies))  # type: ignore[arg-type]


def test_a_day_adds_its_hours_size_by_size(database: Database, rng: Random) -> None:
    """A percentile of a month is read from its days."""
    hours = [event(n, at=NOON - rng.randrange(40) * HOUR, ttft_s=rng.random()) for n in range(200)]
    Ledger(database).write(hours)
    sizes = " , ".join(f"sum(ttft_buckets[{n}]) AS of_{n}" for n in range(1, 57))
    by_day, by_hour = (
        f"SELECT {day}, {sizes} FROM finance.{view} GROUP BY 1 ORDER BY 1"
        for day, view in (
            ("day", "spend_daily_detail"),
            ("(hour AT TIME ZONE 'UTC')::date", "spend_hourly_detail"),
        )
    )
    of_days, of_months = (
        f"SELECT {sizes} FROM finance.{view}"
        for view in ("spend_daily_detail", "spend_monthly_by_key")
    )
    assert rows(database, of_days) == rows(database, of_months)
    live = rows(database, by_hour)
    assert rows(database, by_day) == live
    rollups.refresh(database)
    assert rows(database, by_day) == rows(database, by_hour) == live
    assert rows(database, of_days) == rows(database, of_months)
    stored = rows(database, f"SELECT day, {sizes} FROM tollgate.spend_rollup_by_day GROUP BY 1")
    assert stored
    assert set(stored) <= set(live)


def test_sums_by_tag_add_up(database: Database, rng: Random) -> None:
    """An event is in the row of each of its tags; its repeated counts are taken off once."""
    events = [random_event(n, rng) for n in range(120)]
    Ledger(database).write(events)
    by_tag = (
        "SELECT day, team, tag, is_repeat, sum(attempts), sum(cost_usd) "
        "FROM finance.spend_daily_by_tag GROUP BY 1, 2, 3, 4"
    )
    of_months, of_days = (
        f"SELECT team, tag, is_repeat, sum(attempts), sum(cost_usd), sum(total_known) "
        f"FROM finance.{view} GROUP BY 1, 2, 3"
        for view in ("spend_monthly_by_tag", "spend_daily_by_tag")
    )
    expected: Counter[tuple[object, ...]] = Counter()
    for one in events:
        place = (one.occurred_at.date(), one.team)
        labels = [f"{name}={value}" for name, value in one.tags.items()]
        for label in labels or [None]:
            expected[(*place, label, False)] += 1
        if len(labels) > 1:
            expected[(*place, None, True)] += 1 - len(labels)
    for _ in range(2):  # from the events, then from the sums
        found = rows(database, by_tag)
        assert Counter({row[:4]: row[4] for row in found}) == expected
        assert sum(row[5] or 0 for row in found) == sum(  # type: ignore[misc]
            one.cost_nusd or 0 for one in events
        ) * Decimal("1e-9")
        assert Counter(rows(database, of_months)) == Counter(rows(database, of_days))
        rollups.refresh(database)


def test_sums_of_extremes_do_not_stop_the_job(database: Database) -> None:
    """The sum of two of the largest counts needs more than 64 bits; an overflow would stop every
    later sum.
    """
    most = 2**63 - 1
    usage = TokenUsage(
        input_tokens=most, cached_input_tokens=0, output_tokens=most, reasoning_tokens=0
    )
    Ledger(database).write(
        [event(n, usage=usage, cost_nusd=most, usage_source=UsageSource.PROVIDER) for n in range(3)]
    )
    rollups.refresh(database)
    totals = rows(database, "SELECT total_tokens, cost_nusd FROM tollgate.spend_rollup")
    assert totals == [(6 * most, 3 * most)]


def test_the_gateways_role_may_do_it(database: Database, database_url: str) -> None:
    """The job runs in the gateway, which owns none of the tables."""
    gateway = Database(database_url, role="tollgate_gateway")
    unknown = event(
        1,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        lines=(),
        cost_nusd=None,
        held_nusd=5,
        at=NOON - timedelta(days=400),
    )
    Ledger(gateway).write([unknown, event(2)])
    assert rollups.refresh(gateway) == 2
    assert adjustments.expire_holds(gateway, ttl=timedelta(days=1)) == 1
    journal_id = uuid4()
    again = [encode_event(event(2, cost_nusd=7)), b"junk"]
    assert Ledger(gateway).write_documents(again, journal_id=journal_id) == Written(
        conflicts=1, dead=1
    )
    journals = JournalTable(gateway)
    journals.register(journal_id, replica="gateway-1")
    journals.drained(journal_id)
    assert [journal.state for journal in journals.all()] == ["drained"]
    assert rollups.check(gateway) == ()
    state = read_state(gateway, partitions_until=NOON.date())
    assert (state.dead_letters, state.conflicting_events) == (1, 1)
    gateway.close()
    assert {kind for (kind,) in rows(database, "SELECT kind FROM tollgate.adjustments")} == {
        "expired_hold",
        "redelivery",
    }


def test_wrong_hours_of_every_day_are_summed_again(database: Database) -> None:
    """An upgrade compares a month day by day: in one statement ten million events took too long."""
    days = [NOON - n * 24 * HOUR for n in range(3)]
    Ledger(database).write([event(n, at=at) for n, at in enumerate(days)])
    rollups.refresh(database)
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.spend_rollup SET attempts = 7 WHERE hour <> :hour"),
            {"hour": days[1]},
        )
    since = days[2].replace(hour=0)
    assert rollups.sum_wrong_hours_again(database, since=since + 24 * HOUR) == 1
    assert dirty(database) == {days[0]}
    assert rollups.sum_wrong_hours_again(database, since=since) == 1
    assert dirty(database) == {days[0], days[2]}
    rollups.refresh(database)
    assert rollups.check(database) == ()


def test_a_month_is_read_from_its_days_until_it_is_summed(database: Database, rng: Random) -> None:
    """A day that changes after its month was summed must not be counted twice, nor left out."""
    ledger = Ledger(database)
    days = [NOON - timedelta(days=n) for n in range(1, 40)]
    ledger.write([event(n, at=rng.choice(days)) for n in range(60)])
    rollups.refresh(database)
    stored = "SELECT sum(attempts) FROM tollgate.spend_rollup_by_month"
    seen = "SELECT sum(attempts) FROM finance.spend_monthly_detail"
    assert rows(database, stored) == rows(database, seen) == [(60,)]
    ledger.write([event(100 + n, at=rng.choice(days)) for n in range(20)])
    assert (rows(database, stored), rows(database, seen)) == ([(60,)], [(80,)])
    for step in ("refresh_hours(1000)", "refresh_days(3)", "refresh_months(1)", "refresh_days(99)"):
        with database.begin() as connection:
            connection.execute(text(f"SELECT tollgate.{step}"))
        assert rows(database, seen) == [(80,)], step
        assert_agree(database, [view for view in SPLITS if view.startswith("spend_monthly")])
    rollups.refresh(database)
    assert rows(database, stored) == rows(database, seen) == [(80,)]
    assert rows(database, "SELECT * FROM tollgate.dirty_months") == []


@pytest.mark.parametrize("step", ["hours", "days"])
def test_a_month_waits_while_another_process_sums_its_days(database: Database, step: str) -> None:
    """Each day that the other process finishes would make the month be summed again."""
    Ledger(database).write([event(n, at=NOON - timedelta(days=n)) for n in range(1, 40)])
    with database.begin() as connection:  # as far as the other process is
        connection.execute(text(f"SELECT tollgate.refresh_hours({30 if step == 'hours' else 39})"))
        connection.execute(text("SELECT tollgate.refresh_days(9)"))
    stored = "SELECT sum(attempts) FROM tollgate.spend_rollup_by_month"
    with database.begin() as other:
        other.execute(text(TableLock(f"refresh_{step}").taken))
        rollups.refresh(database)
        assert rows(database, stored) == [(None,)]
        assert_agree(database)
    rollups.refresh(database)
    assert rows(database, stored) == [(39,)]
    assert_agree(database)


def test_no_month_that_waits_means_no_look_at_days(database: Database) -> None:
    """The sums by end user of a month have as many rows as users and days."""
    Ledger(database).write([event(n, at=NOON - n * HOUR) for n in range(60)])
    rollups.refresh(database)
    plan = "\n".join(
        str(line)
        for (line,) in rows(
            database,
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) "
            "SELECT end_user, sum(cost_usd) FROM finance.spend_monthly_by_end_user "
            "WHERE posted_period = '2026-11-01' GROUP BY 1",
        )
    )
    of_days = [one for one in plan.splitlines() if "spend_rollup_by_end_user" in one]
    assert of_days
    assert all("never executed" in one for one in of_days), plan


def test_days_that_are_still_being_written_can_wait(database: Database) -> None:
    """A day that is summed while it is half written is summed twice."""
    yesterday, before = NOON - timedelta(days=1), NOON - timedelta(days=2)
    Ledger(database).write([event(1, at=before), event(2, at=yesterday)])
    assert rollups.refresh(database, before=yesterday.date()) == 1
    summed = "SELECT day, attempts FROM tollgate.spend_rollup_by_day"
    assert rows(database, summed) == [(before.date(), 1)]
    assert dirty(database) == {yesterday}
    of_months = "SELECT * FROM tollgate.spend_rollup_by_month"
    assert rows(database, of_months) == [], "the month has days that wait"
    assert_agree(database)
    assert rollups.refresh(database) == 1
    assert {day for day, _ in rows(database, summed)} == {before.date(), yesterday.date()}
    assert_agree(database)


@pytest.mark.parametrize("has_statistics", [False, True])
def test_the_sums_of_a_day_read_each_event_once(database: Database, has_statistics: bool) -> None:
    """A day of a large month has several hundred thousand events, and its sums one minute."""
    first = (NOON - timedelta(days=3)).replace(hour=0)
    Ledger(database).write([event(n, at=first + n * timedelta(minutes=2)) for n in range(2000)])
    with database.begin() as connection:
        assert connection.execute(text("SELECT tollgate.refresh_hours(1000)")).scalar_one() == 67
    if has_statistics:
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(text("VACUUM ANALYZE tollgate.usage_events"))
    read = text(
        "SELECT sum(seq_tup_read + idx_tup_fetch)::integer FROM pg_stat_xact_user_tables "
        "WHERE relname LIKE 'usage_events%'"
    )
    with database.begin() as connection:
        before = connection.execute(read).scalar_one()  # of this session's work just before
        assert connection.execute(text("SELECT tollgate.refresh_days(1)")).scalar_one() == 1
        assert connection.execute(read).scalar_one() - before == 720
    assert_agree(database)

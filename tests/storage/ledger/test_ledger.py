"""The ledger on a real Postgres: each event once, exact, and never changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from gateway.domain.ids import occurred_at, uuid7
from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import DatabaseUnavailable
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import COLUMNS, Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import NOON, event, request_id


def _rows(database: Database, statement: str) -> list[tuple[object, ...]]:
    with database.begin() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


def test_writing_a_batch_twice_charges_once(database: Database) -> None:
    """A journal that is written again after a crash must not bill again."""
    batch = [event(n) for n in range(5)]
    ledger = Ledger(database)
    assert ledger.write(batch) == 5
    assert ledger.write(batch) == 0
    assert _rows(database, "SELECT count(*), sum(cost_nusd) FROM tollgate.usage_events") == [
        (5, 3_000_000)
    ]


def test_a_batch_with_the_same_event_twice_charges_once(database: Database) -> None:
    """After a handover two journals may hold the same attempt."""
    assert Ledger(database).write([event(1), event(1), event(2)]) == 2


def test_attempts_of_one_request_are_events_of_their_own(database: Database) -> None:
    """A failover costs twice if two providers did work."""
    assert Ledger(database).write([event(1, attempt=1), event(1, attempt=2)]) == 2


def test_a_second_delivery_with_other_content_changes_nothing(database: Database) -> None:
    """The first record of an attempt stands; a correction is an adjustment."""
    ledger = Ledger(database)
    ledger.write([event(1)])
    assert ledger.write([event(1, cost_nusd=1)]) == 0
    assert _rows(database, "SELECT cost_nusd FROM tollgate.usage_events") == [(600_000,)]


def test_an_empty_batch_is_nothing(database: Database) -> None:
    """The writer also wakes up when there is no work."""
    assert Ledger(database).write([]) == 0


def test_two_writers_with_the_same_rows_in_other_order_both_finish(database: Database) -> None:
    """Without a common order the two writers would deadlock, and Postgres would abort one."""
    batch = [event(n) for n in range(2000)]
    with ThreadPoolExecutor(4) as pool:
        orders = (batch, batch[::-1], batch[1000:] + batch[:1000], batch)
        written = list(pool.map(Ledger(database).write, orders))
    assert sum(written) == 2000


def test_every_column_holds_its_event_field(database: Database) -> None:
    """A value in its neighbour's column would stay wrong forever."""
    Ledger(database).write([event(1)])
    assert _rows(
        database,
        "SELECT request_id, attempt, occurred_at, started_at, posted_period, team, project, "
        "cost_centre, key_id, end_user, tags, route, deployment, provider, model, region, "
        "is_self_hosted, data_class, policy_version, operation, outcome, http_status, streamed, "
        "input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, "
        "usage_source, price_id, cost_nusd, held_nusd, ttft_s, tpot_s, duration_s, overhead_s, "
        "finish_reason, client_request_id, upstream_request_id, is_suspect, is_demo, features, "
        "decision FROM tollgate.usage_events",
    ) == [
        (
            request_id(1),
            1,
            NOON,
            NOON.replace(microsecond=7000),
            date(2026, 11, 1),
            "payments",
            "checkout",
            "CC-1207",
            "k123456789",
            "u-1",
            {"app": "bot"},
            "assistant",
            "gpt-eu",
            "openai",
            "gpt-5.5",
            "eu",
            False,
            "confidential",
            3,
            "chat",
            "ok",
            200,
            True,
            1000,
            600,
            0,
            50,
            20,
            "provider",
            "price_0123456789abcdef",
            600_000,
            None,
            0.25,
            0.011,
            1.5,
            0.0004,
            "stop",
            "c-1",
            "up-1",
            False,
            False,
            {"max_tokens": 100},
            {"rules": ["confidential"]},
        )
    ]


def test_lines_keep_their_price_as_a_plain_decimal(database: Database) -> None:
    """An exponent or a float in a receipt is a price that a reader cannot add up."""
    Ledger(database).write([event(1)])
    assert _rows(database, "SELECT lines FROM tollgate.usage_events") == [
        (
            [
                {"kind": "input", "tokens": 400, "usd_per_mtok": "0.25", "cost_nusd": 100_000},
                {"kind": "output", "tokens": 50, "usd_per_mtok": "10", "cost_nusd": 500_000},
            ],
        )
    ]


def test_unknown_stays_null_and_zero_stays_zero(database: Database) -> None:
    """Unknown must never become zero, and zero must never become unknown."""
    unknown = event(
        1,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        outcome=Outcome.UPSTREAM_CUT,
        project=None,
        end_user=None,
        http_status=None,
        price_id=None,
        lines=(),
        cost_nusd=None,
        held_nusd=9,
        ttft_s=None,
        tpot_s=None,
        overhead_s=None,
        finish_reason=None,
        client_request_id=None,
        upstream_request_id=None,
    )
    nothing = event(2, usage=TokenUsage(input_tokens=0, output_tokens=0), cost_nusd=0, lines=())
    Ledger(database).write([unknown, nothing])
    assert _rows(
        database,
        "SELECT input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, "
        "reasoning_tokens, cost_nusd, held_nusd, project, end_user, http_status, price_id, ttft_s, "
        "tpot_s, overhead_s, finish_reason, client_request_id, upstream_request_id FROM "
        "tollgate.usage_events ORDER BY request_id LIMIT 1",
    ) == [(None, None, None, None, None, None, 9, *[None] * 10)]
    assert _rows(
        database,
        "SELECT input_tokens, cached_input_tokens, output_tokens, cost_nusd, held_nusd FROM "
        "tollgate.usage_events ORDER BY request_id OFFSET 1",
    ) == [(0, None, 0, 0, None)]


@pytest.mark.parametrize("amount_nusd", [0, 1, 999_999_999, 9_223_372_036_854_775_807])
def test_money_is_exact_to_the_nano_dollar(database: Database, amount_nusd: int) -> None:
    """Division would round sums of more than 16 digits; a float rounds from 9 million dollars
    on.
    """
    Ledger(database).write([event(1, cost_nusd=amount_nusd, held_nusd=amount_nusd)])
    exact = Decimal(amount_nusd).scaleb(-9)
    assert _rows(database, "SELECT cost_usd, held_usd FROM finance.usage_events") == [
        (exact, exact)
    ]
    assert _rows(database, "SELECT cost_usd FROM finance.spend_hourly") == [(exact,)]


def test_the_sum_of_extremes_is_exact(database: Database) -> None:
    """The sum of the largest amounts needs more than 64 bits."""
    largest = 2**63 - 1
    Ledger(database).write([event(n, cost_nusd=largest) for n in range(3)])
    assert _rows(database, "SELECT cost_usd FROM finance.spend_hourly") == [
        (Decimal(3 * largest).scaleb(-9),)
    ]


@pytest.mark.parametrize(
    ("at", "month"),
    [
        (datetime(2026, 11, 30, 23, 59, 59, 999000, tzinfo=UTC), date(2026, 11, 1)),
        (datetime(2026, 12, 1, tzinfo=UTC), date(2026, 12, 1)),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), date(2024, 2, 1)),
    ],
)
def test_an_event_is_posted_to_its_own_utc_month(
    database: Database, at: datetime, month: date
) -> None:
    """A millisecond before midnight UTC still belongs to the old month, in any time zone of the
    server.
    """
    Ledger(database).write([event(1, at=at)])
    assert _rows(database, "SELECT posted_period, occurred_at FROM tollgate.usage_events") == [
        (month, at)
    ]
    assert _rows(database, "SELECT month, state FROM tollgate.periods") == [(month, "open")]


def test_an_event_of_a_month_without_a_partition_is_kept(database: Database) -> None:
    """A wrong clock, or a job that did not run, must not make the ledger refuse a charge."""
    far = (datetime(1999, 12, 31, tzinfo=UTC), datetime(2150, 1, 1, tzinfo=UTC))
    Ledger(database).write([event(n, at=at) for n, at in enumerate(far)])
    assert _rows(database, "SELECT count(*) FROM ONLY tollgate.usage_events_default") == [(2,)]


def test_the_database_refuses_a_moment_that_is_not_the_ids(database: Database) -> None:
    """Otherwise the same attempt could be in two partitions and be charged twice."""
    Ledger(database).write([event(1)])
    copied = ", ".join([*COLUMNS, "posted_period"])
    moved = copied.replace("occurred_at,", "occurred_at + interval '1 millisecond',")
    copy = text(
        f"INSERT INTO tollgate.usage_events ({copied}) SELECT {moved} FROM tollgate.usage_events"
    )
    with (
        pytest.raises(IntegrityError, match="occurred_at_is_of_request_id"),
        database.begin() as connection,
    ):
        connection.execute(copy)


@pytest.mark.parametrize(
    "ms", [0, 1, 999, 86_399_999, 1_795_867_200_123, 4_102_444_799_999, 253_402_300_799_999]
)
def test_the_database_reads_the_same_moment_from_an_id_as_we_do(
    database: Database, ms: int
) -> None:
    """If the two ever differed by a rounding, Postgres would refuse events."""
    made = uuid7(ms, bytes(10))
    assert _rows(database, f"SELECT tollgate.uuid7_time('{made}')") == [(occurred_at(made),)]


def test_a_name_that_postgres_cannot_hold_does_not_stop_its_batch(database: Database) -> None:
    """A caller can send NUL and half a surrogate pair as JSON escapes; the other callers' events
    must still be booked.
    """
    odd = event(
        1, end_user="a\0b\ud800c", tags={"k\0": "\udfffv"}, features={"x": ["\0", float("inf")]}
    )
    assert Ledger(database).write([odd, event(2)]) == 2
    kept = "SELECT end_user, tags, features FROM tollgate.usage_events ORDER BY request_id LIMIT 1"
    assert _rows(database, kept) == [
        ("a\ufffdb\ufffdc", {"k\ufffd": "\ufffdv"}, {"x": ["\ufffd", None]})
    ]


def test_text_that_looks_like_copy_syntax_stays_text(database: Database) -> None:
    r"""In a COPY, `\N` means NULL and a tab ends a column."""
    Ledger(database).write([event(1, end_user="\\N", project="a\tb\n\\.", finish_reason="")])
    assert _rows(
        database, "SELECT end_user, project, finish_reason FROM tollgate.usage_events"
    ) == [("\\N", "a\tb\n\\.", "")]


def test_demo_events_are_in_no_finance_view_but_their_own(database: Database) -> None:
    """Invented traffic must never reach a bill."""
    Ledger(database).write([event(1, is_demo=True, is_self_hosted=True)])
    counts = _rows(
        database,
        "SELECT (SELECT count(*) FROM finance.usage_events), (SELECT count(*) FROM "
        "finance.spend_hourly), (SELECT count(*) FROM finance.gpu_cost), (SELECT count(*) FROM "
        "finance.demo_usage_events)",
    )
    assert counts == [(0, 0, 0, 1)]


def test_unknown_attempts_count_at_their_hold(database: Database) -> None:
    """The view shows unknown cost as such, beside the known cost."""
    unknown = event(
        2,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        lines=(),
        cost_nusd=None,
        held_nusd=5,
    )
    Ledger(database).write([event(1), unknown])
    assert _rows(
        database,
        "SELECT hour, attempts, unknown_attempts, input_tokens, cost_usd, held_usd FROM "
        "finance.spend_hourly",
    ) == [(NOON, 2, 1, 1000, Decimal("0.000600000"), Decimal("0.000000005"))]


def test_the_digest_is_of_the_document(database: Database) -> None:
    """An auditor can compute it from the journal's bytes; other content has another digest."""
    Ledger(database).write([event(1), event(2)])
    digests = _rows(database, "SELECT digest FROM tollgate.usage_events ORDER BY request_id")
    assert digests == [(sha256(encode_event(event(number))).digest(),) for number in (1, 2)]
    assert len(set(digests)) == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tollgate.usage_events SET cost_nusd = 0",
        "DELETE FROM tollgate.usage_events",
        "TRUNCATE tollgate.usage_events",
        "UPDATE tollgate.usage_events_default SET cost_nusd = 0",
        "UPDATE tollgate.periods SET state = 'closed'",
        "INSERT INTO tollgate.periods (month, state) VALUES ('2026-01-01', 'closed')",
        "UPDATE tollgate.prices SET rates = '[]'",
        "UPDATE tollgate.deployment_prices SET price_id = ''",
        "INSERT INTO tollgate.api_keys (key_id) VALUES ('mine')",
        "UPDATE tollgate.policies SET document = ''",
        "CREATE TABLE tollgate.mine ()",
    ],
)
def test_the_gateways_role_changes_no_history(
    database: Database, database_url: str, statement: str
) -> None:
    """An attacker who takes over a gateway must not be able to rewrite the books or make a key."""
    gateway = Database(database_url, role="tollgate_gateway")
    assert Ledger(gateway).write([event(1)]) == 1
    with (
        pytest.raises(DatabaseUnavailable, match="tollgate_gateway may not do this"),
        gateway.begin() as connection,
    ):
        connection.execute(text(statement))
    gateway.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT digest FROM tollgate.api_keys",
        "SELECT * FROM tollgate.usage_events",
        "SELECT document FROM tollgate.policies",
        "INSERT INTO finance.usage_events (attempt) VALUES (1)",
        "INSERT INTO finance.periods (month) VALUES ('2026-01-01')",
        "SELECT tollgate.ensure_month('2026-01-01')",
    ],
)
def test_the_readers_role_sees_views_and_nothing_else(
    database: Database, database_url: str, statement: str
) -> None:
    """A dashboard must give no access to key digests, and no way to write."""
    reader = Database(database_url, role="tollgate_reader")
    with pytest.raises(DatabaseUnavailable, match="may not do this"), reader.begin() as connection:
        connection.execute(text(statement))
    reader.close()


def test_the_readers_role_can_read_every_view(database: Database, database_url: str) -> None:
    """A view without its grant would be a report that fails at a customer."""
    reader = Database(database_url, role="tollgate_reader")
    views = _rows(
        database, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'finance'"
    )
    for (view,) in views:
        expected = 1 if view == "watermark" else 0
        assert _rows(reader, f"SELECT count(*) FROM finance.{view}") == [(expected,)]
    assert len(views) > 20
    reader.close()

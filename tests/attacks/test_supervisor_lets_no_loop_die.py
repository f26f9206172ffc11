"""Ledger 1.2 d and section 2: a background loop that dies is restarted, counted, and reported to
readiness.

The audited commit has no supervisor: most of its loops ended silently at the first unexpected
error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.api.edge import Drain
from gateway.api.large_bodies import LargeBodies
from gateway.api.request_slots import RequestSlots
from gateway.composition import ServingStores
from gateway.main import SystemClock
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.services.snapshot.snapshot import SnapshotHolder
from gateway.services.supervisor import FIRST_PAUSE_S
from gateway.serving.context import ProcessContext, request_ids
from gateway.serving.edge import _plain_endpoints, _stored_responses
from gateway.serving.process import LOOPS, WRITER, start_loops, stop
from gateway.serving.worker import Worker, build_parts
from gateway.settings import Settings
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import SERVING_LIMIT_S, Database
from gateway.telemetry.log_writer import LogWriter
from gateway.telemetry.logs import line_about_dropped
from gateway.telemetry.metrics import Metrics
from tests.factories import PEPPER
from tests.waiting import soon


class Died(Exception):
    """An error that no loop expects."""


@asynccontextmanager
async def serving(
    database_url: str, home: Path, *, stopped_as: Callable[[Worker], Worker] = lambda parts: parts
) -> AsyncIterator[Worker]:
    """Run all parts of a serving process except its listener, with every background loop.

    `stopped_as` chooses the parts that are stopped.
    """
    database = Database(database_url, role="tollgate_gateway", limit_s=SERVING_LIMIT_S)
    clock, metrics = SystemClock(), Metrics()
    settings = Settings(home=home, journal_max_bytes=32 * 2**20)
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as opened:
        stores = ServingStores(
            database=database,
            keys=KeyStore(database),
            policies=PolicyStore(database),
            prices=PriceStore(database),
            ledger=Ledger(database),
        )
        context = ProcessContext(
            settings=settings,
            stores=stores,
            reports=opened,
            peppers=(PEPPER,),
            clock=clock,
            allows_demo_keys=False,
            metrics=metrics,
            holder=SnapshotHolder(clock=clock, outage_s=900),
            log_writer=LogWriter(line_about=line_about_dropped),
            drain=Drain(),
            new_id=request_ids(clock),
        )
        parts = build_parts(context)
        start_loops(parts)
        try:
            yield parts
        finally:
            await stop(stopped_as(parts))
    database.close()


def failures(parts: Worker, loop: str) -> float:
    """Return the count in `/metrics`."""
    found = parts.context.metrics.registry.get_sample_value(
        "tollgate_background_failures_total", {"loop": loop}
    )
    assert found is not None, "each loop is counted from the start"
    return found


def waits_for(parts: Worker, loop: str) -> asyncio.Future[object] | None:
    """Return the future that a loop waits for at this moment, if any."""
    found: asyncio.Future[object] | None = getattr(parts.supervisor.task(loop), "_fut_waiter", None)
    return found if found is not None and not found.done() else None


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_that_dies_is_started_again(
    loop: str, database_url: str, tmp_path: Path
) -> None:
    """Each loop of the real list dies while it waits, so a new loop is covered automatically."""
    with capture_logs() as logs:
        async with serving(database_url, tmp_path) as parts:
            first = await soon(lambda: waits_for(parts, loop), "a loop that waits")
            first.set_exception(Died("whatever nobody foresaw"))
            await soon(lambda: failures(parts, loop) == 1, "the failure in the metrics")
            await soon(lambda: parts.supervisor.is_running(loop), "the loop, running again")
            await soon(lambda: waits_for(parts, loop), "its work")
            assert sum(failures(parts, each) for each in LOOPS) == 1, "no other loop fell with it"
            assert [check.status for check in parts.supervisor.checks()] == ["warn"]
    ended = [line for line in logs if line["event"] == "background_loop_ended"]
    assert [(line["loop"], line["retry_s"], "Died" in line["problem"]) for line in ended] == [
        (loop, FIRST_PAUSE_S, True)
    ]


async def test_readiness_names_a_loop_that_stays_down(database_url: str, tmp_path: Path) -> None:
    """The load balancer sends traffic elsewhere, and the page gives the reason and the remedy."""

    async def broken() -> None:
        raise Died("again")

    async with serving(database_url, tmp_path) as parts:
        parts.supervisor.start({"broken": broken})
        endpoints = _plain_endpoints(
            parts, RequestSlots(10), LargeBodies(), _stored_responses(parts)
        )
        down = await soon(
            lambda: [one for one in endpoints.not_ready() if "broken" in one],
            "not ready",
            within_s=60,
        )
        assert "Died('again')" in down[0]
        assert "docs/runbooks/background-loop.md" in down[0]
        assert "fail" in [
            check.status for check in endpoints.checks() if check.name == "background loops"
        ]


async def test_the_writer_has_the_last_word(database_url: str, tmp_path: Path) -> None:
    """The writer is not cancelled with the others, because it writes the events that they settle
    at the end.
    """
    async with serving(database_url, tmp_path) as parts:
        await parts.supervisor.cancel(but=(WRITER,))
        assert parts.supervisor.is_running(WRITER)

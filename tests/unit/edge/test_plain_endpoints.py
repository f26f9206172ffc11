"""The endpoints that are not hot: receipts before and after the commit, readiness, and failures in
the dialect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast
from urllib.parse import quote, unquote
from uuid import UUID

import pytest

from gateway.api.app import build_app
from gateway.api.large_bodies import LargeBodies
from gateway.api.plain.endpoints import PlainEndpoints
from gateway.api.request_slots import RequestSlots
from gateway.domain.budgets.limits import LimitedBy
from gateway.domain.checks import Check
from gateway.domain.ledger.health import LedgerHealth, health_checks
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.policy.policy import Policy, Route
from gateway.errors import DatabaseUnavailable
from gateway.reports.receipts.receipt import Receipt, receipt_of_events
from gateway.services.deployments.estimates import Estimates
from gateway.services.limits.limiter import Limiter, LimitGrant
from gateway.services.limits.own_reads import OwnReads
from gateway.services.request.prompt_counts import PromptCounts
from gateway.services.request.stored_response_calls import StoredResponseCalls
from gateway.services.snapshot.snapshot import problems
from tests import factories
from tests.fakes import FakeClock
from tests.storage.factories import event
from tests.unit.edge.test_forward_shedding import Door

KEY = factories.key()
AWAY = DatabaseUnavailable("host db.internal is away")
MINE, THEIRS = factories.request_id(random=1), factories.request_id(random=2)
FULL = LedgerHealth(journal_used_bytes=100, journal_max_bytes=100, is_full=True)
BEHIND = LedgerHealth(
    journal_used_bytes=1, journal_max_bytes=100, waiting_events=9, writer_lag_s=600.0
)


@dataclass
class FakeReports:
    """Receipts of events in memory, or a failure of the test's choosing."""

    written: Sequence[UsageEvent] = ()
    failure: Exception | None = None

    def receipt(
        self, request_id: UUID, *, team: str, recent: Sequence[UsageEvent] = ()
    ) -> Receipt | None:
        if self.failure is not None:
            raise self.failure
        found = [*(one for one in self.written if one.request_id == request_id), *recent]
        return receipt_of_events(found, team=team, prices={})

    def usage_me(self, **_: object) -> None:
        assert self.failure is not None, "no test reads its own usage from here"
        raise self.failure


class Unlimited:
    """Limits that let every read through."""

    async def admit_read(self, limited: Sequence[LimitedBy]) -> LimitGrant:
        return LimitGrant(cast(Limiter, None), [], taken_s=0, tokens=0)


@dataclass
class World:
    """The endpoints' dependencies."""

    reports: FakeReports = field(default_factory=FakeReports)
    recent: Sequence[UsageEvent] = ()
    is_lagging: bool = False
    age_s: float = 0.0
    health: LedgerHealth | None = None
    broken: OSError | None = None  # an error for the checks
    document: Policy | None = None

    async def get(self, path: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Status, headers and body of a GET, from the application itself."""
        clock = FakeClock()
        clock.advance(self.age_s)
        holder = factories.holder(
            factories.snapshot(factories.key_record(KEY), document=self.document)
        )
        endpoints = PlainEndpoints(
            holder=holder,
            reports=self.reports,  # type: ignore[arg-type]  # the few methods that are asked
            reads=OwnReads(Unlimited().admit_read),
            clock=clock,
            standing=lambda limited: (),
            allows_demo_keys=False,
            is_lagging=lambda: self.is_lagging,
            checks=self._checks,
            region="unknown",
            max_body_bytes=10_000,
            estimates=Estimates(clock),
            stored_responses=cast(StoredResponseCalls, None),
            slots=RequestSlots(10),
            large_bodies=LargeBodies(),
            counts=PromptCounts(requests=Door().stage.service(), counters={}),
            recent=lambda wanted: [one for one in self.recent if one.request_id == wanted],
            not_ready=lambda: problems(
                holder,
                is_full=self.health is not None and self.health.is_full,
                is_gone=False,
                is_draining=False,
            ),
        )
        scope = {
            "type": "http",
            "method": "GET",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("x", 80),
            "client": ("x", 1),
            "headers": [(b"authorization", b"Bearer " + KEY.encode()), (b"host", b"x")],
            "state": {"request_id": factories.REQUEST_ID, "is_anthropic": False},  # of the edge
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        # It is raised again after the answer, so that the server logs it.
        with suppress(ZeroDivisionError):
            await build_app(endpoints)(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return (
            sent[0]["status"],
            headers,
            json.loads(b"".join(message.get("body", b"") for message in sent)),
        )

    async def receipt(self, wanted: object) -> tuple[int, dict[str, Any]]:
        status, _, body = await self.get(f"/v1/requests/{wanted}")
        return status, body

    def _checks(self) -> Sequence[Check]:
        if self.broken is not None:
            raise self.broken
        return () if self.health is None else health_checks(self.health)


@pytest.mark.parametrize(
    ("path", "failure", "status", "code"),
    [
        (f"/v1/requests/{MINE}", AWAY, 503, "unavailable"),
        (f"/v1/requests/{MINE}", ZeroDivisionError("x"), 502, "upstream_error"),
        ("/v1/usage/me", AWAY, 503, "unavailable"),
        ("/v1/usage/me", ZeroDivisionError("x"), 502, "upstream_error"),
    ],
)
async def test_a_failing_report_returns_the_dialects_error(
    path: str, failure: Exception, status: int, code: str
) -> None:
    """Never `{"detail"}`, never plain text, never the internal cause."""
    found, _, body = await World(FakeReports(failure=failure), age_s=3600).get(path)
    assert (found, body["error"]["code"]) == (status, code)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "db.internal" not in body["error"]["message"]


@pytest.mark.parametrize("failure", [None, AWAY])
async def test_a_receipt_is_readable_here_as_soon_as_the_answer_ended(
    failure: Exception | None,
) -> None:
    """Whoever answered knows the cost: neither the commit nor an outage of Postgres may hide it."""
    status, body = await World(
        FakeReports(failure=failure), recent=[mine(MINE)], age_s=900
    ).receipt(MINE)
    assert (status, body["cost_usd"], body["team"]) == (200, 0.0006, "payments")


@pytest.mark.parametrize(
    ("age_s", "is_lagging", "failure", "status"),
    [
        (0, False, None, 202),
        (59.9, False, None, 202),
        (60, False, None, 404),
        (60, True, None, 202),  # some worker's journal holds events older than a minute
        (86_400, True, None, 202),
        (-4, False, None, 202),  # our clock is a little behind
        (-6, False, None, 404),  # from the future: no gateway can have made it
        (-6, True, None, 404),
        (59.9, False, AWAY, 202),
        (
            60,
            False,
            AWAY,
            503,
        ),  # it cannot be known: neither "pending" nor "no such request" would be true
    ],
)
@pytest.mark.parametrize("owner", ["nobody", "another team, settled here", "another team, written"])
async def test_another_teams_id_looks_like_an_unknown_id(
    age_s: float, is_lagging: bool, failure: Exception | None, status: int, owner: str
) -> None:
    """The answer follows from the id and the journals alone, so another team's ids tell nothing."""
    theirs = [mine(THEIRS, team="research")]
    world = World(
        FakeReports(theirs if "written" in owner else (), failure=failure),
        age_s=age_s,
        is_lagging=is_lagging,
        recent=theirs if "here" in owner else (),
    )
    found, headers, body = await world.get(f"/v1/requests/{THEIRS}")
    assert found == status
    assert "research" not in json.dumps(body)
    if status == 202:
        assert body == {"request_id": str(THEIRS), "status": "pending"}
        assert headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "text", ["x", "1", str(UUID(int=7, version=4)), "01a1f8d3-ea00-1000-8000-000000000000"]
)
async def test_a_malformed_id_is_the_callers_mistake(text: str) -> None:
    """No pending for ever: a client that waits for it would wait in vain."""
    status, body = await World(is_lagging=True).receipt(text)
    assert (status, body["error"]["param"]) == (400, "request_id")


async def test_a_replica_behind_postgres_stays_ready_and_says_so() -> None:
    """While the journal takes events, sending traffic elsewhere would only move the queue."""
    status, _, body = await World(health=BEHIND).get("/readyz")
    assert (status, body["status"], body["policy_version"]) == (200, "ready", 7)
    assert body["warnings"] == [
        "writer: 9 event(s) wait, the oldest for 600 s; nothing is lost meanwhile"
    ]
    assert body["checks"][2]["what_to_do"] == "see docs/runbooks/writer-lag.md"


async def test_a_full_journal_ends_readiness() -> None:
    """No event could be promised to the next request."""
    status, headers, body = await World(health=FULL).get("/readyz")
    assert (status, body["status"], headers["retry-after"]) == (503, "not ready", "2")
    assert "The journal takes nothing new" in body["problems"][0]
    assert [check["check"] for check in body["checks"]] == [
        "journal",
        "unsettled attempts",
        "writer",
    ]


async def test_a_check_that_cannot_be_made_is_a_check_that_fails() -> None:
    """It was 502 `upstream_error`: an orchestrator cannot act on it, nor an admin."""
    status, _, body = await World(broken=FileNotFoundError("journal")).get("/readyz")
    assert (status, body["status"]) == (200, "ready")
    assert body["warnings"] == ["checks: failed: FileNotFoundError('journal')"]
    assert body["checks"][0]["what_to_do"] == "look at the gateway's log"


def mine(request_id: UUID, *, team: str = "payments") -> UsageEvent:
    return event(
        request_id=request_id, team=team, started_at=factories.NOW + timedelta(milliseconds=7)
    )


NAMES = ("qwen/q3", "a/b/c", "gpt-5.5:free", "models/x@2026", "m+1", "0", "x/cancel")


@pytest.mark.parametrize("written", [str, lambda name: quote(name, safe="")], ids=["raw", "quoted"])
@pytest.mark.parametrize("name", [*NAMES, "openai/anything", "openai/a/b"])
async def test_each_name_that_the_policy_allows_is_shown(
    written: Callable[[str], str], name: str
) -> None:
    """Clients look a model up before they use it, by the id of the list or an alias."""
    routes = {
        one: Route(name=one, deployments=("one",), aliases=("openai/*",) if one == "0" else ())
        for one in NAMES
    }
    document = factories.policy(routes=routes, teams={"payments": factories.team(routes=NAMES)})
    status, _, body = await World(document=document).get(f"/v1/models/{written(name)}")
    assert (status, body["id"]) == (200, name if name in NAMES else "0")


@pytest.mark.parametrize("name", ["qwen/q4", "", "/", "assistant/"])
async def test_a_name_that_no_route_has_is_not_found(name: str) -> None:
    """By the error that says so, with the names that there are."""
    status, _, body = await World().get(f"/v1/models/{name}")
    assert (status, body["error"]["code"]) == (404, "model_not_found")

"""Each cell of the matrix: its client makes each of its calls, and after each of them the ledger's
rows are compared with the backend's answers.

    make clients
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients import install
from tests.clients.backend import Backend, serving
from tests.clients.command_lines import COMMAND_LINES
from tests.clients.ledger import check_rows, finished
from tests.clients.matrix import Call, Cell, Treatment, cells
from tests.clients.policy import document
from tests.clients.sessions import Answer, Session, Target, driver
from tests.clients.wording import TEXT
from tests.gateway_process import Gateway
from tests.waiting import eventually

Backends = dict[str, Backend]


@pytest.fixture(scope="session")
def backends() -> Iterator[Backends]:
    """Yield a backend in the United States and one in the European Union."""
    with serving() as us, serving() as eu:
        yield {"us": us, "eu": eu}


@pytest.fixture(scope="session")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], session_database_url: str, backends: Backends
) -> Iterator[Gateway]:
    """Yield the gateway of all cells."""
    policy = document({place: backend.url for place, backend in backends.items()})
    yield from launch_gateway(policy, session_database_url)


@pytest.mark.parametrize("cell", list(cells()), ids=str)
def test_a_client(
    cell: Cell,
    gateway: Gateway,
    backends: Backends,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The client gets its answers, and every answer of a backend is one right row in the ledger."""
    record_property("cell", str(cell))
    if cell.client.environment is not None:
        install.install(cell.client.environment)
    target = Target(
        base=f"http://127.0.0.1:{gateway.port}",
        key=gateway.keys[cell.team],
        cell=cell,
        folder=tmp_path,
    )
    failures = {}
    with ExitStack() as running:
        session = _session(target, running)
        for call in cell.client.calls:
            try:
                _check_call(session, call, cell, gateway, backends)
                record_property(call, "ok")
            except AssertionError as failure:
                failures[call] = str(failure)
                record_property(call, str(failure))
    assert failures == {}


def test_the_ledger_holds_the_backends_answers_and_nothing_else(
    gateway: Gateway, backends: Backends
) -> None:
    """A request that no backend answered, such as a refused one, is on no bill."""
    answered = sorted(
        answer.request_id for backend in backends.values() for answer in backend.answers
    )

    def booked() -> list[str] | None:
        rows = gateway.query("SELECT request_id FROM finance.usage_events")
        found = sorted(str(row["request_id"]) for row in rows)
        return found if len(found) >= len(answered) else None

    assert eventually(booked, f"{len(answered)} rows") == answered if answered else not booked()
    assert [path for backend in backends.values() for path in backend.others] == []


def _session(target: Target, running: ExitStack) -> Session:
    """Return the client, ready for calls."""
    if target.cell.client.driver is not None:
        return running.enter_context(driver(target))
    return COMMAND_LINES[target.cell.client.name](target)


def _check_call(
    session: Session, call: Call, cell: Cell, gateway: Gateway, backends: Backends
) -> None:
    """Make one call, and require that the client, the backends and the ledger agree."""
    marks = {place: len(backend.answers) for place, backend in backends.items()}
    answer = session.call(call)
    here, elsewhere = ("eu", "us") if cell.is_ruled else ("us", "eu")
    assert backends[elsewhere].since(marks[elsewhere]) == [], f"a request reached {elsewhere}"
    answers = finished(backends[here], marks[here])
    if cell.treatment is Treatment.REFUSED:
        assert answers == [], "the backend answered a request that had to be refused"
        _check_refusal(answer, cell)
        return
    assert answer.failure is None, answer.failure
    assert TEXT in answer.text, f"the client shows {answer.text!r}"
    assert answers, "no backend was asked"
    if call is Call.TOOLS:
        _check_tools(answer, cell)
        assert [one.tool for one in answers if one.tool is not None] != []
    if answer.output_tokens is not None:
        made = [one.usage.output_tokens for one in answers]
        assert answer.output_tokens in (made[-1], sum(made)), f"{answer.output_tokens} of {made}"
    check_rows(gateway, answers, cell, call)


def _check_tools(answer: Answer, cell: Cell) -> None:
    """Require that the client ran the tool with the backend's arguments."""
    runs_commands = cell.client.has_hosted_tools or cell.client.driver is None
    expected = {json.dumps(("get_weather", {"city": "Paris"})), json.dumps(("command", "tollgate"))}
    assert {json.dumps(tool) for tool in answer.tools} & expected, (
        f"called {answer.tools}, runs commands: {runs_commands}"
    )


def _check_refusal(answer: Answer, cell: Cell) -> None:
    """Require an error that names each remedy of a policy."""
    assert answer.failure is not None, f"the client got an answer: {answer.text!r}"
    for remedy in cell.remedies:
        assert remedy in answer.failure, f"the refusal does not name {remedy}: {answer.failure}"

"""Compares the rows of the gateway's ledger with the answers that the backends wrote down."""

from __future__ import annotations

from typing import Any

from tests.clients.backend import Answered, Backend
from tests.clients.matrix import Call, Cell
from tests.clients.policy import NUSD_PER_TOKEN
from tests.gateway_process import Gateway
from tests.waiting import eventually


def finished(backend: Backend, mark: int) -> list[Answered]:
    """Return the backend's answers from number `mark` on, once each of them is over."""

    def over() -> list[Answered] | None:
        found = backend.since(mark)
        return found if all(answered.is_over for answered in found) else None

    return eventually(over, "the end of each answer") if backend.since(mark) else []


def check_rows(gateway: Gateway, answers: list[Answered], cell: Cell, call: Call) -> None:
    """Require that each answer of the backend has exactly one row, and that the row agrees with it
    to the token and the nano-dollar.
    """
    for answered in answers:
        _check_headers(answered, key=gateway.keys[cell.team])
    streamed = [
        _check_row(gateway.events(answered.request_id)[0], answered, cell) for answered in answers
    ]
    if call is Call.STREAM:
        assert True in streamed, "no row says that its answer was streamed"
    if call is Call.CHAT and not cell.client.always_streams:
        assert True not in streamed, "a row of a plain answer says that it was streamed"


def _check_headers(answered: Answered, *, key: str) -> None:
    """Require that neither the caller's key nor the user that it forwards reached the backend."""
    values = " ".join(answered.headers.values())
    assert key not in values, "the caller's key reached the backend"
    assert not any(name.startswith("x-openwebui") for name in answered.headers), answered.headers


def _check_row(row: dict[str, Any], answered: Answered, cell: Cell) -> bool:
    """Check one row and return True if it says that the answer was streamed."""
    usage = answered.usage
    cost = row["cost_usd"]
    assert cost is not None, f"no cost; {row['usage_source']} usage of {usage}"
    assert cost * 10**9 == cost_nusd(answered), f"cost_usd {cost} of {usage}"
    expected = {
        **_tokens(answered),
        "outcome": "ok",
        "http_status": 200,
        "usage_source": "provider",
        "held_usd": None,
        "team": cell.team,
        "region": cell.place,
        "route": cell.route,
        "model": f"{answered.dialect}-1",
        "operation": str(cell.caller),
    }
    wrong = {name: row[name] for name, value in expected.items() if row[name] != value}
    assert wrong == {}, f"the row has {wrong}, expected {expected}"
    assert row["deployment"].startswith(("us-", "eu-")), row["deployment"]
    assert row["duration_s"] > 0, row["duration_s"]
    return bool(row["streamed"])


def _tokens(answered: Answered) -> dict[str, int]:
    """Return the counts that the row has to have."""
    usage = answered.usage
    return {
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def cost_nusd(answered: Answered) -> int:
    """Return the price of an answer's tokens in nano-dollars."""
    usage = answered.usage
    plain = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
    return (
        plain * NUSD_PER_TOKEN["input"]
        + usage.cached_tokens * NUSD_PER_TOKEN["cached"]
        + usage.cache_write_tokens * NUSD_PER_TOKEN["cache_write"]
        + usage.output_tokens * NUSD_PER_TOKEN["output"]
    )

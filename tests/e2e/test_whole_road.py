"""From `tollgate up` to the row, the counters of the engine, the report and the page: nothing in
between is fake.
"""

from __future__ import annotations

import csv
import io
import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psycopg
import pytest

from tests import plain_http
from tests.e2e import road as roads
from tests.e2e.road import Road
from tests.waiting import eventually

pytestmark = pytest.mark.engine
ROW = """
    SELECT input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, usage_source,
      outcome, cost_usd,
           team, streamed, ttft_s, tpot_s, duration_s
    FROM finance.usage_events WHERE request_id = %s
"""
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    """One `tollgate up` for this module."""
    started = roads.start(tmp_path_factory.mktemp("road"))
    yield started
    if started.process.poll() is None:
        started.stop()


@pytest.fixture
def client(road: Road) -> Iterator[openai.OpenAI]:
    """The official SDK, unmodified."""
    with openai.OpenAI(
        base_url=f"{road.up['gateway_url']}/v1",
        api_key=road.up["api_key"],
        max_retries=0,
        timeout=120,
    ) as made:
        yield made


def question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def row(road: Road, request_id: str) -> dict[str, Any]:
    """The event of a request, as soon as the writer has committed it."""

    def look() -> dict[str, Any] | None:
        with psycopg.connect(
            road.up["database_url"], row_factory=psycopg.rows.dict_row
        ) as connection:
            return connection.execute(ROW, (request_id,)).fetchone()

    return eventually(look, f"the row of {request_id}")


def counters(road: Road) -> dict[str, float]:
    """Return vLLM's own counts."""
    text = plain_http.get(f"{road.up['engine_url']}/metrics", timeout=10).text
    return {
        name: sum(
            float(value) for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)
        )
        for name in COUNTERS
    }


def tokens_of(road: Road, text: str) -> int:
    """How many tokens the engine's own tokenizer makes of a text."""
    answer = plain_http.post(
        f"{road.up['engine_url']}/tokenize",
        json={"model": "tiny", "prompt": text, "add_special_tokens": False},
        timeout=10,
    )
    count: int = answer.json()["count"]
    return count


def test_up_prints_receipt_addresses_key_and_curl_line(road: Road) -> None:
    """The screen has a newcomer's next steps."""
    printed = road.printed
    for needed in (
        road.up["api_key"],
        road.up["gateway_url"],
        road.up["dashboard_url"],
        "curl ",
        "base_url=",
        "HTTP 403 residency_denied",
        "HTTP 404 model_not_found",
        "tokens ",
        "cost ",
        "answers mean nothing",
        "demo rate",
    ):
        assert needed in printed, needed
    assert "12 11 10 9 8 7 6 5 4 3 2 1" in printed


def test_up_file_is_private_and_complete(road: Road) -> None:
    """It holds a key, so no other user may read it."""
    file = road.home / "up.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set(road.up) == {"gateway_url", "dashboard_url", "engine_url", "database_url", "api_key"}


def test_up_uses_the_owners_login_for_migrations_alone(road: Road) -> None:
    """Its key and its policy are made by administration's login, its demo data by the gateway's."""
    acts = (
        "SELECT DISTINCT db_user FROM tollgate.audit_log WHERE action LIKE 'key.%%' OR "
        "action LIKE 'policy.%%'"
    )
    users = "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name LIKE 'tollgate%%'"
    with psycopg.connect(road.up["database_url"]) as connection:
        made_by = [str(row[0]) for row in connection.execute(acts, ())]
        connected = {str(row[0]) for row in connection.execute(users, ())}
    assert [name.endswith("_admin_login") for name in made_by] == [True]
    assert connected
    assert all(name.endswith("_login") for name in connected)


@pytest.mark.parametrize("streamed", [False, True])
def test_sdk_usage_equals_the_row_and_the_engines_counters(
    road: Road, client: openai.OpenAI, streamed: bool
) -> None:
    """Metered = served = counted by the engine, for both kinds of answers."""
    before = counters(road)
    text = "Count down from 23"
    if streamed:
        raw = client.chat.completions.with_raw_response.create(
            model="assistant",
            messages=question(text),
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
        )
        usage = list(raw.parse())[-1].usage
    else:
        raw = client.chat.completions.with_raw_response.create(
            model="assistant", messages=question(text), temperature=0
        )
        usage = raw.parse().usage
    event = row(road, raw.headers["x-request-id"])
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.prompt_tokens_details is not None
    shown = (
        usage.prompt_tokens,
        usage.prompt_tokens_details.cached_tokens,
        usage.completion_tokens,
        usage.completion_tokens_details.reasoning_tokens,
    )
    kept = tuple(
        event[f"{kind}_tokens"] for kind in ("input", "cached_input", "output", "reasoning")
    )
    assert shown == kept
    grown = {name: count - before[name] for name, count in counters(road).items()}
    assert grown == {COUNTERS[0]: event["input_tokens"], COUNTERS[1]: event["output_tokens"]}
    assert (event["usage_source"], event["outcome"], event["streamed"]) == (
        "provider",
        "ok",
        streamed,
    )
    assert float(event["cost_usd"]) == pytest.approx(
        usage.model_dump()["cost_usd"], rel=0, abs=1e-12
    )


def test_stream_measures_first_token_and_pace_apart(road: Road, client: openai.OpenAI) -> None:
    """TTFT and time per output token answer different questions."""
    raw = client.chat.completions.with_raw_response.create(
        model="assistant", messages=question("Count down from 30"), stream=True, temperature=0
    )
    assert all(chunk.usage is None for chunk in raw.parse())
    event = row(road, raw.headers["x-request-id"])
    assert event["output_tokens"] > 30
    assert 0 < event["ttft_s"] < event["duration_s"]
    # On a busy machine many tokens come in one read: the pace may be 0, but never more than the
    # time there was.
    assert (
        0 <= event["tpot_s"] * (event["output_tokens"] - 1) <= event["duration_s"] - event["ttft_s"]
    )


def test_reasoning_tokens_equal_the_tokenizers_count(road: Road, client: openai.OpenAI) -> None:
    """A thinking answer is charged for its thoughts, by the engine's own tokenizer."""
    answer = client.chat.completions.create(
        model="assistant", messages=question("What is 7 + 5?"), temperature=0
    )
    thought = answer.choices[0].message.model_dump()["reasoning"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    assert counted
    assert counted == tokens_of(road, thought)


def test_a_tool_is_called_and_the_answer_stops(client: openai.OpenAI) -> None:
    """Tools pass through untouched, both ways."""
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
    }
    answer = client.chat.completions.create(
        model="assistant",
        messages=question("What is the weather in Paris?"),
        tools=[tool],
        temperature=0,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


def test_reply_names_the_model_that_was_asked_for(client: openai.OpenAI) -> None:
    """An app keeps the model name it sends today."""
    answer = client.chat.completions.create(
        model="gpt-4o-mini", messages=question("Hello"), max_tokens=5
    )
    assert answer.model == "gpt-4o-mini"


def test_report_json_csv_and_page_agree(road: Road, client: openai.OpenAI) -> None:
    """One number at every place; demo figures are never in it."""
    client.chat.completions.create(
        model="assistant", messages=question("Count down from 9"), temperature=0
    )
    with psycopg.connect(road.up["database_url"]) as connection:
        total = "SELECT sum(cost_usd) FROM finance.usage_events"
        eventually(lambda: connection.execute(total).fetchone(), "a total")
        report = json.loads(road.tollgate("report", "spend", "--by", "team", "--format", "json"))
        spent = {team["team"]: team["cost_usd"] for team in report["rows"]}
        assert set(spent) == {"demo"}
        table = list(
            csv.DictReader(
                io.StringIO(road.tollgate("report", "spend", "--by", "team", "--format", "csv"))
            )
        )
        assert [float(team["cost_usd"]) for team in table] == [spent["demo"]]
    mine = plain_http.get(
        f"{road.up['gateway_url']}/v1/usage/me",
        headers={"authorization": f"Bearer {road.up['api_key']}"},
    ).json()
    assert mine["team_month"]["cost_usd"] == spent["demo"]


def test_second_up_names_the_setting_of_a_taken_port(road: Road) -> None:
    """A taken port is a clear error, not a stack trace."""
    second = subprocess.run(
        [sys.executable, "-m", "gateway.main", "up"],
        env=road.variables,
        cwd=roads.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 2
    assert "TOLLGATE_PORT" in second.stderr
    assert "Traceback" not in second.stderr


def test_sigterm_ends_every_child_and_a_second_start_goes_on(road: Road) -> None:
    """Nothing is left behind, and nothing is installed or trained again."""
    key = road.up["api_key"]
    road.stop()
    eventually(lambda: not road.family(), "the end of every child")
    assert not (road.home / "up.json").exists()
    again = roads.start(road.home, "--no-demo-data")
    try:
        assert again.up["api_key"] == key
    finally:
        again.stop()
    assert not Path(road.home / "pg" / "data" / "postmaster.pid").exists()

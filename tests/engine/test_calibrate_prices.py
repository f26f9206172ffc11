"""`tollgate engine calibrate`: a measured throughput becomes the price of the next request."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from engine_factories import is_alive
from simulated_engine import MODEL, SimulatedEngine, TokenSeconds, simulated

from tests import plain_http
from tests.canary import UPSTREAM_SECRET
from tests.gateway_process import REPOSITORY, Gateway, StartGateway
from tests.waiting import eventually

LOAD = ("--seconds", "1", "--concurrency", "4", "--prompt", "256", "--answer", "32", "--seed", "3")
USD_PER_GPU_HOUR, GPUS, TARGET = 3.6, 2, 0.5


def document(url: str, *, gpu: str = "H200", usd: float = USD_PER_GPU_HOUR) -> str:
    """A policy with one engine."""
    own = f'provider: openai_compatible, self_hosted: true, region: unknown, base_url: "{url}/v1"'
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: own, model: {MODEL}, {own}, api_key: "env:FAKE_KEY",
     gpu: {{type: {gpu}, count: {GPUS}, usd_per_gpu_hour: {usd}, input_tok_per_s: 40000, output_tok_per_s: 2500, target_utilisation: {TARGET}}}}}
routes: [{{name: r, deployments: [own]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [r]}}]
"""  # noqa: E501


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    # Short times, since it spends them; those of the prompt are far above the noise of the waits.
    true = TokenSeconds(input=12e-6, cached_input=1.2e-6, output=60e-6, step=1.6e-3, round=1e-3)
    with simulated(key=UPSTREAM_SECRET, is_slow=True, true=true) as made:
        yield made


@pytest.fixture
def gateway(engine: SimulatedEngine, start_gateway: StartGateway) -> Gateway:
    made: Gateway = start_gateway(document(engine.url))
    return made


def run(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.main", "engine", "calibrate", *arguments],
        env=dict(gateway.variables),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def calibrated(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    done = run(gateway, "own", *LOAD, "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout, parse_float=Decimal)
    return result


def source(gateway: Gateway, event: dict[str, Any]) -> str:
    """The source of the price of an event, as finance reads it."""
    named = "SELECT source FROM finance.prices WHERE price_id = %s"
    (row,) = gateway.query(named, event["price_id"])
    return str(row["source"])


def ask(gateway: Gateway) -> dict[str, Any]:
    """Send one request and return its usage event."""
    answer = plain_http.post(
        f"{gateway.base_url}/chat/completions",
        timeout=30,
        headers={"authorization": f"Bearer {gateway.key}"},
        json={
            "model": "r",
            "max_tokens": 40,
            "messages": [
                {"role": "system", "content": "one two three four five six seven eight " * 9},
                {"role": "user", "content": "a question of some words"},
            ],
        },
    )
    assert answer.status_code == 200, answer.text
    (event,) = gateway.events(answer.headers["x-request-id"])
    return event


def cost_usd(event: dict[str, Any], result: dict[str, Any], *, usd: float) -> Decimal:
    """The cost by the contract's formula, rate / (tok_per_s × target), in fractions; each line is
    rounded once.
    """
    per_s = Fraction(str(usd)) * GPUS / 3600 / Fraction(str(TARGET))
    total = Decimal(0)
    for tokens, rate in (
        (event["input_tokens"] - event["cached_input_tokens"], "input_tok_per_s"),
        (event["cached_input_tokens"], "cached_input_tok_per_s"),
        (event["output_tokens"], "output_tok_per_s"),
    ):
        line = tokens * per_s / Fraction(result[rate]) * 10**9
        exact = Decimal(line.numerator) / Decimal(line.denominator)
        total += exact.quantize(Decimal(1), ROUND_HALF_EVEN) / 10**9
    return total


def test_a_calibration_prices_the_next_request(gateway: Gateway, engine: SimulatedEngine) -> None:
    """To the nano-dollar, from its moment on, at the GPU rate of the day. Nothing changes without
    `--apply`, and nothing by a measurement that is refused.
    """
    before = ask(gateway)
    assert "uncalibrated" in source(gateway, before)
    assert calibrated(gateway)["price_id"] is None
    entries = "SELECT * FROM finance.price_entries WHERE origin = 'calibrated'"
    assert gateway.query(entries) == []

    result = calibrated(gateway, "--apply", "--reason", "a new engine version")
    charged = eventually(
        lambda: next((e for e in [ask(gateway)] if e["price_id"] == result["price_id"]), None),
        "a request at the new price",
    )
    assert charged["cached_input_tokens"] > 0
    assert charged["cost_usd"] == cost_usd(charged, result, usd=USD_PER_GPU_HOUR)
    assert source(gateway, charged).startswith("GPU rate, calibrated 20")
    assert "at concurrency 4: 2 x H200" in source(gateway, charged)
    (again,) = gateway.events(str(before["request_id"]))
    assert again["cost_usd"] == before["cost_usd"], "a price never changes what was charged"

    (entry,) = gateway.query(entries)
    assert (entry["deployment"], entry["reason"]) == ("own", "a new engine version")
    assert entry["calibration"]["output_tok_per_s"] == str(result["output_tok_per_s"])
    acts = "SELECT subject, reason FROM finance.audit_log WHERE action = 'price.add'"
    assert gateway.query(acts) == [{"subject": "own", "reason": "a new engine version"}]
    (shown,) = json.loads(gateway.tollgate("price", "show", "own", "--format", "json"))
    assert shown["source"] == source(gateway, charged)
    assert [row["origin"] for row in shown["history"]] == ["calibrated"]

    engine.true = replace(engine.true, prompt_pairs=4e-6, noise=0.005)
    bent = run(gateway, "own", *LOAD, "--apply", "--reason", "x")
    assert bent.returncode == 1
    assert "The residuals bend" in bent.stderr
    assert "Nothing was applied" in bent.stderr
    assert "output_tok_per_s" in bent.stdout
    assert gateway.query(entries) == [entry], "one price would be wrong at some lengths"

    dearer = document(engine.url, usd=7.2)  # the same engine at another hourly price
    assert gateway.apply(dearer).prices["own"].source.startswith("GPU rate, calibrated 20")
    twice = eventually(
        lambda: next((e for e in [ask(gateway)] if e["cost_usd"] > charged["cost_usd"]), None),
        "a request at the dearer rate",
    )
    assert twice["cost_usd"] == cost_usd(twice, result, usd=7.2)
    other = gateway.apply(document(engine.url, gpu="H100"))  # which was never measured
    assert "uncalibrated" in other.prices["own"].source
    teams = gateway.query("SELECT DISTINCT team FROM finance.usage_events")
    assert teams == [{"team": "payments"}], "the load is charged to nobody"


@contextmanager
def measuring(
    gateway: Gateway, engine: SimulatedEngine, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Begin a calibration, and yield it once its load has arrived."""
    before = len(engine.ledger)
    with subprocess.Popen(
        [sys.executable, "-m", "gateway.main", "engine", "calibrate", "own", *arguments],
        env=dict(gateway.variables),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        eventually(lambda: len(engine.ledger) > before, "the load of a calibration")
        yield running


def test_a_result_that_cannot_be_stored_is_not_lost(
    gateway: Gateway, engine: SimulatedEngine
) -> None:
    """It took minutes. An apply, or a Postgres that is away by now, must not throw it away."""
    how = (*LOAD, "--apply", "--reason", "x", "--format", "json")
    with measuring(gateway, engine, *how) as running:
        gateway.apply(document(engine.url, gpu="L40S"))
        out, errors = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "An apply changed own while it was measured. Nothing was stored" in errors
    result = json.loads(out)
    assert result["price_id"] is None
    assert result["output_tok_per_s"] > 0


def test_no_attempt_pays_for_the_load_of_a_calibration(
    gateway: Gateway, engine: SimulatedEngine
) -> None:
    """The engine's counters have its tokens. So it is recorded as a probe of unknown tokens: an
    unknown attempt of that time is not settled from the counters.
    """
    probes = (
        "SELECT deployment, prompt_tokens, ended_at >= sent_at AS has_ended "
        "FROM tollgate.engine_probes"
    )
    with measuring(gateway, engine, *LOAD) as running:
        assert gateway.query(probes) == [
            {"deployment": "own", "prompt_tokens": None, "has_ended": None}
        ]
        running.communicate(timeout=120)
    assert gateway.query(probes) == [
        {"deployment": "own", "prompt_tokens": None, "has_ended": True}
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's end")
def test_a_killed_calibration_sends_no_more_load(gateway: Gateway, engine: SimulatedEngine) -> None:
    """Its child would load the engine for minutes, beside the callers and unseen."""
    with measuring(gateway, engine, *LOAD[2:], "--seconds", "600") as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
        (child,) = map(int, children.split())
        running.kill()
    eventually(lambda: not is_alive(child), "the end of its child")

"""`tollgate engine status`: the engines of the policy as they are now, asked without a gateway."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli.selfhosted.engine_status import COLUMNS
from gateway.storage.postgres.database import Database
from tests.attacks.odd_engine import http, odd_engine
from tests.cli.conftest import Cli

PAGE = """\
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 40.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="tiny"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="tiny"} 20.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 20.0
"""
MISSING = b'{"error":{"message":"The model `tiny` does not exist.","type":"NotFoundError","param":"model","code":404}}'  # noqa: E501


def document(*deployments: str) -> str:
    """Return a policy with a company's API beside these engines."""
    hosted = (
        '{name: gpt, provider: openai_compatible, base_url: "https://gpt.invalid/v1", model: gpt, '
        "region: us, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}"
    )
    lines = "\n".join(f"  - {one}" for one in (*deployments, hosted))
    return (
        "version: 1\nregions: {us: [us-east]}\nclasses: {internal: {regions: [any]}}\n"
        f"deployments:\n{lines}\nroutes: [{{name: r, deployments: [gpt]}}]\n"
        "teams: [{name: payments, cost_centre: CC-1, data_class: internal, routes: [r]}]\n"
    )


def deployment(name: str, url: str, rest: str = "provider: vllm") -> str:
    """Return an engine's entry in the policy."""
    return (
        f'{{name: {name}, {rest}, self_hosted: true, base_url: "{url}", model: tiny, '
        "region: us-east, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}"
    )


@pytest.fixture
def applied(cli: Cli, tmp_path: Path) -> Callable[..., Cli]:
    """Apply a policy with these engines."""

    def apply(*deployments: str) -> Cli:
        file = tmp_path / "policy.yaml"
        file.write_text(document(*deployments))
        cli.ok("policy", "apply", str(file), "--yes")
        return cli

    return apply


def refusing_url() -> str:
    """Return an address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def test_an_engine_that_answers_is_ready_and_shows_its_signals(
    applied: Callable[..., Cli], database: Database
) -> None:
    """Exact figures, as the engine's page has them; the probe is recorded, so no team pays it."""
    with odd_engine(PAGE.encode()) as engine:
        url = engine.url
        ran = applied(deployment("qwen", url))("engine", "status", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    (row,) = json.loads(ran.out)
    assert tuple(row) == COLUMNS
    assert row == {
        "deployment": "qwen",
        "url": url,
        "ready": True,
        "queue": 3,
        "running": 2,
        "kv_use": 0.25,
        "prefix_hit_rate": 0.4,
        "ttft_s": 0.5,
        "tpot_s": None,
    }
    with database.begin() as connection:
        probes = connection.exec_driver_sql(
            "SELECT deployment, prompt_tokens, generation_tokens FROM tollgate.engine_probes"
        ).all()
    assert [tuple(probe) for probe in probes] == [("qwen", 10, 5)]


def test_another_quantile_and_another_time(applied: Callable[..., Cli]) -> None:
    """Since the start by default; over a second in which nothing ended there is no quantile."""
    with odd_engine(PAGE.encode()) as engine:
        cli = applied(deployment("qwen", engine.url))
        (row,) = json.loads(cli.ok("engine", "status", "--quantile", "p95", "--format", "json"))
        assert row["ttft_s"] == 0.95
        (row,) = json.loads(cli.ok("engine", "status", "--over", "0.1", "--format", "json"))
        assert (row["ttft_s"], row["prefix_hit_rate"], row["queue"]) == (None, None, 3)
        assert cli("engine", "status", "--over", "-1").code == 2
        assert cli("engine", "status", "--quantile", "p50.5").code == 2


def test_one_that_is_not_ready_is_named_with_the_reason(applied: Callable[..., Cli]) -> None:
    """Nothing listens; the core hangs behind an open port; the model is another: three remedies."""
    with odd_engine(PAGE.encode()) as hung, odd_engine(PAGE.encode()) as other:
        hung.answer = b""
        other.answer = http(MISSING, "content-type: application/json", status="404 Not Found")
        down = refusing_url()
        cli = applied(
            deployment("down", down), deployment("cut", hung.url), deployment("other", other.url)
        )
        ran = cli("engine", "status", "--format", "json")
    assert ran.code == 1
    rows = {row["deployment"]: row for row in json.loads(ran.out)}
    assert [row["ready"] for row in rows.values()] == [False, False, False]
    assert (rows["down"]["queue"], rows["cut"]["queue"]) == (None, 3)
    lines = ran.err.splitlines()
    assert any(line.startswith("down: down could not be reached: ") for line in lines)
    assert "down: its metrics page does not answer, so its load is unknown" in lines
    assert any(line.startswith("cut: cut closed the connection") for line in lines)
    assert "other: other does not know its model tiny. Ask an admin." in lines
    assert lines[-1] == "Next: docs/runbooks/engine-faults.md"


def test_a_table_is_for_people(applied: Callable[..., Cli]) -> None:
    """Unknown is a dash, and a company's API is no engine."""
    with odd_engine(b'{"models": [{"name": "tiny"}]}') as engine:
        url = engine.url.removesuffix("/v1")
        cli = applied(deployment("llama", url, "provider: ollama"))
        engine.answer = http(b'{"message": {"content": "x"}, "done": true}')
        lines = cli("engine", "status").out.splitlines()
    assert lines[0].split() == list(COLUMNS)
    assert lines[1].split()[3:] == ["—"] * 6
    assert len(lines) == 2


def test_what_cannot_be_found_out_is_3(
    applied: Callable[..., Cli], cli_at: Callable[[str], Cli]
) -> None:
    """Without its key here an engine may be well; and without Postgres no engine is known."""
    with odd_engine(PAGE.encode()) as engine:
        cli = applied(deployment("qwen", engine.url, 'provider: vllm, api_key: "env:NO_SUCH_KEY"'))
        ran = cli("engine", "status", "--format", "json")
    assert ran.code == 3
    assert json.loads(ran.out)[0]["ready"] is None
    assert "qwen: not probed: " in ran.err
    assert engine.calls == 0
    assert cli_at("postgresql://nobody@127.0.0.1:1/none")("engine", "status").code == 3


def test_without_engines_or_policy_it_says_so(applied: Callable[..., Cli], cli: Cli) -> None:
    """An empty table is an answer, a missing policy a finding."""
    ran = cli("engine", "status")
    assert (ran.code, ran.out) == (1, "")
    assert "policy apply" in ran.err
    ran = applied()("engine", "status")
    assert (ran.code, ran.err) == (0, "The policy has no self-hosted deployment.\n")
    assert json.loads(cli.ok("engine", "status", "--format", "json")) == []


def test_help_is_its_own(cli: Cli) -> None:
    """`tollgate engine --help` is the engine's; this command is the gateway's."""
    assert "--quantile" in cli.ok("engine", "status", "--help")

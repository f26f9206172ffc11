"""Names of every kind that the policy allows, through a running gateway and its commands: paths,
headers, the ledger, metrics, commands and files, with the official SDK over real sockets.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import quote

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import plain_http
from tests.cli.conftest import Cli, cli, cli_at
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.policy import PRICE

__all__ = ["cli", "cli_at"]

MODELS = (
    *("null", "true", "1e5", "all", "0", "CON", "m", "M", "a/b", "a//b", "a/../b", "a/.", "x/"),
    *("m:free", "m@2026-11", "m+1", "models/m", "a%2Fb".replace("%", "-"), "l" * 200, "v1/models"),
)
ALIASES = {"or/*": "or/any/thing", "*-latest": "m-latest", "al:as@1": "al:as@1"}
TEAMS = ("null", "CON", "t", "T", "a..b", "a.b-c_", "1e5", "l" * 63)
PROJECTS = ("check out", "a/b:c@d+e", "true", "p", "P", "x" * 64)
CENTRES = ("$(id) `id`", 'C/"1"\\', "支払い \U0001f600", "=1+1", "cc", "CC", "--help", "a,b=c;d")


def document(upstream: str) -> str:
    routes = [
        {"name": name, "deployments": ["d.1_x-Y"], "aliases": [*ALIASES] if name == "m" else []}
        for name in MODELS
    ]
    budget = [{"period": "month", "limit_usd": "0.000000001"}]
    teams = [
        {
            "name": name,
            "cost_centre": centre,
            "data_class": "internal",
            "routes": [*MODELS],
            "projects": [{"name": one, "budgets": budget} for one in PROJECTS],
        }
        for name, centre in zip(TEAMS, CENTRES, strict=True)
    ]
    rest = json.dumps({"routes": routes, "teams": teams}, ensure_ascii=False)
    return f"""\
{{version: 1, classes: {{internal: {{regions: [any]}}}},
deployments: [{{name: d.1_x-Y, model: "a/b:c@1+2=q4", provider: openai_compatible, region: unknown,
  base_url: "{upstream}/v1", price: {PRICE}, max_output_tokens: 100,
  operations: [chat, messages], allows: [unknown_fields]}}],
{rest[1:]}"""


@pytest.fixture
def named(start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess) -> Gateway:
    """A gateway whose policy has all of these names."""
    return start_gateway(document(fake_upstream.url))


def test_each_name_works_everywhere(named: Gateway) -> None:
    """A client looks its model up and asks it; finance finds the attempt under each name."""
    key = named.keys["t"]
    client = openai.OpenAI(base_url=named.base_url, api_key=key, max_retries=0)
    bearer = {"authorization": f"Bearer {key}"}
    listed = [one.id for one in client.models.list()]
    assert listed == [*MODELS]
    asked = {**{name: name for name in MODELS}, **dict.fromkeys(ALIASES.values(), "m")}
    for sent, route in asked.items():
        path = f"{named.base_url}/models/{quote(sent, safe='')}"
        shown = plain_http.get(path, headers=bearer, timeout=30)
        assert (shown.status_code, shown.json().get("id")) == (200, route), (sent, shown.text)
        answer = client.chat.completions.with_raw_response.create(
            model=sent, messages=[{"role": "user", "content": "hello"}]
        )
        assert answer.headers["x-tollgate-route"] == route
        assert answer.headers["x-tollgate-deployment"] == "d.1_x-Y"
        assert answer.parse().model == sent
        (event,) = named.events(answer.headers["x-request-id"])
        assert (event["route"], event["model"]) == (route, "a/b:c@1+2=q4")
    for sent in ("a/b", "m:free", "or/any/thing"):
        assert client.models.retrieve(sent).id == asked[sent]
        message = plain_http.post(
            f"{named.base_url}/messages",
            json={"model": sent, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
            headers={"x-api-key": key, "anthropic-version": "2023-06-01"},
            timeout=30,
        )
        assert (message.status_code, message.json()["model"]) == (200, sent)
    families = text_string_to_metric_families(named.metrics())
    labels = {
        value for one in families for sample in one.samples for value in sample.labels.values()
    }
    assert "d.1_x-Y" in labels


def test_each_team_and_project_is_booked_and_refused_by_its_name(named: Gateway) -> None:
    """The refusal of a project's budget has a command that a shell takes, for each name."""
    for team, centre in zip(TEAMS, CENTRES, strict=True):
        ask = openai.OpenAI(base_url=named.base_url, api_key=named.keys[team], max_retries=0)
        create = ask.chat.completions.with_raw_response.create
        answer = create(model="m", messages=[{"role": "user", "content": "hello"}])
        (event,) = named.events(answer.headers["x-request-id"])
        assert (event["team"], event["cost_centre"]) == (team, centre)
    for project in PROJECTS:
        with pytest.raises(openai.APIStatusError) as refused:
            create(
                model="m",
                messages=[{"role": "user", "content": "hello"}],
                extra_headers={"x-tollgate-project": project},
            )
        assert refused.value.status_code == 402
        command = str(refused.value.message)
        words = shlex.split(command[command.index("tollgate budget grant") :].partition(" --")[0])
        assert words[3] == f"{TEAMS[-1]}/project:{project}/month"
        granted = json.loads(
            named.tollgate(*words[1:4], "1", "--reason", "a test", "--format", "json")
        )
        assert granted["budget"] == words[3]


def test_a_policy_with_a_nul_is_refused_by_its_place(cli: Cli, tmp_path: Path) -> None:
    """Postgres stores none: the command ended with an internal error."""
    text = document("http://127.0.0.1:1").replace('"cc"', '"c\\u0000c"')
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    ran = cli("policy", "apply", str(file), "--yes", "--message", "m")
    assert ran.code == 1
    assert "teams[4].cost_centre" in ran.err
    assert "without NUL" in ran.err

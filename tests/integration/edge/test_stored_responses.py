"""A stored response goes back to the deployment that has it, for its own team only, and is never
charged again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from tests import plain_http
from tests.canary import COMPLETION, PROMPT, UPSTREAM_SECRET
from tests.gateway_process import Gateway, StartGateway, free_port
from tests.integration.edge.response_server import ResponseServer
from tests.integration.edge.test_edge import check_error
from tests.integration.postgres_gate import PostgresGate
from tests.waiting import eventually

KEEPS = "allows: [store, stored_state]"


def policy(first: str, second: str, *, allows: str = KEEPS, routes: str = "", eu: str = "") -> str:
    """Return a policy with two deployments that keep responses and one that does not."""
    price = "{input_usd_per_mtok: 1, output_usd_per_mtok: 10}"
    common = (
        f'provider: openai, model: real-model, api_key: "env:FAKE_KEY", '
        f"price: {price}, operations: [responses]"
    )
    return f"""\
version: 1
regions: {{eu: [eu-de, eu-fr]}}
classes:
  confidential: {{regions: [{eu or "eu-de, eu-fr"}]}}
  internal: {{regions: [any]}}
deployments:
  - {{name: first, region: eu-de, base_url: "{first}", {common}, {allows}}}
  - {{name: second, region: eu-fr, base_url: "{second}", {common}, {allows},
     prompt_cache: shared}}
  - {{name: forgetful, region: eu-de, base_url: "{first}", {common}}}
routes:
  - {{name: either, aliases: [gpt-x], deployments: [{routes or "first, second"}]}}
  - {{name: second-only, deployments: [second]}}
  - {{name: forgetful, deployments: [forgetful]}}
teams:
  - {{name: payments, cost_centre: A, data_class: internal,
     routes: [either, second-only, forgetful]}}
  - {{name: search, cost_centre: B, data_class: internal, routes: [either, second-only]}}
"""


@pytest.fixture(scope="module")
def first() -> Iterator[ResponseServer]:
    """Yield the upstream of the deployment that is tried first."""
    with closing(ResponseServer("first")) as server:
        yield server


@pytest.fixture(scope="module")
def second() -> Iterator[ResponseServer]:
    """Yield the upstream of the other deployment."""
    with closing(ResponseServer("second")) as server:
        yield server


@pytest.fixture(scope="module")
def keeping(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    first: ResponseServer,
    second: ResponseServer,
) -> Iterator[Gateway]:
    """Yield the gateway of the tests that change no policy."""
    yield from launch_gateway(policy(first.url, second.url), module_database_url)


@contextmanager
def asking(gateway: Gateway, team: str = "payments") -> Iterator[openai.OpenAI]:
    """Open the official client with a team's key."""
    with plain_http.official_client(gateway.base_url, gateway.keys[team]) as client:
        yield client


def ask(gateway: Gateway, path: str, method: str = "GET", **options: Any) -> httpx2.Response:
    """Return the answer to a request with the first team's key, or that of `team`."""
    key = gateway.keys[options.pop("team", "payments")]
    headers = {"authorization": f"Bearer {key}"} | options.pop("headers", {})
    url = f"{gateway.base_url}{path}"
    return plain_http.request(method, url, headers=headers, timeout=30, **options)


def create(gateway: Gateway, model: str = "either", **members: Any) -> dict[str, Any]:
    """Return a new response of a route."""
    headers = members.pop("headers", {})
    body = {"model": model, "input": PROMPT, **members}
    answer = ask(gateway, "/responses", "POST", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return {**answer.json(), "request_id": answer.headers["x-request-id"]}


def count_events(gateway: Gateway) -> int:
    """Return the number of events in the ledger, once it stands still."""
    statement = "SELECT count(*) AS events FROM finance.usage_events"
    return int(gateway.query(statement)[0]["events"])


def test_a_response_is_read_again_for_nothing(keeping: Gateway, first: ResponseServer) -> None:
    """With the model's public name and the cost that was booked, by the official client too."""
    made = create(keeping, "gpt-x")
    (event,) = keeping.events(made["request_id"])
    before = count_events(keeping)
    answer = ask(keeping, f"/responses/{made['id']}?include[]=message.output_text.logprobs")
    body = answer.json()
    assert answer.status_code == 200
    assert (body["model"], body["output"][0]["content"][0]["text"]) == ("either", COMPLETION)
    assert body["usage"]["cost_usd"] == float(event["cost_usd"]) == 0.0011
    assert answer.headers["x-tollgate-deployment"] == "first"
    assert answer.headers["x-tollgate-region"] == "eu-de"
    assert "set-cookie" not in answer.headers
    method, path, headers, content = first.asked[-1]
    assert (method, content) == ("GET", b"")
    assert path == f"/v1/responses/{made['id']}?include%5B%5D=message.output_text.logprobs"
    assert headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert headers["x-request-id"] == answer.headers["x-request-id"]
    with asking(keeping) as client:
        assert client.responses.retrieve(made["id"]).output_text == COMPLETION
    assert count_events(keeping) == before


def test_a_response_behind_a_shared_cache_shows_no_cost(keeping: Gateway) -> None:
    """A cached token is cheaper, so the cost tells a team the text of another one."""
    made = create(keeping, "second-only")
    stored = ask(keeping, f"/responses/{made['id']}").json()
    for usage in (made["usage"], stored["usage"]):
        assert "cost_usd" not in usage
        assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    (event,) = keeping.events(made["request_id"])
    assert event["cost_usd"] > 0


def test_another_teams_response_looks_unknown(keeping: Gateway, first: ResponseServer) -> None:
    """The same words for both, and nothing is sent."""
    made = create(keeping)
    sent = len(first.asked)
    for method, ending in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
        theirs = ask(keeping, f"/responses/{made['id']}{ending}", method, team="search")
        unknown = ask(keeping, f"/responses/resp_0{ending}", method, team="search")
        words = check_error(theirs, 404, "not_supported")["message"]
        same = check_error(unknown, 404, "not_supported")["message"]
        assert words.replace(made["id"], "resp_0") == same
    body = {"model": "either", "input": "x", "previous_response_id": made["id"]}
    answer = ask(keeping, "/responses", "POST", json=body, team="search")
    check_error(answer, 404, "not_supported")
    assert len(first.asked) == sent


@pytest.mark.parametrize("odd", ["resp%2F..%2Fmodels", "..", "a b", "é", "x" * 300, "%00"])
def test_an_id_that_no_upstream_gives_is_unknown(keeping: Gateway, odd: str) -> None:
    """It never becomes a part of an address."""
    assert ask(keeping, f"/responses/{odd}").status_code == 404


def test_a_next_turn_goes_to_the_deployment_that_has_the_last(
    keeping: Gateway, first: ResponseServer, second: ResponseServer
) -> None:
    """Not to the one that the route would try first, and to no other if it fails."""
    made = create(keeping, "second-only")
    sent = len(first.asked)
    turn = create(keeping, "either", previous_response_id=made["id"])
    (event,) = keeping.events(turn["request_id"])
    assert (event["deployment"], event["route"], event["outcome"]) == ("second", "either", "ok")
    assert json.loads(second.asked[-1][3])["previous_response_id"] == made["id"]
    assert len(first.asked) == sent
    del second.kept[made["id"]]
    body = {"model": "either", "input": "x", "previous_response_id": made["id"]}
    refused = ask(keeping, "/responses", "POST", json=body)
    assert "second refused the request" in check_error(refused, 400, "invalid_request")["message"]
    assert len(first.asked) == sent


def test_a_route_without_the_responses_deployment_is_refused(keeping: Gateway) -> None:
    """By the member's name, with the route that has it."""
    made = create(keeping)
    body = {"model": "second-only", "input": "x", "previous_response_id": made["id"]}
    error = check_error(ask(keeping, "/responses", "POST", json=body), 400, "invalid_request")
    assert error["param"] == "previous_response_id"
    assert "is kept by deployment first" in error["message"]
    assert "route 'either'" in error["message"]
    body["model"] = "forgetful"
    denied = check_error(ask(keeping, "/responses", "POST", json=body), 403, "residency_denied")
    assert "previous_response_id" in denied["message"]


def test_a_deleted_response_is_gone(keeping: Gateway, first: ResponseServer) -> None:
    """Where it was stored; a second time its deployment says so."""
    made = create(keeping)
    answer = ask(keeping, f"/responses/{made['id']}", "DELETE")
    assert answer.json() == {"id": made["id"], "object": "response", "deleted": True}
    assert first.asked[-1][0] == "DELETE"
    assert made["id"] not in first.kept
    gone = check_error(ask(keeping, f"/responses/{made['id']}"), 404, "not_supported")
    assert "first does not have response" in gone["message"]
    with asking(keeping) as client:
        again = create(keeping)
        client.responses.delete(again["id"])
    assert again["id"] not in first.kept


def test_a_cancel_is_for_the_deployment_to_answer(keeping: Gateway, first: ResponseServer) -> None:
    """Nothing runs in the background here, so an upstream refuses it; its words are passed on."""
    made = create(keeping)
    answer = ask(keeping, f"/responses/{made['id']}/cancel", "POST")
    error = check_error(answer, 400, "invalid_request")
    assert "Only a background response can be cancelled." in error["message"]
    assert first.asked[-1][:2] == ("POST", f"/v1/responses/{made['id']}/cancel")


@pytest.mark.parametrize("stream", [False, True])
def test_background_is_refused_by_name(
    keeping: Gateway, first: ResponseServer, stream: bool
) -> None:
    """Also where responses are stored; false and null are as good as none."""
    sent = len(first.asked)
    body = {"model": "either", "input": "x", "background": True, "stream": stream}
    error = check_error(ask(keeping, "/responses", "POST", json=body), 400, "invalid_request")
    assert (error["param"], len(first.asked)) == ("background", sent)
    assert "usage would come after the answer" in error["message"]
    for harmless in (False, None):
        create(keeping, background=harmless)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("starting_after=1", "starting_after"),
        ("include[]=../x", "include"),
        ("include=" + "a" * 65, "include"),
        ("&".join(["include[]=a"] * 33), "include"),
    ],
)
def test_a_parameter_that_is_not_forwarded_is_refused(
    keeping: Gateway, query: str, param: str
) -> None:
    """Nothing of a caller's address goes upstream unread."""
    answer = ask(keeping, f"/responses/resp_1?{query}")
    assert check_error(answer, 400, "invalid_request")["param"] == param


def test_a_wrong_previous_id_is_refused_by_name(keeping: Gateway) -> None:
    """A number is none."""
    body = {"model": "either", "input": "x", "previous_response_id": 5}
    error = check_error(ask(keeping, "/responses", "POST", json=body), 400, "invalid_request")
    assert error["param"] == "previous_response_id"


def test_an_id_of_two_deployments_is_no_id(
    keeping: Gateway, first: ResponseServer, second: ResponseServer
) -> None:
    """One of the two would be wrong."""
    first.next_id = second.next_id = "resp_twice"
    create(keeping)
    create(keeping, "second-only")
    error = check_error(ask(keeping, "/responses/resp_twice"), 400, "invalid_request")
    assert "deployments first and second gave the id" in error["message"]


def test_another_worker_and_a_new_process_find_it(
    start_gateway: StartGateway, first: ResponseServer, second: ResponseServer
) -> None:
    """By the ledger, which all of them share."""
    one = start_gateway(policy(first.url, second.url), write_every_s=0.2)
    ports = {"TOLLGATE_PORT": free_port(), "TOLLGATE_METRICS_PORT": free_port()}
    other = replace(
        one,
        port=ports["TOLLGATE_PORT"],
        metrics_port=ports["TOLLGATE_METRICS_PORT"],
        variables={**one.variables, **{name: str(port) for name, port in ports.items()}},
        process=None,
    )
    other.start()
    try:
        made = create(one)  # the other is asked at once, before it is written
        assert ask(other, f"/responses/{made['id']}").json()["id"] == made["id"]
        turn = create(other, previous_response_id=made["id"])
    finally:
        other.stop()
    one.stop()
    one.start()
    assert ask(one, f"/responses/{turn['id']}").json()["id"] == turn["id"]


def test_a_policy_that_changed_decides_again(
    start_gateway: StartGateway, first: ResponseServer, second: ResponseServer
) -> None:
    """Each change has its own clear error, and nothing is sent."""
    gateway = start_gateway(policy(first.url, second.url))
    secret = create(gateway, headers={"x-tollgate-data-class": "confidential"})
    plain = create(gateway)

    def apply(text: str) -> None:
        version = gateway.apply(text).version

        def is_live() -> bool:
            url = f"http://127.0.0.1:{gateway.port}/readyz"
            return bool(plain_http.get(url).json().get("policy_version") == version)

        eventually(is_live, "the new policy")
        sent.append(len(first.asked))

    def refused(code: str, made: dict[str, Any] = plain) -> str:
        for method, ending in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
            answer = ask(gateway, f"/responses/{made['id']}{ending}", method)
            words = check_error(answer, 403, code)["message"]
        assert len(first.asked) == sent[-1]
        return str(words)

    sent: list[int] = []
    apply(policy(first.url, second.url, eu="eu-fr"))
    assert "confidential" in refused("residency_denied", secret)
    body = {"model": "either", "input": "x", "previous_response_id": secret["id"]}
    denied = ask(gateway, "/responses", "POST", json=body)
    assert "confidential" in check_error(denied, 403, "residency_denied")["message"]
    assert ask(gateway, f"/responses/{plain['id']}").status_code == 200
    apply(policy(first.url, second.url, allows="allows: [store]"))
    assert "does not allow stored_state" in refused("residency_denied")
    apply(policy(first.url, second.url, routes="second"))
    assert "none of team payments's routes has" in refused("route_not_allowed")
    apply(policy(second.url.replace("127.0.0.1", "localhost"), second.url))
    assert "another one under that name" in refused("route_not_allowed")
    body = {"model": "either", "input": "x", "previous_response_id": plain["id"]}
    other = ask(gateway, "/responses", "POST", json=body)
    check_error(other, 403, "route_not_allowed")


def test_a_place_that_contradicts_the_policy_ejects_the_deployment(
    start_gateway: StartGateway, second: ResponseServer
) -> None:
    """A kept response comes from where it is kept, and Azure names that place in a header."""
    with closing(ResponseServer("moved")) as moved:
        gateway = start_gateway(policy(moved.url, second.url))
        made, other = create(gateway), create(gateway)
        moved.headers = {"x-ms-region": "East US"}
        assert ask(gateway, f"/responses/{made['id']}").status_code == 200
        sent = len(moved.asked)
        refused = ask(gateway, f"/responses/{other['id']}", "DELETE")
        check_error(refused, 403, "residency_denied")
        assert len(moved.asked) == sent
        noted = "SELECT deployment, promised, stated FROM tollgate.ejections"
        eventually(lambda: bool(gateway.query(noted)), "the ejection in Postgres")
        assert gateway.query(noted) == [
            {"deployment": "first", "promised": "eu-de", "stated": "us"}
        ]
        assert create(gateway)["id"].startswith("resp_second_")


def test_a_deployment_that_keeps_silent_is_given_up(
    start_gateway: StartGateway, second: ResponseServer
) -> None:
    """The route's deadline ends the call; until then it has one of the deployment's places."""
    with closing(ResponseServer("slow")) as slow:
        document = policy(slow.url, second.url, allows=f"{KEEPS}, max_in_flight: 1")
        gateway = start_gateway(document.replace("{name: either,", "{name: either, timeout_s: 3,"))
        made = create(gateway)
        slow.may_answer.clear()
        try:
            with ThreadPoolExecutor(1) as pool:
                first_call = pool.submit(ask, gateway, f"/responses/{made['id']}")
                eventually(lambda: slow.asked[-1][0] == "GET", "the first call at the upstream")
                check_error(ask(gateway, f"/responses/{made['id']}"), 503, "overloaded")
                check_error(first_call.result(), 504, "upstream_timeout")
        finally:
            slow.may_answer.set()
        assert ask(gateway, f"/responses/{made['id']}").status_code == 200


def test_without_the_ledger_nothing_is_sent(
    admission: PostgresGate,
    start_gateway: StartGateway,
    first: ResponseServer,
    second: ResponseServer,
) -> None:
    """503, never another deployment; and it works again afterwards."""
    gateway = start_gateway(policy(first.url, second.url), database_url=admission.url)
    made = create(gateway, "second-only")
    gateway.events(made["request_id"])
    admission.shut()
    sent = (len(first.asked), len(second.asked))
    check_error(ask(gateway, f"/responses/{made['id']}"), 503, "unavailable")
    body = {"model": "either", "input": "x", "previous_response_id": made["id"]}
    check_error(ask(gateway, "/responses", "POST", json=body), 503, "unavailable")
    check_error(ask(gateway, "/responses/resp_unknown"), 503, "unavailable")
    assert (len(first.asked), len(second.asked)) == sent
    fresh = create(gateway)  # not in the ledger, so this worker still knows it itself
    assert ask(gateway, f"/responses/{fresh['id']}").status_code == 200
    admission.open()
    eventually(
        lambda: ask(gateway, f"/responses/{made['id']}").status_code == 200, "the ledger again"
    )

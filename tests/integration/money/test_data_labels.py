"""Data classes and tags over HTTP, against a running gateway with a stated region."""

from __future__ import annotations

import httpx2

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway

HEADER = "x-tollgate-data-class"
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


def document(upstream: str) -> str:
    """Return a policy with one deployment that keeps data in France and one with unknown
    properties.
    """
    return f"""\
version: 1
regions: {{de: [fra-1]}}
classes: {{internal: {{regions: [any]}}, confidential: {{regions: [eu]}}, restricted: {{regions: [any]}}}}
data_tags:
  phi: {{at_rest: [eu]}}
  local: {{gateway_regions: [de]}}
  abroad: {{gateway_regions: [us]}}
  trial: {{regions: [jp], mode: shadow}}
deployments:
  - {{name: open, provider: openai_compatible, model: fake, region: fr, base_url: "{upstream}/v1",
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}
  - {{name: kept, provider: openai_compatible, model: fake, region: fr, base_url: "{upstream}/v1",
     residency: {{at_rest: fr, source: contract 7, as_of: 2026-11-01}},
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}
routes: [{{name: chat, deployments: [open, kept]}}]
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [chat]}}
  - {{name: clinic, cost_centre: CC-2, data_class: internal, data_tags: [phi], routes: [chat]}}
"""  # noqa: E501


def asked(gateway: Gateway, team: str, *labels: str) -> httpx2.Response:
    """Send one request with these labels, each in its own header."""
    headers = [
        ("authorization", f"Bearer {gateway.keys[team]}"),
        *((HEADER, label) for label in labels),
    ]
    return plain_http.post(
        f"{gateway.base_url}/chat/completions", json=BODY, headers=headers, timeout=30
    )


def test_labels_decide_the_deployment_and_are_recorded(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Labels from the header and the team must reach the candidates, the event and the refusal,
    in a gateway with a stated region.
    """
    gateway = start_gateway(document(fake_upstream.url), region="fra-1")
    went = {
        ("payments",): "open",
        ("payments", "phi"): "kept",
        ("payments", "confidential, phi"): "kept",
        ("payments", "confidential", "phi"): "kept",
        ("payments", "local,trial"): "open",
        ("clinic",): "kept",
        ("clinic", "internal"): "kept",
    }
    answers = {case: asked(gateway, *case) for case in went}
    assert {
        case: answer.headers.get("x-tollgate-deployment") for case, answer in answers.items()
    } == went
    (event,) = gateway.events(answers["payments", "confidential", "phi"].headers["x-request-id"])
    assert (event["data_class"], event["features"]["data_tags"]) == ("confidential", ["phi"])
    assert event["decision"]["rules"] == ["class:confidential", "tag:phi"]
    assert event["decision"]["gateway_region"] == "fra-1"
    assert [c.get("at_rest") for c in event["decision"]["candidates"]] == [None, "fr"]
    (trial,) = gateway.events(answers["payments", "local,trial"].headers["x-request-id"])
    assert [c["shadow"] for c in trial["decision"]["candidates"]] == [
        [["residency", "is in fr, allowed is jp (tag:trial/regions)"]],
        [["residency", "is in fr (contract 7, 2026-11-01), allowed is jp (tag:trial/regions)"]],
    ]
    refused = asked(gateway, "payments", "abroad")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "residency_denied")
    assert "asked by a gateway in fra-1, allowed is us (tag:abroad/gateway_regions)" in refused.text


def test_no_label_is_lost(start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess) -> None:
    """A repeated header, or a typo, must not leave fewer labels than the caller named."""
    gateway = start_gateway(document(fake_upstream.url), region="fra-1")
    for labels, message in (
        (("confidential", "internal"), "confidential and internal are two classes"),
        (("phi", "ph"), "'ph' is not known"),
    ):
        answer = asked(gateway, "payments", *labels)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        assert message in answer.json()["error"]["message"]
    both = asked(gateway, "payments", "phi", "abroad")
    assert both.status_code == 403

"""Security F15: `/readyz` shows the state of journal and writer to anyone.

Refuted: the endpoint promises each failed check with its remedy to everyone who can reach the
listener, and an orchestrator has no key. It has figures about this replica alone: no team, key,
deployment, path or address.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tests import plain_http
from tests.gateway_process import Gateway


def test_readiness_names_no_team_key_path_or_address(red_and_blue: Gateway) -> None:
    """Its content is useless to an attacker, who cannot fill a journal anyway."""
    answer = plain_http.get(f"http://127.0.0.1:{red_and_blue.port}/readyz", timeout=30)
    assert answer.status_code == 200
    assert {check["check"] for check in answer.json()["checks"]} >= {"journal", "writer"}
    database = urlsplit(red_and_blue.database_url)
    secrets = [
        *red_and_blue.keys.values(),
        *(key.split("_")[1] for key in red_and_blue.keys.values()),
    ]
    for word in ("red", "blue", "vllm", str(red_and_blue.home), database.path.strip("/"), *secrets):
        assert f'"{word}"' not in answer.text
        assert f" {word}" not in answer.text

"""`tollgate engine calibrate` refuses what it cannot measure, before any load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

POLICY = """\
version: 1
classes: {internal: {regions: [any]}}
deployments:
  - {name: own, model: m, provider: vllm, self_hosted: true, region: unknown, base_url: "http://127.0.0.1:1/v1",
     gpu: {type: H200, count: 1, usd_per_gpu_hour: 3, input_tok_per_s: 40000, output_tok_per_s: 2500, target_utilisation: 0.5}}
  - {name: flat, model: m-2, provider: vllm, self_hosted: true, region: unknown, base_url: "http://127.0.0.1:1/v1",
     price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}}
  - {name: api, model: x-1, provider: openai_compatible, region: unknown, base_url: "http://127.0.0.1:1/v1",
     price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}}
routes: [{name: r, deployments: [own, flat, api]}]
teams: [{name: payments, cost_centre: CC-1, data_class: internal, routes: [r]}]
"""  # noqa: E501


@pytest.fixture
def priced(cli: Cli, tmp_path: Path) -> Cli:
    """A command line with one deployment of each sort in force."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    cli.ok("policy", "apply", str(path), "--yes", "--message", "first")
    return cli


def test_each_refusal_names_the_next_step(priced: Cli) -> None:
    """A person who calibrates the wrong deployment learns which one to take, or how to price it."""
    for arguments, code, message in (
        (
            ("nobody",),
            1,
            "There is no deployment 'nobody' in the policy. Self-hosted are: own, flat.",
        ),
        (("api",), 2, "tollgate price add --deployment api"),
        (("flat",), 2, "Add a 'gpu' block"),
        (("own", "--apply"), 2, "Give --reason with --apply"),
        (("own",), 3, ""),  # the engine's command says on its own standard error that none answers
        (("own", "--seconds", "0"), 2, "--seconds"),
    ):
        ran = priced("engine", "calibrate", *arguments)
        assert (ran.code, ran.out) == (code, ""), ran
        assert message in ran.err
    assert "uncalibrated" in priced.ok("price", "show", "own")


def test_help_is_the_commands_own(priced: Cli) -> None:
    """The engine's command of the same name takes a URL, this one a deployment."""
    shown = priced.ok("engine", "calibrate", "--help")
    assert "DEPLOYMENT" in shown
    assert "--apply" in shown
    assert "--url" not in shown

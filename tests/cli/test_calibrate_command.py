"""`tollgate engine calibrate` refuses what it cannot measure, before any load."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.domain.policy.price_book import Dated, NewEntry, PriceOrigin
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.factories import calibration, price

GPU = (
    "gpu: {type: H200, count: 1, usd_per_gpu_hour: 3, input_tok_per_s: 40000, "
    "output_tok_per_s: 2500, target_utilisation: 0.5}"
)
POLICY = f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: own, model: m, provider: vllm, self_hosted: true, region: unknown, base_url: "http://127.0.0.1:1/v1",
     {GPU}}}
  - {{name: flat, model: m-2, provider: vllm, self_hosted: true, region: unknown, base_url: "http://127.0.0.1:1/v1",
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 2}}}}
  - {{name: api, model: x-1, provider: openai_compatible, region: unknown, base_url: "http://127.0.0.1:1/v1",
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 2}}}}
routes: [{{name: r, deployments: [own, flat, api]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [r]}}]
"""


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


def test_a_calibration_gives_way_to_a_later_decision(
    priced: Cli, database_url: str, tmp_path: Path
) -> None:
    """It has no end of its own. A newer one, `price add` until it is withdrawn, a `price` in the
    policy and another name of the GPU each take its place.
    """

    def source() -> str:
        (shown,) = json.loads(priced.ok("price", "show", "own", "--format", "json"))
        return str(shown["source"])

    def apply(before: str, after: str) -> None:
        path = tmp_path / "policy.yaml"
        path.write_text(POLICY.replace(before, after, 1))
        priced.ok("policy", "apply", str(path), "--yes", "--no-wait")

    add = ("price", "add", "--deployment", "own", "--reason", "why")
    for concurrency in (16, 32):
        _store(database_url, concurrency)
        assert f"at concurrency {concurrency}:" in source()
    priced.ok(*add, "--input", "0.5", "--output", "2", "--source", "the figures of 2025")
    assert source() == "the figures of 2025"
    priced.ok(*add, "--withdraw")
    assert "at concurrency 32:" in source()
    apply(GPU, "price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}")
    assert source() == "policy"
    apply("type: H200", "type: H200 SXM")
    assert "uncalibrated" in source()
    apply("", "")
    assert "at concurrency 32:" in source()


def _store(database_url: str, concurrency: int) -> None:
    """Add a calibration of the engine to the price book, as `--apply` does."""
    entry = NewEntry(
        origin=PriceOrigin.CALIBRATED,
        deployment="own",
        dated=Dated(valid_from=datetime.now(UTC), price=price()),
        calibration=calibration(model="m", gpu_type="H200", gpu_count=1, concurrency=concurrency),
    )
    database = Database(database_url)
    PriceStore(database).add([entry], author="ada", reason="measured")
    database.close()

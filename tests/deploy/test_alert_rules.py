"""The alert rules hold: every metric they read is declared, every runbook is there, and each fires
as it should.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "alerts"
RULES = yaml.safe_load((ALERTS / "tollgate.rules.yml").read_text(encoding="utf-8"))["groups"][0][
    "rules"
]
NAMES = [rule["alert"] for rule in RULES]
SECTIONS = ["Meaning", "Risk", "Diagnosis", "Remedy", "End of the incident"]


def test_there_are_twelve_rules() -> None:
    """The reference promises them by name."""
    assert len(NAMES) == len(set(NAMES)) == 12


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_metric_of_a_rule_is_declared(rule: dict[str, Any]) -> None:
    """A renamed metric turns an alert off, unnoticed until it is needed."""
    metrics = Metrics()
    metrics.watch_engines(dict)
    families = list(metrics.registry.collect())
    declared = {sample.name for family in families for sample in family.samples}
    declared |= {f"{family.name}_total" for family in families if family.type == "counter"}
    declared |= {family.name for family in families if family.type == "gauge"}  # without a sample
    read = set(re.findall(r"tollgate_\w+", rule["expr"]))
    assert read, "a rule that reads nothing of ours cannot fire"
    assert read <= declared


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_rule_has_a_runbook_with_all_its_sections(rule: dict[str, Any]) -> None:
    """A person on call first needs the risk."""
    page = (ROOT / rule["annotations"]["runbook"]).read_text(encoding="utf-8")
    assert f"Alert `{rule['alert']}`" in page
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    assert rule["alert"] in (ROOT / "docs/runbooks/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_rule_is_tested_to_fire_and_to_be_silent(rule: dict[str, Any]) -> None:
    """promtool runs these tests if it is installed; every machine checks that each rule has
    them.
    """
    cases = yaml.safe_load((ALERTS / "tollgate.rules.test.yml").read_text(encoding="utf-8"))[
        "tests"
    ]
    expected = [
        bool(t["exp_alerts"])
        for c in cases
        for t in c["alert_rule_test"]
        if t["alertname"] == rule["alert"]
    ]
    assert set(expected) == {True, False}
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in ("page", "ticket")


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: bash tests/install_tools.sh"
)
@pytest.mark.parametrize(
    "arguments", [("check", "tollgate.rules.yml"), ("test", "tollgate.rules.test.yml")]
)
def test_promtool_accepts_the_rules(arguments: tuple[str, str]) -> None:
    """Prometheus itself is the judge of its own language."""
    action, file = arguments
    done = subprocess.run(
        ["promtool", action, "rules", file], cwd=ALERTS, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr

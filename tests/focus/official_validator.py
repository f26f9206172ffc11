"""Runs the official FOCUS validator on an export with every kind of row; `make focus` starts it.

Its exit code is 0 whatever it finds, so its report is read. A rule that fails must be in `KNOWN`,
with the reason in docs/reference/focus.md; one that no longer fails must leave it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from pyarrow import parquet

from gateway.reports.exports.focus.columns import FocusVersion
from gateway.reports.exports.focus.focus import focus_export
from gateway.reports.files.report_file import file_writer
from gateway.reports.question import ask
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.postgres.database import Database
from tests.exports.ledger_of_every_kind import fill

VALIDATOR = Path(os.environ["FOCUS_VALIDATOR"])
REFERENCE = Path(__file__).parents[2] / "docs/reference/focus.md"
FEWEST_RULES = 500  # of 621; fewer were run if the validator did not understand the file
KNOWN = frozenset({"InvoiceId-C-005-C"})


def failing_rules(file: Path, report: Path) -> frozenset[str]:
    """Return the ids of the rules that fail on a file."""
    # It opens a file of its own relative to the working directory, and would ask GitHub for rules.
    (packages,) = VALIDATOR.parents[1].glob("lib/python3.12/site-packages")
    ran = subprocess.run(
        [
            *(VALIDATOR, "--data-file", file, "--validate-version", "1.2.0.1"),
            *("--focus-dataset", "CostAndUsage", "--block-download"),
            *("--output-type", "unittest", "--output-destination", report),
        ],
        cwd=packages,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert report.exists(), ran.stdout + ran.stderr
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    assert len(cases) >= FEWEST_RULES
    print(f"\n{len(cases)} rules, {sum(c.find('skipped') is not None for c in cases)} skipped")
    return frozenset(
        str(case.get("name")).partition(" ::")[0]
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )


@pytest.fixture
def exported(database: Database, database_url: str, tmp_path: Path) -> Path:
    """An export with self-hosted, external, cached, adjusted and credited rows."""
    fill(database, count=200, rng=Random(1))
    path = tmp_path / "focus.parquet"
    kind = focus_export(FocusVersion.V1_2, is_billed_elsewhere=False)
    with (
        open_reports(database_url, scope=WHOLE_ORGANISATION) as opened,
        opened.export_ledger(kind, ask(limit=None)) as export,
        path.open("wb") as file,
    ):
        file_writer(path)(export.export, file)
    return path


def test_only_the_known_rules_fail(exported: Path, tmp_path: Path) -> None:
    """A warehouse may check files by the same rules."""
    loaded = parquet.read_table(exported).to_pylist()
    kinds = {(row["x_LineKind"], row["ChargeCategory"], row["x_IsSelfHosted"]) for row in loaded}
    assert {
        ("usage", "Usage", True),
        ("usage", "Usage", False),
        ("adjustment", "Adjustment", False),
        ("adjustment", "Credit", False),
        ("empty", "Usage", True),
    } <= kinds
    assert "cached_input" in {row["x_TokenKind"] for row in loaded}
    assert failing_rules(exported, tmp_path / "report.xml") == KNOWN
    listed = REFERENCE.read_text(encoding="utf-8").partition("## The official validator")[2]
    names = re.findall(r"^\| `([A-Za-z]+-C-\d+-[CMO])`", listed, re.MULTILINE)
    assert frozenset(names) == KNOWN


def test_a_broken_file_is_found(exported: Path, tmp_path: Path) -> None:
    """A check that passes everything would be worth nothing."""
    broken = tmp_path / "broken.parquet"
    parquet.write_table(parquet.read_table(exported).drop_columns(["BilledCost"]), broken)
    assert "BilledCost-C-000-M" in failing_rules(broken, tmp_path / "report.xml")

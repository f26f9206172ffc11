"""The shared parts of all tests: the database and gateway fixtures, printed seeds, and the
search for leaked secrets.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
from typing import Any

import hypothesis
import pytest

from tests.canary import FINDINGS, Findings

pytest_plugins = ["tests.postgres", "tests.gateway_process"]

SEED = int(os.environ.get("TOLLGATE_TEST_SEED", "20261120"))
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")

# The `ci` profile draws the same examples each time: a red build is a change's fault. `explore`
# draws new ones and prints the reproduction of a failure.
hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, print_blob=True, max_examples=100
)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(PROFILE)


def pytest_report_header() -> list[str]:
    """Print the values that repeat this run."""
    drawn = (
        "derandomised" if PROFILE == "ci" else "new examples, failures print how to reproduce them"
    )
    return [f"seeds: TOLLGATE_TEST_SEED={SEED}; hypothesis profile {PROFILE} ({drawn})"]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Hide the collected tests from the garbage collector: with thousands of them each full
    collection took two seconds, and a test may ask for several.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> random.Random:
    """Random numbers from the printed seed."""
    return random.Random(SEED)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the results of the search for keys and canaries."""
    if config.stash[FINDINGS].places:
        terminalreporter.write_line(config.stash[FINDINGS].summary())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for a leaked key or prompt, even if every test passed."""
    findings = session.config.stash[FINDINGS]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["findings"] = dataclasses.asdict(findings)
    if findings.hits:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the findings of a worker of pytest-xdist; a crashed one has failed the run already."""
    findings = getattr(node, "workeroutput", {}).get("findings")
    if findings is not None:
        node.config.stash[FINDINGS].add(Findings(**findings))

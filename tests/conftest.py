"""What all tests share: the database fixtures, printed seeds, and the search for leaked secrets at the end."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import hypothesis
import pytest

from tests.canary import Findings, search_everything

pytest_plugins = ["tests.postgres", "tests.gateway_process"]

SEED = int(os.environ.get("TOLLGATE_TEST_SEED", "20261120"))

# Two profiles, both printing what reproduces a failure. CI draws the same examples each time: a red build is
# a change's fault. `HYPOTHESIS_PROFILE=explore` draws new ones.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True, max_examples=100)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
hypothesis.settings.load_profile(PROFILE)


def pytest_report_header() -> list[str]:
    """Say what makes this run again."""
    seed = "derandomised" if PROFILE == "ci" else "a new seed each run, printed with each failure"
    return [f"seeds: TOLLGATE_TEST_SEED={SEED}; hypothesis profile {PROFILE} ({seed})"]


@pytest.fixture
def rng() -> Iterator[random.Random]:
    """Random numbers from the printed seed."""
    yield random.Random(SEED)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Search everything the suite's gateways left behind for keys and the canary prompt: none may be there."""
    found: Findings = search_everything()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and found.places:
        reporter.write_line("")
        reporter.write_line(found.summary())
    if found.hits:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

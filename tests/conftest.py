"""What all tests share: the database and gateway fixtures, printed seeds, and the search for leaked secrets."""

from __future__ import annotations

import os
import random

import hypothesis
import pytest

from tests.canary import FINDINGS

pytest_plugins = ["tests.postgres", "tests.gateway_process"]

SEED = int(os.environ.get("TOLLGATE_TEST_SEED", "20261120"))
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")

# The `ci` profile draws the same examples each time: a red build is a change's fault. `explore` draws new ones
# and prints what reproduces a failure.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True, max_examples=100)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(PROFILE)


def pytest_report_header() -> list[str]:
    """Say what makes this run again."""
    drawn = "derandomised" if PROFILE == "ci" else "new examples, failures print how to reproduce them"
    return [f"seeds: TOLLGATE_TEST_SEED={SEED}; hypothesis profile {PROFILE} ({drawn})"]


@pytest.fixture
def rng() -> random.Random:
    """Random numbers from the printed seed."""
    return random.Random(SEED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the search for keys and canaries saw."""
    if config.stash[FINDINGS].places:
        terminalreporter.write_line(config.stash[FINDINGS].summary())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A leaked key or prompt fails the run, even where every test passed."""
    if session.config.stash[FINDINGS].hits:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

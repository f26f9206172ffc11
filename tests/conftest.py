"""The shared parts of all tests: the database and gateway fixtures, printed seeds, and the
search for leaked secrets.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.canary import FINDINGS, Findings

# Modules and collected tests stay: looking for garbage among them takes a tenth of the CPU time.
gc.set_threshold(50_000, 20, 100)

pytest_plugins = ["tests.postgres", "tests.gateway_process"]

SEED = int(os.environ.get("TOLLGATE_TEST_SEED", "20261120"))
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")

# The `ci` profile draws the same examples each time: a red build is a change's fault. `explore`
# draws new ones and prints the reproduction of a failure. A busy machine draws slowly.
ALWAYS = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=100, **ALWAYS)
hypothesis.settings.register_profile("explore", max_examples=2000, **ALWAYS)
hypothesis.settings.load_profile(PROFILE)

# A suite in the background, or under `nohup`, ignores these, and children inherit that. They do not
# inherit a function.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The files that take longest start first: at the end no worker then runs one of them alone.
LONG_FILES = (
    "tests/engine/test_engine_real.py",
    "tests/e2e/test_whole_road.py",
    "tests/storage/postgres/test_embedded.py",
    "tests/engine/test_assembled_real.py",
    "tests/deploy/test_without_up.py",
    "tests/integration/edge/test_policy_in_force.py",
    "tests/e2e/test_own_engine.py",
    "tests/attacks/test_operator_a_server_that_goes_silent.py",
    "tests/unit/request/test_no_circles.py",
    "tests/dashboard/test_pages.py",
    "tests/integration/edge/test_stored_responses.py",
    "tests/attacks/test_ledger_1_08_connections_that_hang.py",
    "tests/storage/postgres/test_embedded_anywhere.py",
    "tests/engine/test_calibrate_prices.py",
    "tests/integration/money/test_gateway_budgets.py",
    "tests/integration/outages/test_lifecycle.py",
    "tests/engine/test_engine_tiny_model.py",
    "tests/engine/test_engine_serve.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let LONG_FILES start first; the order is otherwise that of the folders."""
    place = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONG_FILES)))


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


@pytest.fixture(autouse=True)
def same_variables() -> Iterator[None]:
    """Fail a test that changes for good how the children of this process start: they would pass or
    fail by the order of the tests. Libraries set variables of their own, as Streamlit does.
    """
    before = _variables()
    yield
    changed = {name for name, _ in before.items() ^ _variables().items()}
    assert not changed, f"variables that stayed changed: {sorted(changed)}"


def _variables() -> dict[str, str]:
    """Return the variables by which Python starts."""
    return {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}


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

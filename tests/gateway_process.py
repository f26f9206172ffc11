"""Fixtures that run the product: a real gateway process over a real database, and the fake upstream
behind it.

`start_gateway(policy)` is for any suite; it returns a `Gateway` and stops it, by its process id,
when the test is over. A gateway's remains are then searched for secrets (see `tests.canary`).
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import httpx2
import psycopg
import pytest
from psycopg.rows import dict_row

from gateway.domain.policy.api_keys import RANDOM_BYTES, KeyRecord, key_id_of, mint
from gateway.services.policy.apply import Applied, apply_policy
from gateway.storage.policy import pepper
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from tests import plain_http
from tests.bare_environment import BARE
from tests.canary import FINDINGS, UPSTREAM_SECRET, Findings, search
from tests.forked_gateways import ForkedGateway, GatewayForker
from tests.postgres import drop_database
from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[1]
_numbers = itertools.count(1)

StartGateway = Callable[..., "Gateway"]
T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    """One collector of findings for the whole run."""
    config.stash[FINDINGS] = Findings()


@dataclass(kw_only=True)
class Gateway:
    """A running `tollgate serve`. `keys` holds one API key for each team of the policy."""

    home: Path
    database_url: str
    port: int
    metrics_port: int
    variables: Mapping[str, str]
    enter: tuple[str, ...] = ()  # the command that runs it elsewhere: in another mount namespace
    forker: GatewayForker | None = None  # forks its first process; None runs the command
    process: subprocess.Popen[bytes] | ForkedGateway | None = None
    keys: dict[str, str] = field(default_factory=dict)
    all_keys: list[str] = field(default_factory=list)
    metrics_text: str = ""

    @property
    def base_url(self) -> str:
        """Return the base URL for an OpenAI client."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def key(self) -> str:
        """The key of the policy's first team."""
        return next(iter(self.keys.values()))

    @property
    def log_path(self) -> Path:
        """Everything the gateway printed."""
        return self.home.with_name(self.home.name + ".log")

    def tollgate(self, *arguments: str, status: int = 0) -> str:
        """Run a command on the same home and database; return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway.main", *arguments],
            env=dict(self.variables),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    def make_key(self, team: str) -> str:
        """A new key of a team, stored as `tollgate key create` does (whose start would cost each
        test a second).
        """
        key = mint(secrets.token_bytes(RANDOM_BYTES))
        key_id = key_id_of(key)
        assert key_id is not None, "a minted key is well formed"
        current = pepper.load(self.home / "pepper")[0]
        record = KeyRecord(
            key_id=key_id,
            team=team,
            project=None,
            digest=current.digest(key),
            pepper_id=current.pepper_id,
        )
        with self._database() as database:
            KeyStore(database).create(record, created_by="a test")
        self.all_keys.append(key)
        return key

    def revoke_key(self, key: str) -> None:
        """Turn a key away, as `tollgate key revoke` does."""
        with self._database() as database:
            assert KeyStore(database).revoke(key.split("_")[1], revoked_by="a test")

    def apply(self, policy: str) -> Applied:
        """Make a document the current policy, as `tollgate policy apply` does."""
        with self._database() as database:
            return apply_policy(
                parse(policy),
                policies=PolicyStore(database),
                prices=PriceStore(database),
                builtin=builtin_price,
                author="a test",
                message="",
                now=datetime.now(UTC),
            )

    def start(self) -> None:
        """Start it and wait until it takes traffic. A restart always runs the command itself."""
        with self.log_path.open("ab") as log:
            if self.forker is not None and self.process is None:
                self.process = self.forker.start(self.variables, self.log_path)
            else:
                self.process = subprocess.Popen(
                    [*self.enter, sys.executable, "-m", "gateway.main", "serve"],
                    env=dict(self.variables),
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        eventually(self._is_up, f"the gateway ({self.log_path})", within_s=300)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it by signal and return its exit code."""
        assert self.process is not None, "this gateway was not started"
        if self.process.poll() is None:
            self.metrics_text = self.metrics()
            self.process.send_signal(how)
        return self.process.wait(60)

    def metrics(self) -> str:
        """Return the answer of its metrics listener."""
        try:
            return plain_http.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10).text
        except httpx2.HTTPError:
            return ""

    def events(self, request_id: str, *, count: int = 1) -> list[dict[str, Any]]:
        """The request's usage events as finance reads them, once there are `count`."""
        UUID(request_id)
        rows = eventually(
            lambda: self._rows(request_id, count), f"{count} usage event(s) of {request_id}"
        )
        assert len(rows) == count, f"{len(rows)} events: {[row['outcome'] for row in rows]}"
        return rows

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Rows of any statement."""
        with psycopg.connect(self.database_url, row_factory=dict_row) as connection:
            return connection.execute(statement, values).fetchall()

    def log_lines(self) -> list[dict[str, Any]]:
        """The JSON lines of its log."""
        return [
            json.loads(line)
            for line in self.log_path.read_text().splitlines()
            if line.startswith("{")
        ]

    @contextmanager
    def _database(self) -> Iterator[Database]:
        database = Database(self.database_url)
        try:
            yield database
        finally:
            database.close()

    def _rows(self, request_id: str, count: int) -> list[dict[str, Any]]:
        rows = self.query(
            "SELECT * FROM finance.usage_events WHERE request_id = %s ORDER BY attempt", request_id
        )
        return rows if len(rows) >= count else []

    def _is_up(self) -> bool:
        """Ready; a gateway without a policy never is, so that one is up when it is alive."""
        assert self.process is not None
        assert self.process.poll() is None, (
            f"the gateway ended: {self.log_path.read_text()[-3000:]}"
        )
        try:
            path = "readyz" if self.keys else "healthz"
            return (
                plain_http.get(f"http://127.0.0.1:{self.port}/{path}", timeout=5).status_code == 200
            )
        except httpx2.HTTPError:
            return False


@dataclass(frozen=True)
class FakeUpstreamProcess:
    """The fake upstream as a process of its own."""

    url: str

    def ledger(self) -> dict[str, Any]:
        """Return its own ledger."""
        return dict(plain_http.get(f"{self.url}/ledger", timeout=10).json())

    def entries(self, request_id: str) -> list[dict[str, Any]]:
        """Its entries for one of the gateway's requests, in order, once none of them is open."""

        def closed() -> list[dict[str, Any]]:
            found = [
                entry for entry in self.ledger()["entries"] if entry["request_id"] == request_id
            ]
            return [] if any(entry["ending"] == "open" for entry in found) else found

        return eventually(closed, f"the upstream's ledger for {request_id}")

    def entry(self, request_id: str) -> dict[str, Any]:
        """Its only entry for a request."""
        (found,) = self.entries(request_id)
        return found


@pytest.fixture(scope="session")
def fake_upstream() -> Iterator[FakeUpstreamProcess]:
    """The fake upstream, one for all tests: its entries are distinguished by the gateway's
    request id.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fake_upstream"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    yield FakeUpstreamProcess(process.stdout.readline().decode().strip())
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="session")
def session_database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A migrated database for the gateway that many tests share."""
    yield from new_database(postgres_url, migrated_template)


@pytest.fixture(scope="module")
def module_database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A migrated database for the gateway of one module: each gateway has its own key secret."""
    yield from new_database(postgres_url, migrated_template)


@pytest.fixture(scope="session")
def gateway_forker() -> Iterator[GatewayForker]:
    forker = GatewayForker()
    yield forker
    forker.close()


@pytest.fixture(scope="session")
def launch_gateway(
    pytestconfig: pytest.Config, gateway_forker: GatewayForker
) -> Callable[..., Iterator[Gateway]]:
    """The makings of a gateway fixture of any scope: a generator that starts one, and stops and
    searches it. It is forked unless it enters something or has variables of its own.
    """

    def launch(
        policy: str | None,
        database_url: str,
        *,
        enter: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Iterator[Gateway]:
        home = Path(tempfile.mkdtemp(prefix="tollgate-home-"))
        gateway = _prepared(
            home,
            policy,
            database_url,
            {name.upper(): str(value) for name, value in settings.items()},
            environment=environment or {},
        )
        gateway.enter = enter
        # Variables of a test's own may be the interpreter's, which reads them only at its start.
        if not enter and not environment:
            gateway.forker = gateway_forker
        try:
            gateway.start()
            yield gateway
        finally:
            if gateway.process is not None:
                gateway.stop()
            search(
                pytestconfig.stash[FINDINGS],
                home=home,
                log=gateway.log_path,
                database_url=database_url,
                metrics=gateway.metrics_text,
                keys=gateway.all_keys,
            )
            shutil.rmtree(home)
            gateway.log_path.unlink(missing_ok=True)

    return launch


@pytest.fixture
def start_gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], postgres_url: str, migrated_template: str
) -> Iterator[StartGateway]:
    """Start gateways for this test: `start_gateway(policy, drain_s=1)`; settings are `TOLLGATE_*`
    in lower case, `environment` other variables.

    Each has a database of its own unless `database_url` names one; ask for the fixture that owns
    that database before this one, so that it outlives the gateway.
    """
    with ExitStack() as running:

        def start(
            policy: str | None, *, database_url: str | None = None, **options: Any
        ) -> Gateway:
            url = database_url or running.enter_context(
                _exhausted(new_database(postgres_url, migrated_template))
            )
            return running.enter_context(_exhausted(launch_gateway(policy, url, **options)))

        yield start


@contextmanager
def _exhausted(made: Iterator[T]) -> Iterator[T]:
    """A generator fixture as a context: its second half runs at the end."""
    yield next(made)
    for _ in made:
        raise AssertionError("a fixture yields once")


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _prepared(
    home: Path,
    policy: str | None,
    database_url: str,
    settings: Mapping[str, str],
    *,
    environment: Mapping[str, str],
) -> Gateway:
    """A gateway with its home, pepper, policy and keys, not yet started."""
    port, metrics_port = free_port(), free_port()
    own = {
        "HOME": home,
        "DATABASE_URL": database_url,
        "PORT": port,
        "METRICS_PORT": metrics_port,
        "REFRESH_S": 1,
        "SHED_LAG_S": 30,  # a machine that runs tests beside other things is late now and then
        "WRITE_EVERY_S": 0.05,
        "DRAIN_S": 5,
        "BUDGET_WAIT_S": 1,
    }
    variables = {
        **BARE,
        "HOME": str(home),
        "FAKE_KEY": UPSTREAM_SECRET,
        "PYTHONUNBUFFERED": "1",
        **environment,
        **{f"TOLLGATE_{name}": str(value) for name, value in {**own, **settings}.items()},
    }
    gateway = Gateway(
        home=home,
        database_url=database_url,
        port=port,
        metrics_port=metrics_port,
        variables=variables,
    )
    pepper.create(home / "pepper")
    with gateway._database() as database:
        pepper.register(database, pepper.load(home / "pepper"))
    if policy is not None:
        applied = gateway.apply(policy)
        gateway.keys.update({team: gateway.make_key(team) for team in applied.policy.teams})
    return gateway


def new_database(server_url: str, template: str) -> Iterator[str]:
    name = f"tollgate_gateway_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
    yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    drop_database(server_url, name)

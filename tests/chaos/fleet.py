"""The processes of a run: Postgres, the failing upstream, and replicas of the gateway that share
one home and one database. All are started here and ended here, by their process ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import dict_row

from bench.stand import machine
from bench.stand.processes import Assembly, end
from gateway.domain.policy.api_keys import RANDOM_BYTES, key_id_of, mint
from gateway.storage.policy import pepper as peppers
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.chaos import dialects
from tests.chaos.token_host import TokenHost
from tests.fake_upstream.faults import Kind
from tests.fake_upstream.plans import FOREIGN
from tests.gateway_process import free_port

REPOSITORY = Path(__file__).parents[2]
# Another checkout's gateway may be judged as well.
SOURCE = Path(os.environ.get("TOLLGATE_CHAOS_SOURCE", REPOSITORY))
READY_WITHIN_S = 180.0  # on a machine that other runs fill

# Odd rates on purpose: every line has something to round. USD per million tokens: input, cached
# input, output.
RATES: Mapping[str, Sequence[str]] = {
    "vllm-a": ("0.1537", "0.01537", "0.6101"),
    "vllm-b": ("0.2111", "0.0533", "0.7777"),
    "paid-a": ("1.2503", "0.1251", "9.9991"),
    "paid-b": ("2.5007", "0.6253", "14.0003"),
    **{name: one.rates for name, one in dialects.DIALECTS.items()},
}
ROUTES: Mapping[str, Sequence[str]] = {
    "own": ("vllm-a", "vllm-b"),
    "bought": ("paid-a", "paid-b"),
    "both": ("vllm-b", "paid-a"),
    **dialects.ROUTES,
}
# Members that the upstream ignores, which a hard budget refuses unless the deployment says so.
LISTED = ", ".join(sorted({"fake"}.union(*FOREIGN.values())))
TEAMS = ("payments", "search", "support")
_NEW_KEY = """
INSERT INTO tollgate.api_keys (key_id, team, digest, pepper_id, is_demo, created_by) VALUES (%s,
  %s, %s, %s, false, 'x')
"""


class FleetError(Exception):
    """The run could not be set up; the message names the place to look."""


@dataclass(slots=True, kw_only=True)
class Replica:
    """One `tollgate serve`. `starts` counts its processes, `killed_s` when they were killed."""

    port: int
    metrics_port: int
    variables: dict[str, str]
    log: Path
    source: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    killed_s: list[float] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None, "the replica was started"
        return self.process.pid

    def spawn(self) -> None:
        """Start a process; `is_ready` says when it serves."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.main", "serve"],
                env=self.variables,
                cwd=self.source,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL: no handler, no drain, nothing flushed."""
        os.kill(self.pid, signal.SIGKILL)
        self.killed_s.append(time.time())
        assert self.process is not None
        self.process.wait(30)

    @property
    def is_alive(self) -> bool:
        """True while its process runs."""
        return self.process is not None and self.process.poll() is None

    def is_ready(self) -> bool:
        """Return True once it is ready. Raises `FleetError` if its process ended instead."""
        if not self.is_alive:
            raise FleetError(f"The gateway ended: {self.log.read_text(errors='replace')[-2000:]}")
        return _get(f"http://127.0.0.1:{self.port}/readyz") is not None

    def gauge(self, name: str) -> float | None:
        """Return one value of its `/metrics`, labels summed; None if absent."""
        text = _get(f"http://127.0.0.1:{self.metrics_port}/metrics") or ""
        values = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((name + " ", name + "{"))
        ]
        return sum(values) if values else None

    def memory_mib(self) -> float:
        """Memory of its process tree, without the pages of files."""
        return machine.own_mib(machine.tree(self.pid))

    def open_files(self) -> int:
        """File descriptors of its process tree."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in machine.tree(self.pid))

    def threads(self) -> int:
        """Threads of its process tree."""
        return sum(len(os.listdir(f"/proc/{pid}/task")) for pid in machine.tree(self.pid))

    async def ready(self) -> None:
        """Wait until it takes traffic."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not await asyncio.to_thread(self.is_ready):
            if time.monotonic() > deadline_s:
                raise FleetError(
                    "The gateway does not become ready: "
                    f"{self.log.read_text(errors='replace')[-2000:]}"
                )
            await asyncio.sleep(0.05)


class Fleet(Assembly):
    """Everything a run needs, as a context manager. `settings` are `TOLLGATE_*` in lower case."""

    def __init__(
        self,
        *,
        seed: int,
        mix: str,
        replicas: int,
        most_output: int = 40,
        policy: str | None = None,
        through: Any = None,
        server_folder: Path | None = None,
        teams: Sequence[str] = TEAMS,
        **settings: object,
    ) -> None:
        super().__init__()
        self._teams = teams
        self.seed, self.mix, self.most_output = seed, mix, most_output
        self._count, self._policy, self._through = replicas, policy, through
        self._settings, self._server_folder = settings, server_folder
        self.replicas: list[Replica] = []
        self.keys: dict[str, str] = {}

    @property
    def ports(self) -> list[int]:
        """The ports for callers."""
        return [replica.port for replica in self.replicas]

    @property
    def kills_s(self) -> list[float]:
        """When a replica was killed."""
        return sorted(moment for replica in self.replicas for moment in replica.killed_s)

    def start(self) -> None:
        """Start all replicas and wait until they take traffic."""
        for replica in self.replicas:
            replica.spawn()
        deadline_s = time.monotonic() + READY_WITHIN_S
        for replica in self.replicas:
            while not replica.is_ready():
                if time.monotonic() > deadline_s:
                    raise FleetError(
                        f"Not ready: {replica.log.read_text(errors='replace')[-2000:]}"
                    )
                time.sleep(0.05)

    def stop(
        self, replica: Replica, how: signal.Signals = signal.SIGTERM, *, within_s: float = 60
    ) -> int:
        """End one and return its exit code."""
        assert replica.process is not None
        if replica.is_alive:
            replica.process.send_signal(how)
        try:
            return replica.process.wait(within_s)
        except subprocess.TimeoutExpired:
            replica.process.kill()
            replica.process.wait()
            raise FleetError(
                f"The gateway did not end within {within_s:.0f} s of {how.name}."
            ) from None

    def attempts(self) -> list[dict[str, Any]]:
        """The upstream's ledger: one entry an attempt, as it ended.

        Probes that were noted before are none, and neither are prompts that were only counted.
        """
        with psycopg.connect(self.database_url) as connection:
            probes = {
                str(row[0])
                for row in connection.execute("SELECT probe_id FROM tollgate.engine_probes")
            }
        return [
            entry
            for entry in self._entries()
            if entry["request_id"] not in probes and entry["kind"] != Kind.COUNT
        ]

    def counted(self) -> list[dict[str, Any]]:
        """The upstream's ledger: the prompts that it only counted."""
        return [entry for entry in self._entries() if entry["kind"] == Kind.COUNT]

    def _entries(self) -> list[dict[str, Any]]:
        last: dict[int, dict[str, Any]] = {}
        for line in self.ledger_path.read_text().splitlines():
            entry = json.loads(line)
            last[entry["number"]] = entry
        return list(last.values())

    def upstream_stats(self) -> dict[str, int]:
        """Attempts in progress, open connections and attempts so far, as the upstream says."""
        text = _get(f"{self.upstream_url}/stats")
        assert text is not None, "the upstream answers"
        return dict(json.loads(text))

    def events(self) -> list[dict[str, Any]]:
        """All usage events as finance reads them."""
        with psycopg.connect(self.database_url, row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM finance.usage_events").fetchall()

    def count_events(self) -> int:
        """Return the number of usage events; -1 if Postgres does not answer."""
        try:
            with psycopg.connect(self.database_url, connect_timeout=2) as connection:
                row = connection.execute("SELECT count(*) FROM finance.usage_events").fetchone()
        except psycopg.Error:
            return -1
        assert row is not None
        return int(row[0])

    async def settled(
        self, at_least: int, *, within_s: float = 60.0, still_s: float = 2.0
    ) -> float:
        """Wait until that many events are in and no more come; return the seconds until the last
        came in.

        Also returns when time is up: the checker then reports the missing ones.
        """
        began_s = changed_s = time.monotonic()
        before = await asyncio.to_thread(self.count_events)
        while (now_s := time.monotonic()) - began_s < within_s:
            count = await asyncio.to_thread(self.count_events)
            if count != before:
                before, changed_s = count, now_s
            elif count >= at_least and now_s - changed_s >= still_s:
                break
            await asyncio.sleep(0.1)
        return changed_s - began_s

    def tollgate(self, *arguments: str) -> str:
        """Run a command on the fleet's home and database; return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway.main", *arguments],
            env=self.variables,
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise FleetError(f"tollgate {' '.join(arguments)}: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def new_keys(self, team: str, count: int) -> list[str]:
        """Make many keys of a team at once; a gateway that runs hears of them within seconds."""
        (pepper,) = peppers.load(self.home / "pepper")
        keys = [mint(os.urandom(RANDOM_BYTES)) for _ in range(count)]
        rows = [(key_id_of(key), team, pepper.digest(key), pepper.pepper_id) for key in keys]
        with psycopg.connect(self.database_url) as connection:
            connection.cursor().executemany(_NEW_KEY, rows)
        return keys

    # ---- building

    def _build(self) -> None:
        # Below /tmp and passable: as root, Postgres runs as another user.
        self.folder = Path(tempfile.mkdtemp(prefix="tollgate-chaos-", dir="/tmp"))
        self._stack.callback(self._end_folder)
        self.folder.chmod(0o711)
        self.home = self.folder / "home"
        server_home = (self._server_folder or self.folder) / "server"
        for folder in (self.home, server_home):
            folder.mkdir()
            folder.chmod(0o711)
        self.postgres = self._stack.enter_context(EmbeddedPostgres(server_home))
        self.database_url = self.postgres.start()
        self.ledger_path = self.folder / "upstream.jsonl"
        self.ledger_path.touch()
        self.upstream_url = self._start_upstream()
        self.token_host = self._stack.enter_context(TokenHost(self.folder))
        gateways_url = (
            self._through(self.database_url, self.folder) if self._through else self.database_url
        )
        own = {
            "TOLLGATE_HOME": str(self.home),
            "FAKE_KEY": "sk-upstream",
            **self.token_host.variables,
            **{f"TOLLGATE_{name.upper()}": str(value) for name, value in self._settings.items()},
        }
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")
        }
        self.variables = {**inherited, **own, "TOLLGATE_DATABASE_URL": self.database_url}
        self.tollgate("db", "upgrade")
        policy = self.home / "policy.yaml"
        policy.write_text((self._policy or POLICY).replace("UPSTREAM", self.upstream_url))
        self.tollgate("policy", "apply", str(policy), "--yes")
        for team in self._teams:
            self.keys[team] = str(
                json.loads(self.tollgate("key", "create", team, "--format", "json"))["key"]
            )
        for number in range(self._count):
            self.replicas.append(self._replica(number, gateways_url))
        self._stack.callback(self._end_replicas)

    def _replica(self, number: int, database_url: str) -> Replica:
        port, metrics_port = free_port(), free_port()
        variables = {
            **self.variables,
            "TOLLGATE_PORT": str(port),
            "TOLLGATE_METRICS_PORT": str(metrics_port),
            "TOLLGATE_DATABASE_URL": database_url,
        }
        log = self.folder / f"replica-{number}.log"
        return Replica(
            port=port, metrics_port=metrics_port, variables=variables, log=log, source=SOURCE
        )

    def _start_upstream(self) -> str:
        argv = [
            sys.executable,
            "-m",
            "tests.fake_upstream",
            "--seed",
            str(self.seed),
            "--mix",
            self.mix,
            "--ledger",
            str(self.ledger_path),
            "--most-output",
            str(self.most_output),
        ]
        process = subprocess.Popen(
            argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self._stack.callback(end, process)
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        if not urlsplit(url).port:
            raise FleetError("The upstream did not start.")
        self.upstream_pid = process.pid
        return url

    def _end_replicas(self) -> None:
        for replica in self.replicas:
            if replica.process is not None:
                end(replica.process)

    def _end_folder(self) -> None:
        if os.environ.get("TOLLGATE_CHAOS_KEEP"):
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bytes(answer.read()).decode()
    except (urllib.error.URLError, OSError):
        return None


def policy_of(
    teams: str,
    *,
    rates: Mapping[str, Sequence[str]] = RATES,
    more_rates: Mapping[str, Mapping[str, str]] = dialects.MORE_RATES,
    routes: Mapping[str, Sequence[str]] = ROUTES,
    wait_s: float = 1.5,
    more: str = "",
) -> str:
    """Return a document with all deployments and routes; `teams` are its lines of teams, `more`
    follows them.

    `wait_s` is an upstream's allowed silence.
    """

    def deployment(name: str) -> str:
        provider, base, terms = dialects.terms_of(name)
        plain, cached, output = rates[name]
        more = {"cache_write": plain, **more_rates.get(name, {})}
        written = "".join(f", {kind}_usd_per_mtok: {rate}" for kind, rate in more.items())
        price = (
            f"{{input_usd_per_mtok: {plain}, cached_input_usd_per_mtok: {cached}, "
            f"output_usd_per_mtok: {output}{written}}}"
        )
        timeouts = f"{{connect_s: 1, first_byte_s: {wait_s}, idle_s: {wait_s}, total_s: 120}}"
        return (
            f"  - {{name: {name}, model: {name}, provider: {provider}, region: here, base_url: "
            f'"UPSTREAM{base}",\n'
            f"     price: {price}, timeouts: {timeouts}, allows: [unknown_fields], "
            f"listed: [{LISTED}],\n"
            f"     {terms}}}\n"
        )

    lines = "".join(
        f"  - {{name: {name}, deployments: [{', '.join(to)}]}}\n" for name, to in routes.items()
    )
    return (
        "version: 1\nregions: {home: [here]}\nclasses: {internal: {regions: [home]}}\n"
        f"deployments:\n{''.join(map(deployment, rates))}routes:\n{lines}teams:\n{teams}{more}"
    )


def team_line(
    name: str, *, number: int = 0, terms: str = "", routes: Mapping[str, Sequence[str]] = ROUTES
) -> str:
    """A team that may use every one of these routes.

    `terms` are its budgets and limits, each with a comma before it.
    """
    return (
        f"  - {{name: {name}, cost_centre: CC-{number}, data_class: internal, routes: "
        f"[{', '.join(routes)}]{terms}}}\n"
    )


POLICY = policy_of("".join(team_line(team, number=number) for number, team in enumerate(TEAMS)))

"""The test stand: upstream, plain proxy, Postgres and gateways, all separate, all ended together.

The gateway and the proxy run on the first core, the rest on the others: one core's work is
compared.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.stand import machine, nginx, peers, processes
from bench.stand.processes import Assembly, answers, free_ports
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[2]
UPSTREAMS = ("plain", "large", "burst", "burst-vllm", "paced", "paced-vllm")
TEAM = "bench"
READY_WITHIN_S = 60.0
WRITTEN_WITHIN_S = 60.0
MISSING = "The benchmark needs nginx with Lua, and wrk, from Debian: bash bench/install.sh"


class StandError(Exception):
    """The stand could not be built or misbehaves; the message names the place to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target of the load.

    `port_of` is by upstream; `pids` are looked up each time.

    `renew` starts a fresh process, for targets that must not carry work from one window into the
    next.
    """

    name: str
    port_of: dict[str, int]
    key: str
    pids: Callable[[], set[int]]
    ledger: Ledger | None = None
    renew: Callable[[str], None] | None = None
    end: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """A gateway's written events, and its Postgres."""

    url: str
    postmaster: int

    def rows(self) -> dict[str, int]:
        """Return usage events by outcome."""
        with psycopg.connect(self.url) as connection:
            counted = connection.execute(
                "SELECT outcome, count(*) FROM finance.usage_events GROUP BY outcome"
            )
            return {str(outcome): int(count) for outcome, count in counted}

    def cpu_s(self) -> float:
        """Return the CPU seconds of Postgres."""
        return machine.cpu_s(machine.tree(self.postmaster))


class Stand(Assembly):
    """All processes of a benchmark. Use it as a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Callable[[], set[int]]] = []
        self.targets: dict[str, Target] = {}
        self.gateway_core = 0
        self._ports: dict[str, int] = {}
        self._count_port = 0

    def add_gateway(
        self,
        name: str,
        source: Path = REPOSITORY,
        *,
        team_fields: str = "",
        more: str = "",
        **settings: str,
    ) -> Target:
        """Start a gateway from a checkout, with its own home, database, policy and key.

        `team_fields` and `more` are appended to the team and to the policy; `settings` are
        `TOLLGATE_*` in lower case.
        """
        home = self.folder / f"home-{len(self.targets)}"
        home.mkdir()
        home.chmod(0o711)  # as root, Postgres runs as another user
        url = self._stack.enter_context(EmbeddedPostgres(home)).start()
        postmaster = int((home / "pg" / "data" / "postmaster.pid").read_text().split()[0])
        port, metrics_port = free_ports(2)
        variables = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("TOLLGATE_")
            },
            "TOLLGATE_HOME": str(home),
            "TOLLGATE_DATABASE_URL": url,
            "TOLLGATE_PORT": str(port),
            "TOLLGATE_METRICS_PORT": str(metrics_port),
            **{f"TOLLGATE_{name.upper()}": value for name, value in settings.items()},
        }
        tollgate = [sys.executable, "-m", "gateway.main"]

        def run(*arguments: str) -> str:
            done = subprocess.run(
                [*tollgate, *arguments],
                env=variables,
                cwd=source,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise StandError(f"tollgate {' '.join(arguments)}: {done.stderr.strip()}")
            return done.stdout

        policy = home / "policy.yaml"
        policy.write_text(policy_of(self._ports, team_fields=team_fields) + more)
        run("db", "upgrade")
        run("policy", "apply", str(policy), "--yes")
        key = str(json.loads(run("key", "create", TEAM, "--format", "json"))["key"])
        log = home / "serve.log"
        serve = [*tollgate, "serve"]
        gateway = self._start(
            name, serve, on_core=self.gateway_core, variables=variables, cwd=source, log=log
        )
        _wait_for(lambda: answers(f"http://127.0.0.1:{port}/readyz"), gateway, log)
        target = Target(
            name=name,
            port_of=dict.fromkeys(UPSTREAMS, port),
            key=key,
            pids=lambda: machine.tree(gateway.pid),
            ledger=Ledger(url, postmaster),
        )
        self.started.append(lambda: machine.tree(postmaster))
        self.targets[name] = target
        return target

    def add_peer(self, name: str) -> Target:
        """Make another gateway a target; `renew` starts its process for one upstream, `end` ends
        it.

        Raises `StandError` if it is not installed.
        """
        if not peers.binary(name).exists():
            raise StandError(f"{name} is not in {peers.FOLDER}: bash bench/install.sh --peers")
        port, metrics_port = free_ports(2)
        running: list[subprocess.Popen[bytes]] = []

        def renew(upstream: str) -> None:
            if name == "litellm":
                command = peers.litellm(self.folder, port, self._ports)
            else:
                command = peers.vllm_router(port, metrics_port, self._ports[upstream])
            log = self.folder / f"{name}.log"
            variables = {**os.environ, **command.variables}
            running.append(
                self._start(
                    name,
                    command.argv,
                    on_core=self.gateway_core,
                    variables=variables,
                    cwd=self.folder,
                    log=log,
                )
            )
            request = _chat(port, "plain")  # the router uses its one worker for any model
            _wait_for(lambda: answers(request), running[-1], log, within_s=command.boots_within_s)

        def end() -> None:
            for process in running:
                processes.end(process)
            running.clear()

        self._stack.callback(end)
        target = Target(
            name=name,
            port_of=dict.fromkeys(UPSTREAMS, port),
            key=peers.KEY,
            pids=lambda: {pid for process in running for pid in machine.tree(process.pid)},
            renew=renew,
            end=end,
        )
        self.targets[name] = target
        return target

    def events_sent(self) -> int:
        """Return the number of stream events that the upstream has sent so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._count_port}/", timeout=5) as answer:
            return int(answer.read())

    def stranger_free_cpu_s(self) -> float:
        """Return the CPU seconds of the whole stand, including this process and its load."""
        here = os.times()
        own = here.user + here.system + here.children_user + here.children_system
        return own + sum(machine.cpu_s(pids()) for pids in self.started)

    def _build(self) -> None:
        if not (
            shutil.which("nginx")
            and shutil.which("wrk")
            and (nginx.MODULES / "ngx_http_lua_module.so").exists()
        ):
            raise StandError(MISSING)
        cores = sorted(os.sched_getaffinity(0))
        self._stack.callback(os.sched_setaffinity, 0, cores)
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[1:])
        self.gateway_core = cores[0]
        self.folder = Path(tempfile.mkdtemp(prefix="tollgate-bench-", dir="/tmp"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o711)
        *ports, self._count_port = free_ports(len(UPSTREAMS) + 1)
        self._ports = dict(zip(UPSTREAMS, ports, strict=True))
        proxied = dict(zip(UPSTREAMS, free_ports(len(UPSTREAMS)), strict=True))
        upstream_config = nginx.upstream_config(
            self.folder, self._ports | {"count": self._count_port}
        )
        self._start_nginx("upstream", upstream_config, self._ports["plain"], on_core=None)
        proxy = self._start_nginx(
            "proxy",
            nginx.proxy_config(self.folder, proxied, self._ports),
            proxied["plain"],
            on_core=self.gateway_core,
        )
        self.targets["direct"] = Target(name="direct", port_of=self._ports, key="none", pids=set)
        self.targets["nginx"] = Target(
            name="nginx", port_of=proxied, key="none", pids=lambda: machine.tree(proxy.pid)
        )

    def _start_nginx(
        self, name: str, config: str, port: int, *, on_core: int | None
    ) -> subprocess.Popen[bytes]:
        file = self.folder / f"{name}.conf"
        file.write_text(config)
        log = self.folder / f"{name}.out"
        argv = ["nginx", "-e", "stderr", "-p", str(self.folder), "-c", str(file)]
        process = self._start(
            name, argv, on_core=on_core, variables=dict(os.environ), cwd=self.folder, log=log
        )
        _wait_for(lambda: _listens(port), process, log)
        return process

    def _start(
        self,
        name: str,
        argv: list[str],
        *,
        on_core: int | None,
        variables: dict[str, str],
        cwd: Path,
        log: Path,
    ) -> subprocess.Popen[bytes]:
        pinned = ["taskset", "--cpu-list", str(on_core), *argv] if on_core is not None else argv
        with log.open("wb") as output:
            process = subprocess.Popen(
                pinned,
                env=variables,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._stack.callback(processes.end, process)
        self.started.append(lambda: machine.tree(process.pid))
        return process


def wait_until_written(ledger: Ledger, at_least: int) -> dict[str, int]:
    """Return the rows by outcome once there are enough of them and no more come.

    Raises `StandError`.
    """
    deadline_s = time.monotonic() + WRITTEN_WITHIN_S
    before: dict[str, int] = {}
    while time.monotonic() < deadline_s:
        rows = ledger.rows()
        if rows == before and rows.get("ok", 0) >= at_least:
            return rows
        before = rows
        time.sleep(0.5)  # longer than the writer waits for a batch to fill
    raise StandError(
        f"Only {before} of {at_least} answered requests have a row after {WRITTEN_WITHIN_S:.0f} s."
    )


def policy_of(ports: dict[str, int], *, team_fields: str = "") -> str:
    """Return one route per upstream; the caller's model name differs from the upstream's, so
    both splices are made.
    """
    deployments = "".join(
        f"  - {{name: {name}, provider: "
        f"{'openai_compatible' if name in ('burst', 'paced') else 'vllm'}, "
        f'base_url: "http://127.0.0.1:{port}/v1", model: upstream-model, region: here, '
        "context_window: 32768, "
        f"price: {{input_usd_per_mtok: 0.15, cached_input_usd_per_mtok: 0.075, "
        f"output_usd_per_mtok: 0.6}}}}\n"
        for name, port in ports.items()
    )
    routes = "".join(
        f"  - {{name: {name}, deployments: [{name}], objective: priority}}\n" for name in ports
    )
    return (
        "version: 1\nregions: {home: [here]}\nclasses:\n  confidential: {regions: [home]}\n"
        f"deployments:\n{deployments}routes:\n{routes}teams:\n"
        f"  - {{name: {TEAM}, cost_centre: CC-BENCH, data_class: confidential, routes: "
        f"[{', '.join(ports)}]"
        f"{team_fields}}}\n"
    )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _chat(port: int, model: str) -> urllib.request.Request:
    """Return a request that only a running gateway answers with 200."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {peers.KEY}"}
    return urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)


def _wait_for(
    is_ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    *,
    within_s: float = READY_WITHIN_S,
) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise StandError(f"It did not start: {log.read_text(errors='replace')[-1000:]}")
        time.sleep(0.05)

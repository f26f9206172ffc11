"""Does a failing upstream cascade?

One gateway, upstreams that fail, die, return and hang, and callers who measure.

    python -m bench.dispatch [--seconds 10] [--streams 500] [--write]

(a) everything fails: upstream attempts per request; (b) an upstream dies under load and returns:
the time until callers avoid it, and until they use it again; (c) streams through one deployment
while callers of another find it dead or stalled: the gateway's added time before sending
(`x-tollgate-overhead-ms`), beside a healthy run with as many requests; (d) a gateway at its cap,
and one whose journal fills because Postgres is away: its time to refuse. Exit 1 if a figure is over
its bound. Callers, upstreams and gateway share this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from bench.demo_crash import Gateway
from bench.stand import machine
from bench.stand.page import replace_between
from bench.stand.processes import answers, end, free_ports
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "routing.md"
MARKS = (
    "<!-- dispatch:begin, written by `python -m bench.dispatch --write` -->",
    "<!-- dispatch:end -->",
)
FLOOR_PER_S, HELD_S = 3, 10  # the minimum of allowed retries, beside their share
MOST_ATTEMPTS, OPENS_WITHIN_S, RETURNS_WITHIN_S, REFUSES_WITHIN_MS = 1.15, 2.0, 10.0, 5.0
MOST_TIMES, MOST_ADDED_MS = 2.0, 10.0
UPSTREAM_TTFT_MS = 50
STREAM = f"ttft:{UPSTREAM_TTFT_MS}+tps:4+out:16"
STREAM_S = 4.0  # seconds that one takes
CAP = 20  # streams of the gateway that is asked for more than its cap
REFUSALS = 500
SMALLEST_JOURNAL = 32 * 2**20
RATE, OTHER_CALLERS = 100, 50
# The baseline of each. Callers of a dead deployment get an error at once and repeat as often as
# those of a healthy one. Those of a stalled one wait, like callers who do not ask.
COMPARED: dict[str, str | None] = {"alone": None, "well": None, "dead": "well", "stalled": "alone"}
FIRST_CONTENT = b'"delta": {"content": "'  # the fake's chunk with the role has it after that
PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 4}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One caller's view: `first_s` is the time to the first content after its request at
    `began_s`.
    """

    status: int
    headers: dict[str, str]
    began_s: float
    first_s: float
    ended_s: float

    @property
    def place(self) -> tuple[str, str]:
        """Return the answering deployment and the attempt's number."""
        return self.headers.get("x-tollgate-deployment", ""), self.headers.get(
            "x-tollgate-attempts", ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    measured: str
    bound: str
    is_kept: bool


class Stand:
    """The gateway, its upstreams and its callers' access."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._home = Path(tempfile.mkdtemp(prefix="tollgate-dispatch-", dir="/tmp"))
        stack.callback(shutil.rmtree, self._home, ignore_errors=True)
        self._home.chmod(0o711)  # as root, Postgres runs as another user
        steady, self.mortal_port, closed = free_ports(3)
        self.steady = f"http://127.0.0.1:{steady}"
        self.start_upstream(steady)
        # Accepts connections without reading them.
        silent = socket.create_server(("127.0.0.1", 0), backlog=1024)
        stack.callback(silent.close)
        self.postgres = stack.enter_context(EmbeddedPostgres(self._home))
        url = self.postgres.start()
        self.gateway = self._gateway(url)
        self.gateway.run("db", "upgrade")
        policy = self._home / "policy.yaml"
        policy.write_text(
            _policy(self.steady, self.mortal_port, closed=closed, silent=silent.getsockname()[1])
        )
        self.gateway.run("policy", "apply", str(policy), "--yes")
        self._key = str(
            json.loads(self.gateway.run("key", "create", "bench", "--format", "json"))["key"]
        )
        stack.callback(self.gateway.end, signal.SIGTERM)

    def start(self, **settings: str) -> None:
        """Start a fresh gateway without earlier observations."""
        self.gateway.end(signal.SIGTERM)
        self.gateway.variables |= {
            f"TOLLGATE_{name.upper()}": value for name, value in settings.items()
        }
        self.gateway.start()

    def start_upstream(self, port: int) -> subprocess.Popen[bytes]:
        """Start a fake upstream on a port, and wait until it answers."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fake_upstream", "--port", str(port)],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._stack.callback(end, process)
        while not answers(f"http://127.0.0.1:{port}/v1/models"):
            time.sleep(0.02)
        return process

    def attempts(self) -> int:
        """Return the number of requests at the steady upstream."""
        with urllib.request.urlopen(f"{self.steady}/ledger", timeout=60) as answer:
            return len(json.loads(answer.read())["entries"])

    async def ask(self, route: str, *, is_stream: bool = False, words: int = 1) -> Reply:
        """Send one request on a new connection."""
        body = json.dumps(
            {
                "model": route,
                "messages": [{"role": "user", "content": "hello " * words}],
                "stream": is_stream,
            }
        ).encode()
        began_s = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        try:
            writer.write(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: "
                f"Bearer {self._key}\r\n"
                f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            if is_stream:
                while (line := await reader.readline()) and FIRST_CONTENT not in line:
                    pass
            first_s = time.perf_counter() - began_s
            while await reader.read(65536):
                pass
        finally:
            writer.close()
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        return Reply(
            status=int(head[0].split()[1]),
            headers=headers,
            began_s=began_s,
            first_s=first_s,
            ended_s=time.perf_counter(),
        )

    def _gateway(self, url: str) -> Gateway:
        port, metrics_port = free_ports(2)
        variables = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("TOLLGATE_")
            },
            "TOLLGATE_HOME": str(self._home),
            "TOLLGATE_DATABASE_URL": url,
            "TOLLGATE_PORT": str(port),
            "TOLLGATE_METRICS_PORT": str(metrics_port),
            "TOLLGATE_LOG_LEVEL": "error",
        }
        return Gateway(variables=variables, port=port, log=self._home / "serve.log")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument(
        "--write", action="store_true", help=f"put the table into {PAGE.relative_to(REPOSITORY)}"
    )
    chosen = parser.parse_args(arguments)
    with ExitStack() as stack:
        rows = asyncio.run(_measure(Stand(stack), chosen))
    table = ["| | measured | bound | |", "|---|---|---|---|"]
    table += [
        f"| {row.what} | {row.measured} | {row.bound} | "
        f"{'kept' if row.is_kept else '**not kept**'} |"
        for row in rows
    ]
    print("\n".join(table))
    if chosen.write:
        write([f"- {machine.describe()}", f"- {machine.commit()}", "", *table])
    return 0 if all(row.is_kept for row in rows) else 1


def write(lines: Sequence[str]) -> None:
    """Put the lines into the page; a missing section is added."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Routing\n"
    if MARKS[0] not in text:
        PAGE.write_text(
            f"{text.rstrip()}\n\n## Dispatch\n\n{MARKS[0]}\n{MARKS[1]}\n", encoding="utf-8"
        )
    replace_between(PAGE, *MARKS, lines=lines)


async def _measure(stand: Stand, chosen: argparse.Namespace) -> list[Row]:
    rows = [
        await _all_fail(stand, route, seconds=chosen.seconds) for route in ("limited", "broken")
    ]
    rows += await _dies_and_returns(stand)
    rows += await _beside_a_sick_one(stand, streams=chosen.streams, seconds=chosen.seconds)
    rows.append(await _refuses_at_the_cap(stand))
    rows.append(await _refuses_when_full(stand))
    return rows


async def _all_fail(stand: Stand, route: str, *, seconds: float) -> Row:
    """(a) Make each request fail at every deployment."""
    stand.start()
    before = stand.attempts()
    replies = await _paced(lambda: stand.ask(route), rate=RATE, seconds=seconds)
    attempts = stand.attempts() - before
    floor = FLOOR_PER_S * (seconds + HELD_S)
    assert all(one.status >= 429 for one in replies), "everything fails"
    return Row(
        what=f"(a) everything fails with {'429' if route == 'limited' else '500'}: attempts ÷ "
        "requests",
        measured=f"{attempts} ÷ {len(replies)} = {attempts / len(replies):.2f}",
        bound=f"≤ {MOST_ATTEMPTS} and a floor of {floor:.0f}",
        is_kept=attempts <= MOST_ATTEMPTS * len(replies) + floor,
    )


async def _dies_and_returns(stand: Stand) -> list[Row]:
    """(b) Measure from its death until callers go elsewhere at once, and from its return until
    they use it again.
    """
    stand.start()
    mortal = stand.start_upstream(stand.mortal_port)
    places: list[tuple[float, tuple[str, str]]] = []

    async def ask() -> Reply:
        reply = await stand.ask("mortal")
        places.append((time.perf_counter(), reply.place))
        return reply

    load = asyncio.create_task(_paced(ask, rate=RATE, seconds=20))
    await asyncio.sleep(2)
    died_s = time.perf_counter()
    mortal.kill()
    await asyncio.to_thread(mortal.wait)
    await asyncio.sleep(7)
    await asyncio.to_thread(stand.start_upstream, stand.mortal_port)
    returned_s = time.perf_counter()
    failed = [one for one in await load if one.status != 200]
    opened_s = (
        next(
            (at_s for at_s, place in places if at_s > died_s and place == ("well", "1")),
            died_s + 99,
        )
        - died_s
    )
    back_s = next(
        (at_s for at_s, place in places if at_s > returned_s and place[0] == "mortal"), died_s + 99
    )
    return [
        Row(
            what="(b) an upstream dies under load: callers avoid it after",
            measured=f"{opened_s:.2f} s",
            bound=f"≤ {OPENS_WITHIN_S:g} s",
            is_kept=opened_s <= OPENS_WITHIN_S,
        ),
        Row(
            what="(b) it returns: it is in use again after",
            measured=f"{back_s - returned_s:.2f} s",
            bound=f"≤ {RETURNS_WITHIN_S:g} s",
            is_kept=back_s - returned_s <= RETURNS_WITHIN_S,
        ),
        Row(
            what="(b) callers who saw an error meanwhile",
            measured=f"{len(failed)}",
            bound="0",
            is_kept=not failed,
        ),
    ]


async def _beside_a_sick_one(stand: Stand, *, streams: int, seconds: float) -> list[Row]:
    """(c) Stream through the healthy one, alone or beside callers of another one.

    See `COMPARED`.
    """
    rows = []
    found_ms: dict[str, float] = {}
    for other, compared in COMPARED.items():
        stand.start()
        asking = OTHER_CALLERS if other != "alone" else 0
        callers = [asyncio.create_task(_over_and_over(stand, other)) for _ in range(asking)]
        began_s = time.perf_counter()
        load = _paced(
            lambda: stand.ask("steady", is_stream=True),
            rate=streams / STREAM_S,
            seconds=STREAM_S + seconds,
        )
        every = await load
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        for caller in callers:
            assert caller.cancelled(), f"they asked to the end: {caller.exception()}"
        assert all(one.status == 200 for one in every), "the healthy one serves everybody"
        # Until then as many have begun as are to run.
        replies = [one for one in every if one.began_s >= began_s + STREAM_S]
        at_once = median(
            sum(one.began_s <= at.began_s < one.ended_s for one in every) for at in replies
        )
        added_ms = _p99([float(one.headers["x-tollgate-overhead-ms"]) for one in replies])
        waited_ms = _p99([one.first_s * 1000 for one in replies])
        found_ms[other] = added_ms
        base_ms = found_ms[compared or other]
        beside = other if other == "alone" else f"another deployment {other}"
        rows.append(
            Row(
                what=f"(c) {at_once:.0f} streams at once, {beside}: overhead, p99 (first "
                "token, p99)",
                measured=f"{added_ms:.1f} ms ({waited_ms:.0f} ms)",
                bound=""
                if compared is None
                else f"≤ {MOST_TIMES:g}× and ≤ +{MOST_ADDED_MS:g} ms of *{compared}*",
                is_kept=added_ms <= MOST_TIMES * base_ms and added_ms <= base_ms + MOST_ADDED_MS,
            )
        )
    return rows


async def _over_and_over(stand: Stand, route: str) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reply = await stand.ask(route)
            assert (reply.status == 200) == (route == "well"), f"{route} answers {reply.status}"
        await asyncio.sleep(0.1)


async def _refuses_at_the_cap(stand: Stand) -> Row:
    """(d) Repeat one request beyond the cap."""
    stand.start(max_streams=str(CAP))
    # Two deployments, because one may not have all slots.
    holding = [
        asyncio.create_task(stand.ask(("long", "stalled")[turn % 2], is_stream=True))
        for turn in range(CAP)
    ]
    await asyncio.sleep(2)
    row = await _refusing(stand, "at the cap")
    for one in holding:
        one.cancel()
    await asyncio.gather(*holding, return_exceptions=True)
    return row


async def _refuses_when_full(stand: Stand) -> Row:
    """(d) Keep Postgres away until settled events fill the smallest possible journal."""
    stand.start(shed_lag_s="5", journal_max_bytes=str(SMALLEST_JOURNAL))
    stand.postgres.stop()

    async def fill() -> None:
        while (reply := await stand.ask("well")).status == 200:
            pass
        assert reply.status == 503, f"it answers {reply.status}"

    await asyncio.gather(*(fill() for _ in range(CAP)))
    return await _refusing(stand, "where the journal fills")


async def _refusing(stand: Stand, why: str) -> Row:
    """Measure the refusals of requests of six kilobytes, which come before the body is read."""
    times_ms: list[float] = []
    while len(times_ms) < REFUSALS:
        reply = await stand.ask("well", words=1000)
        if reply.status == 200:  # an ended one has left room for this one
            continue
        assert reply.status == 503, "it takes nothing new"
        assert "retry-after" in reply.headers, "and says when it may"
        times_ms.append(reply.first_s * 1000)
    return Row(
        what=f"(d) refusing {why}, a connection each, median / p99",
        measured=f"{median(times_ms):.2f} / {_p99(times_ms):.2f} ms",
        bound=f"≤ {REFUSES_WITHIN_MS:g} ms",
        is_kept=median(times_ms) <= REFUSES_WITHIN_MS,
    )


async def _paced(
    ask: Callable[[], Awaitable[Reply]], *, rate: float, seconds: float
) -> list[Reply]:
    """Begin requests at a rate whether earlier ones are answered or not; return all results."""
    began_s = time.perf_counter()
    running = []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(began_s + number / rate - time.perf_counter(), 0))
        running.append(asyncio.ensure_future(ask()))
    return list(await asyncio.gather(*running))


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[98]


def _policy(steady: str, mortal_port: int, *, closed: int, silent: int) -> str:
    def deployment(name: str, model: str, base_url: str) -> str:
        return (
            f'  - {{name: {name}, provider: openai_compatible, model: "{model}", base_url: '
            f'"{base_url}/v1", '
            f"region: unknown, price: {PRICE}}}"
        )

    deployments = [
        deployment("steady", f"fake/{STREAM}", steady),
        deployment("well", "fake/out:2", steady),
        deployment("limited-1", "fake/429", steady),
        deployment("limited-2", "fake/429", steady),
        deployment("broken-1", "fake/500", steady),
        deployment("broken-2", "fake/500", steady),
        deployment("mortal", "fake/out:2", f"http://127.0.0.1:{mortal_port}"),
        deployment("dead", "m", f"http://127.0.0.1:{closed}"),
        deployment("stalled", "m", f"http://127.0.0.1:{silent}"),
        deployment("long", "fake/tps:1+out:60", steady),
    ]
    routes = {
        "steady": "steady",
        "limited": "limited-1, limited-2",
        "broken": "broken-1, broken-2",
        "mortal": "mortal, well",
        "dead": "dead",
        "stalled": "stalled",
        "long": "long",
        "well": "well",
    }
    listed = "\n".join(
        f"  - {{name: {name}, deployments: [{places}]}}" for name, places in routes.items()
    )
    return (
        "version: 1\nclasses: {internal: {regions: [any]}}\ndeployments:\n"
        + "\n".join(deployments)
        + f"\nroutes:\n{listed}\n"
        f"teams: [{{name: bench, cost_centre: CC-1, data_class: internal, routes: "
        f"[{', '.join(routes)}]}}]\n"
    )


if __name__ == "__main__":
    sys.exit(main())

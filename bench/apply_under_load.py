"""Does a request ever see half of one policy and half of another?

Policies change under an open-loop load.

    python -m bench.apply_under_load [--rate 200] [--applies 10] [--seconds 30] [--seed 5] [--write]

Two `tollgate serve` run on one home and one Postgres, with an upstream for each of two documents.
Callers in a separate process begin a request each 5 ms whether earlier ones are answered or not,
half of them streamed. Meanwhile `tollgate policy apply` alternates between the documents. They send
the same route to another deployment, in another region, for another model, at other prices. Then
the callers' answers, the ledger and the upstreams' books are compared with the documents
(`bench.books.apply_books`). Faults are planted in them, and each must be found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench.books.apply_books import (
    Applied,
    Books,
    Call,
    Entry,
    Finding,
    Terms,
    judge,
    latest_s,
    not_found,
    plants,
    spanning,
)
from bench.demo_crash import DemoFailed, Gateway
from bench.stand import machine
from bench.stand.page import write_result
from bench.stand.processes import end, free_ports
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
TEAM, ROUTE, GATEWAYS = "payments", "chat", 2
MOST_LIVE_S, LEAST_RATE = 5.0, 0.99
WITHIN_S = 60.0
WORDS, PLAIN_TOKENS, STREAM_TOKENS = range(5, 60), range(1, 50), range(4, 20)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# Odd rates, so that every line has something to round. Each document has both deployments, with its
# own terms for them: a request that mixed the deployment of one with the price or region of the
# other fits neither.
LEFT = Terms(
    sha256="",
    upstream="",
    deployment="left",
    provider="vllm",
    region="eu-de",
    model="left-model",
    cost_centre="CC-LEFT",
    input_usd_per_mtok=Decimal("0.1537"),
    output_usd_per_mtok=Decimal("0.6101"),
)
RIGHT = Terms(
    sha256="",
    upstream="",
    deployment="right",
    provider="openai_compatible",
    region="us-east",
    model="right-model",
    cost_centre="CC-RIGHT",
    input_usd_per_mtok=Decimal("1.2503"),
    output_usd_per_mtok=Decimal("9.9991"),
)


def main() -> int:
    """Run it; 1 if a request failed or was mixed, an apply was late, or the rate was not held."""
    chosen = _arguments()
    if chosen.call:
        asyncio.run(_call_all(json.loads(sys.stdin.readline())))
        return 0
    load, *_ = os.getloadavg()
    try:
        books = _run(chosen)
    except DemoFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    findings = judge(books)
    missed = not_found(books)
    rows, is_met = _table(books, findings, missed, rate=chosen.rate, applies=chosen.applies)
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "python -m " + " ".join(["bench.apply_under_load", *sys.argv[1:]]),
        "seed": str(chosen.seed),
        "load average as it began": f"{load:.2f}",
    }
    lines = [*(f"- {name}: {value}" for name, value in facts.items()), "", *rows]
    print("\n".join(lines))
    for finding in findings[:20]:
        print(f"{finding.kind}: {finding.detail}", file=sys.stderr)
    for name in missed:
        print(f"planted and NOT FOUND: {name}", file=sys.stderr)
    if chosen.write:
        write_result("apply", lines)
    return 0 if is_met else 1


def _run(chosen: argparse.Namespace) -> Books:
    """Run processes, load and applies, and return the books."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="tollgate-apply-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        upstreams = [_upstream(stack) for _ in range(2)]
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        documents, terms = _documents(upstreams)
        files = [home / "one.yaml", home / "other.yaml"]
        for file, document in zip(files, documents, strict=True):
            file.write_text(document)
        gateways = [_gateway(home, url, number) for number in range(GATEWAYS)]
        first = gateways[0]
        first.run("db", "upgrade")
        first.run("policy", "apply", str(files[0]), "--yes")
        key = str(json.loads(first.run("key", "create", TEAM, "--format", "json"))["key"])
        for gateway in gateways:
            stack.callback(gateway.end, signal.SIGTERM)
            gateway.start()
        asked = {
            "rate": chosen.rate,
            "seed": chosen.seed,
            "key": key,
            "ports": [one.port for one in gateways],
        }
        callers = _callers(stack, asked)
        began_s, applied = time.monotonic(), []
        for number in range(1, chosen.applies + 1):
            time.sleep(
                max(
                    0.0, began_s + number * chosen.seconds / (chosen.applies + 1) - time.monotonic()
                )
            )
            applied.append(_apply(first, files[number % 2]))
        time.sleep(max(0.0, began_s + chosen.seconds - time.monotonic()))
        output, _ = callers.communicate()  # the end of its input ends it
        calls = tuple(
            Call(**{**one, "cost_usd": tuple(one["cost_usd"])}) for one in json.loads(output)
        )
        events, stored_s = _ledger(url, len(calls))
        by_version = {1: terms[0]} | {
            one.version: terms[number % 2] for number, one in enumerate(applied, start=1)
        }
        return Books(
            calls=calls,
            events=tuple(events),
            terms=by_version,
            entries=tuple(entry for upstream in upstreams for entry in _entries(upstream)),
            applied=tuple(replace(one, stored_s=stored_s[one.version]) for one in applied),
        )


# ---- documents


def _documents(upstreams: Sequence[str]) -> tuple[list[str], list[Terms]]:
    """Return the two documents, and the terms of each."""
    own = [
        replace(one, upstream=upstream)
        for one, upstream in zip((LEFT, RIGHT), upstreams, strict=True)
    ]
    texts = [_document(first, second) for first, second in (own, own[::-1])]
    return texts, [
        replace(one, sha256=sha256(text.encode()).hexdigest())
        for one, text in zip(own, texts, strict=True)
    ]


def _document(first: Terms, second: Terms) -> str:
    """Return a document that sends the route to `first`; the second deployment has the first
    one's terms as well.
    """
    places = "".join(
        f"  - {{name: {one.deployment}, provider: {one.provider}, base_url: "
        f'"{one.upstream}/v1", model: {first.model}, '
        f"region: {first.region}, price: {{input_usd_per_mtok: {first.input_usd_per_mtok}, "
        f"output_usd_per_mtok: {first.output_usd_per_mtok}}}}}\n"
        for one in (first, second)
    )
    return (
        "version: 1\nregions: {eu: [eu-de], us: [us-east]}\nclasses: {internal: {regions: [any]}}\n"
        f"deployments:\n{places}"
        f"routes:\n  - {{name: {ROUTE}, deployments: [{first.deployment}, {second.deployment}]}}\n"
        f"teams:\n  - {{name: {TEAM}, cost_centre: {first.cost_centre}, data_class: internal, "
        f"routes: [{ROUTE}]}}\n"
    )


# ---- processes


def _upstream(stack: ExitStack) -> str:
    """Start an upstream with its own book; return its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.stand.demo_upstream"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    stack.callback(end, process)
    assert process.stdout is not None, "it was asked for"
    return process.stdout.readline().decode().strip()


def _gateway(home: Path, url: str, number: int) -> Gateway:
    port, metrics_port = free_ports(2)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")},
        "TOLLGATE_HOME": str(home),
        "TOLLGATE_DATABASE_URL": url,
        "TOLLGATE_PORT": str(port),
        "TOLLGATE_METRICS_PORT": str(metrics_port),
    }
    return Gateway(variables=variables, port=port, log=home / f"serve-{number}.log")


def _callers(stack: ExitStack, asked: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the callers; return once the first request has begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.apply_under_load", "--call"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    stack.callback(end, process)
    assert process.stdin is not None, "it was asked for"
    assert process.stdout is not None, "so was this"
    # A key on a command line is visible to every user.
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    process.stdin.flush()
    process.stdout.readline()
    return process


def _apply(gateway: Gateway, file: Path) -> Applied:
    """Apply a document as an admin does. Raises `DemoFailed`."""
    began_s = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gateway.main",
            "policy",
            "apply",
            str(file),
            "--yes",
            "--format",
            "json",
        ],
        env=gateway.variables,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DemoFailed(f"tollgate policy apply: {done.stderr.strip()}")
    live_line = re.search(rf"Live on {GATEWAYS}/{GATEWAYS} replicas in ([\d.]+) s", done.stderr)
    return Applied(
        version=json.loads(done.stdout)["version"],
        stored_s=0.0,
        reported_s=float(live_line[1]) if live_line else None,
        ended_s=time.time(),
        took_s=time.monotonic() - began_s,
    )


def _entries(upstream: str) -> list[Entry]:
    """Return the upstream's book."""
    with urllib.request.urlopen(f"{upstream}/ledger", timeout=30) as answer:
        entries = json.loads(answer.read())["entries"]
    return [
        Entry(
            upstream=upstream,
            request_id=one["request_id"],
            prompt=one["prompt"],
            generated=one["generated"],
        )
        for one in entries
    ]


def _ledger(url: str, count: int) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Return all events once there are that many, or time is up; and each version's storage
    time.
    """
    deadline_s = time.monotonic() + WITHIN_S
    with psycopg.connect(url, row_factory=dict_row, autocommit=True) as connection:
        while time.monotonic() < deadline_s:
            counted = connection.execute(
                "SELECT count(*) AS count FROM finance.usage_events"
            ).fetchone()
            if counted is not None and counted["count"] >= count:
                break
            time.sleep(0.2)
        versions = connection.execute(
            "SELECT version, applied_at FROM tollgate.policies"
        ).fetchall()
        events = connection.execute("SELECT * FROM finance.usage_events").fetchall()
    return events, {row["version"]: row["applied_at"].timestamp() for row in versions}


# ---- the callers' own process


async def _call_all(asked: dict[str, Any]) -> None:
    """Begin requests by schedule until the input ends; then print each caller's view."""
    random, loop = Random(asked["seed"]), asyncio.get_running_loop()
    is_over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    idle: dict[int, list[Connection]] = {port: [] for port in asked["ports"]}
    calls: list[asyncio.Task[Call]] = []
    print("begun", flush=True)
    due_s = loop.time()
    while not is_over.done():
        port, body = random.choice(asked["ports"]), _body(random)
        calls.append(
            asyncio.create_task(_call(port, idle[port], body, key=asked["key"], due_s=due_s))
        )
        due_s += 1 / asked["rate"]  # its own schedule: a late request does not delay the next one
        await asyncio.sleep(max(0.0, due_s - loop.time()))
    print(json.dumps([asdict(call) for call in await asyncio.gather(*calls)]))


async def _call(
    port: int, idle: list[Connection], body: dict[str, Any], *, key: str, due_s: float
) -> Call:
    """Send one request and wait for its end, good or bad."""
    content = json.dumps(body).encode()
    call = Call(
        is_stream=bool(body["stream"]),
        begun_s=time.time(),
        late_s=asyncio.get_running_loop().time() - due_s,
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            while idle and idle[-1][0].at_eof():
                idle.pop()
            connection = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
            connection[1].write(head.encode() + content)
            status, headers, text = await _answer(connection[0])
    except (OSError, EOFError, ValueError) as error:  # a time-out is one of the first
        return replace(call, ended_s=time.time(), problem=f"{type(error).__name__}: {error}")
    idle.append(connection)
    costs, problem = _read(text, is_stream=call.is_stream)
    own = headers.get("x-tollgate-cost-usd")
    return replace(
        call,
        ended_s=time.time(),
        status=status,
        problem=problem,
        request_id=headers.get("x-request-id", ""),
        version=int(headers.get("x-tollgate-policy", 0)),
        deployment=headers.get("x-tollgate-deployment", ""),
        provider=headers.get("x-tollgate-provider", ""),
        region=headers.get("x-tollgate-region", ""),
        cost_usd=costs if own is None else (own, *costs),
    )


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], str]:
    """Return status, headers and body.

    Raises `EOFError` if it breaks off, `ValueError` if it is no HTTP.

    Parsed by hand: with httpx a request takes 2.4 ms of CPU, so two hundred calls a second would be
    late.
    """
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return int(first.split(" ")[1]), headers, body.decode()


def _read(text: str, *, is_stream: bool) -> tuple[tuple[str, ...], str]:
    """Return an answer's reported costs and its problem."""
    if is_stream:
        chunks = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
        is_whole = bool(chunks) and chunks[-1] == "[DONE]"
        texts = [chunk for chunk in chunks if chunk.startswith("{")]
    else:
        is_whole, texts = text.startswith("{"), [text]
    try:
        answers = [json.loads(one, parse_float=str) for one in texts]
    except ValueError:
        return (), "not JSON"
    if any("error" in one for one in answers):
        return (), "an error in it"
    costs = [
        str(one["usage"]["cost_usd"]) for one in answers if "cost_usd" in (one.get("usage") or {})
    ]
    return tuple(costs), "" if is_whole else "it breaks off"


def _body(random: Random) -> dict[str, Any]:
    is_stream = random.random() < 0.5
    content = " ".join("word" for _ in range(random.choice(WORDS)))
    body = {
        "model": ROUTE,
        "messages": [{"role": "user", "content": content}],
        "stream": is_stream,
        "max_tokens": random.choice(STREAM_TOKENS if is_stream else PLAIN_TOKENS),
    }
    return body | ({"stream_options": {"include_usage": True}} if is_stream else {})


# ---- output


def _table(
    books: Books, findings: Sequence[Finding], missed: Sequence[str], *, rate: float, applies: int
) -> tuple[list[str], bool]:
    """Return the figures, and whether all targets are met."""
    calls, kinds = (
        sorted(books.calls, key=lambda call: call.begun_s),
        Counter(one.kind for one in findings),
    )
    reached = (len(calls) - 1) / (calls[-1].begun_s - calls[0].begun_s)
    late_ms = sorted(1000 * call.late_s for call in calls)
    reported_s = [one.reported_s for one in books.applied if one.reported_s is not None]
    streams = sum(call.is_stream for call in calls)
    planted = len(list(plants(books)))
    rows = [
        ("requests sent", "", f"{len(calls):,}, {streams:,} of them streamed", True),
        (
            "requests a second, by schedule",
            f"≥ {LEAST_RATE * rate:g}",
            f"{reached:.1f}",
            reached >= LEAST_RATE * rate,
        ),
        ("begun after its turn: p50 / p99 / most", "", _figures_ms(late_ms), True),
        ("failed", "0", f"{kinds['failed']}", not kinds["failed"]),
        ("mixed versions", "0", f"{kinds['mixed']}", not kinds["mixed"]),
        (
            "without an event or without an upstream, or with two",
            "0",
            f"{kinds['lost'] + kinds['doubled']}",
            not kinds["lost"] + kinds["doubled"],
        ),
        ("in flight while the version changed", "> 0", f"{spanning(books):,}", spanning(books) > 0),
        (
            f"applies that say they are live on {GATEWAYS}/{GATEWAYS}",
            f"{applies}",
            f"{len(reported_s)}",
            len(reported_s) == applies,
        ),
        (
            "until live, as the command says: p50 / most",
            f"≤ {MOST_LIVE_S:g} s",
            f"{median(reported_s or [0]):.1f} / {max(reported_s, default=0):.1f} s",
            max(reported_s, default=0) <= MOST_LIVE_S,
        ),
        (
            "begun with an older version, after a newer one was stored: most",
            f"≤ {MOST_LIVE_S:g} s",
            f"{latest_s(books):.2f} s",
            latest_s(books) <= MOST_LIVE_S,
        ),
        (
            "begun with an older version, after the command had ended",
            "0",
            f"{kinds['stale']}",
            not kinds["stale"],
        ),
        (
            "the whole command: p50 / most",
            "",
            f"{median(one.took_s for one in books.applied):.1f} / "
            f"{max(one.took_s for one in books.applied):.1f} s",
            True,
        ),
        ("planted in the books, and found", f"{planted}", f"{planted - len(missed)}", not missed),
    ]
    lines = ["| figure | wanted | measured |", "|---|--:|--:|"]
    lines += [
        f"| {name} | {wanted or '–'} | {measured}{'' if holds else ' **no**'} |"
        for name, wanted, measured, holds in rows
    ]
    return lines, all(holds for *_, holds in rows)


def _figures_ms(sorted_ms: Sequence[float]) -> str:
    places = (len(sorted_ms) // 2, round(0.99 * (len(sorted_ms) - 1)), -1)
    return " / ".join(f"{sorted_ms[place]:.1f}" for place in places) + " ms"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.apply_under_load", description="Policies come and go under load."
    )
    parser.add_argument("--rate", type=float, default=200, help="requests a second (200)")
    parser.add_argument("--applies", type=int, default=10, help="how often the policy changes (10)")
    parser.add_argument(
        "--seconds", type=float, default=30, help="how long, or until all applies are through (30)"
    )
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/lab/bench"
    )
    parser.add_argument("--call", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.applies < 1:
        parser.error("--applies must be 1 at least")
    return chosen


if __name__ == "__main__":
    sys.exit(main())

"""A storm on hard budgets by callers who know every member, every character and every tool.

Each request is drawn: ordinary ones of the official SDKs' shapes, and hostile ones with members of
any provider's published schema (and invented ones), with text from any block of Unicode and with
tools that providers run. The upstream honours all of them and bills all that it did
(`honest_upstream`). No key may be booked above its budget, no event above its hold, and every
ordinary request of a key with money must be served.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import psycopg

from gateway.domain.operation import Operation
from gateway.domain.policy.api_keys import key_id_of
from gateway.domain.providers.members.effects import EFFECTS
from tests.chaos.fleet import REPOSITORY, Fleet, FleetError
from tests.chaos.honest_upstream import OVERHEAD_TOKENS
from tests.chaos.report import Result

WINDOW = 4000
REPLICAS = 2
KEY_USD = 1  # a key's own budget; a request that fills the window costs some 0.05
ORDINARY_USD = 1_000_000  # of the team whose requests are all ordinary
PRICE = (
    "{input_usd_per_mtok: 2, output_usd_per_mtok: 10, cached_input_usd_per_mtok: 2, "
    "cache_write_usd_per_mtok: 2, web_search_usd_per_1k_calls: 10}"
)
# Everything that a careless policy may permit.
ALLOWS = (
    "allows: [hosted_tools, stored_state, remote_media, engine_control, other_maximum, rerouting, "
    "unknown_fields, service_tier, audio, store]"
)
PROVIDERS: Mapping[str, tuple[Operation, ...]] = {
    "vllm": tuple(Operation),
    "sglang": (Operation.CHAT, Operation.COMPLETIONS),
    "llamacpp": (Operation.CHAT, Operation.COMPLETIONS),
    "trtllm": (Operation.CHAT, Operation.COMPLETIONS),
    "openai_compatible": (Operation.CHAT, Operation.RESPONSES, Operation.EMBEDDINGS),
    "openai": (Operation.CHAT, Operation.RESPONSES, Operation.EMBEDDINGS),
    "anthropic": (Operation.MESSAGES, Operation.CHAT),
    "groq": (Operation.CHAT,),
    "mistral": (Operation.CHAT,),
    "deepseek": (Operation.CHAT,),
    "xai": (Operation.CHAT, Operation.RESPONSES),
    "together": (Operation.CHAT,),
    "fireworks": (Operation.CHAT,),
    "openrouter": (Operation.CHAT,),
}
PATHS: Mapping[Operation, str] = {
    Operation.CHAT: "/v1/chat/completions",
    Operation.COMPLETIONS: "/v1/completions",
    Operation.RESPONSES: "/v1/responses",
    Operation.MESSAGES: "/v1/messages",
    Operation.EMBEDDINGS: "/v1/embeddings",
    Operation.RERANK: "/v1/rerank",
    Operation.SCORE: "/v1/score",
}
ENGINES = ("vllm", "sglang", "llamacpp", "trtllm", "openai_compatible")
TOOLS = (
    "web_search",
    "web_search_preview",
    "web_search_20250305",
    "code_interpreter",
    "file_search",
    "code_execution_20250825",
    "mcp",
    "image_generation",
    "computer_use_preview",
    "x_search",
    "browser_search",
    "web_fetch_20250910",
    "advisor_20260301",
    "tool_search_tool_regex_20251119",
    "brand_new_tool",
)
SHOWN_BODY = 600  # letters of a body that cost more than its hold
BLOCKS = 0x110000 // 0x80
SERVED, BUSY = 200, 503
TRIES = 20  # of a request to a gateway that is overloaded, as an SDK would, with more patience


def run_policy(upstream: str) -> str:
    """Return the policy: a route and a team for each provider, and a team of ordinary callers."""
    deployments, routes = [], []
    for provider, operations in PROVIDERS.items():
        own = "" if provider in ENGINES else ', api_key: "env:FAKE_KEY"'
        asked = ", ".join(operation.value for operation in operations)
        deployments.append(
            f"  - {{name: {provider}, provider: {provider}, model: {provider}, region: here{own}, "
            f'base_url: "{upstream}/v1", context_window: {WINDOW}, price: {PRICE}, {ALLOWS}, '
            f"input_overhead_tokens: {OVERHEAD_TOKENS}, operations: [{asked}]}}\n"
        )
        routes.append(f"  - {{name: {provider}, deployments: [{provider}]}}\n")
    names = ", ".join(PROVIDERS)
    return (
        "version: 1\nregions: {home: [here]}\nclasses: {public: {regions: [any]}}\n"
        f"deployments:\n{''.join(deployments)}routes:\n{''.join(routes)}teams:\n"
        f"  - {{name: hostile, cost_centre: CC-1, data_class: public, routes: [{names}], "
        f'keys: [{{key: "*", budgets: [{{period: once, limit_usd: {KEY_USD}}}]}}]}}\n'
        f"  - {{name: ordinary, cost_centre: CC-2, data_class: public, routes: [{names}], "
        f"budgets: [{{period: once, limit_usd: {ORDINARY_USD}}}]}}\n"
    )


class Drawer:
    """Draws requests."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names = sorted(EFFECTS)

    def ordinary(self, provider: str, operation: Operation) -> dict[str, Any]:
        """Return a request as an official SDK sends it for a person's question."""
        body = {"model": provider, **self._prompt(operation, self._words())}
        if operation in (Operation.CHAT, Operation.COMPLETIONS, Operation.MESSAGES):
            body |= {"max_tokens": 100, "temperature": 0.5}
        if operation is Operation.CHAT and self._random.random() < 0.3:
            schema = {"type": "object", "properties": {"city": {"type": "string"}}}
            function = {"name": "weather", "description": "The weather.", "parameters": schema}
            body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"}
        if operation is Operation.RESPONSES:
            body |= {"max_output_tokens": 100}
        return body

    def hostile(self, provider: str, operation: Operation) -> dict[str, Any]:
        """Return a request that tries to cost more than it seems to."""
        random = self._random
        text = random.choice((self._words, self._odd_text, self._long_text))()
        body = {"model": provider, **self._prompt(operation, text)}
        for name in random.sample(self._names, random.choice((0, 1, 1, 2, 3, 6))):
            if name not in body or random.random() < 0.05:
                body[name] = self._value(name)
        if random.random() < 0.15:
            body["x" + random.choice(self._names)] = random.randint(1, 64)
        if random.random() < 0.5:
            body[random.choice(("max_tokens", "max_completion_tokens", "max_output_tokens"))] = (
                random.choice((1, 50, 300, 5000))
            )
        if random.random() < 0.25:
            body["tools"] = [self._tool() for _ in range(random.choice((1, 1, 2)))]
            if random.random() < 0.5:
                body[random.choice(("max_tool_calls", "max_turns"))] = random.randint(1, 60)
        if random.random() < 0.2:
            body["stream"] = True
        items = list(body.items())
        random.shuffle(items)
        return dict(items)

    def _prompt(self, operation: Operation, text: str) -> dict[str, Any]:
        if operation in (Operation.CHAT, Operation.MESSAGES):
            found: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
            return found | ({"max_tokens": 50} if operation is Operation.MESSAGES else {})
        if operation is Operation.COMPLETIONS:
            return {"prompt": text}
        if operation is Operation.RERANK:
            return {"query": text, "documents": [text, self._words()]}
        if operation is Operation.SCORE:
            return {"text_1": text, "text_2": [self._words()]}
        return {"input": text}

    def _words(self) -> str:
        words = ("the", "cost", "of", "a", "month", "is", "known", "by", "its", "last", "day")
        return " ".join(self._random.choices(words, k=self._random.randint(3, 40)))

    def _long_text(self) -> str:
        return self._words() * self._random.randint(1, 15)

    def _odd_text(self) -> str:
        start = self._random.randrange(BLOCKS) * 0x80
        points = (start + self._random.randrange(0x80) for _ in range(self._random.randint(1, 400)))
        return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000) or "a"

    def _tool(self) -> dict[str, Any]:
        tool: dict[str, Any] = {"type": self._random.choice(TOOLS)}
        if self._random.random() < 0.5:
            tool["name"] = tool["type"].rpartition("_2")[0] or tool["type"]
        if self._random.random() < 0.5:
            tool["max_uses"] = self._random.randint(1, 50)
        return tool

    def _value(self, name: str) -> Any:
        random = self._random
        return random.choice(
            (
                random.randint(2, 64),
                random.randint(2, 64),
                True,
                "auto",
                self._odd_text()[:50],
                [random.randint(1, 9)],
                {name: random.randint(2, 64), "n": 8, "max_tokens": 9000, "num_predict": 9000},
            )
        )


@dataclass(slots=True)
class Seen:
    """What the callers saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    refused_ordinary: list[str] = field(default_factory=list)
    served: dict[str, str] = field(default_factory=dict)  # the hostile bodies by request id


class Caller:
    """One connection that is kept, and the requests that are asked on it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None
        self.request_id = ""  # of the latest answer

    async def ask(self, path: str, key: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        raw = json.dumps(body, ensure_ascii=Random(len(body)).random() < 0.5).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
            "anthropic-version: 2023-06-01\r\ncontent-type: application/json\r\n"
            f"content-length: {len(raw)}\r\n\r\n"
        )
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=2**24
            )
        self._writer.write(head.encode() + raw)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        self.request_id = headers.get("x-request-id", "")
        answer = await self._body(headers)
        if headers.get("connection") == "close":
            await self.close()
        return int(lines[0].split(" ")[1]), answer

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        found = b""
        while size := int(await self._reader.readline(), 16):
            found += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return found

    async def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def run(result: Result, *, requests: int, callers: int) -> None:
    """Send the storm and compare the books."""
    with (
        _upstream() as upstream,
        Fleet(
            seed=result.seed,
            mix="healthy",
            replicas=REPLICAS,
            policy=run_policy(upstream),
            teams=("hostile", "ordinary"),
        ) as fleet,
    ):
        fleet.start()
        keys = fleet.new_keys("hostile", max(requests // 150, 4))
        await asyncio.sleep(3)  # until the gateways know the keys
        seen, turns = Seen(), iter(range(requests))

        async def call(number: int) -> None:
            drawer, caller = (
                Drawer(Random(f"{result.seed}/{number}")),
                Caller(fleet.ports[number % REPLICAS]),
            )
            for turn in turns:
                await _one(drawer, caller, turn, keys, fleet.keys["ordinary"], seen)
                if turn % 5000 == 0:
                    result.print_step(f"{turn:,} requests")
            await caller.close()

        await asyncio.gather(*(call(number) for number in range(callers)))
        served = seen.statuses["hostile 200"] + seen.statuses["ordinary 200"]
        await fleet.settled(served)
        _judge(result, fleet, keys, seen, json.loads(_get(f"{upstream}/books")))


async def _one(
    drawer: Drawer, caller: Caller, turn: int, keys: list[str], ordinary_key: str, seen: Seen
) -> None:
    random = drawer._random
    provider = random.choice(list(PROVIDERS))
    operation = random.choice(PROVIDERS[provider])
    is_ordinary = random.random() < 0.2
    body = (drawer.ordinary if is_ordinary else drawer.hostile)(provider, operation)
    key = ordinary_key if is_ordinary else keys[turn // 150 % len(keys)]
    status, answer = await caller.ask(PATHS[operation], key, body)
    for _ in range(TRIES):
        if status != BUSY:
            break
        seen.statuses["tried again after 503"] += 1
        await asyncio.sleep(random.uniform(0.5, 1.5))
        status, answer = await caller.ask(PATHS[operation], key, body)
    seen.statuses[f"{'ordinary' if is_ordinary else 'hostile'} {status}"] += 1
    if status == SERVED and not is_ordinary:
        seen.served[caller.request_id] = json.dumps(body)
    if status != SERVED:
        code = _code(answer)
        seen.codes[f"{status} {code}"] += 1
        if is_ordinary:
            seen.refused_ordinary.append(f"{provider} {operation}: {answer[:300]!r}")


def _code(answer: bytes) -> str:
    try:
        error = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        return "?"
    return str(error.get("code")) if isinstance(error, dict) else "?"


def _judge(
    result: Result, fleet: Fleet, keys: list[str], seen: Seen, books: dict[str, list[int]]
) -> None:
    for name, count in sorted(seen.statuses.items()):
        result.say(name, f"{count:,}")
    result.say("refusals", ", ".join(f"{n:,} × {code}" for code, n in seen.codes.most_common(8)))
    with psycopg.connect(fleet.database_url) as connection:
        spent: dict[str, Decimal] = dict(
            connection.execute(
                "SELECT key_id, sum(coalesce(cost_usd, held_usd)) FROM finance.usage_events "
                "WHERE team = 'hostile' GROUP BY key_id"
            ).fetchall()
        )
        # A tool with a fee of which no answer tells the number is unknown, at its hold. An attempt
        # of which nothing was served, as on a connection that had just ended, is free: the books
        # below agree on it.
        suspect = connection.execute(
            "SELECT deployment, operation, usage_source, is_suspect, cost_nusd, held_nusd, "
            "features::text, request_id::text "
            "FROM tollgate.usage_events WHERE is_suspect OR cost_nusd > held_nusd "
            "OR NOT (usage_source IN ('provider', 'none') "
            "OR usage_source = 'unknown' AND features ? 'hosted')"
        ).fetchall()
        (unknown,) = connection.execute(
            "SELECT count(*) FROM tollgate.usage_events WHERE usage_source = 'unknown'"
        ).fetchone() or (0,)
        booked = {
            str(name): (count, tokens_in, tokens_out)
            for name, count, tokens_in, tokens_out in connection.execute(
                "SELECT deployment, count(*), sum(input_tokens), sum(output_tokens) "
                "FROM finance.usage_events WHERE http_status = 200 GROUP BY 1"
            ).fetchall()
        }
    most = max(spent.values(), default=Decimal(0))
    result.say("keys, and the most that one spent", f"{len(spent):,}, {most:.4f} of {KEY_USD} USD")
    result.say("unknown, for a tool's fee", f"{unknown:,}")
    known = {key_id_of(key) for key in keys}
    over = {name: usd for name, usd in spent.items() if name in known and usd > KEY_USD}
    result.demand(not over, "overrun", f"{len(over)} keys: {list(over.items())[:5]}")
    for *event, request_id in suspect:
        body = seen.served.get(request_id, "an ordinary one")
        result.demand(False, "above its hold", f"{event} of {body[:SHOWN_BODY]}")
    result.demand(
        not seen.refused_ordinary,
        "ordinary refused",
        f"{len(seen.refused_ordinary)}: {'; '.join(seen.refused_ordinary[:5])}",
    )
    for name, (count, tokens_in, tokens_out, _) in sorted(books.items()):
        result.demand(
            booked.get(name) == (count, tokens_in, tokens_out),
            "books differ",
            f"{name}: billed {(count, tokens_in, tokens_out)}, booked {booked.get(name)}",
        )
    result.say("attempts that the upstream billed", f"{sum(book[0] for book in books.values()):,}")


@contextmanager
def _upstream() -> Iterator[str]:
    """Run the honest upstream; yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.honest_upstream", "--window", str(WINDOW)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if not url:
        raise FleetError("The honest upstream did not start.")
    try:
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())

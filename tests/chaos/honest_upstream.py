"""An upstream that honours every member of every provider, and bills all that it did.

It is the opposite of a lenient fake: whatever may multiply answers, lengthen them, add input or run
rounds does so as far as the request allows, and its usage says so. It keeps its own books:
`GET /books` has the tokens that it billed, by the caller's route.

    python -m tests.chaos.honest_upstream --window 4000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal

import uvloop

from gateway.domain.providers.members.effects import EFFECTS, Effect

OVERHEAD_TOKENS = 16  # of a chat template: as the deployments' `input_overhead_tokens`
MOST_ROUNDS = 40  # of a provider's own tools, if the request bounds none
# Every name under which some server takes a number of answers.
ANSWERS = (
    "n",
    "n_cmpl",
    "best_of",
    "num_return_sequences",
    "candidateCount",
    "candidate_count",
    "agent_count",
    "num_completions",
    "num_generations",
    "num_beams",
    "beam_width",
)
# Every name under which some server takes a maximum; the longest one wins here.
MAXIMA = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "num_predict",
    "max_new_tokens",
    "max_length",
    "max_gen_len",
    "max_tokens_to_sample",
    "maxOutputTokens",
)
# Members in which some server finds the others again.
NESTED = (
    "options",
    "parameters",
    "generationConfig",
    "generation_config",
    "sampling_params",
    "inferenceConfig",
    "extra_body",
)
# Members that let some server read the whole window, or bill what no maximum bounds.
WHOLE_WINDOW = (
    "previous_response_id",
    "conversation",
    "session_params",
    "images",
    "prompt_embeds",
    "thread",
    "previous_input_messages",
    "cached_content",
    "cachedContent",
)
UNBOUNDED = (
    "models",
    "route",
    "provider",
    "fallbacks",
    "plugins",
    "search_parameters",
    "mcp_servers",
    "web_search_options",
    "compaction",
    "model_parameters",
    "modelConfig",
    "container",
)
# Members that a template may write into the prompt.
PROMPT = frozenset(name for name, effect in EFFECTS.items() if effect is Effect.ADDS_INPUT)
STREAMS = ("/chat/completions", "/v1/completions", "/messages", "/responses")
RUN_BY_CALLERS = frozenset({("openai", "computer_use_preview")})  # of the types that it draws
UNCHANGED = frozenset({"openai"})  # models whose published tokenizer reads the text as it is
FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")


@lru_cache(maxsize=4096)
def tokens_of(text: str, *, is_changed: bool = True) -> int:
    """Return the tokens of the least merciful tokenizer: one of each byte of the longest form, or
    of the text itself if the provider's tokenizer does not change it.
    """
    if text.isascii():
        return len(text)
    found = [text]
    if is_changed:
        forms = [unicodedata.normalize(form, text) for form in FORMS]
        forms += [changed for form in (text, *forms) for changed in (form.lower(), form.casefold())]
        found += [*forms, *(unicodedata.normalize(form, each) for form in FORMS for each in forms)]
    return max(len(form.encode("utf-8", "surrogatepass")) for form in found)


def texts_of(value: Any) -> Iterator[str]:
    """Yield every text within a JSON value, names of members included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)
    elif value is not None:
        yield str(value)


def _figures(body: dict[str, Any], names: tuple[str, ...]) -> list[int]:
    places = [body, *(inner for name in NESTED if isinstance(inner := body.get(name), dict))]
    found = [place.get(name) for place in places for name in names]
    return [one for one in found if isinstance(one, int) and not isinstance(one, bool) and one > 0]


def _rounds(body: dict[str, Any]) -> int:
    """Return the rounds that the provider's own tools run: as many as the request allows."""
    hosted = [
        tool
        for tool in body.get("tools") or ()
        if isinstance(tool, dict)
        and str(tool.get("type")).partition("_")[0] not in ("function", "custom", "None")
        and (body.get("model"), tool.get("type")) not in RUN_BY_CALLERS
    ]
    if not hosted:
        return 0
    limits = _figures(body, ("max_tool_calls", "max_turns"))
    uses = [one for tool in hosted if isinstance(one := tool.get("max_uses"), int)]
    if len(uses) == len(hosted):
        limits.append(sum(uses))
    return min([*limits, MOST_ROUNDS])


class Bill:
    """What one request costs here: at most what its members allow."""

    def __init__(self, path: str, body: dict[str, Any], *, window: int) -> None:
        prompts = body.get("prompt") if path.endswith("/completions") else body.get("input")
        many = (
            len(prompts)
            if isinstance(prompts, list) and path.endswith(("/v1/completions", "/embeddings"))
            else 1
        )
        prompt = {name: value for name, value in body.items() if name in PROMPT}
        texts = texts_of(list(prompt.values()))
        is_changed = body.get("model") not in UNCHANGED
        read = sum(
            tokens_of(text, is_changed=is_changed) for text in texts
        ) + OVERHEAD_TOKENS * max(many, 1)
        self.rounds = _rounds(body)
        self.too_long = read > window * max(many, 1)
        is_whole = self.rounds or any(body.get(name) for name in WHOLE_WINDOW)
        self.input = window * (self.rounds + 1) if is_whole else read
        answers = 1
        for figure in _figures(body, ANSWERS):
            answers *= figure
        longest = min(max(_figures(body, MAXIMA), default=window), window)
        has_output = not path.endswith(("/embeddings", "/rerank", "/score"))
        self.output = longest * min(answers, 4096) * max(many, 1) if has_output else 0
        if any(body.get(name) for name in UNBOUNDED):
            self.input += 50 * window


class Upstream:
    """The server and its books."""

    def __init__(self, *, window: int) -> None:
        self._window = window
        self.books: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
        }
        if method == "GET":
            self._send(writer, 200, json.dumps(self.books).encode())
            return True
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw.decode("utf-8", "surrogatepass"))
        path = path.partition("?")[0]
        bill = Bill(path, body, window=self._window)
        if bill.too_long:
            self._send(writer, 400, b'{"error":{"message":"too long","code":"context_length"}}')
            return True
        book = self.books[str(body.get("model"))]
        book[0] += 1
        book[1] += bill.input
        book[2] += bill.output
        book[3] = max(book[3], bill.input + bill.output)
        answer = _answers(path, bill)
        if body.get("stream") is True and path.endswith(STREAMS):
            self._send(writer, 200, _events(path, answer), kind="text/event-stream")
        else:
            self._send(writer, 200, json.dumps(answer).encode())
        await writer.drain()
        return True

    @staticmethod
    def _send(
        writer: asyncio.StreamWriter, status: int, body: bytes, *, kind: str = "application/json"
    ) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)


def _answers(path: str, bill: Bill) -> dict[str, Any]:
    """Return a plain answer of the path's dialect."""
    chat_usage = {
        "prompt_tokens": bill.input,
        "completion_tokens": bill.output,
        "total_tokens": bill.input + bill.output,
    }
    if path.endswith("/chat/completions"):
        message: dict[str, Any] = {"role": "assistant", "content": "ok"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": chat_usage,
        }
    if path.endswith("/messages"):
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "ok"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": bill.input,
                "output_tokens": bill.output,
                "server_tool_use": {"web_search_requests": bill.rounds},
            },
        }
    if path.endswith("/responses"):
        calls = [
            {
                "type": "web_search_call",
                "id": f"w{n}",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            }
            for n in range(bill.rounds)
        ]
        message = {
            "type": "message",
            "id": "o",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "ok", "annotations": []}],
        }
        return {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "status": "completed",
            "output": [*calls, message],
            "usage": {
                "input_tokens": bill.input,
                "output_tokens": bill.output,
                "total_tokens": bill.input + bill.output,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }
    if path.endswith("/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return {"object": "list", "model": "m", "data": data, "usage": chat_usage}
    if path.endswith(("/rerank", "/score")):
        return {"id": "s", "model": "m", "results": [], "data": [], "usage": chat_usage}
    choice = {"index": 0, "text": "ok", "finish_reason": "stop"}
    return {
        "id": "t",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": chat_usage,
    }


def _events(path: str, answer: dict[str, Any]) -> bytes:
    """Return the same answer as a stream of the path's dialect."""
    if path.endswith("/messages"):
        usage = answer["usage"]
        start = answer | {"content": [], "usage": usage | {"output_tokens": 1}}
        text = {"type": "text", "text": ""}
        return b"".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            for event in (
                {"type": "message_start", "message": start},
                {"type": "content_block_start", "index": 0, "content_block": text},
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": "ok"},
                },
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
                {"type": "message_stop"},
            )
        )
    if path.endswith("/responses"):
        event = {"type": "response.completed", "sequence_number": 0, "response": answer}
        return f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()
    choice = dict(answer["choices"][0])
    if "message" in choice:
        choice["delta"] = choice.pop("message")
        answer = answer | {"object": "chat.completion.chunk"}
    first = answer | {"choices": [choice], "usage": None}
    last = answer | {"choices": []}
    return f"data: {json.dumps(first)}\n\ndata: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode()


async def _run(window: int) -> None:
    upstream = Upstream(window=window)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=2**22)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=int, required=True)
    uvloop.run(_run(parser.parse_args().window))

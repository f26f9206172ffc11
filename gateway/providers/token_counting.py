"""Counts the tokens of a request and its answer with the model's own tokenizer, or estimates them
by size, if the upstream reported no usage.

Offline, off the event loop, bounded.

A model's own tokenizer is read from a `tokenizer.json` that an admin put on this machine; nothing
is ever downloaded. It needs the optional package `tokenizers`. Without a tokenizer, or if counting
fails or takes too long, sizes give an estimate. Text is counted in memory and dropped; it is
neither kept nor logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import structlog

from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestBody
from gateway.domain.request.token_estimate import estimate, is_countable, tokens_in
from gateway.wire.observed import Observed

log = structlog.get_logger()

# Bytes of a request body; larger ones are estimated. A mebibyte takes half a second of one core.
MAX_INPUT_BYTES = 2**20
MAX_WAITING = 64  # answers whose text waits for the one counting thread; further ones are estimated
DEADLINE_S = 5.0
# Chat templates put about three tokens around each message: its role, its start and its end.
TOKENS_PER_MESSAGE = 3
_TEXT_MEMBERS = (
    "messages",
    "prompt",
    "input",
    "instructions",
    "system",
    "tools",
    "functions",
    "response_format",
    "text",
)


# Counts the tokens of all texts together, in the counting thread: it must release the interpreter's
# lock.
Tokenizer = Callable[[Sequence[str]], int]
LoadTokenizer = Callable[[str], Tokenizer]


def load_tokenizer(path: str) -> Tokenizer:
    """Read a `tokenizer.json` and return a function that counts tokens.

    Raises `ImportError` without the package, `Exception` (its own) for a bad file.
    """
    from tokenizers import Tokenizer as File

    file = File.from_file(path)

    def count(texts: Sequence[str]) -> int:
        # `encode` holds the interpreter's lock: 350 ms were measured for 160 KB. The batch calls
        # release it.
        """Return the number of tokens of all texts together."""
        return sum(
            len(each.ids) for each in file.encode_batch_fast(list(texts), add_special_tokens=False)
        )

    return count


@dataclass(frozen=True, slots=True)
class _Work:
    """The texts of one request and its answer whose tokens are counted."""

    read: RequestBody
    texts: tuple[str, ...]
    output_bytes: int
    has_all_text: bool


class OfflineTokenCounter:
    """Counts sent and received text, with the model's own tokenizer if there is one.

    `tokenizers` gives a `tokenizer.json` by the upstream's model name. It implements the port
    `TokenCounter`. It never raises and takes at most `deadline_s`. An ending that cannot wait at
    all uses `domain.request.token_estimate.estimate`.
    """

    def __init__(
        self,
        tokenizers: Mapping[str, str],
        *,
        load: LoadTokenizer = load_tokenizer,
        deadline_s: float = DEADLINE_S,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """Start the counter with its one thread; each tokenizer is loaded at its first use."""
        self._paths = tokenizers
        self._load = cache(load)  # bounded by the admin's list
        self._deadline_s = deadline_s
        self._max_waiting = max_waiting
        self._waiting, self._is_closed = 0, False
        self._reported: set[tuple[str, str]] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="token-counter")

    def check(self) -> Mapping[str, str]:
        """Load every configured tokenizer; return the problems by model.

        Blocks: for start and `doctor`.
        """
        problems = {}
        for model, path in self._paths.items():
            try:
                self._load(path)(["Hello"])
            except Exception as broken:  # any problem of a file; the caller reports it
                problems[model] = f"{path}: {broken}"
        return problems

    async def count(self, model: str, read: RequestBody, observed: Observed) -> Counted:
        """Return the tokens of a request and of its answer, counted or estimated. Never raises."""
        path = self._paths.get(model)
        guess = estimate(
            read.facts,
            output_bytes=observed.size_bytes,
            is_empty=observed.is_empty,
        )
        has_room = not self._is_closed and self._waiting < self._max_waiting
        if path is None or not observed.texts or not has_room:
            return guess
        work = _Work(read, observed.texts, observed.output_bytes, observed.has_all_text)
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._count, path, work)
        future.add_done_callback(self._done)
        # Not `wait_for`: it would raise the cancellation of a count that `close` dropped.
        await asyncio.wait({future}, timeout=self._deadline_s)
        if not future.done() or future.cancelled():
            return guess
        problem = future.exception()
        if problem is None:
            return future.result()
        self._report(model, type(problem).__name__)
        return guess

    def close(self) -> None:
        """Stop the counting thread; waiting texts are estimated."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _report(self, model: str, problem: str) -> None:
        """Log a failed count once for each model. The error's own words may quote the text."""
        if (model, problem) not in self._reported:
            self._reported.add((model, problem))
            log.warning("tokens_not_counted", model=model, problem=problem)

    def _done(self, future: asyncio.Future[Counted]) -> None:
        """Free the place of an ended count, and read its error, so that asyncio does not log it."""
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # `count` reads it, unless it timed out; then it is not needed

    def _count(self, path: str, work: _Work) -> Counted:
        """Count the texts of one answer and its prompt with the tokenizer at `path`. Runs in the
        thread.
        """
        tokenizer = self._load(path)
        kept_bytes = sum(len(text.encode()) for text in work.texts)
        output = tokenizer(work.texts) + tokens_in(work.output_bytes - kept_bytes)
        usage = TokenUsage(input_tokens=_input_tokens(work.read, tokenizer), output_tokens=output)
        # Tool calls are rewritten on their way to us, so the model wrote other text than we
        # received.
        is_exact = work.has_all_text and "tools" not in work.read.facts.capabilities
        return Counted(usage=usage, is_exact=is_exact)


def _input_tokens(read: RequestBody, tokenizer: Tokenizer) -> int | None:
    """Return the tokens of a request's texts, an estimate for large ones, None if it cannot be
    counted.
    """
    if not is_countable(read.facts):
        return None
    if read.facts.body_bytes > MAX_INPUT_BYTES:
        return tokens_in(read.facts.body_bytes)
    body = msgspec.json.decode(read.body)
    messages = body.get("messages")
    around = TOKENS_PER_MESSAGE * len(messages) if isinstance(messages, list) else 0
    leaves = list(_leaves(body[name] for name in _TEXT_MEMBERS if name in body))
    ids = sum(type(leaf) is int for leaf in leaves)  # a prompt may consist of token ids
    return tokenizer([leaf for leaf in leaves if isinstance(leaf, str)]) + ids + around


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Yield everything below these values that is no object or array, without recursion."""
    todo = list(values)
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
        else:
            yield value

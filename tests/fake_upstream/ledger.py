"""The upstream's own ledger: an entry for each attempt that reached it, counted by itself."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPEN, COMPLETE, CLIENT_GONE = "open", "complete", "client_gone"


@dataclass(slots=True, kw_only=True)
class Entry:
    """One attempt as it really went.

    `generated` grows while it runs; `usage_s` is when usage first left. `ending` is `open`,
    `complete`, `client_gone`, or the name of the fault that ended it.
    """

    number: int
    request_id: str
    arrived_s: float
    path: str = ""
    headers: list[list[str]] = field(default_factory=list)
    body: str = ""
    index: int = 0
    kind: str = ""
    model: str = ""
    fault: str = "none"
    is_stream: bool = False
    ended_s: float = 0.0
    prompts: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    generated: int = 0
    reasoning: int = 0
    parts: dict[str, int] = field(default_factory=dict)  # the rarer counts, by their names
    usage_s: float = 0.0
    is_usage_final: bool = False
    wrote_bytes: int = 0
    has_shown: bool = False  # a generated token has left
    ending: str = OPEN
    untold: list[str] = field(default_factory=list)  # counts for which its dialect has no word

    def members(self) -> dict[str, Any]:
        """Return the entry as JSON has it."""
        return {name: getattr(self, name) for name in Entry.__slots__}


class MemoryLedger:
    """Keeps all entries, with their requests, for tests that ask for them."""

    keeps_requests = True

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    async def begin(self, entry: Entry) -> None:
        """Keep an attempt that has arrived."""
        self.entries.append(entry)

    def end(self, entry: Entry) -> None:
        """Note the end of an attempt, which is kept already."""


class FileLedger:
    """Appends a line when an attempt arrives and one when it has ended, and keeps none of them.

    Lines are appended at once and synced in groups off the loop.
    """

    keeps_requests = False

    def __init__(self, path: Path) -> None:
        self.entries: list[Entry] = []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._waiting: list[asyncio.Future[None]] = []
        self._is_syncing = False

    async def begin(self, entry: Entry) -> None:
        """Append an attempt that has arrived. Return when the line is on the disk."""
        self._append(entry)
        await self._sync()

    def end(self, entry: Entry) -> None:
        """Append an attempt as it ended."""
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        os.write(self._file, json.dumps(entry.members()).encode() + b"\n")

    async def _sync(self) -> None:
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if not self._is_syncing:
            self._is_syncing = True
            try:
                while self._waiting:
                    group, self._waiting = self._waiting, []
                    await loop.run_in_executor(None, os.fdatasync, self._file)
                    for one in group:
                        if not one.done():
                            one.set_result(None)
            finally:
                self._is_syncing = False
        await mine


Ledger = MemoryLedger | FileLedger

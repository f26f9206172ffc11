"""One socket of a caller as its exchanges use it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from uvicorn.protocols.http.flow_control import FlowControl


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSocket:
    """The transport with its back-pressure and its addresses.

    It does not refer to its connection: a circle would keep a closed one until the next collection.
    """

    transport: asyncio.Transport
    flow: FlowControl
    server: tuple[str, int] | None
    client: tuple[str, int] | None

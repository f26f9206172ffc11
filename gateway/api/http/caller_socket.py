"""Declares a caller's socket as its exchanges use it: transport, flow control and the two
addresses; it reads and writes nothing itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from uvicorn.protocols.http.flow_control import FlowControl


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSocket:
    """A caller's transport with its flow control and its two addresses.

    It does not refer to its connection: a circle would keep a closed one until the next collection.
    """

    transport: asyncio.Transport
    flow: FlowControl
    server: tuple[str, int] | None
    client: tuple[str, int] | None

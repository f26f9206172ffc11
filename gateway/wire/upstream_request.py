"""One HTTP request to an upstream, as a value."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class UpstreamRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One POST to a deployment, ready to send. Header names are in lower case.

    `is_assembled`: sent as a stream for a caller who asked for none; the answer is put together
    again. `is_streamed`: the answer comes in pieces, so that its first token has a deadline of its
    own.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    asks_running_usage: bool = False
    is_assembled: bool = False
    is_streamed: bool = False

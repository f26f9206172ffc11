"""One HTTP request to an upstream, as a value."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class UpstreamRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One POST to a deployment, ready to send. Header names are in lower case.

    `is_assembled`: sent as a stream although its caller asked for a plain answer; the answer is
    assembled from the stream. `is_streamed`: the answer comes in pieces, so that its first token
    has its own deadline.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    asks_running_usage: bool = False
    is_assembled: bool = False
    is_streamed: bool = False

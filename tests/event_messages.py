"""Messages of an AWS event stream, as Bedrock frames them."""

from __future__ import annotations

import json
import struct
from binascii import crc32
from typing import Any


def framed(headers: dict[str, str], payload: bytes) -> bytes:
    """Return one message with its two sums."""
    encoded = b"".join(
        bytes((len(name),))
        + name.encode()
        + b"\x07"
        + struct.pack("!H", len(value.encode()))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(encoded) + len(payload), len(encoded))
    whole = prelude + struct.pack("!I", crc32(prelude)) + encoded + payload
    return whole + struct.pack("!I", crc32(whole))


def event(kind: str, payload: dict[str, Any]) -> bytes:
    """Return an event of Converse's stream."""
    headers = {
        ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "event",
    }
    return framed(headers, json.dumps(payload, separators=(",", ":")).encode())


def exception(kind: str, message: str) -> bytes:
    """Return an exception in a stream."""
    headers = {
        ":exception-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return framed(headers, json.dumps({"message": message}).encode())

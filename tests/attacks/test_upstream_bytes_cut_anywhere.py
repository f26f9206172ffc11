"""The same bytes of an upstream were booked by how the network had cut them: a message with a wrong
sum, beside whole ones in one piece, was unknown at its hold, or estimated if nothing came behind.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.errors import RequestError, UpstreamError, UpstreamTimeout
from tests.attacks.every_target import ASKED, target
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import once, rest_of

GOLDEN = Path(__file__).parents[1] / "golden"
# A provider for each reader of a dialect: its own clients', the translations, and the assembler.
READERS = {
    "openai": ("openai", Operation.CHAT, "openai/chat-stream*"),
    "translated chat": ("groq", Operation.MESSAGES, "openai/chat-stream*"),
    "assembled": ("vllm", Operation.CHAT, "vllm/chat-stream*"),
    "responses": ("openai", Operation.RESPONSES, "openai/responses-stream*"),
    "messages": ("anthropic", Operation.MESSAGES, "anthropic/messages-stream*"),
    "anthropic": ("anthropic", Operation.CHAT, "anthropic/chat-stream*"),
    "bedrock": ("bedrock", Operation.RESPONSES, "bedrock/chat-stream*"),
    "gemini": ("gemini", Operation.CHAT, "gemini/chat-stream*"),
    "ollama": ("ollama", Operation.CHAT, "ollama/native-chat-stream*"),
    "triton": ("triton", Operation.COMPLETIONS, "triton/generate-stream*"),
}
CUTS = 5  # places of one cut, for each stream


def streams_of(reader: str) -> list[bytes]:
    """Return the recorded streams of a reader's dialect."""
    folders = sorted(GOLDEN.glob(READERS[reader][2]))
    return [next(folder.glob("upstream.*")).read_bytes() for folder in folders]


def damaged(stream: bytes, chance: Random) -> list[bytes]:
    """Return a stream, and the same with its end missing, bytes changed, lost or added."""
    made = [stream]
    for _ in range(2):
        at = chance.randrange(1, len(stream))
        made.append(stream[:at])
        for byte in (stream[at] ^ 1, 0, 0xFF):
            made.append(stream[:at] + bytes([byte]) + stream[at + 1 :])
        made.append(stream[:at] + stream[at + chance.randrange(1, 40) :] or b"x")
        made.append(stream[:at] + b"\0" * chance.randrange(1, 40) + stream[at:])
    return [*made, stream + stream, stream + made[2], made[1] + stream]


def pieces_of(stream: bytes, chance: Random) -> list[list[bytes]]:
    """Return a stream in one piece, in pieces of seven bytes, and cut once at several places."""
    cut = [stream[at : at + 7] for at in range(0, len(stream), 7)]
    places = [chance.randrange(1, len(stream) + 1) for _ in range(CUTS)]
    return [[stream], cut, *([stream[:at], stream[at:]] for at in places if at < len(stream))]


async def booked(
    reader: str, pieces: list[bytes], *, then: RequestError | None, folder: Path
) -> tuple[Any, ...]:
    """Return the outcome and the booked usage of a stream that arrives in these pieces; `then` the
    connection breaks or stands still.
    """
    provider, operation, _ = READERS[reader]
    on = once(FakeUpstreamAnswer(pieces, then=then, headers={"content-type": "text/event-stream"}))
    asked = {"model": "assistant", "stream": reader != "assembled", **ASKED[operation]}
    with suppress(RequestError):  # `on.event` fails if nothing was sent
        answer = await on.answer(
            json.dumps(asked).encode(), target(provider, folder), operation=operation
        )
        if answer.rest is not None:
            await rest_of(answer)
    event = on.event
    return (
        event.outcome,
        event.usage_source,
        event.usage,
        event.reported,
        event.cost_nusd,
        event.is_suspect,
        event.finish_reason,
    )


@pytest.mark.parametrize("reader", READERS)
async def test_no_cut_decides_about_the_booking(reader: str, tmp_path: Path) -> None:
    """Of every recorded stream, whole and damaged, whatever the packets were."""
    chance = Random(reader)
    found = []
    for stream in streams_of(reader):
        for sent in damaged(stream, chance):
            then = chance.choice((None, UpstreamError("cut"), UpstreamTimeout("silent")))
            bookings = [
                await booked(reader, pieces, then=then, folder=tmp_path)
                for pieces in pieces_of(sent, chance)
            ]
            found += [(sent, one) for one in bookings if one != bookings[0]]
    assert found == []


@pytest.mark.parametrize("reader", READERS)
def test_the_recorded_streams_are_there(reader: str) -> None:
    """A reader without streams would pass without a test."""
    assert streams_of(reader)

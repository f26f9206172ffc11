"""A small upstream of Bedrock's Converse. The model's name in the address selects the answer; each
request is kept as it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tests.event_messages import exception
from tests.integration.recording_upstream import Answer, Received, RecordingUpstream

GOLDEN = Path(__file__).parents[1] / "golden" / "bedrock"
WHOLE = (GOLDEN / "chat" / "upstream.json").read_bytes()
STREAM = (GOLDEN / "chat-stream-tools" / "upstream.bin").read_bytes()
CUT = STREAM[: STREAM.index(b"messageStop") - 20]
STREAMS = {
    "nova-1:0": STREAM,
    "signed": STREAM,
    "cut": CUT,
    "error": STREAM[: STREAM.index(b"contentBlockStop") - 27]  # its prelude and header name
    + exception("throttlingException", "Too many tokens."),
}


class ConverseUpstream(RecordingUpstream):
    """The server."""

    def answer_to(self, request: Received) -> Answer:
        """Return the answer of the model in the address."""
        _, _, model, operation = request.path.split("/")
        model = unquote(model)
        if model.isdigit():
            return Answer(
                int(model),
                "application/json",
                b'{"message":"Too many requests."}',
                {"x-amzn-errortype": "ThrottlingException:http://internal"},
            )
        if operation == "converse-stream":
            return Answer(200, "application/vnd.amazon.eventstream", STREAMS[model])
        assert json.loads(WHOLE)
        return Answer(200, "application/json", WHOLE)


def converse_upstream() -> Iterator[ConverseUpstream]:
    """Yield a running upstream until the fixture ends."""
    upstream = ConverseUpstream()
    yield upstream
    upstream.close()

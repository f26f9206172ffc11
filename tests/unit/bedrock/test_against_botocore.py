"""Our framing and our requests against AWS's own client, which shares nothing with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from gateway.wire.bedrock.event_stream import MessageSplitter

GOLDEN = Path(__file__).parents[2] / "golden" / "bedrock"
STREAMS = sorted(path.parent.name for path in GOLDEN.glob("*/upstream.bin"))
REQUESTS = sorted(path.parent.name for path in GOLDEN.glob("*/sent.json"))


@pytest.mark.parametrize("case", STREAMS)
def test_botocore_reads_the_same_messages(case: str) -> None:
    """Headers and payloads of the golden streams, whose framing our own tests wrote."""
    stream = (GOLDEN / case / "upstream.bin").read_bytes()
    theirs = EventStreamBuffer()
    theirs.add_data(stream)
    expected = [(message.headers, message.payload) for message in theirs]
    ours = MessageSplitter().feed(stream)
    assert [(message.headers, message.payload) for message in ours] == expected


@pytest.mark.parametrize("case", REQUESTS)
def test_botocore_takes_our_requests(case: str) -> None:
    """Each member is one of the service's own model, and has its type."""
    model: Any = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    shape = model.operation_model("Converse").input_shape
    body = json.loads((GOLDEN / case / "sent.json").read_bytes())
    report = ParamValidator().validate({"modelId": "m", **body}, shape)
    assert not report.has_errors(), report.generate_report()
    assert set(body) <= set(shape.members)

"""An upstream whose finish reason is megabytes long: the gateway replaces words that clients do not
know.
"""

from __future__ import annotations

import json
import tracemalloc

import pytest

from gateway.wire.observed import Observed
from gateway.wire.openai.answer.complete_answer import rewrite
from tests.factories import read

LONG = 4_000_000
MOST_BYTES = 60_000_000  # 640 MiB when the search kept a position for each byte


@pytest.mark.parametrize("word", ["x" * LONG, "\\" * (LONG // 2)], ids=["plain", "escaped"])
def test_a_finish_reason_of_megabytes_takes_little_memory(word: str) -> None:
    answer = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": word}]}
    body = json.dumps(answer).encode()
    asked = read(b'{"model":"assistant","messages":[]}')
    tracemalloc.start()
    try:
        rewritten = rewrite(asked, body, Observed())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(rewritten, bytes)
    assert json.loads(rewritten)["choices"][0]["finish_reason"] == "stop"
    assert peak_bytes < MOST_BYTES

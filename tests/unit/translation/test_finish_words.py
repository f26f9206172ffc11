"""Each word of an upstream for the end of an answer stands in the ledger as it came; callers of
chats get OpenAI's (contract of the surface, "Finish").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import botocore.loaders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import AnswerEvent, Finish, Finished

Events = Callable[[bytes, Observed], Sequence[AnswerEvent]]
BEDROCK = botocore.loaders.Loader().load_service_model("bedrock-runtime", "service-2")
# Of `FinishReason` in Google's reference of generateContent, read 2026-11-24.
OF_GEMINI = [
    "STOP",
    "MAX_TOKENS",
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "OTHER",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "MALFORMED_FUNCTION_CALL",
    "IMAGE_SAFETY",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
]
OTHERS = {
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "refusal": Finish.CONTENT_FILTER,
    "content_filtered": Finish.CONTENT_FILTER,
    "guardrail_intervened": Finish.CONTENT_FILTER,
    "MAX_TOKENS": Finish.LENGTH,
    "SAFETY": Finish.CONTENT_FILTER,
    "PROHIBITED_CONTENT": Finish.CONTENT_FILTER,
}


def anthropics(word: str) -> Any:
    return {"type": "message", "content": [{"type": "text", "text": "a"}], "stop_reason": word}


def bedrocks(word: str) -> Any:
    return {"output": {"message": {"content": [{"text": "a"}]}}, "stopReason": word}


def geminis(word: str) -> Any:
    return {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": word}]}


READERS: dict[str, tuple[Events, Callable[[str], Any]]] = {
    "anthropic": (messages_events, anthropics),
    "bedrock": (converse_events, bedrocks),
    "gemini": (gemini_events, geminis),
}


def end(name: str, word: str) -> tuple[Finish, str | None]:
    """Return the end that a caller's writer gets, and the word in the ledger."""
    read, answer = READERS[name]
    observed = Observed()
    events = read(json.dumps(answer(word)).encode(), observed)
    (finished,) = [event for event in events if isinstance(event, Finished)]
    return finished.finish, observed.finish_reason


@pytest.mark.parametrize("word", BEDROCK["shapes"]["StopReason"]["enum"])
def test_each_word_of_the_service_model_is_kept(word: str) -> None:
    """Words that say that the model failed are ends like others: the answer is billed."""
    assert end("bedrock", word) == (OTHERS.get(word, Finish.STOP), word)


@pytest.mark.parametrize("word", OF_GEMINI)
def test_each_word_of_google_is_kept(word: str) -> None:
    """`MALFORMED_FUNCTION_CALL` is no error of the request."""
    assert end("gemini", word) == (OTHERS.get(word, Finish.STOP), word)


@pytest.mark.parametrize("name", READERS)
@given(word=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20))
def test_a_word_of_tomorrow_is_a_stop_and_kept(name: str, word: str) -> None:
    """It may mean anything; who asks finds it in view and receipt."""
    if word not in OTHERS:
        assert end(name, word) == (Finish.STOP, word)

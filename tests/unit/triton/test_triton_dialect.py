"""Triton's generate extension: completions as its requests, its answers as completions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.facts import provider_facts_of
from gateway.errors import Untranslatable
from gateway.providers.engines.triton import Triton
from gateway.wire.dialect import UnreadableAnswer
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import Ended, Failed, Finish, Finished, Used
from gateway.wire.translation.losses import Losses
from gateway.wire.triton.answer import TritonReader, generate_events, usage_in
from gateway.wire.triton.request import write_generate_request
from tests import factories
from tests.answers import at_once

ASKED = {
    "exclude_input_in_output": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}
ROOT = "http://h:8000"


def completion(**members: Any) -> Any:
    body = {"model": "assistant", "prompt": "a", **members}
    return factories.read(json.dumps(body).encode(), Operation.COMPLETIONS)


def triton(base_url: str = ROOT, **changes: Any) -> Any:
    native = provider_facts_of("triton", base_url).native
    values = {"provider": "triton", "base_url": base_url, "native": native, "model": "m/1"}
    return factories.deployment(**values | changes)


def test_every_member_with_a_place() -> None:
    """And those that say no more than their absence."""
    read = completion(
        n=1,
        best_of=1,
        echo=False,
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        seed=7,
        presence_penalty=1,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        stop="x",
        bad_words=["y"],
        stream_options=None,
    )
    assert write_generate_request(read, Losses("t", drops=False)) == {
        "text_input": "a",
        "stream": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 7,
        "presence_penalty": 1,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "stop_words": ["x"],
        "bad_words": ["y"],
        **ASKED,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("echo", True),
        ("suffix", "z"),
        ("logprobs", 1),
        ("logit_bias", {"1": 2}),
        ("user", "ann"),
    ],
)
def test_a_member_without_a_place_is_refused_or_dropped_by_name(field: str, value: Any) -> None:
    """Never silently."""
    read = completion(**{field: value})
    with pytest.raises(Untranslatable) as refused:
        write_generate_request(read, Losses("t", drops=False))
    assert refused.value.param == field
    losses = Losses("t", drops=True)
    assert write_generate_request(read, losses) == {"text_input": "a", "stream": False, **ASKED}
    assert losses.fields == [field]


@pytest.mark.parametrize("prompt", [["a", "b"], [], [7, 8], [[7], [8]]])
def test_one_prompt_is_taken(prompt: Any) -> None:
    """Lists and token ids have no place here; another deployment may take them."""
    with pytest.raises(Untranslatable, match="prompt"):
        write_generate_request(completion(prompt=prompt), Losses("t", drops=True))


def test_the_dialect_follows_the_address() -> None:
    """Without a path the extension, with one the OpenAI frontend; chats have no place there."""
    adapter, read = Triton(), completion(max_tokens=9, stream=True)
    translation = adapter.translate(triton(), read)
    request = factories.request(read)
    call = at_once(adapter.call(triton(), request, output_cap_tokens=4, translation=translation))
    assert call.url == f"{ROOT}/v2/models/m%2F1/generate_stream"
    assert msgspec.json.decode(call.body)["max_tokens"] == 4
    own = at_once(adapter.call(triton(), request, translation=translation))
    assert msgspec.json.decode(own.body)["max_tokens"] == 9, "the caller's own stays"
    assert call.asks_running_usage
    frontend = triton(f"{ROOT}/v1")
    assert adapter.translate(frontend, read) is None
    plain = at_once(adapter.call(frontend, request))
    assert plain.url == f"{ROOT}/v1/completions"
    assert adapter.stream(read, plain) is not None
    seen = Observed()
    adapter.rewrite(completion(), plain, b'{"choices":[{"text":"a"}]}', seen)
    assert seen.is_done
    chat = factories.read(b'{"model":"assistant","messages":[]}', Operation.CHAT)
    with pytest.raises(Untranslatable, match="completions alone"):
        adapter.translate(triton(), chat)
    assert adapter.usage_in(b'{"num_output_tokens":1}') == TokenUsage(output_tokens=1)


def sse(*pieces: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in pieces)


def streamed(data: bytes, size: int = 10**9, most: int | None = None) -> tuple[Any, Observed]:
    reader = TritonReader("r-1", most_tokens=most)
    events: list[Any] = []
    for at in range(0, len(data), size):
        events += reader.feed(data[at : at + size])
    events += reader.end()
    assert list(reader.end()) == []  # the relay asks until nothing comes
    return events, reader.observed


PIECES = sse(
    {"text_output": "a", "num_input_tokens": 5, "num_output_tokens": 1},
    {"text_output": "b", "num_input_tokens": 5, "num_output_tokens": 3},
)


@pytest.mark.parametrize("size", [1, 9, 10**9])
def test_counts_of_a_stream_are_summed(size: int) -> None:
    """The prompt's is the same in each piece; the maximum reached is the end by length."""
    events, seen = streamed(PIECES, size, most=4)
    usage = TokenUsage(input_tokens=5, output_tokens=4)
    assert events[-3:] == [
        Finished(finish=Finish.LENGTH, native="length"),
        Used(usage=usage),
        Ended(),
    ]
    assert (seen.final, seen.finish_reason, seen.texts) == (usage, None, ("ab",))


def test_a_cut_stream_has_its_counts_so_far() -> None:
    """And the model's own word for its end is kept."""
    reader = TritonReader("r-1")
    reader.feed(PIECES)
    assert reader.observed.usage == TokenUsage(input_tokens=5, output_tokens=4)
    assert not reader.observed.is_final
    _, seen = streamed(sse({"text_output": "a", "finish_reason": "stop"}))
    assert (seen.finish_reason, seen.final, seen.has_all_text) == ("stop", None, True)


def test_bodies_that_are_no_stream() -> None:
    """An error is read as one, anything else is unread, and nothing is no end."""
    assert streamed(b'{"error":"no model"}')[0] == [
        Failed(code="upstream_error", message="no model")
    ]
    events, seen = streamed(sse({"error": {"code": 5}}, {"text_output": "late"}))
    assert events == [Failed(code="upstream_error", message="The upstream failed.")]
    assert not seen.is_done
    assert streamed(b"<html>")[1].is_whole
    assert not streamed(b"")[1].is_done
    assert not streamed(b": ping\n\ndata: [\n\n")[1].has_all_text


def test_whole_answers() -> None:
    """Unreadable ones too."""
    seen = Observed()
    generate_events(b'{"text_output":"a"}', seen, answer_id="i", most_tokens=None)
    assert (seen.final, seen.texts) == (None, ("a",))
    with pytest.raises(UnreadableAnswer):
        generate_events(b"[]", Observed(), answer_id="i", most_tokens=None)
    assert usage_in(b'{"num_input_tokens":2}') == TokenUsage(input_tokens=2)
    assert usage_in(b"{}") is None


VALUES = st.dictionaries(
    st.sampled_from(
        ["text_output", "num_input_tokens", "num_output_tokens", "error", "id", "finish_reason"]
    ),
    st.none() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2),
)


@given(st.lists(VALUES, max_size=4), st.integers(1, 30))
def test_no_answer_breaks_the_reader(pieces: list[Any], size: int) -> None:
    """Wrong types and missing members at every place."""
    events, seen = streamed(sse(*pieces), size)
    assert seen.is_done is (Ended in [type(one) for one in events])

"""A sound in the place of a picture or a file was held at the rate of text and billed at that of
sound: USD 1.00 a million tokens for 0.30. A part that is a sound, or may be one where the model
hears, needs the rate under a hard budget.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import RequestFacts
from gateway.wire.openai.request.sounds import Sound, sound_of_name, sound_of_type
from tests import factories

BASE64 = "SUQzBAAAAAAAI1RTU0UAAAAPAAADTGF2ZjU4"
NO, MAYBE, YES = Sound.NO, Sound.MAYBE, Sound.YES
TYPES = {
    "application/json": NO,
    "application/msword": NO,
    "application/pdf": NO,
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": NO,
    "image/png": NO,
    "image/svg+xml": NO,
    "text/plain": NO,
    "Text/CSV; charset=utf-8": NO,
    "": MAYBE,
    "application/mp4": MAYBE,
    "application/octet-stream": MAYBE,
    "application/ogg": MAYBE,
    "application/vnd.apple.mpegurl": MAYBE,
    "image": MAYBE,
    "video/mp4": MAYBE,
    "x-anything/x": MAYBE,
    " Audio/MPEG ;rate=16000": YES,
    "audio/wav": YES,
}
NAMES = {
    "a.pdf": NO,
    "https://x.example/cat.JPG?size=1#a.mp3": NO,
    "notes.md": NO,
    "": MAYBE,
    "https://x.example/watch?v=cat.png": MAYBE,
    "https://x.example/pdf": MAYBE,
    "gs://ours/film.mp4": MAYBE,
    "file": MAYBE,
    "song.Mp3": YES,
    "https://x.example/a.wav?x=.png": YES,
}


@pytest.mark.parametrize(("media_type", "sound"), TYPES.items())
def test_a_type_is_silent_a_sound_or_may_be_one(media_type: str, sound: Sound) -> None:
    """Only the types of texts, pages, tables and pictures are known to be silent."""
    assert sound_of_type(media_type) is sound


@pytest.mark.parametrize(("name", "sound"), NAMES.items())
def test_an_ending_is_silent_a_sound_or_may_be_one(name: str, sound: Sound) -> None:
    """The ending of the path counts, since readers take the type from it."""
    assert sound_of_name(name) is sound


def parts(url: str) -> list[tuple[Operation, dict[str, Any]]]:
    """A part with an address in each place of the dialects."""
    return [
        (Operation.CHAT, {"type": "image_url", "image_url": {"url": url}}),
        (Operation.CHAT, {"type": "file", "file": {"file_data": url, "filename": "x"}}),
        (Operation.CHAT, {"type": "file", "file": {"file_data": url}}),
        (Operation.CHAT, {"type": "document_url", "document_url": url}),
        (Operation.RESPONSES, {"type": "input_image", "image_url": url}),
        (Operation.RESPONSES, {"type": "input_file", "file_url": url}),
        (Operation.RESPONSES, {"type": "input_file", "file_data": url, "filename": "x"}),
        (Operation.MESSAGES, {"type": "document", "source": {"type": "url", "url": url}}),
        (Operation.MESSAGES, {"type": "image", "source": {"type": "url", "url": url}}),
    ]


def read(operation: Operation, part: dict[str, Any]) -> RequestFacts:
    """The facts of a request with one part."""
    prompt = "input" if operation is Operation.RESPONSES else "messages"
    body: dict[str, Any] = {"model": "m", prompt: [{"role": "user", "content": [part]}]}
    if operation is Operation.MESSAGES:
        body["max_tokens"] = 10
    return factories.read(json.dumps(body).encode(), operation).facts


def hard(facts: RequestFacts, *, hears: bool = True, heard: str = "", **more: Any) -> Bound:
    """The bound under a hard budget at a model that hears, or at one that does not."""
    of: dict[str, Any] = {"provider": "gemini", "model": "gemini-2.5-flash", "native": frozenset()}
    if not hears:
        of = {"provider": "openai", "model": "gpt-4o", "native": frozenset({facts.operation})}
    made = of | {"is_self_hosted": False, "context_window": 1000, "max_output_tokens": 10} | more
    kinds = {TokenKind(heard): "9"} if heard else {}
    price = factories.price("1", "1", **{str(kind): usd for kind, usd in kinds.items()})
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**made),
        price=price,
        is_relied_on=True,
        bounds_rounds=True,
    )


def field(bound: Bound) -> str | None:
    """The field of the price that the bound lacks."""
    return None if bound.unpriced is None else bound.unpriced.field


AUDIO = "audio_input_usd_per_mtok"


@pytest.mark.parametrize("form", range(len(parts(""))))
@pytest.mark.parametrize("sound", Sound)
@pytest.mark.parametrize("is_data", [False, True])
def test_a_part_that_may_be_heard_needs_the_rate(form: int, sound: Sound, is_data: bool) -> None:
    """Whatever place it has, by its type or its ending."""
    urls = [f"data:{one};base64,{BASE64}" for one, of in TYPES.items() if of is sound]
    if not is_data:
        urls = [one for one, of in NAMES.items() if of is sound and "://" in one]
    assert urls
    for url in urls:
        facts = read(*parts(url)[form])
        bound = hard(facts)
        assert field(bound) == (None if sound is NO else AUDIO), url
        if bound.unpriced is not None:
            name = bound.unpriced.listed_as
            assert hard(facts, listed=frozenset({name})).unpriced is None
        assert field(hard(facts, hears=False)) == (AUDIO if sound is YES else None), url
        assert hard(facts, is_self_hosted=True).unpriced is None


@pytest.mark.parametrize(
    ("operation", "part", "sound"),
    [
        (Operation.CHAT, {"type": "file", "file": {"file_data": BASE64, "filename": "a.mp3"}}, YES),
        (Operation.CHAT, {"type": "file", "file": {"file_data": BASE64, "filename": "a.pdf"}}, NO),
        (Operation.CHAT, {"type": "file", "file": {"file_data": BASE64, "filename": "a"}}, MAYBE),
        (Operation.CHAT, {"type": "file", "file": {"file_data": BASE64}}, MAYBE),
        (Operation.CHAT, {"type": "file", "file": {"file_id": "file-1"}}, MAYBE),
        (Operation.CHAT, {"type": "video_url", "video_url": {"url": "data:image/png,x"}}, MAYBE),
        (Operation.CHAT, {"inline_data": {"mime_type": "audio/wav", "data": BASE64}}, YES),
        (Operation.CHAT, {"inlineData": {"mimeType": "image/png", "data": BASE64}}, NO),
        (Operation.RESPONSES, {"type": "input_video", "video": "x"}, MAYBE),
        (Operation.RESPONSES, {"type": "input_image", "file_id": "file-1"}, MAYBE),
        (
            Operation.MESSAGES,
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "audio/mpeg", "data": BASE64},
            },
            YES,
        ),
        (
            Operation.MESSAGES,
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": BASE64},
            },
            NO,
        ),
        (
            Operation.MESSAGES,
            {"type": "document", "source": {"type": "file", "file_id": "f"}},
            MAYBE,
        ),
    ],
)
def test_bytes_films_and_ids_count_by_all_that_is_stated(
    operation: Operation, part: dict[str, Any], sound: Sound
) -> None:
    """An id may be of anything, and a film has a sound."""
    facts = read(operation, part)
    assert field(hard(facts)) == (None if sound is NO else AUDIO)
    assert field(hard(facts, hears=False)) == (AUDIO if sound is YES else None)


def test_an_earlier_spoken_answer_is_heard_again() -> None:
    """Its id needed `stored_state` alone, and 100,000 tokens of sound were held as text."""
    messages = [{"role": "assistant", "audio": {"id": "audio_1"}}]
    body = {"model": "m", "messages": messages, "max_tokens": 10}
    facts = factories.read(json.dumps(body).encode()).facts
    bound = hard(facts, hears=False, model="gpt-audio", listed=frozenset({"audio_output"}))
    assert bound.unpriced is not None
    assert (bound.unpriced.where, bound.unpriced.field) == ("messages: audio.id", AUDIO)
    listed = frozenset({"audio_output", "audio.id", "audio"})
    assert hard(facts, hears=False, model="gpt-audio", listed=listed).unpriced is None


@pytest.mark.parametrize(
    ("provider", "model", "hears"),
    [
        ("gemini", "gemini-2.5-pro", True),
        ("vertex", "gemini-2.5-pro", True),
        ("openai_compatible", "ours", True),
        ("openrouter", "google/gemini-2.5-pro", True),
        ("openrouter", "openai/gpt-4o", False),
        ("openai", "gpt-4o", False),
        ("azure_openai", "ours", False),
        ("mistral", "voxtral-small", True),
        ("anthropic", "claude-opus-4-8", False),
    ],
)
def test_an_address_of_any_type_counts_where_the_model_may_hear(
    provider: str, model: str, hears: bool
) -> None:
    """OpenAI and Anthropic take a picture or a page alone in such a part."""
    facts = read(*parts("https://x.example/1")[0])
    of = {"provider": provider, "model": model, "native": frozenset({Operation.CHAT})}
    assert field(hard(facts, **of)) == (AUDIO if hears else None)

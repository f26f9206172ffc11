"""gpt-4o-mini bills a picture for 34 times its tokens in the window. Only parts for pictures were
held so: a PDF of 100 pages cost USD 0.38 for a hold of 0.03. Whatever may have a picture is held
so, and so is a model whose name may hide that one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.pricing import Price
from gateway.domain.providers.unasked import (
    DEAR_PICTURE_FACTOR,
    MOST_DEAR_PICTURES_USD_PER_MTOK,
)
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import RequestFacts
from tests import factories

WINDOW = 10_000_000
PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
PDF = "data:application/pdf;base64,JVBERi0xLjQKJcOkw7zDtsOf"
TEXT = {"type": "text", "text": "x"}


def chat(*parts: dict[str, Any], **members: Any) -> RequestFacts:
    """A chat with some parts."""
    return read(Operation.CHAT, messages=[{"role": "user", "content": [TEXT, *parts]}], **members)


def responses(*items: dict[str, Any], **members: Any) -> RequestFacts:
    """A response of some items."""
    text = {"role": "user", "content": "x"}
    return read(Operation.RESPONSES, input=[text, *items], **members)


def messages(*parts: dict[str, Any]) -> RequestFacts:
    """A request of Anthropic's messages with some parts."""
    content = [{"role": "user", "content": [TEXT, *parts]}]
    return read(Operation.MESSAGES, messages=content, max_tokens=10)


def read(operation: Operation, **members: Any) -> RequestFacts:
    """The facts of a request."""
    return factories.read(json.dumps({"model": "m", **members}).encode(), operation).facts


def shot(**of: Any) -> dict[str, Any]:
    """The screenshot of a computer that the caller runs."""
    output = {"type": "computer_screenshot", **of}
    return {"type": "computer_call_output", "call_id": "c", "output": output}


MAY_SHOW = {
    "picture": chat({"type": "image_url", "image_url": {"url": PNG}}),
    "picture by address": chat({"type": "image_url", "image_url": {"url": "https://x.example/1"}}),
    "pdf": chat({"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}),
    "file by id": chat({"type": "file", "file": {"file_id": "file-1"}}),
    "unknown part": chat({"type": "of_tomorrow", "of_tomorrow": "x"}),
    "conversation": responses(conversation="c"),
    "previous response": responses(previous_response_id="resp_1"),
    "stored prompt": responses(prompt={"id": "p"}),
    "item by id": responses({"type": "item_reference", "id": "i"}),
    "screenshot by id": responses(shot(file_id="file-1")),
    "screenshot": responses(shot(image_url=PNG)),
    "input file by address": responses(
        {"role": "user", "content": [{"type": "input_file", "file_url": "https://x.example/a.pdf"}]}
    ),
    "code": responses(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]),
    "mcp": responses(tools=[{"type": "mcp", "server_label": "s", "server_url": "https://x"}]),
    "unknown tool": responses(tools=[{"type": "of_tomorrow"}]),
    "document": messages({"type": "document", "source": {"type": "file", "file_id": "f"}}),
    "pages": messages(
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF[28:]},
        }
    ),
}
SHOWS_NONE = {
    "text": chat(),
    "tool of the caller": chat(tools=[{"type": "function", "function": {"name": "f"}}]),
    "text response": responses(),
    "search": responses(tools=[{"type": "web_search"}, {"type": "file_search"}]),
    "text message": messages(),
}


def hard(facts: RequestFacts, price: Price | None = None, **deployment: Any) -> Bound:
    """The bound of a request under a hard budget, with the things that are stored listed."""
    made: dict[str, Any] = {
        "provider": "openai",
        "model": "gpt-4o-mini",
        "is_self_hosted": False,
        "context_window": WINDOW,
        "max_output_tokens": 10,
        "native": frozenset({facts.operation}),
        "listed": frozenset({"conversation", "prompt"}),
    }
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**(made | deployment)),
        price=price or factories.price("0.15", "0"),
        is_relied_on=True,
        bounds_rounds=True,
    )


def times(facts: RequestFacts, price: Price | None = None, **deployment: Any) -> float:
    """How many times the input is held, compared with a model that is not dear."""
    plain = hard(facts, price, **deployment | {"provider": "openai", "model": "gpt-4o"})
    return hard(facts, price, **deployment).nusd / plain.nusd


@pytest.mark.parametrize("name", MAY_SHOW)
def test_whatever_may_have_a_picture_is_held_at_the_factor(name: str) -> None:
    """A page is a picture, and an id, an address or a tool's result may be one."""
    facts = MAY_SHOW[name]
    assert times(facts) > DEAR_PICTURE_FACTOR - 2
    assert times(facts, listed=frozenset({"conversation", "prompt", "image_input"})) == 1
    assert times(facts, is_self_hosted=True) == 1


@pytest.mark.parametrize("name", SHOWS_NONE)
@pytest.mark.parametrize("model", ["gpt-4o-mini", "ours"])
def test_a_text_is_held_as_before(name: str, model: str) -> None:
    """So is a tool of the caller, and one whose results are text. Writes to a cache are held at
    1.25 times where the name hides the model.
    """
    assert times(SHOWS_NONE[name], model=model) <= 1.3


@pytest.mark.parametrize(
    ("provider", "model", "is_hidden"),
    [
        ("azure_openai", "our-mini", True),
        ("azure_openai", "mini", True),
        ("azure_openai", "gpt-4.1", False),
        ("azure_openai", "gpt-5-mini", False),
        ("openai", "ours", True),
        ("openai", "gpt-4o-2024-11-20", False),
        ("openai", "ft:gpt-4.1-mini:ours", False),
        ("openai", "ft:gpt-4o-mini-2024-07-18:ours", True),
        ("openai", "o4-mini", False),
        ("openai", "chatgpt-4o-latest", False),
        ("openrouter", "@preset/ours", True),
        ("openrouter", "openai/gpt-5@preset/ours", True),
        ("openrouter", "openrouter/auto", True),
        ("openrouter", "openai/of-tomorrow", True),
        ("openrouter", "OpenAI/GPT-4o-mini:batch", True),
        ("openrouter", "openai/gpt-5", False),
        ("openrouter", "qwen/qwen3-vl", False),
        ("mistral", "ours", False),
    ],
)
def test_a_name_may_hide_the_model(provider: str, model: str, is_hidden: bool) -> None:
    """An Azure deployment has any name; a family's own name is believed."""
    facts = MAY_SHOW["picture"]
    at: dict[str, Any] = {"provider": provider, "model": model, "listed": frozenset({"preset"})}
    held = times(facts, **at)
    assert (held > DEAR_PICTURE_FACTOR - 2) == is_hidden
    assert hard(facts, **at).is_certain, "a picture is served"
    listed = at["listed"] | {"image_input"}
    assert times(facts, **at | {"listed": listed}) <= 1.3


def test_a_price_that_is_not_that_models_tells_that_it_is_another() -> None:
    """A picture at an alias of gpt-4o would be held at USD 11 of a window."""
    facts, at = MAY_SHOW["picture"], {"provider": "azure_openai", "model": "ours"}
    edge = MOST_DEAR_PICTURES_USD_PER_MTOK
    assert times(facts, factories.price(str(edge), "0"), **at) > DEAR_PICTURE_FACTOR - 2
    assert times(facts, factories.price("0.61", "0"), **at) <= 1.3
    assert times(facts, factories.price("2.50", "0"), model="gpt-4o-mini") > 30

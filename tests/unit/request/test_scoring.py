"""Rerank and score: the hold bounds what the model reads, whichever way it reads the pairs, and the
answer's own count is charged.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.policy.known_members import SCORED_TEXTS
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.tokens import UsageSource
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest
from gateway.wire.openai.request.prompt_lists import MAX_DECODED_BYTES, items_in
from gateway.wire.openai.request.read import read_request
from gateway.wire.openai.request.scoring import FIRST, SECOND
from gateway.wire.prompt_text import has_prompt_text
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import stage

RERANK, SCORE = Operation.RERANK, Operation.SCORE
TEXT = st.text(max_size=20)
LONG = TEXT | st.text(max_size=20).map(lambda text: text * 30)
LISTS = st.lists(TEXT, min_size=1, max_size=5)
SPECIAL_TOKENS = 4  # RoBERTa puts four around a pair, BERT three
SIDES = [(first, second) for first in FIRST[SCORE] for second in SECOND[SCORE]]


def read(operation: Operation, **members: Any) -> RequestBody:
    body = json.dumps({"model": "m", **members}, ensure_ascii=False)
    return read_request(operation, body.encode())


def bound(operation: Operation, members: dict[str, Any], **deployment: Any) -> Bound:
    return bound_of(
        read(operation, **members).facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**deployment),
        price=factories.price(),
    )


def as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def most_tokens(first: str | list[str], second: str | list[str], *, template: int) -> int:
    """Return the tokens of a cross-encoder whose tokenizer makes a token of each byte."""
    queries, documents = as_list(first), as_list(second)
    if len(queries) == 1:
        queries *= len(documents)
    each = (len((one + other).encode()) for one, other in zip(queries, documents, strict=True))
    return sum(each) + len(documents) * (SPECIAL_TOKENS + template)


@given(LONG, TEXT | LISTS, st.integers(0, 64), TEXT)
@example("a query of some length " * 20, ["a"] * 9, 0, "")
@example("", ["a"] * 9, 0, "an instruction of some length " * 20)
@example("", ["a"] * 9, 64, "")
def test_the_hold_bounds_a_query_that_is_read_with_every_document(
    query: str, documents: str | list[str], template: int, instruction: str
) -> None:
    """A hundred documents cost a hundred queries, and as many templates and instructions."""
    members = {"query": query, "documents": documents, "instruction": instruction}
    found = bound(RERANK, members, input_overhead_tokens=template)
    own = template + len(instruction.encode())
    assert found.input_tokens >= most_tokens(query, documents, template=own)
    assert (found.output_tokens, found.output_cap_tokens, found.is_certain) == (0, None, True)


@pytest.mark.parametrize(("first", "second"), SIDES)
@given(st.data())
def test_the_hold_bounds_each_spelling_of_the_pairs(
    first: str, second: str, data: st.DataObject
) -> None:
    """A spelling that is not counted would be held as one pair."""
    documents = data.draw(LISTS)
    one, several = data.draw(LONG), [data.draw(TEXT) for _ in documents]
    for queries in (one, [one], several):
        found = bound(SCORE, {first: queries, second: documents}, input_overhead_tokens=0)
        assert found.input_tokens >= most_tokens(queries, documents, template=0)


@pytest.mark.parametrize(
    ("documents", "prompts"),
    [
        ("a", 2),
        ([], 2),
        (["a"], 2),
        (["a", 'b","c', "d"], 4),
        ([{"content": []}, {"content": []}], 3),
        (["a", {"content": []}], 3),
        ({"content": []}, 2),
        ({"content": "a"}, 2),
        ({"content": [{"type": "text", "text": "a"}] * 5}, 6),
        ({}, 2),
    ],
)
def test_each_text_is_a_prompt_with_a_window_of_its_own(documents: Any, prompts: int) -> None:
    """The pairs, and the query once more: some models read each text by itself."""
    members = {"query": "q" * 900, "documents": documents}
    assert read(RERANK, **members).facts.prompts == prompts
    windowed = bound(RERANK, members, context_window=100)
    assert (windowed.input_tokens, windowed.is_certain) == (100 * prompts, True)
    assert read(SCORE, text_1=["a", "b"], text_2=["c", "d"]).facts.prompts == 4
    assert read(SCORE, text_1=["a", "b"], text_2="c").facts.prompts == 4
    assert read(SCORE).facts.prompts == 2
    assert read(SCORE, query="q", items=[[1, 2], [3]]).facts.prompts == 3
    assert read(RERANK, query="q", texts=documents, documents="a").facts.prompts == prompts


def test_a_list_that_is_too_long_to_be_counted_has_no_bound() -> None:
    """Decoding it would stop the event loop."""
    assert items_in(b"[{}," + b" " * MAX_DECODED_BYTES + b"{}]") is None
    members = {"query": "q", "documents": [{"content": "x" * MAX_DECODED_BYTES}]}
    assert read(RERANK, **members).facts.prompts is None
    assert not bound(RERANK, members, context_window=100).is_certain


@pytest.mark.parametrize(
    "odd", [{"padding": "max_length"}, {"chat_template": "{{ query }} {{ query }}"}]
)
def test_what_grows_a_prompt_beyond_its_bytes_holds_the_window(odd: dict[str, str]) -> None:
    """vLLM fills a prompt of two tokens up to 4,096 with this padding, and counts them."""
    members = {"query": "q", "documents": ["a", "b"], **odd}
    assert not bound(RERANK, members).is_certain
    assert bound(RERANK, members, context_window=4096).input_tokens == 3 * 4096
    embedded = {"input": ["a", "b"], **odd}
    assert bound(Operation.EMBEDDINGS, embedded, context_window=4096).input_tokens == 2 * 4096
    for is_harmless in ({"padding": "do_not_pad"}, {"padding": None}):
        assert bound(RERANK, {"query": "q", "documents": ["a"], **is_harmless}).is_certain


def test_arguments_of_the_template_are_read_with_each_pair() -> None:
    """And in a form with up to four tokens for each byte."""
    plain = {"query": "q", "documents": ["a", "b"]}
    argued = {**plain, "chat_template_kwargs": {"instruction": "x" * 100}}
    grown = bound(RERANK, argued).input_tokens - bound(RERANK, plain).input_tokens
    assert grown >= 4 * 100 * 3


def test_members_of_scoring_are_unknown_elsewhere() -> None:
    """On a chat `query` may be a search: under a residency rule it needs a leave there."""
    texts = dict.fromkeys(SCORED_TEXTS, "a")
    assert read(RERANK, **texts, tomorrow=1).facts.features == {"unknown_fields"}
    assert not read(SCORE, **texts, top_n=2, options=None).facts.features
    chat = read(Operation.CHAT, messages=[{"role": "user", "content": "a"}], documents=["a"])
    assert chat.facts.features == {"unknown_fields"}


@pytest.mark.parametrize("name", ["Documents", "QUERY", "top_N"])
def test_another_spelling_of_a_text_is_refused(name: str) -> None:
    """Some servers read it, others do not: what it costs would be unknown."""
    with pytest.raises(InvalidRequest, match="could be read in two ways"):
        read(RERANK, query="a", documents=["b"], **{name: ["c"] * 99})


def test_pictures_need_a_model_that_sees_and_a_leave_to_fetch() -> None:
    """vLLM takes parts of a message as a document."""
    part = {"type": "image_url", "image_url": {"url": "https://elsewhere.example/x.png"}}
    facts = read(RERANK, query="a", documents=[{"content": [part]}, "b"]).facts
    assert (facts.capabilities, facts.features) == ({"vision"}, {"remote_media"})
    assert not read(RERANK, query="https://a.example", documents=["https://b.example"]).facts.named


@pytest.mark.parametrize("operation", [RERANK, SCORE])
async def test_it_costs_the_tokens_that_the_engine_counts(operation: Operation) -> None:
    """Input alone; a count of 0 for texts is believed of no server."""
    results = [{"index": 0, "relevance_score": 0.5}]
    body: dict[str, Any] = {"model": "m-1", "results": results}
    asked: dict[str, Any] = {"query": "a", "documents": ["b", "c"]}
    if operation is SCORE:
        body, asked = {"model": "m-1", "data": results}, {"text_1": "a", "text_2": ["b", "c"]}
    usage = {"prompt_tokens": 41, "total_tokens": 41}
    sent = json.dumps({"model": "assistant", **asked}).encode()
    one = factories.deployment(operations=frozenset({operation}))
    on = stage(FakeUpstreamAnswer([json.dumps({**body, "usage": usage}).encode()]))
    answer = json.loads((await on.answer(sent, one, operation=operation)).body)
    event = on.event
    assert (event.outcome, event.usage_source) == (Outcome.OK, UsageSource.PROVIDER)
    assert (event.usage.input_tokens, event.usage.output_tokens) == (41, None)
    assert answer["usage"]["cost_usd"] > 0
    assert answer["model"] == "assistant"
    silent = stage(
        FakeUpstreamAnswer([json.dumps({**body, "usage": {"prompt_tokens": 0}}).encode()])
    )
    await silent.answer(sent, one, operation=operation)
    assert silent.event.usage_source is not UsageSource.PROVIDER
    assert silent.event.cost_nusd


def test_its_texts_are_a_prompt() -> None:
    """Settlement believes no prompt of 0 tokens of a request that has any."""
    assert has_prompt_text(read(RERANK, query="", documents=["", "a"]))
    assert not has_prompt_text(read(RERANK, query="", documents=[""]))

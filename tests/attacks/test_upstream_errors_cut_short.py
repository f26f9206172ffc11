"""Attack of 2026-11-28: an error status whose body is cut, too long or coded was booked as nothing,
without a look at a usage in it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import UsageSource
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import RequestError, UpstreamError
from gateway.services.upstream_error import MAX_ERROR_BYTES, is_before_work
from gateway.wire.foreign_json import MOST_OPEN, MOST_TOKENS, closed_json
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.whole_forms import is_cut_short, usage_in_forms
from tests import factories
from tests.attacks.settling import ask, policy
from tests.fakes import FakeUpstreamAnswer
from tests.gateway_process import Gateway
from tests.integration.raw_upstream import Answering, RawUpstream, raw_upstream, sends, whole
from tests.unit.request.test_request_service import WHOLE, body, once, stage

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
ERROR = {"message": "no", "type": "server_error"}
PAID = json.dumps({"error": ERROR, "usage": USAGE, "details": "x" * 50}).encode()
INSIDE = json.dumps({"error": {"usage": USAGE, "message": "x" * 50}}).encode()
REFUSED = json.dumps({"error": ERROR}).encode()
CUT = UpstreamError("it ended early")
# Each of them may come after the work has begun; the others refuse a request before it.
WORKED = (400, 408, 409, 424, 499, 500, 502, 503, 504, 520, 524)
BEFORE = (301, 401, 402, 403, 404, 405, 413, 414, 415, 422, 429, 431, 451, 501, 529)


async def refused(answer: FakeUpstreamAnswer) -> Any:
    """Return the event of a request that gets this error."""
    on = once(answer)
    with pytest.raises(RequestError):
        await on.answer(body(max_tokens=50))
    return on.event


@pytest.mark.parametrize("status", WORKED)
@pytest.mark.parametrize("start", [b"", b"<html>", PAID[:20]], ids=["nothing", "page", "json"])
async def test_a_cut_error_after_work_is_unknown(status: int, start: bytes) -> None:
    """Its rest may have stated a usage."""
    event = await refused(FakeUpstreamAnswer([start] if start else [], status=status, then=CUT))
    assert (event.usage_source, event.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert event.held_nusd > 0


@pytest.mark.parametrize("status", BEFORE)
async def test_a_cut_refusal_before_work_is_nothing(status: int) -> None:
    """No model reads a request that was refused for its credential, size, form or rate."""
    event = await refused(FakeUpstreamAnswer([REFUSED[:9]], status=status, then=CUT))
    assert (event.usage_source, event.cost_nusd) == (UsageSource.NONE, 0)


@pytest.mark.parametrize(
    "status", [one for one in (*WORKED, *BEFORE) if one not in (408, 499, 504, 520, 524)]
)
@pytest.mark.parametrize("text", [REFUSED, b"<html>", b"", b"data: " + REFUSED + b"\n\n"])
async def test_a_whole_error_without_usage_is_nothing(status: int, text: bytes) -> None:
    """As before: providers bill no refusal."""
    event = await refused(FakeUpstreamAnswer([text] if text else [], status=status))
    assert (event.usage_source, event.cost_nusd) == (UsageSource.NONE, 0)


@pytest.mark.parametrize("status", [*WORKED, *BEFORE])
@pytest.mark.parametrize("text", [PAID, INSIDE], ids=["beside", "inside"])
async def test_a_usage_before_the_cut_is_counted(status: int, text: bytes) -> None:
    """An upstream that reports work is believed, and not asked again."""
    event = await refused(FakeUpstreamAnswer([text[:-20]], status=status, then=CUT))
    assert (event.usage_source, event.cost_nusd) == (UsageSource.PROVIDER, 30_000)


async def test_a_usage_at_the_begin_of_a_long_error_is_counted() -> None:
    """More than a megabyte is not read, but the first one is looked at."""
    long = PAID[:-2] + b"x" * MAX_ERROR_BYTES + b'"}'
    assert (await refused(FakeUpstreamAnswer([long], status=500))).cost_nusd == 30_000


@pytest.mark.parametrize(
    ("text", "coding"),
    [
        (b"{" + b" " * MAX_ERROR_BYTES + b"}", ""),
        (REFUSED[:-1], ""),
        (b"data: " + REFUSED + b"\n\ndata: " + REFUSED[:-1], ""),
        (gzip.compress(PAID)[:30], ""),
        (gzip.compress(b" " * (MAX_ERROR_BYTES + 1)), "gzip"),
        (b"\x0b\x02\x80", "br"),
    ],
    ids=["long", "cut JSON", "cut event", "cut gzip", "bomb", "closed coding"],
)
async def test_a_whole_body_whose_content_is_not_is_unknown(text: bytes, coding: str) -> None:
    """A proxy may end the body of an answer that it got in part."""
    headers = {"content-type": "application/json"} | (
        {"content-encoding": coding} if coding else {}
    )
    event = await refused(FakeUpstreamAnswer([text], status=500, headers=headers))
    assert event.usage_source is UsageSource.UNKNOWN


async def test_another_deployment_is_tried_after_a_cut_error() -> None:
    """The caller gets its answer, and the ledger has both attempts."""
    on = stage(FakeUpstreamAnswer([PAID[:9]], status=500, then=CUT), FakeUpstreamAnswer([WHOLE]))
    answer = await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert answer.attempt.number == 2
    assert [event.cost_nusd for event in on.journal.events] == [None, 30_000]


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_the_statuses_of_a_provider_s_own_are_refusals(name: str) -> None:
    """Fireworks's 412 and Groq's 498 mean the account and the load; no 5xx but 501, 505 and 529
    is one.
    """
    facts = PROVIDERS[name]
    own = facts.account_statuses | facts.overloaded_statuses | facts.context_length_statuses
    refusals = {status for status in range(300, 600) if is_before_work(status, facts)}
    assert own <= refusals
    assert {status for status in refusals if status >= 500} - own <= {501, 505, 529}
    assert 400 not in refusals


@given(st.sampled_from([PAID, INSIDE]), st.data())
def test_no_cut_shows_half_a_usage(text: bytes, data: st.DataObject) -> None:
    """A usage that is cut is none: its counts may lack their neighbours."""
    end = data.draw(st.integers(1, len(text) - 1))
    assert is_cut_short(text[:end])
    usage = usage_in_forms(text[:end], usage_in)
    is_closed = b"}" in text[text.index(b'"usage"') : end]
    assert (usage is not None) == is_closed
    assert usage is None or (usage.input_tokens, usage.output_tokens) == (10, 5)


def test_details_that_were_closed_are_no_whole_usage() -> None:
    """The usage around them is still open, so it lacks its wholes."""
    text = b'{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":3},"compl'
    usage = usage_in_forms(text, usage_in)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (None, None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


@given(
    st.lists(VALUES, max_size=4) | st.dictionaries(st.text(max_size=5), VALUES, max_size=4),
    st.data(),
)
def test_any_cut_json_is_closed_to_json(value: Any, data: st.DataObject) -> None:
    """Whole texts are none that was cut; each cut one becomes JSON."""
    text = json.dumps(value).encode()
    assert closed_json(text) is None
    closed = closed_json(text[: data.draw(st.integers(1, len(text) - 1))])
    assert closed is not None
    assert type(json.loads(closed)) is type(value)


@given(st.binary(max_size=60) | st.text('{}[]":,\\1a', max_size=60).map(str.encode))
def test_any_bytes_are_closed_or_nothing(text: bytes) -> None:
    """An error answer may be anything."""
    closed_json(text)
    usage_in_forms(text, usage_in)


def test_a_cut_body_of_too_many_parts_shows_nothing() -> None:
    """Its time is bounded, and it still counts as cut."""
    assert closed_json(b"[" * (MOST_OPEN + 2)) == b""
    assert closed_json(b"[" + b"[]," * MOST_TOKENS) == b""


def test_a_text_of_escapes_that_was_cut_is_read_once() -> None:
    """A megabyte of escaped quotes, each of which may begin a text."""
    escapes = b'\\"' * (MAX_ERROR_BYTES // 2)
    assert closed_json(b'{"usage":{},"a":"' + escapes + b"\\") == b'{"usage":{}}'
    assert closed_json(b'{"usage":{},"a":"' + escapes) == b'{"usage":{}}'


def error(text: bytes, status: bytes, *, length: int) -> Answering:
    """Return a handler of an error whose head promises another length."""
    promised = b"content-length: %d\r\n" % length
    answer = whole(text).replace(b"200 OK", status)
    return sends(answer.replace(b"content-length: %d\r\n" % len(text), promised))


ANSWERS: dict[str, Answering] = {
    "stated": error(PAID[:-20], b"500 Oops", length=len(PAID)),
    "cut": error(REFUSED[:-5], b"502 Bad Gateway", length=len(REFUSED)),
    "refused": error(REFUSED[:-5], b"429 Slow Down", length=len(REFUSED)),
    "long": error(b"<" * (2 * MAX_ERROR_BYTES), b"500 Oops", length=2 * MAX_ERROR_BYTES),
    "long-stated": error(
        PAID[:-2] + b"x" * 2 * MAX_ERROR_BYTES,
        b"500 Oops",
        length=2 * MAX_ERROR_BYTES + len(PAID) - 2,
    ),
}
BOOKED = {
    "stated": "provider",
    "cut": "unknown",
    "refused": "none",
    "long": "unknown",
    "long-stated": "provider",
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    yield from raw_upstream(ANSWERS)


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    upstream: RawUpstream,
) -> Iterator[Gateway]:
    text = policy(upstream.url, dict.fromkeys(ANSWERS, "openai_compatible"))
    yield from launch_gateway(text, module_database_url)


@pytest.mark.parametrize("name", ANSWERS)
def test_it_is_booked_through_a_gateway(gateway: Gateway, name: str) -> None:
    """On sockets the arrived part of a broken body is still there to be read."""
    answer = ask(gateway, name)
    assert answer.status_code >= 400
    attempts = int(answer.headers["x-tollgate-attempts"])
    rows = gateway.events(answer.headers["x-request-id"], count=attempts)
    assert {row["usage_source"] for row in rows} == {BOOKED[name]}
    assert BOOKED[name] != "provider" or attempts == 1

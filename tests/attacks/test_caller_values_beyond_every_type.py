"""A number beyond every type was an uncaught error: a 502, which SDKs retry, and an alarm for
the operator.
"""

from __future__ import annotations

import pytest

from gateway.api.plain.route_explain import read_question
from gateway.domain.operation import Operation
from gateway.errors import InvalidRequest
from gateway.wire.openai.request.read import read_request

DIGITS = b"1" * 5000
MESSAGE = b'{"model":"m","messages":[{"role":"user","content":'
BODIES = {
    "digits as content": MESSAGE + DIGITS + b"}]}",
    "digits in a part": MESSAGE + b'[{"type":"x","a":' + DIGITS + b"}]}]}",
    "an exponent in a part": MESSAGE + b'[{"type":"x","a":1e999}]}]}',
    "an exponent in logit_bias": b'{"model":"m","messages":[],"logit_bias":{"1":1e999}}',
    "a member of tomorrow": b'{"model":"m","messages":[],"xyz":{"a":' + DIGITS + b"}}",
    "the key of a prompt's cache": b'{"model":"m","messages":[],"prompt_cache_key":1e999}',
    "a tool's type": b'{"model":"m","messages":[],"tools":[{"type":1e999}]}',
    "half a surrogate pair as a tool's type": b'{"model":"m","messages":[],"tools":[{"type":"\\ud83d"}]}',  # noqa: E501
}


@pytest.mark.parametrize("name", BODIES)
def test_it_is_refused_as_any_other_body_that_cannot_be_read(name: str) -> None:
    """The answer is 400 with the reason, and nothing is sent."""
    with pytest.raises(InvalidRequest, match="Nothing was sent"):
        read_request(Operation.CHAT, BODIES[name])


@pytest.mark.parametrize("name", BODIES)
def test_a_question_about_it_is_refused_too(name: str) -> None:
    """`POST /v1/route/explain` reads the same bodies."""
    with pytest.raises(InvalidRequest):
        read_question(BODIES[name])

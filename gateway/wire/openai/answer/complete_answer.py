"""Rewrites complete (not streamed) answers of every operation for the caller, and records their
usage; raises for a body without JSON.
"""

from __future__ import annotations

from functools import partial

from gateway.domain.operation import WITHOUT_OUTPUT, Operation
from gateway.domain.request.request import RequestBody
from gateway.wire.dialect import AnswerPart, UnreadableAnswer, changed
from gateway.wire.foreign_json import note_readings, usages_within
from gateway.wire.members import MalformedJson, require_object
from gateway.wire.observed import MOST_BYTES_PER_TOKEN, Observed
from gateway.wire.openai.answer.chat import note_whole_text, rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.openai.answer.vectors import TooManyVectors, without_vectors
from gateway.wire.openai.request.read import is_empty_input

MAX_PARSED_BYTES = 32 * 2**20  # parsing takes up to 3 ms for each MiB
LARGE_BYTES = 2**20  # reading a smaller answer takes a few milliseconds, vectors included


def rewrite(read: RequestBody, body: bytes, observed: Observed) -> AnswerPart:
    """Return a complete answer for the caller; record its metadata in `observed`.

    An answer of an unknown shape passes unchanged. Raises `UnreadableAnswer` if it is no JSON
    object, or has more vectors than any request asks for.
    """
    facts = read.facts
    if facts.operation in WITHOUT_OUTPUT:
        return _rewrite_embeddings(read, body, observed)
    if facts.operation is Operation.RESPONSES:
        part = rewrite_response(body, observed, model=facts.model)
    else:
        part = rewrite_chat(body, observed, model=facts.model, lists_items=False)
        if (
            len(body) > MOST_BYTES_PER_TOKEN  # no shorter one has less than its text
            and observed.may_hide_text(len(body))
            and "echo" not in read.members  # of completions: the prompt is no text of the model's
        ):
            note_whole_text(observed, body)
    if not observed.is_done and not observed.is_error:
        if note_readings(observed, body, partial(rewrite, read)):
            return part
        observed.note_unread()
        _note_unknown(body, observed)
    return part


def _rewrite_embeddings(read: RequestBody, body: bytes, observed: Observed) -> AnswerPart:
    """Return an answer of embeddings or scores for the caller; of a large one, all but its vectors
    is read.
    """
    try:
        short = without_vectors(body) if len(body) >= LARGE_BYTES else None
    except TooManyVectors:
        raise UnreadableAnswer("no answer to as many inputs as were sent") from None
    text = body if short is None else short.text
    if len(text) > MAX_PARSED_BYTES:
        return body  # its vectors have an unknown form; the estimate uses only the input
    part = rewrite_chat(text, observed, model=read.facts.model, is_empty=is_empty_input(read))
    if not observed.is_done and not observed.is_error:
        if note_readings(observed, text, partial(_rewrite_embeddings, read)):
            return body
        _note_unknown(text, observed)
    return part if short is None else changed(part, short.restored)


def _note_unknown(body: bytes, observed: Observed) -> None:
    """Record the usage of an answer of an unknown shape, if it reports any.

    Raises `UnreadableAnswer` for a proxy's page or half an answer with status 200.
    """
    try:
        require_object(body)
    except MalformedJson:
        raise UnreadableAnswer("no JSON") from None
    for usage in usages_within(body, usage_in):
        observed.note_final(usage)

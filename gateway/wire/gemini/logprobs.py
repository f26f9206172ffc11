"""Writes Gemini's log probabilities as OpenAI's list, which neutral answer events carry."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from gateway.wire.foreign_json import objects_in, text_in
from gateway.wire.translation.conversation import NO_JSON

LEAST = -9999.0  # OpenAI's word for a token that is too unlikely to have a figure


def logprobs_of(result: dict[str, Any]) -> msgspec.Raw:
    """Return OpenAI's `content` list of a `logprobsResult`; nothing if it has no chosen token."""
    chosen = objects_in(result, "chosenCandidates")
    if not chosen:
        return NO_JSON
    others = objects_in(result, "topCandidates")[: len(chosen)]
    tokens = [
        _token(one) | {"top_logprobs": [_token(top) for top in objects_in(step, "candidates")]}
        for one, step in zip_longest(chosen, others)
    ]
    return msgspec.Raw(msgspec.json.encode(tokens))


def _token(candidate: dict[str, Any]) -> dict[str, Any]:
    """Return one token with its log probability and its bytes."""
    token, logprob = text_in(candidate, "token"), candidate.get("logProbability")
    is_number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
    return {
        "token": token,
        # Google's JSON leaves out a 0, which is certainty.
        "logprob": logprob if is_number else 0.0 if logprob is None else LEAST,
        "bytes": list(token.encode()),
    }

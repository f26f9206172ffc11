"""Writes a completions request for Triton's generate extension.

Members beside `text_input` become tensors or parameters, as the model declares them: the extension
says so, and both backends of language models (TensorRT-LLM and vLLM) have these names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest, Untranslatable
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.request_members import RequestMembers

MAXIMUM = "max_tokens"
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_WHOLES = ("top_k", "seed")
# The model's own outputs with its counts, if it declares them; without the prompt in its text.
_ASKED = {
    "exclude_input_in_output": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}
_CONSUMED = ("model", "stream", "stream_options", MAXIMUM)


def write_generate_request(read: RequestBody, losses: Losses) -> dict[str, Any]:
    """Return a completions request as the members of a generate request, without the maximum.
    Raises `Untranslatable`, and `InvalidRequest` for a member of a wrong type.
    """
    others: dict[str, msgspec.Raw] = {}
    body = RequestMembers(read.body, path="", others=others)
    for name in _CONSUMED:
        body.raw(name)
    for name in ("n", "best_of"):
        body.drop_if(name, b"1")
    body.drop_if("echo", b"false")
    members: dict[str, Any] = {"text_input": _prompt_of(body), "stream": read.facts.is_stream}
    members |= {name: body.number(name) for name in _NUMBERS}
    members |= {name: body.whole(name) for name in _WHOLES}
    members |= {
        "stop_words": list(body.texts("stop")) or None,
        "bad_words": list(body.texts("bad_words")) or None,
    }
    body.leave_rest()
    for field in others:
        losses.lose(field)
    return {name: value for name, value in members.items() if value is not None} | _ASKED


def _prompt_of(body: RequestMembers) -> str:
    """Return the only prompt. Raises `Untranslatable` for several, and for token ids: another
    deployment may take them.
    """
    try:
        prompts = body.texts("prompt")
    except InvalidRequest:
        prompts = ()
    if len(prompts) != 1:
        raise Untranslatable(
            "'prompt' must be one text at this deployment. Nothing was sent. Send each prompt in a "
            "request of its own, or use a route that takes lists and token ids.",
            param="prompt",
        )
    return prompts[0]

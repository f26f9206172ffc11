"""The OpenAI dialect: each endpoint's form of an answer, its events and its usage.

Pure. A completion of several prompts, each answered `n` times, counts like vLLM: a running figure
is that of one choice alone, with the tokens of that choice's own prompt.

Every word of an answer is one token: token number i is the word `t<i>`, and the first of them is
the canary that `tests.canary` searches for, so that a completion that is kept anywhere is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from tests.canary import COMPLETION
from tests.fake_upstream.dialects.wording import TOOL, Usage, argument_of
from tests.fake_upstream.faults import Behaviour, Fault, Kind

CREATED = 1_764_000_000
NOTHING: Mapping[str, Any] = MappingProxyType({})
_EVENTS = 4  # of a response, for one token at most
_ENGINES = frozenset({"reasoning", "cache_write_tokens"})
# Counts for which a style has no word.
_UNTOLD = {
    "engine": _ENGINES,
    "llamacpp": _ENGINES,
    "mistral": _ENGINES,
    "deepseek": frozenset({"cache_write_tokens"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIWording:
    """The words of one attempt. `number` tells its ids from those of others."""

    stream_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    has_plain_error: ClassVar[bool] = True
    has_wait_header: ClassVar[bool] = True
    number: int
    model: str
    behaviour: Behaviour
    options: dict[str, Any]  # `stream_options`
    asks_timings: bool = False  # `timings_per_token`, llama.cpp's own member
    keeps: bool = True  # `store` of `/v1/responses`

    @property
    def untold(self) -> frozenset[str]:
        """Return the counts for which the style of usage has no word."""
        has_styles = self.kind.writes_output and self.kind is not Kind.RESPONSES
        return _UNTOLD.get(self.behaviour.style, frozenset()) if has_styles else frozenset()

    @property
    def kind(self) -> Kind:
        """Return the request's kind."""
        return self.behaviour.work.kind

    # ---- usage that is reported

    @property
    def has_final_usage(self) -> bool:
        """Return True if a stream ends with an event that has the usage."""
        behaviour = self.behaviour
        is_asked = (
            bool(self.options.get("include_usage"))
            or behaviour.style == "mistral"  # which sends it unasked
            or self.kind is Kind.RESPONSES
        )
        return is_asked and behaviour.has_final_usage and not behaviour.usage_on_choice

    @property
    def has_running_usage(self) -> bool:
        """Return True if each token's event has the usage so far."""
        is_asked = bool(self.options.get("continuous_usage_stats")) or self.asks_timings
        return is_asked and self.behaviour.has_running_usage and self.kind is not Kind.RESPONSES

    @property
    def _announces_usage(self) -> bool:
        """Return True if the chunks before the usage have an empty one, as OpenAI's do."""
        behaviour = self.behaviour
        is_asked = bool(self.options.get("include_usage"))
        return is_asked and behaviour.has_final_usage and behaviour.style == "openai"

    # ---- whole answers

    def whole(self, made: int, usage: Usage) -> bytes:
        """Return an answer of `made` tokens, the choices taking turns."""
        work = self.behaviour.work
        texts = [
            self.text(range(work.reasoning_tokens + choice, made, work.answers))
            for choice in range(work.answers)
        ]
        answer = self._whole(texts, made)
        return json.dumps(answer if usage is None else {**answer, "usage": usage}).encode()

    def text(self, numbers: Iterable[int]) -> str:
        """Return the words of these tokens."""
        return " ".join(map(self._word, numbers))

    def _word(self, number: int) -> str:
        return COMPLETION if number == 0 and self.behaviour.has_canary else f"t{number}"

    def _whole(self, texts: list[str], made: int) -> dict[str, Any]:
        if self.kind is Kind.RERANK:
            results = [{"index": index, "relevance_score": 0.5} for index in range(len(texts))]
            return {"id": "score-1", "model": self.model, "results": results}
        if self.kind is Kind.SCORE:
            data = [
                {"object": "score", "index": index, "score": 0.5} for index in range(len(texts))
            ]
            return {"id": "score-1", "object": "list", "model": self.model, "data": data}
        if self.kind is Kind.EMBEDDINGS:
            data = [
                {"object": "embedding", "index": index, "embedding": [0.5, -0.25]}
                for index in range(len(texts))
            ]
            return {"object": "list", "model": self.model, "data": data}
        if self.kind is Kind.RESPONSES:
            call = self._call(made)
            return self._response("completed", texts[0] if call is None else "", call=call)
        is_chat = self.kind is not Kind.COMPLETIONS
        choices: list[Any] = []
        for index, text in enumerate(texts):
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if (call := self._call(made)) is not None:
                message |= {"content": None, "tool_calls": [{**self._tool, "function": call}]}
            content: dict[str, Any] = {"message": message} if is_chat else {"text": text}
            ending = {"finish_reason": self._finish_reason, "logprobs": None}
            choices.append({"index": index, **ending, **content})
        name = "chat.completion" if is_chat else "text_completion"
        return {**self._frame(name, choices), "system_fingerprint": "fp_fake"}

    def broken_json(self) -> bytes:
        """Return a whole answer that is no JSON."""
        return b'{"choices": [{"message"'

    # ---- events of a stream

    def begin(self) -> bytes:
        """Return the first event; completions have none."""
        if self.kind is Kind.RESPONSES:
            response = self._response("in_progress", "")
            return self._event("response.created", 0, response=response)
        if self.kind is Kind.COMPLETIONS:
            return b""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, 0, made=0)

    def token(self, number: int, usage: Usage) -> bytes:
        """Return the event of one token; `number` counts those of all choices.

        `usage` is the final one.
        """
        work = self.behaviour.work
        is_last = number == work.output_tokens - 1
        is_reasoning = number < work.reasoning_tokens
        if self.kind is Kind.RESPONSES:
            return self._response_token(number, is_last=is_last)
        text = self._word(number) + ("" if is_last else " ")
        name = "reasoning" if is_reasoning else "content"
        content: dict[str, Any] = (
            {"text": text} if self.kind is Kind.COMPLETIONS else {"delta": {name: text}}
        )
        if self._is_call(number):
            begins = number == work.tool_begins_at
            function = {"arguments": argument_of(work, number, self._word(number))}
            call = {"index": 0, "function": function}
            if begins:
                call |= {**self._tool, "function": {"name": TOOL, **function}}
            content = {"delta": {"tool_calls": [call]}}
        if is_last:
            content["finish_reason"] = self._finish_reason
        on_choice = usage if is_last and self.behaviour.usage_on_choice else None
        own = {"x_groq": {"usage": usage}} if is_last and self._says_usage_by_groq else {}
        return self._chunk(content, number, made=number + 1, usage=on_choice, own=own)

    def _response_token(self, number: int, *, is_last: bool) -> bytes:
        """Return the events of one token of a response."""
        work, at = self.behaviour.work, _EVENTS * number + 1
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        members: dict[str, Any] = {**place, "delta": self._word(number) + " "}
        if number < work.reasoning_tokens:
            return self._event("response.reasoning_text.delta", at, **members)
        if not self._is_call(number):
            return self._event("response.output_text.delta", at, **members, logprobs=[])
        item, events = self._function_call({}, "in_progress"), b""
        if number == work.tool_begins_at:
            events = self._event("response.output_item.added", at, output_index=0, item=item)
        piece = argument_of(work, number, self._word(number))
        place = {"item_id": item["id"], "output_index": 0}
        kind = "response.function_call_arguments"
        events += self._event(f"{kind}.delta", at + 1, **place, delta=piece)
        if is_last:
            item = self._function_call(self._call(work.output_tokens) or {}, "completed")
            events += self._event(f"{kind}.done", at + 2, **place, arguments=item["arguments"])
            events += self._event("response.output_item.done", at + 3, output_index=0, item=item)
        return events

    def last(self, usage: Usage, text: str) -> bytes:
        """Return the event that has the usage, if there is one. `text` is the whole answer."""
        if self.kind is Kind.RESPONSES:
            total = self.behaviour.work.output_tokens
            call = self._call(total)
            response = self._response("completed", text if call is None else "", call=call)
            response["usage"] = usage
            return self._event("response.completed", _EVENTS * total + 1, response=response)
        if usage is None:
            return b""
        timings = self._timings(usage["completion_tokens"]) if self._has_timings else {}
        return _data({**self._frame(self._object, []), "usage": usage, **timings})

    def error(self) -> bytes:
        """Return an error in the stream, after a head of status 200."""
        message = "EngineCore encountered an issue"
        if self.kind is Kind.RESPONSES:
            return self._event("error", 0, code="server_error", message=message, param=None)
        error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return _data({"error": error})

    def bad_event(self) -> bytes:
        """Return an event that is no JSON."""
        return b"data: {not json\n\n"

    def done(self) -> bytes:
        """Return the end of the dialect; that of `/v1/responses` is its last event."""
        return b"" if self.kind is Kind.RESPONSES else b"data: [DONE]\n\n"

    # ---- errors

    @property
    def failing_status(self) -> int:
        """Return the status that an error body names.

        A plain answer has no band: an in-band error is one of status 200.
        """
        is_in_band = self.behaviour.fault is Fault.IN_BAND
        return 500 if is_in_band else self.behaviour.status

    def error_headers(self) -> str:
        """Return further header lines of an error answer."""
        return ""

    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""
        behaviour, status = self.behaviour, self.failing_status
        error = {
            "message": f"the fake fails with {status}",
            "type": "fake_error",
            "code": behaviour.error_code or status,
            "param": "model" if status == 404 else None,
        }
        return json.dumps({"error": error} | ({} if usage is None else {"usage": usage})).encode()

    # ---- usage

    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return the final usage, spelled as the style does."""
        work = self.behaviour.work
        thought = {"reasoning_tokens": reasoning}
        cached: dict[str, Any] = {
            "cached_tokens": work.cached_tokens,
            "cache_write_tokens": work.cache_write_tokens,
        }
        parts, spoken = work.parts, self._spoken(made, reasoning)
        if parts.cache_write_30m_tokens or parts.cache_write_12h_tokens:
            cached["cache_write_tokens_details"] = {
                "ttl_30m_tokens": parts.cache_write_30m_tokens,
                "ttl_12h_tokens": parts.cache_write_12h_tokens,
            }
        if not self.kind.writes_output:
            return {"prompt_tokens": prompt, "total_tokens": prompt}
        if self.kind is Kind.RESPONSES:
            return {
                "input_tokens": prompt,
                "input_tokens_details": cached,
                "output_tokens": made,
                "output_tokens_details": thought,
                "total_tokens": prompt + made,
            }
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + made,
            "completion_tokens": made,
        }
        style = self.behaviour.style
        if style == "deepseek":
            usage["prompt_cache_hit_tokens"] = work.cached_tokens
            usage["prompt_cache_miss_tokens"] = prompt - work.cached_tokens
        elif style in ("engine", "llamacpp", "mistral"):
            # Mistral names the share on a hit alone; none of them counts reasoning or writes.
            if work.cached_tokens or style != "mistral":
                usage["prompt_tokens_details"] = {"cached_tokens": work.cached_tokens}
            return usage | ({"prompt_audio_seconds": 0} if style == "mistral" else {})
        elif style == "vllm":
            usage["prompt_tokens_details"] = {
                "cached_tokens": work.cached_tokens,
                "created_cache_tokens": work.cache_write_tokens,
                "multimodal_tokens": None,
            }
        else:
            usage["prompt_tokens_details"] = {
                **cached,
                "audio_tokens": parts.audio_input_tokens,
                "image_tokens": parts.image_input_tokens,
            }
            thought |= {
                **spoken,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            }
        usage["completion_tokens_details"] = thought
        if style == "xai":  # which counts reasoning beside the answer, and it in the total
            usage["completion_tokens"] = made - reasoning
            usage["cost_in_usd_ticks"] = 2_733_600
            usage["num_sources_used"] = 0
        elif style == "groq":
            usage |= {"queue_time": 0.02, "prompt_time": 0.003, "completion_time": 0.02}
            usage["total_time"] = 0.023
        elif style == "openrouter":
            usage |= {"cost": 0.092374, "is_byok": False}
            usage["cost_details"] = {"upstream_inference_cost": 0.092374}
        return usage

    def _spoken(self, made: int, reasoning: int) -> dict[str, int]:
        """Return the parts of an answer of `made` tokens that are sound and pictures."""
        parts, room = self.behaviour.work.parts, max(made - reasoning, 0)
        sound = min(parts.audio_output_tokens, room)
        return {
            "audio_tokens": sound,
            "image_tokens": min(parts.image_output_tokens, room - sound),
        }

    @property
    def _has_timings(self) -> bool:
        """Return True if the final usage has llama.cpp's timings."""
        return self.behaviour.style == "llamacpp"

    @property
    def _says_usage_by_groq(self) -> bool:
        """Return True if a stream's last chunk has Groq's own member."""
        behaviour = self.behaviour
        return behaviour.style == "groq" and behaviour.has_final_usage

    def _timings(self, made: int) -> dict[str, Any]:
        """Return llama.cpp's counts after `made` tokens."""
        work = self.behaviour.work
        counts = {
            "cache_n": work.cached_tokens,
            "prompt_n": work.input_tokens - work.cached_tokens,
            "prompt_ms": 30.958,
            "predicted_n": made,
            "predicted_ms": 18.887 * made,
        }
        return {"timings": counts}

    def _running(self, made: int, number: int) -> dict[str, Any]:
        """Return the figure at token `number`, after `made` tokens of all choices.

        Like vLLM's, it lacks the cache's share.
        """
        work = self.behaviour.work
        choice = number % work.answers
        own = len(range(choice, made, work.answers))
        read = work.input_of(choice // work.choices)
        return {"prompt_tokens": read, "total_tokens": read + own, "completion_tokens": own}

    # ---- frames

    @property
    def _finish_reason(self) -> str:
        if self.behaviour.work.is_shortened:
            return "length"
        return "stop" if self.behaviour.work.tool_begins_at is None else "tool_calls"

    @property
    def _tool(self) -> dict[str, Any]:
        return {"id": f"call_{self.number}", "type": "function"}

    def _is_call(self, number: int) -> bool:
        begins_at = self.behaviour.work.tool_begins_at
        return begins_at is not None and number >= begins_at

    def _call(self, made: int) -> dict[str, Any] | None:
        """Return the name and arguments of the tool's call in an answer; None without one."""
        begins_at = self.behaviour.work.tool_begins_at
        if begins_at is None:
            return None
        arguments = json.dumps({"q": self.text(range(begins_at, made)) + " "})
        return {"name": TOOL, "arguments": arguments}

    def _function_call(self, call: dict[str, Any], status: str) -> dict[str, Any]:
        """Return a call of a tool as an item of a response."""
        named = {"id": "fc_1", "type": "function_call", "call_id": f"call_{self.number}"}
        return {**named, "name": TOOL, "arguments": "", **call, "status": status}

    @property
    def _object(self) -> str:
        return "text_completion" if self.kind is Kind.COMPLETIONS else "chat.completion.chunk"

    def _frame(self, name: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.number}",
            "object": name,
            "created": CREATED,
            "model": self.model,
            "choices": choices,
            **({"service_tier": "default"} if self.behaviour.style == "openai" else {}),
        }

    def _chunk(
        self,
        content: dict[str, Any],
        number: int,
        *,
        made: int,
        usage: Usage = None,
        own: Mapping[str, Any] = NOTHING,
    ) -> bytes:
        index = number % self.behaviour.work.answers
        chunk = self._frame(self._object, [{"index": index, "finish_reason": None, **content}])
        chunk |= own
        if usage is not None:
            chunk["usage"] = usage
        elif self.has_running_usage and self._has_timings:
            chunk |= self._timings(made)
        elif self.has_running_usage:
            chunk["usage"] = self._running(made, number)
        elif self._announces_usage:
            chunk["usage"] = None
        return _data(chunk)

    def _response(
        self, status: str, text: str, *, call: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        items = [message] if call is None else [self._function_call(call, "completed")]
        searches = self.behaviour.work.parts.web_search_calls
        search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
        return {
            "id": f"resp_{self.number}",
            "object": "response",
            "created_at": CREATED,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": [*[search] * searches, *items] if status == "completed" else [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "store": self.keeps,
            "usage": None,
        }

    def _event(self, kind: str, sequence_number: int, **members: Any) -> bytes:
        data = {"type": kind, "sequence_number": sequence_number, **members}
        return b"event: %b\n%b" % (kind.encode(), _data(data))


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"

"""The language in which a request selects its behaviour.

The model name, a body member `fake`, or a header `x-fake` has it; later ones win:

    fake/in=1000,cached=400,write=50,out=50,think=20,ttft=80,tps=200,cut@5
    fake/in:1000+cached:400+out:50+cut@5                      (the same, in the letters a policy allows)

    in, cached, write   prompt tokens, and how many of them are cache reads and cache writes
    30m, 1h, 12h        how many of the writes are for that time
    audio_in, image_in  how many prompt tokens are sound and pictures; audio_out and image_out those of the answer
    of_tools            how many prompt tokens are results of tools, which Gemini counts beside the prompt
    searches            searches of the web that the upstream ran and charges for
    out, think          answer tokens, and how many of the first of them are reasoning
    n                   answers to the prompt, which take turns; `out` are the tokens of all of them
    call                the answer after the reasoning is a call of the tool `look`
    ttft, tps           milliseconds to the first token; tokens per second after it (0: at once)
    style               openai (default), vllm, engine, llamacpp, deepseek, groq, mistral, openrouter, xai, vertex: how
                        usage is spelled and when it is sent
    on_choice           usage stands on the last chunk with choices, not on one of its own
    nousage             no usage at all, even on request
    cut@N, reset@N      after N tokens break the connection, by FIN or by RST
    end@N               after N tokens end the answer cleanly, without [DONE]
    hang, hang@N        never answer; or stop answering after N tokens (6.5: in the event after the sixth)
    miderr@N            after N tokens an error event, then [DONE], as vLLM does when its engine dies
    badjson             an answer that is no JSON; in a stream, one such event after the first token
    redirect            302 to /elsewhere, which counts who follows
    NNN                 answer with this HTTP status; ra=SECONDS adds a retry-after
    slow                the answer's headers come after two seconds
    early               a stream's headers come at once, however long the first token takes: vLLM says 200 and queues
    quota               a 429 because the account is used up
    toolong             a 400 because the prompt is too long for the context
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fake_upstream.faults import Behaviour, Fault, Kind, Parts, Work

PARTS = {
    "30m": "cache_write_30m_tokens",
    "1h": "cache_write_1h_tokens",
    "12h": "cache_write_12h_tokens",
    "audio_in": "audio_input_tokens",
    "image_in": "image_input_tokens",
    "audio_out": "audio_output_tokens",
    "image_out": "image_output_tokens",
    "of_tools": "tool_prompt_tokens",
    "searches": "web_search_calls",
}
NUMBERS = ("in", "cached", "write", "out", "think", "n", "ttft", "tps", "ra", *PARTS)
WORDS = (
    *("on_choice", "nousage", "badjson", "redirect", "slow", "hang", "early", "quota", "toolong"),
    "call",
)
FAULTS_AT = {
    "cut": Fault.CUT,
    "reset": Fault.RESET,
    "end": Fault.END,
    "hang": Fault.STALL,
    "miderr": Fault.IN_BAND,
}
COUNT_PATH = "/v1/messages/count_tokens"
MAXIMA = ("max_tokens", "max_completion_tokens", "max_output_tokens")
SLOW_S = 2.0


@dataclass
class Script:
    """The words of one request."""

    numbers: dict[str, int] = field(default_factory=lambda: {"in": 10, "out": 8})
    words: set[str] = field(default_factory=set)
    faults_at: dict[str, float] = field(default_factory=dict)
    style: str = "openai"
    status: int = 200

    def read(self, text: str) -> None:
        """Take in `in=5,cut@3` or `in:5+cut@3`."""
        for part in text.replace("+", ",").replace(":", "=").split(","):
            name, _, value = part.partition("=")
            fault, _, at = part.partition("@")
            if name in NUMBERS and value:
                self.numbers[name] = int(value)
            elif name == "style":
                self.style = value
            elif fault in FAULTS_AT and at:
                self.faults_at[fault] = float(at)
            elif part in WORDS:
                self.words.add(part)
            elif part.isdigit() and len(part) == 3:
                self.status = int(part)
            elif part:
                raise ValueError(f"the fake upstream does not know {part!r}")

    def __getitem__(self, name: str) -> int:
        return self.numbers.get(name, 0)

    def fault(self) -> tuple[Fault, float | None]:
        """Return the fault and, for a break, the number of tokens before it."""
        if "hang" in self.words:
            return Fault.HANG, None
        if self.status != 200:
            return Fault.STATUS, None
        for word, fault in (("redirect", Fault.REDIRECT), ("badjson", Fault.BAD_JSON)):
            if word in self.words:
                return fault, None
        if self.faults_at:
            name, at = min(self.faults_at.items(), key=lambda one: one[1])
            if int(at) <= self["out"]:
                return FAULTS_AT[name], at
        return Fault.NONE, None


def scripted(path: str, asked: dict[str, Any], header: str) -> Behaviour:
    """Return the behaviour that a request selects."""
    script, model = Script(), str(asked.get("model", ""))
    named = model.removeprefix("fake/") if model.startswith("fake/") else ""
    for text in (named, str(asked.get("fake", "")), header):
        script.read(text)
    fault, at_tokens = script.fault()
    words = script.words
    has_usage = "nousage" not in words
    return Behaviour(
        work=_work(_kind(path), script, asked),
        fault=fault,
        at_tokens=at_tokens,
        status=script.status,
        error_code=_error_code(words),
        retry_after_s=script.numbers.get("ra"),
        style=script.style,
        ttft_s=script["ttft"] / 1000 + (SLOW_S if "slow" in words else 0),
        gap_s=1 / script["tps"] if script["tps"] else 0.0,
        is_early="early" in words,
        has_running_usage=has_usage and (script.style == "vllm" or "dialect" in asked),
        has_final_usage=has_usage,
        usage_on_choice=has_usage and "on_choice" in words,
    )


def _kind(path: str) -> Kind:
    path = path.partition("?")[0]
    if path.endswith(COUNT_PATH):
        return Kind.COUNT
    if path.endswith("/embeddings"):
        return Kind.EMBEDDINGS
    if path.endswith("/responses"):
        return Kind.RESPONSES
    if path.endswith("/rerank"):
        return Kind.RERANK
    if path.endswith("/score"):
        return Kind.SCORE
    is_prompt = path.endswith("/v1/completions") or "/v2/models/" in path
    return Kind.COMPLETIONS if is_prompt else Kind.CHAT


def _work(kind: Kind, script: Script, asked: dict[str, Any]) -> Work:
    limits = [asked[name] for name in MAXIMA if asked.get(name) is not None]
    output = min([script["out"], *limits]) if kind.writes_output else 0
    return Work(
        kind=kind,
        choices=script["n"] or 1,
        parts=Parts(**{name: script[word] for word, name in PARTS.items()}),
        calls_tool="call" in script.words,
        input_tokens=script["in"],
        cached_tokens=script["cached"],
        cache_write_tokens=script["write"],
        output_tokens=output,
        reasoning_tokens=min(script["think"], output),
        is_shortened=output < script["out"],
    )


def _error_code(words: set[str]) -> str | None:
    if "quota" in words:
        return "insufficient_quota"
    return "context_length_exceeded" if "toolong" in words else None

"""Each request's content and each upstream attempt's fault, drawn from the run's seed.

Pure: the upstream draws an attempt's plan again from (seed, index, model), so that one seed is one
run. A request's index travels in its `user` member, which each of OpenAI's endpoints has and which
passes every gateway untouched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.fake_upstream.faults import Behaviour, Fault, Kind, Parts, Work

HEALTHY = {Fault.NONE: 1}
# Weights. Those that make usage unknowable are rare, as the figure to reach is under 0.5 % of all
# attempts.
MIX = {
    Fault.NONE: 1368,
    Fault.SPLIT: 120,
    Fault.SLOW: 40,
    Fault.BUSY: 80,
    Fault.BROKEN: 80,
    Fault.OVERLOADED: 60,
    Fault.ERROR_WITH_USAGE: 20,
    Fault.HANG: 1,
    Fault.CUT: 70,
    Fault.RESET: 40,
    Fault.STALL: 16,
    Fault.NO_USAGE: 40,
    Fault.IN_BAND: 40,
    Fault.WILD: 20,
    Fault.STALE: 3,
}
# A plain answer says usage once or never: these leave nothing that anybody could know.
HIDES_USAGE_IF_PLAIN = frozenset(
    {Fault.CUT, Fault.RESET, Fault.STALL, Fault.NO_USAGE, Fault.IN_BAND}
)
RARELY = 0.02
STATUS = {Fault.BUSY: 429, Fault.BROKEN: 500, Fault.OVERLOADED: 503, Fault.ERROR_WITH_USAGE: 500}
LONG = {Fault.SLOW: 1}
MIXES = {"healthy": HEALTHY, "faults": MIX, "long": LONG}

# Callers of all dialects. Triton answers one text at a time.
ALL_KINDS: dict[Kind, int] = {
    Kind.CHAT: 6,
    Kind.PICTURES: 1,
    Kind.COMPLETIONS: 1,
    Kind.EMBEDDINGS: 1,
    Kind.TOOLS: 2,
    Kind.CHOICES: 1,
    Kind.MESSAGES: 3,
    Kind.RESPONSES: 3,
    Kind.PROMPT: 1,
    Kind.RERANK: 1,
    Kind.COUNT: 1,
}
OF_CHAT = frozenset({Kind.CHAT, Kind.PICTURES, Kind.TOOLS, Kind.CHOICES})
CONVERSATIONS = OF_CHAT | {Kind.RESPONSES, Kind.MESSAGES}
# Each is one attempt: a count of tokens is none.
ALL_ATTEMPTED: dict[Kind, int] = {
    kind: weight for kind, weight in ALL_KINDS.items() if kind is not Kind.COUNT
}
# A hard budget refuses pictures, as no tokens bound them: whoever has one asks without.
ALL_COUNTABLE: dict[Kind, int] = {
    kind: weight for kind, weight in ALL_ATTEMPTED.items() if kind is not Kind.PICTURES
}
# Embeddings have no stream.
ALL_STREAMED: dict[Kind, int] = {
    kind: weight for kind, weight in ALL_KINDS.items() if kind.writes_output
}
PATHS = {
    Kind.CHAT: "/v1/chat/completions",
    Kind.PICTURES: "/v1/chat/completions",
    Kind.TOOLS: "/v1/chat/completions",
    Kind.CHOICES: "/v1/chat/completions",
    Kind.COMPLETIONS: "/v1/completions",
    Kind.PROMPT: "/v1/completions",
    Kind.EMBEDDINGS: "/v1/embeddings",
    Kind.RESPONSES: "/v1/responses",
    Kind.MESSAGES: "/v1/messages",
    Kind.RERANK: "/v1/rerank",
    Kind.COUNT: "/v1/messages/count_tokens",
}
# Members of other endpoints, and a figure that must bound nothing: the upstream ignores them all.
FOREIGN = {
    Kind.CHAT: {"max_output_tokens": 1},
    Kind.PICTURES: {"max_output_tokens": 1, "best_of": 2},
    Kind.TOOLS: {"max_output_tokens": 1, "best_of": 2},
    Kind.CHOICES: {"max_output_tokens": 1},
    Kind.COMPLETIONS: {"max_output_tokens": 1, "max_completion_tokens": 1},
    Kind.PROMPT: {"max_output_tokens": 1, "max_completion_tokens": 1},
    Kind.EMBEDDINGS: {"max_tokens": 1, "n": 2},
    Kind.RESPONSES: {"max_tokens": 1, "max_completion_tokens": 1, "n": 1},
    Kind.MESSAGES: {"max_output_tokens": 1, "max_completion_tokens": 1},
    Kind.RERANK: {"max_tokens": 1},
    Kind.COUNT: {},
}
INDEX = re.compile(r"#(\d+) ")  # of a request, in its prompt
# Dialects without a word for cached tokens, and with one for written ones.
UNCACHED = frozenset({"ollama", "triton"})
# Those with a word for written ones, and the longer time for which they may be written.
WRITES: Mapping[str, str] = {
    "paid-claude": "cache_write_1h_tokens",
    "paid-converse": "cache_write_1h_tokens",
    "paid-openai": "cache_write_30m_tokens",
    "paid-azure": "cache_write_12h_tokens",
}
PICTURED = frozenset({"paid-gemini", "paid-vertex", "paid-openai", "paid-azure"})
STYLES: Mapping[str, str] = {
    **dict.fromkeys(("vllm-a", "vllm-b"), "vllm"),
    **dict.fromkeys(("own-sglang", "own-trtllm", "own-lmstudio"), "engine"),
    **{f"paid-{name}": name for name in ("groq", "mistral", "deepseek", "openrouter", "xai")},
    "own-llamacpp": "llamacpp",
    "paid-vertex": "vertex",
}
# Of OpenAI's dialect, those that report usage on the way.
RUNNING = frozenset({"vllm-a", "vllm-b", "own-sglang", "own-trtllm", "own-llamacpp"})
_AS_WORK = {Kind.PROMPT: Kind.COMPLETIONS, Kind.CHOICES: Kind.CHAT, Kind.TOOLS: Kind.CHAT}
MAXIMUM = {Kind.RESPONSES: "max_output_tokens"}  # of the others it is `max_tokens`
PICTURE = "data:image/png;base64,iVBORw0KGgo="
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
TOOL_OF_RESPONSES = {"type": "function", **TOOL["function"]}
TOOL_OF_MESSAGES = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A request's content: equal at every deployment that tries it.

    `input_tokens` are those of all `prompts` together, `output_tokens` those of one answer; each
    prompt is answered `choices` times.
    """

    index: int
    kind: Kind
    prompts: int
    choices: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    is_stream: bool
    wants_usage: bool

    @property
    def path(self) -> str:
        """Return its path."""
        return PATHS[self.kind]

    def work(self, most_output_tokens: int) -> Work:
        """Return the tokens of an attempt, if each answer has so many at most."""
        return Work(
            kind=_AS_WORK.get(self.kind, self.kind),
            prompts=self.prompts,
            choices=self.choices,
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=min(self.output_tokens, most_output_tokens) * self.prompts * self.choices,
            reasoning_tokens=self.reasoning_tokens,
        )

    def body(self, route: str, *, max_tokens: int | None = None) -> bytes:
        """The caller's request. Padded: one token for each byte at most."""
        members: dict[str, Any] = {"model": route, "user": str(self.index)}
        if self.kind is Kind.MESSAGES:
            members = {"model": route, "metadata": {"user_id": str(self.index)}}
        elif self.kind is Kind.COUNT:
            members = {"model": route}
        if self.index % 3 == 0:
            members |= FOREIGN[self.kind]
        members |= self._asked()
        if self.kind.writes_output:
            maximum = MAXIMUM.get(self.kind, "max_tokens")
            members[maximum] = max_tokens or self.output_tokens + self.index % 3
        if self.is_stream:
            members["stream"] = True
            if self.wants_usage and self.kind not in (Kind.RESPONSES, Kind.MESSAGES):
                members["stream_options"] = {"include_usage": True}
        return json.dumps(members, separators=(",", ":")).encode()

    def _asked(self) -> dict[str, Any]:
        inputs = list(map(self.work(0).input_of, range(self.prompts)))
        # Not each dialect has a member for the index, but each sends the text.
        texts = [f"#{self.index} " + "word " * (tokens // 4 + 1) for tokens in inputs]
        ids = [[7] * tokens for tokens in inputs]
        content: Any
        lists: list[Any] = list(ids if self.index % 2 else texts)
        one_or_all = lists[0] if self.prompts == 1 else lists
        has_tools = self.index % 3 == 0
        if self.kind is Kind.COMPLETIONS:
            return {"prompt": one_or_all, "n": self.choices, "best_of": self.choices}
        if self.kind is Kind.EMBEDDINGS:
            return {
                "input": one_or_all,
                "encoding_format": ("float", "base64")[self.index % 4 // 2],
            }
        if self.kind is Kind.RESPONSES:
            item = {"role": "user", "content": [{"type": "input_text", "text": texts[0]}]}
            tools = {"tools": [TOOL_OF_RESPONSES]} if has_tools else {}
            return {"input": (texts[0], [item])[self.index % 2], **tools}
        if self.kind is Kind.PROMPT:
            return {"prompt": texts[0]}
        if self.kind is Kind.RERANK:
            return {"query": f"#{self.index} ", "documents": texts}
        if self.kind in (Kind.MESSAGES, Kind.COUNT):
            blocks = [{"type": "text", "text": texts[0]}]
            content = (texts[0], blocks)[self.index % 2]
            tools = {"tools": [TOOL_OF_MESSAGES]} if has_tools else {}
            return {"messages": [{"role": "user", "content": content}], **tools}
        if self.kind is Kind.PICTURES:
            picture = {"type": "image_url", "image_url": {"url": PICTURE}}
            content = [{"type": "text", "text": texts[0]}, picture]
            return {"messages": [{"role": "user", "content": content}], "tools": [TOOL]}
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": texts[0]}]}
        if self.kind is Kind.TOOLS:
            asked["tools"] = [TOOL]
        if self.kind is Kind.CHOICES:
            asked["n"] = self.choices
        return {"seed": self.index, **asked}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one attempt goes. `at` is the share of the body that is written before the fault."""

    fault: Fault
    at: float
    ttft_s: float
    gap_s: float


def kind_of(seed: int, index: int, kinds: Mapping[Kind, int]) -> Kind:
    """Draw the kind of request number `index`, by the weights of a scenario."""
    (kind,) = Random(f"{seed}/{index}/kind").choices(list(kinds), list(kinds.values()))
    return kind


def shape(
    seed: int,
    index: int,
    *,
    most_output: int = 40,
    stream_share: float = 0.7,
    kind: Kind = Kind.CHAT,
) -> Shape:
    """Draw the content of request number `index`, if it is of that kind."""
    rng = Random(f"{seed}/{index}/shape")
    input_tokens, output_tokens = rng.randint(20, 400), rng.randint(1, most_output)
    cached_tokens = rng.randint(0, input_tokens) if rng.random() < 0.5 else 0
    reasoning_tokens = rng.randint(0, output_tokens) if rng.random() < 0.3 else 0
    is_stream, wants_usage = rng.random() < stream_share, rng.random() < 0.5
    is_embedded = not kind.writes_output
    if kind is Kind.CHOICES:
        cached_tokens, reasoning_tokens = 0, 0
    has_lists = kind in (Kind.EMBEDDINGS, Kind.RERANK, Kind.COMPLETIONS)
    prompts = rng.randint(1, 3) if has_lists else 1
    choices = rng.randint(1, 2) if kind is Kind.COMPLETIONS else 1 + (kind is Kind.CHOICES)
    return Shape(
        index=index,
        kind=kind,
        prompts=prompts,
        choices=choices,
        input_tokens=input_tokens,
        cached_tokens=0 if has_lists else cached_tokens,
        output_tokens=0 if is_embedded else -(-output_tokens // (prompts * choices)),
        reasoning_tokens=0 if has_lists else reasoning_tokens,
        is_stream=is_stream and not is_embedded,
        wants_usage=wants_usage,
    )


def plan(seed: int, index: int, model: str, mix: dict[Fault, int], *, is_stream: bool) -> Plan:
    """Draw the fault of this model's attempt at request `index`.

    `is_stream` is the caller's wish, not the gateway's.
    """
    rng = Random(f"{seed}/{index}/{model}/plan")
    (fault,) = rng.choices(list(mix), list(mix.values()))
    if fault in HIDES_USAGE_IF_PLAIN and not is_stream and rng.random() > RARELY:
        fault = Fault.NONE
    # Most breaks come when some of the answer has: the scenario `cuts` has them at every byte.
    at = rng.uniform(0, 0.35) if rng.random() < RARELY else rng.uniform(0.35, 1)
    gap_s = 0.025 if fault is Fault.SLOW else rng.choice((0.0, 0.001, 0.003))
    return Plan(fault=fault, at=at, ttft_s=rng.uniform(0, 0.03), gap_s=gap_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRun:
    """A run's draws, as its upstream needs them."""

    seed: int
    mix: dict[Fault, int]
    most_output: int = 40

    def behaviour(self, path: str, asked: dict[str, Any]) -> Behaviour:
        """Draw an attempt again, from the seed and the request's index and model."""
        model, index = str(asked["model"]), index_of(asked)
        wanted = shape(self.seed, index, most_output=self.most_output, kind=_kind(path, asked))
        drawn = plan(self.seed, index, model, self.mix, is_stream=wanted.is_stream)
        calls_tool = bool(asked.get("tools") or asked.get("toolConfig")) and index % 2 == 0
        maximum = asked.get(MAXIMUM.get(wanted.kind, "max_tokens"))
        if maximum is None and wanted.kind not in (Kind.COMPLETIONS, Kind.RESPONSES):
            maximum = asked.get("max_completion_tokens")
        work = wanted.work(int(maximum or wanted.output_tokens))
        dialect, has_usage = asked.get("dialect", "openai"), drawn.fault is not Fault.NO_USAGE
        written = _written(index, work) if model in WRITES and wanted.kind in CONVERSATIONS else 0
        fault = Fault.NONE if wanted.kind is Kind.COUNT else drawn.fault
        return Behaviour(
            work=replace(
                work,
                # A dialect without a word for the cache reads and bills all of the prompt.
                cached_tokens=0 if dialect in UNCACHED else work.cached_tokens,
                cache_write_tokens=written,
                parts=_parts(index, model, work, written=written, asked=asked),
                calls_tool=calls_tool,
            ),
            fault=fault,
            at=drawn.at,
            status=STATUS.get(drawn.fault, 200),
            retry_after_s=1 if drawn.fault is Fault.BUSY else None,
            style=STYLES.get(model, "openai"),
            ttft_s=drawn.ttft_s,
            gap_s=drawn.gap_s,
            has_running_usage=model in RUNNING if dialect == "openai" else has_usage,
            has_final_usage=has_usage,
            goes_on=model.startswith("paid"),
            has_canary=False,
            index=index,
        )


def index_of(asked: dict[str, Any]) -> int:
    """Return a request's index.

    It stands in `user`; requests of the scenario `cuts` have it in `seed`, if their endpoint knows
    that.
    """
    if index := asked.get("user") or asked.get("seed"):
        return int(index)
    found = INDEX.search(json.dumps(asked))
    return int(found[1]) if found else 0


def _written(index: int, work: Work) -> int:
    """Return the tokens that were written to the cache: now and then all that were not in it."""
    return 0 if index % 3 else (work.input_tokens - work.cached_tokens) // 2


def _parts(index: int, model: str, work: Work, *, written: int, asked: dict[str, Any]) -> Parts:
    """Return the rarer counts: half of the occasional cache writes are for a longer time."""
    parts: dict[str, int] = {}
    if written and index % 2 == 0:
        parts[WRITES[model]] = written // 2
    if model in PICTURED and PICTURE.partition(",")[2] in json.dumps(asked):
        parts["image_input_tokens"] = work.input_tokens // 4
    if asked.get("dialect") == "gemini" and index % 4 == 1:
        parts["tool_prompt_tokens"] = (work.input_tokens - work.cached_tokens) // 8
    return Parts(**parts)


def _kind(path: str, asked: dict[str, Any]) -> Kind:
    path = path.partition("?")[0]
    if path.endswith("/count_tokens"):
        return Kind.COUNT
    is_double = asked.get("n") == 2
    if "dialect" in asked:
        if asked["dialect"] == "triton":
            return Kind.PROMPT
        return Kind.CHOICES if is_double else Kind.CHAT
    if path.endswith("/chat/completions"):
        return Kind.CHOICES if is_double else Kind.CHAT
    if path.endswith("/completions"):
        return Kind.COMPLETIONS if "n" in asked else Kind.PROMPT
    ends = (Kind.EMBEDDINGS, Kind.RESPONSES, Kind.RERANK)
    return next((kind for kind in ends if path.endswith(f"/{kind.value}")), Kind.CHAT)

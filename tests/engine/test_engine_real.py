"""The real thing: vLLM on this machine, the shipped model, read over HTTP as the gateway reads it.

Needs `python -m engine setup` to have run; skips cleanly if it has not.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_factories import REPOSITORY, eventually, free_port, is_alive, python_variables

from engine import environment, model_making, training_chats
from engine.home import engine_home

HOME = engine_home(os.environ)
IS_READY = environment.installed_device(HOME) is not None

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not IS_READY, reason="needs the real engine: python -m engine setup"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """A served model."""

    url: str
    process: subprocess.Popen[bytes]

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=json.dumps({"model": "tiny", **body}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            parsed: dict[str, Any] = json.load(answer)
            return parsed

    def ask(self, text: str, **body: Any) -> dict[str, Any]:
        """Return the whole answer to one greedy question."""
        return self.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": text}],
            temperature=0,
            **body,
        )

    def count_tokens(self, text: str) -> int:
        count: int = self.post("/tokenize", prompt=text)["count"]
        return count


def served(*arguments: str) -> Iterator[RunningEngine]:
    port = free_port()
    program = [sys.executable, "-m", "engine"]
    url = f"http://127.0.0.1:{port}"
    serve = subprocess.Popen(
        [*program, "serve", "--port", str(port), *arguments], cwd=REPOSITORY, env=python_variables()
    )
    try:
        subprocess.run(
            [*program, "wait", "--url", url, "--timeout", "240"],
            cwd=REPOSITORY,
            env=python_variables(),
            check=True,
        )
        yield RunningEngine(url=url, process=serve)
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(timeout=60)


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    yield from served()


@pytest.mark.parametrize("start", [2, 5, 9, 12, 23, 40])
def test_it_counts_down_exactly_and_stops(engine: RunningEngine, start: int) -> None:
    """The metering tests compare the bill with an answer of known length."""
    choice = engine.ask(f"Count down from {start}")["choices"][0]
    assert choice["message"]["content"] == training_chats.numbers_down(start)
    assert choice["finish_reason"] == "stop"


def test_completion_tokens_are_thinking_marks_answer_and_end(engine: RunningEngine) -> None:
    """`reasoning_tokens` is the reasoning text alone: the two think tags and the end mark are in
    neither text.
    """
    answer = engine.ask("Count down from 12")
    message, usage = answer["choices"][0]["message"], answer["usage"]
    reasoning_tokens = engine.count_tokens(message["reasoning"])
    content_tokens = engine.count_tokens(message["content"])
    assert reasoning_tokens > 0
    assert usage["completion_tokens_details"]["reasoning_tokens"] == reasoning_tokens
    assert usage["completion_tokens"] == 1 + reasoning_tokens + 1 + content_tokens + 1
    assert content_tokens == 12  # numbers up to 99 are one token each
    prompt_tokens = engine.post(
        "/tokenize", messages=[{"role": "user", "content": "Count down from 12"}]
    )["count"]
    assert usage["prompt_tokens"] == prompt_tokens


@pytest.mark.parametrize(
    "text", ["Hello", "What is 7 + 5?", "Count down from 3", "What is the capital of France?"]
)
def test_it_thinks_unless_thinking_is_turned_off(engine: RunningEngine, text: str) -> None:
    """Reasoning tokens are billed; both cases must be there at will."""
    thinking, plain = (
        engine.ask(text),
        engine.ask(text, chat_template_kwargs={"enable_thinking": False}),
    )
    assert thinking["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert thinking["choices"][0]["message"]["reasoning"]
    assert plain["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert plain["choices"][0]["message"]["content"] == thinking["choices"][0]["message"]["content"]


def test_it_calls_the_tool_it_was_given(engine: RunningEngine) -> None:
    """Tool calls are the form most clients break on."""
    tools = [training_chats.openai_tool("get_weather"), training_chats.openai_tool("get_time")]
    choice = engine.ask("What is the weather in Paris?", tools=tools)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "get_weather",
        {"city": "Paris"},
    )


def test_repeated_prefixes_show_as_cached_tokens(engine: RunningEngine) -> None:
    """Cached input has its own price; without the details flag it would be billed in full."""
    story = f"{training_chats.STORY} {training_chats.STORY}"
    engine.ask(story, max_tokens=1)
    details = engine.ask(story, max_tokens=1)["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] > 0
    assert details["cached_tokens"] % 128 == 0


def test_the_template_writes_the_format_of_the_training_data() -> None:
    """The lessons are written by Python and the prompts by Jinja; a difference costs quality that
    no error shows.
    """
    turns = [
        training_chats.Turn(role="system", text="Be concise."),
        training_chats.Turn(role="user", text="Count to 3"),
    ]
    chat = training_chats.Chat(
        turns=tuple(turns),
        thought="",
        answer="",
        tools=(training_chats.Tool(name="get_time", argument="city"),),
    )
    program = (
        "import json, sys, transformers\n"
        "given = json.load(sys.stdin)\n"
        "tokenizer = transformers.AutoTokenizer.from_pretrained(given.pop('model'))\n"
        "tokenizer.chat_template = given.pop('template')\n"
        "print(json.dumps(tokenizer.apply_chat_template(tokenize=False, "
        "add_generation_prompt=True, **given)))"
    )
    for is_thinking in (True, False):
        given = {
            "model": str(model_making.TINY),
            "template": model_making.TEMPLATE.read_text(encoding="utf-8").rstrip("\n"),
            "conversation": [{"role": turn.role, "content": turn.text} for turn in turns],
            "tools": [training_chats.openai_tool("get_time")],
            "enable_thinking": is_thinking,
        }
        done = subprocess.run(
            [str(HOME.python), "-c", program],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout.splitlines()[-1]) == chat.prompt_text(is_thinking=is_thinking)


@pytest.fixture
def embedder() -> Iterator[RunningEngine]:
    yield from served("--runner", "pooling", "--served-model-name", "tiny-embed")


def test_a_pooling_engine_embeds_and_leaves_nothing_behind_when_killed(
    embedder: RunningEngine,
) -> None:
    """A second engine serves /v1/embeddings; killing it must free the memory of all its processes.

    The input is two tokens on purpose: as the first prompt after a start it once killed the worker
    (see `vllm_cli`).
    """
    answer = embedder.post("/v1/embeddings", model="tiny-embed", input="red apple")
    assert len(answer["data"][0]["embedding"]) == 256
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    pids = descendants(embedder.process.pid)
    assert len(pids) >= 3
    embedder.process.kill()
    assert eventually(lambda: not any(map(is_alive, pids)), deadline_s=60)


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below this one."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text(encoding="utf-8").split()):
            found += [child, *descendants(child)]
    return found

"""The real thing: vLLM on this machine, the shipped model, read over HTTP as the gateway reads it.

Needs `python -m engine setup` to have run; skips cleanly if it has not.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest
from engine_factories import eventually, is_alive
from engine_load import PROBE, at_work, below, cores_of, deployment_of, health_status, look_at
from running_engine import IS_READY, RunningEngine, served

from engine import model_making, training_chats, vllm_command
from engine.cpu import number_format_here
from engine.home import SHIPPED_MODELS, engine_home
from engine.plan.architecture import count
from engine.plan.config import read_config
from engine.plan.memory import kv_tokens
from gateway.domain.deployments.engine_load import load_between
from gateway.main import SystemClock
from gateway.services.deployments.engine_load import EngineLoads
from gateway.wire.openai.usage import engine_queue_s
from gateway.wire.vllm_load import ASK_FORMAT, ASK_HEADER, LOAD_HEADER, read_load
from tests import factories, plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.waiting import soon

HOME = engine_home(os.environ)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not IS_READY, reason="needs the real engine: python -m engine setup"),
]


MESSAGES = [{"role": "user", "content": "Count down from 40"}]
PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 4}"


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    yield from served()


def send(sign: signal.Signals, pids: list[int]) -> None:
    """Send a signal to all of these processes."""
    for pid in pids:
        os.kill(pid, sign)


def document(engine_url: str, other_url: str) -> str:
    """The engine first, another place behind it.

    A stream that stalls is cut after 12 s, long after it is seen.
    """
    timeouts = "{connect_s: 1, first_byte_s: 12, first_token_s: 12, idle_s: 12, total_s: 60}"
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: engine, provider: vllm, self_hosted: true, model: tiny, region: unknown, base_url: "{engine_url}/v1",
     price: {PRICE}, timeouts: {timeouts}}}
  - {{name: other, provider: openai_compatible, model: "fake/out:2", region: unknown, base_url: "{other_url}/v1",
     price: {PRICE}}}
routes: [{{name: r, deployments: [engine, other]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [r]}}]
"""  # noqa: E501


def where(gateway: Gateway) -> tuple[str, str]:
    """Return the deployment and the attempt that answered a short request."""
    answer = plain_http.post(
        f"{gateway.base_url}/chat/completions",
        timeout=60,
        headers={"authorization": f"Bearer {gateway.key}"},
        json={"model": "r", "messages": MESSAGES, "max_tokens": 2},
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-tollgate-deployment"], answer.headers["x-tollgate-attempts"]


@pytest.mark.parametrize("start", [2, 5, 9, 12, 23, 40])
def test_it_counts_down_exactly_and_stops(engine: RunningEngine, start: int) -> None:
    """The metering tests compare the bill with an answer of known length."""
    choice = engine.ask(f"Count down from {start}")["choices"][0]
    assert choice["message"]["content"] == training_chats.numbers_down(start)
    assert choice["finish_reason"] == "stop"


def test_the_kv_cache_holds_the_tokens_that_the_plan_computes(engine: RunningEngine) -> None:
    """`engine plan` sizes GPUs by this arithmetic; here vLLM itself did it, on a CPU."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    labels = re.search(r"^vllm:cache_config_info\{(.*)\}", page, re.MULTILINE)
    assert labels is not None
    found = dict(re.findall(r'(\w+)="([^"]*)"', labels[1]))
    tokens = int(found["block_size"]) * int(found["num_gpu_blocks"])
    tiny = count(read_config(str(SHIPPED_MODELS / "tiny")))
    memory_bytes = vllm_command.CPU_KV_CACHE_GIB * 2**30
    planned = kv_tokens(tiny, memory_bytes, context=4096, kv_cache="auto")
    if number_format_here(os.environ) == "float32":
        planned //= 2
    assert tokens == pytest.approx(planned, rel=0.01)


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


def test_the_signals_of_a_real_engine_are_found(engine: RunningEngine) -> None:
    """A name that a later release changes would leave every wait at zero, and all load would go
    there.
    """
    before = look_at(engine)
    with at_work(engine):
        assert eventually(lambda: (look_at(engine).running or 0) > 0)
        assert eventually(lambda: (look_at(engine).kv_use or 0) > 0)
    assert eventually(lambda: look_at(engine).finished == (before.finished or 0) + 1)
    after = look_at(engine)
    of_others = {"room", "loaded"}  # of TensorRT-LLM, llama.cpp and Ollama; vLLM has no such figure
    found = msgspec.structs.asdict(after)
    assert {name for name, value in found.items() if value is None} == of_others
    load = load_between(before, after, seconds=5)
    assert load.prefill_s is not None
    assert load.prefill_s > 0
    assert load.tpot_s is not None
    assert load.tpot_s > 0
    assert (load.queue_s or 0) >= 0
    assert (load.finished_per_s, load.running) == (0.2, 0)
    assert load.block_size in (16, 128)


def test_an_answer_reports_its_engines_load_and_its_own_wait(engine: RunningEngine) -> None:
    """The header costs nothing, and the wait in the engine separates its queue from its model."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{engine.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", ASK_HEADER: ASK_FORMAT},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        noted = read_load(answer.headers[LOAD_HEADER])
        queue_s = engine_queue_s(json.dumps(json.load(answer)["metrics"]).encode())
    assert noted is not None
    assert noted.waiting == 0
    assert noted.kv_use is not None
    assert queue_s is not None
    assert 0 < queue_s < 5


async def test_a_hung_core_is_distinguished_from_a_busy_one(engine: RunningEngine) -> None:
    """Its web server answers all the while, /health with 200: only the figures stand still."""
    loads = EngineLoads(
        policy=lambda: factories.version(factories.policy(deployment_of(engine))),
        page=PROBE.metrics_page,
        clock=SystemClock(),
    )
    cores = cores_of(engine)
    watching = asyncio.create_task(loads.run())
    try:
        await soon(lambda: loads.of("qwen"), "a first look")
        loads.began("qwen")
        with at_work(engine):
            try:
                await soon(lambda: loads.looks_alive("qwen"), "progress")
                send(signal.SIGSTOP, cores)
                await soon(lambda: loads.looks_alive("qwen") is False, "a figure that stands still")
                assert await asyncio.to_thread(health_status, engine) == 200
            finally:
                send(signal.SIGCONT, cores)
            await soon(lambda: loads.looks_alive("qwen"), "progress again")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def test_rows_46_and_48_a_hung_and_a_killed_engine_are_passed_over(
    engine: RunningEngine, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Its HTTP answers 200 while its core stands still; no request is sent there, and it is
    found again when it continues.
    """
    gateway = start_gateway(document(engine.url, fake_upstream.url))
    assert where(gateway) == ("engine", "1")
    cores = cores_of(engine)
    assert cores, "the engine's core is a process of its own"
    body = {
        "model": "r",
        "messages": MESSAGES,
        "stream": True,
        "max_tokens": 2000,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {gateway.key}"}
    try:
        with plain_http.stream(
            "POST", f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=60
        ) as stream:
            lines = stream.iter_lines()
            assert any('"content"' in line or '"reasoning"' in line for line in lines)
            send(signal.SIGSTOP, cores)
            assert plain_http.get(f"{engine.url}/health", timeout=5).status_code == 200
            last = [line for line in lines if line.startswith("data: ")][-1]
        assert json.loads(last[6:])["error"]["code"] == "upstream_timeout"
        assert where(gateway) == ("other", "1")  # passed over, not tried
    finally:
        send(signal.SIGCONT, cores)
    assert eventually(lambda: where(gateway) == ("engine", "1"), deadline_s=30)
    send(signal.SIGKILL, cores)  # the last use of this engine
    assert {where(gateway)[0] for _ in range(8)} == {"other"}


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
    pids = below(embedder.process.pid)
    assert len(pids) >= 3
    embedder.process.kill()
    assert eventually(lambda: not any(map(is_alive, pids)), deadline_s=60)

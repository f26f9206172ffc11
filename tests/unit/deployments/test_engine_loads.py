"""Each worker knows its engines' load, no engine makes it wait for another, and old figures are
not used.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from gateway.domain.deployments.engine_load import EngineLoad
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.services.deployments.engine_load import (
    BUSY_EVERY_S,
    FORGET_S,
    FRESH_S,
    IDLE_EVERY_S,
    STILL_S,
    EngineLoads,
)
from tests import factories
from tests.fakes import FakeClock
from tests.waiting import soon

HEADER = 'JSON {"named_metrics": {"num_requests_waiting": 7.0, "kv_cache_usage_perc": 0.5}}'


def page(
    *, running: int = 0, waiting: int = 0, tokens: int = 0, finished: int = 0, kv_use: float = 0.0
) -> str:
    """Return the page of an engine that has generated that much; each request was read in 0.2 s."""
    return (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        f"vllm:kv_cache_usage_perc {kv_use}\nvllm:generation_tokens_total {tokens}\n"
        f"vllm:request_success_total {finished}\nvllm:request_prefill_time_seconds_count "
        f"{finished}\n"
        f"vllm:request_prefill_time_seconds_sum {finished * 0.2}\n"
    )


def policy_of(*names: str, **changes: object) -> PolicyVersion:
    own = [factories.deployment(name, is_self_hosted=True, **changes) for name in names]
    return factories.version(factories.policy(factories.deployment("gpt"), *own))


@dataclass
class World:
    """Engines with the test's answers, and the worker that looks at them."""

    policy: PolicyVersion | None = field(default_factory=lambda: policy_of("qwen"))
    clock: FakeClock = field(default_factory=FakeClock)
    pages: dict[str, str | None] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    hangs: dict[str, threading.Event] = field(default_factory=dict)
    breaks: bool = False
    answers: dict[str, str | None] | None = None  # by path, instead of `pages`

    def __post_init__(self) -> None:
        self.loads = EngineLoads(policy=lambda: self.policy, page=self._page, clock=self.clock)

    def _page(self, deployment: Deployment, path: str) -> str | None:
        self.asked.append((deployment.name, path))
        if deployment.name in self.hangs:
            assert self.hangs[deployment.name].wait(60)
        if self.breaks:
            raise RuntimeError("a defect")
        if self.answers is not None:
            return self.answers[path]
        return self.pages.get(deployment.name, "")

    async def look(
        self, page_text: str | None = None, *, after_s: float = BUSY_EVERY_S, name: str = "qwen"
    ) -> None:
        """Let time pass and the engine answer."""
        self.clock.advance(after_s)
        self.pages[name] = page_text
        self.loads.start_due_samples()
        await self.loads.wait_for_samples()


async def test_a_reported_load_expires() -> None:
    """An old queue orders today's requests by yesterday's traffic: after five seconds the load
    is unknown.
    """
    world = World()
    assert world.loads.of("qwen") is None
    await world.look(page(running=2, waiting=1, kv_use=0.25))
    assert world.loads.of("qwen") == EngineLoad(running=2, waiting=1, kv_use=0.25, room=2)
    world.clock.advance(FRESH_S)
    assert world.loads.of("qwen") is not None
    world.clock.advance(0.01)
    assert world.loads.of("qwen") is None
    assert world.loads.of("gpt") is None


async def test_rates_are_over_the_last_seconds() -> None:
    """Within one second little ends; over all time an engine that was slow this morning would be
    slow for ever.
    """
    world = World()
    world.loads.start_due_samples()
    for second in range(30):
        world.loads.began("qwen")
        await world.look(page(finished=2 * second))
    found = world.loads.of("qwen")
    assert found is not None
    assert found.finished_per_s == pytest.approx(2)
    assert found.prefill_s == pytest.approx(0.2)
    for _ in range(12):
        world.loads.began("qwen")
        await world.look(page(finished=58))
    found = world.loads.of("qwen")
    assert found is not None
    assert (found.finished_per_s, found.prefill_s) == (None, None)


async def test_a_restart_is_no_rate() -> None:
    """The counters of the new process are another's: from its second look on they count again."""
    world = World()
    await world.look(page(finished=1000), after_s=IDLE_EVERY_S)
    await world.look(page(finished=1), after_s=IDLE_EVERY_S)
    world.loads.began("qwen")
    await world.look(page(finished=3), after_s=1)
    found = world.loads.of("qwen")
    assert found is not None
    assert found.finished_per_s == pytest.approx(2)


async def test_its_room_is_known_from_when_some_waited() -> None:
    """Without a queue a page does not show whether there is room; with little work few requests
    finish.
    """
    world = World()
    await world.look(page(running=1, finished=0), after_s=IDLE_EVERY_S)
    world.loads.began("qwen")
    await world.look(page(running=4, waiting=2, finished=0))
    await world.look(page(running=4, waiting=2, finished=8))
    full = world.loads.of("qwen")
    assert full is not None
    assert (full.room, full.finished_per_s) == (4, pytest.approx(4))
    for second in range(12):
        world.loads.began("qwen")
        await world.look(page(running=1, finished=9 + second))
    idle = world.loads.of("qwen")
    assert idle is not None
    assert (idle.room, idle.finished_per_s) == (4, full.finished_per_s)
    await world.look(page(running=1, finished=0))
    again = world.loads.of("qwen")
    assert again is not None
    assert (again.room, again.finished_per_s) == (None, None), (
        "another process may have another room"
    )


async def test_an_engine_is_asked_often_only_while_it_is_used() -> None:
    """Its page costs it work: ten workers that ask each second would load an engine that none of
    them uses.
    """
    world = World()
    for _ in range(20):
        await world.look(page())
    assert len(world.asked) == 2
    world.loads.began("qwen")
    for _ in range(60):
        await world.look(page())
    assert len(world.asked) == 62
    for _ in range(20):
        await world.look(page())
    assert len(world.asked) == 64


async def test_requests_sent_since_the_sample_are_counted() -> None:
    """A page of a second ago does not know of the fifty requests that this worker has sent
    since.
    """
    world = World()
    await world.look(page(), after_s=IDLE_EVERY_S)
    for _ in range(3):
        world.loads.began("qwen")
    world.loads.began("gpt")
    found = world.loads.of("qwen")
    assert found is not None
    assert found.sent_since == 3
    await world.look(page())
    found = world.loads.of("qwen")
    assert found is not None
    assert found.sent_since == 0


async def test_requests_sent_during_a_sample_are_counted() -> None:
    """Counted twice is a longer wait by one; not counted at all is a stampede."""
    world = World(hangs={"qwen": threading.Event()})
    world.pages["qwen"] = page()
    world.loads.start_due_samples()
    world.loads.began("qwen")
    world.hangs["qwen"].set()
    await world.loads.wait_for_samples()
    found = world.loads.of("qwen")
    assert found is not None
    assert found.sent_since == 1


async def test_an_engine_that_hangs_delays_no_other_and_is_asked_once() -> None:
    """The hanging one is the reason to look: the others must be known just then, and threads are
    not for ever.
    """
    released = threading.Event()
    names = [f"qwen-{number}" for number in range(8)]
    world = World(policy=policy_of(*names, "llama"), hangs=dict.fromkeys(names, released))
    world.pages["llama"] = page(running=1)
    try:
        for _ in range(3):
            world.clock.advance(IDLE_EVERY_S)
            world.loads.start_due_samples()
            await soon(lambda: world.loads.of("llama") is not None, "the other engine's load")
        assert [name for name, _ in world.asked].count("qwen-3") == 1
        assert world.loads.of("qwen-3") is None
    finally:
        released.set()
        await world.loads.wait_for_samples()


async def test_a_defect_in_a_look_ends_no_other_look() -> None:
    """A background loop that ends is noticed weeks later."""
    world = World(breaks=True)
    await world.look(page())
    assert world.loads.of("qwen") is None
    world.breaks = False
    await world.look(page(running=1), after_s=IDLE_EVERY_S)
    assert world.loads.of("qwen") is not None


async def test_an_engine_with_its_page_elsewhere_is_found() -> None:
    """TensorRT-LLM has another kind of page at /metrics; one that has answered once is not looked
    for again.
    """
    world = World()
    await world.look('[{"iter": 1}]', after_s=IDLE_EVERY_S)
    await world.look("trtllm_num_requests_running 3\n", after_s=IDLE_EVERY_S)
    await world.look("garbled", after_s=IDLE_EVERY_S)
    await world.look("trtllm_num_requests_running 4\n", after_s=IDLE_EVERY_S)
    assert [path for _, path in world.asked] == ["/metrics", *["/prometheus/metrics"] * 3]
    assert world.loads.of("qwen") == EngineLoad(running=4)


async def test_the_pages_of_one_engine_are_one_report() -> None:
    """llama.cpp states its room, so the first burst does not have to find it; its queue is on
    another page.
    """
    world = World(policy=policy_of("qwen", provider="llamacpp"))
    slots = '[{"is_processing":true},{"is_processing":false}]'
    pages = {"/metrics": "llamacpp:requests_deferred 1\n", "/slots": slots}
    world.answers = pages
    await world.look(after_s=IDLE_EVERY_S)
    assert [path for _, path in world.asked] == ["/metrics", "/slots"]
    assert world.loads.of("qwen") == EngineLoad(running=1, waiting=1, room=2)
    pages["/metrics"] = ""  # started without `--metrics`
    await world.look(after_s=IDLE_EVERY_S)
    assert world.loads.of("qwen") == EngineLoad(running=1, room=2)
    pages["/metrics"] = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 9\n"
    await world.look(after_s=IDLE_EVERY_S)
    found = world.loads.of("qwen")
    assert found is not None
    assert found.room == 2, "what the engine states is not observed again"
    pages["/slots"] = None
    await world.look(after_s=IDLE_EVERY_S)
    assert world.loads.of("qwen") == EngineLoad(running=2, waiting=9, room=2)


async def test_a_silent_engine_is_asked_for_one_page_only() -> None:
    """Its second page would hold the thread for another two seconds."""
    world = World(policy=policy_of("qwen", provider="llamacpp"))
    await world.look(None, after_s=IDLE_EVERY_S)
    assert [path for _, path in world.asked] == ["/metrics"]
    assert world.loads.looks_alive("qwen") is False


async def test_the_policy_decides_the_sampled_engines() -> None:
    """Another engine behind the same name has none of the first one's past; a removed one is asked
    no more.
    """
    world = World()
    await world.look(page(running=5))
    world.policy = policy_of("qwen", base_url="http://127.0.0.1:8/v1")
    world.pages.clear()
    world.loads.start_due_samples()
    assert world.loads.of("qwen") is None
    await world.loads.wait_for_samples()
    world.policy = factories.version(factories.policy(factories.deployment("gpt")))
    world.loads.start_due_samples()
    asked = len(world.asked)
    world.policy = None
    world.clock.advance(IDLE_EVERY_S)
    world.loads.start_due_samples()
    assert len(world.asked) == asked
    assert world.loads.looks_alive("qwen") is None


async def test_a_header_updates_the_queue_between_two_samples() -> None:
    """It comes with an answer, at no cost; earlier requests are included in it."""
    world = World()
    world.loads.note_header("gpt", HEADER)
    await world.look(page(running=2, waiting=1, finished=4), after_s=IDLE_EVERY_S)
    world.loads.began("qwen")
    world.clock.advance(0.5)
    world.loads.note_header("qwen", HEADER)
    world.loads.note_header("qwen", "JSON {")
    world.loads.began("qwen")
    assert world.loads.of("qwen") == EngineLoad(
        running=2, waiting=7, kv_use=0.5, sent_since=1, room=2
    )
    await world.look(page(running=2, waiting=3))
    found = world.loads.of("qwen")
    assert found is not None
    assert (found.waiting, found.kv_use, found.sent_since) == (3, 0.0, 0)


async def test_a_header_alone_is_a_load_too() -> None:
    """Of an engine whose page is silent it is all there is, and it ages as a page does."""
    world = World()
    await world.look(None)
    world.loads.note_header("qwen", HEADER)
    assert world.loads.of("qwen") == EngineLoad(waiting=7, kv_use=0.5)
    world.loads.note_header("qwen", "TEXT named_metrics.num_requests_waiting=2")
    assert world.loads.of("qwen") == EngineLoad(waiting=2)
    world.clock.advance(FRESH_S + 0.01)
    assert world.loads.of("qwen") is None


async def test_an_engine_that_makes_tokens_is_alive() -> None:
    """And so is one that has nothing to do."""
    world = World()
    assert world.loads.looks_alive("qwen") is None
    await world.look(page(running=1, tokens=5))
    assert world.loads.looks_alive("qwen") is None
    await world.look(page(running=1, tokens=9), after_s=IDLE_EVERY_S)
    assert world.loads.looks_alive("qwen") is True
    for _ in range(10):
        await world.look(page(tokens=9), after_s=IDLE_EVERY_S)
    assert world.loads.looks_alive("qwen") is True
    world.clock.advance(FORGET_S + 0.01)
    assert world.loads.looks_alive("qwen") is None


async def test_an_engine_with_still_counters_under_load_is_hung() -> None:
    """A hung core leaves its web server answering: 200 at /health, the same figures for ever."""
    world = World()
    await world.look(page(tokens=5))
    world.loads.began("qwen")
    await world.look(page(running=1, tokens=9), after_s=IDLE_EVERY_S)
    seen = []
    for _ in range(6):
        await world.look(page(running=1, tokens=9))
        seen.append(world.loads.looks_alive("qwen"))
    assert seen == [None] * int(STILL_S - 1) + [False] * 3
    await world.look(page(running=1, tokens=10))
    assert world.loads.looks_alive("qwen") is True


async def test_a_long_prompt_is_no_hang() -> None:
    """Its blocks fill while no token counts: an engine that reads 100,000 tokens would be ejected
    for it.
    """
    world = World()
    world.loads.start_due_samples()
    world.loads.began("qwen")
    for second in range(20):
        await world.look(page(running=1, kv_use=second / 100))
    assert world.loads.looks_alive("qwen") is True


async def test_a_page_without_the_sent_requests_stands_still() -> None:
    """An engine that hung while it was idle says for ever that nothing runs."""
    world = World()
    for _ in range(3):
        await world.look(page(tokens=9), after_s=IDLE_EVERY_S)
    world.loads.began("qwen")
    assert world.loads.looks_alive("qwen") is None
    seen = []
    for _ in range(3):
        await world.look(page(tokens=9))
        seen.append(world.loads.looks_alive("qwen"))
    assert seen == [None, False, False]


async def test_an_engine_that_does_not_answer_is_not_alive() -> None:
    """A stopped process is silent; an engine without any page gives no evidence."""
    world = World()
    await world.look(None)
    assert world.loads.looks_alive("qwen") is False
    await world.look("", after_s=IDLE_EVERY_S)
    assert world.loads.looks_alive("qwen") is None
    await world.look("trtllm_num_requests_running 3\n", after_s=IDLE_EVERY_S)
    await world.look("trtllm_num_requests_running 3\n", after_s=IDLE_EVERY_S)
    assert world.loads.looks_alive("qwen") is None


async def test_looking_goes_on_until_it_is_cancelled() -> None:
    """It is one of the worker's jobs, and leaves no task behind."""
    world = World()
    world.pages["qwen"] = page(running=1)
    job = asyncio.create_task(world.loads.run())
    await soon(lambda: world.loads.of("qwen") is not None, "a look")
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_a_changed_provider_and_key_are_used_for_the_next_look() -> None:
    """The engine of the former provider has other pages, and the former key is refused: an engine
    that answers 401 looked silent until the gateway was started again.
    """
    seen: list[tuple[str, str | None, str]] = []
    world = World(policy=policy_of("qwen", provider="vllm", api_key="env:OLD"))

    def note(deployment: Deployment, path: str) -> str:
        seen.append((deployment.provider, deployment.api_key, path))
        return page()

    world.loads = EngineLoads(policy=lambda: world.policy, page=note, clock=world.clock)
    await world.look()
    world.policy = policy_of("qwen", provider="vllm", api_key="env:NEW")
    await world.look(after_s=IDLE_EVERY_S)
    world.policy = policy_of("qwen", provider="llamacpp", api_key="env:NEW")
    await world.look(after_s=IDLE_EVERY_S)
    assert [(provider, key) for provider, key, _ in seen[:3]] == [
        ("vllm", "env:OLD"),
        ("vllm", "env:NEW"),
        ("llamacpp", "env:NEW"),
    ]

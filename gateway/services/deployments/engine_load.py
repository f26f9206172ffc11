"""Samples each self-hosted engine's load for ranking and its live signals for metrics, every second
while this worker uses it and every 10 s when idle, and keeps them in memory only.

A queue fills within a second, so a busy engine is sampled often. Each worker samples for itself, so
no request waits for shared data. `engine_watch` takes the samples that are stored for accounting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog
from msgspec.structs import replace

from gateway.domain.deployments.engine_load import (
    EngineLoad,
    EngineMetrics,
    is_moving,
    load_between,
    was_restarted,
)
from gateway.domain.deployments.engine_pages import pages_of
from gateway.domain.deployments.engine_signals import (
    EngineReport,
    EngineSignals,
    report_on,
    signals_between,
)
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.services.ports import Clock
from gateway.wire.vllm_load import LoadHeader, read_load

log = structlog.get_logger()

TURN_S = 0.2  # seconds between two checks for due engines
BUSY_EVERY_S = 1.0
IDLE_EVERY_S = 10.0
BUSY_FOR_S = 60.0  # seconds after this worker's last request there
FRESH_S = 5.0  # seconds; an older load is no longer current
WINDOW_S = 10.0  # seconds for rates and means; little ends within one second
STILL_S = 4.0  # seconds; during a long prompt no figure may move
MOST_LOOKS = 16  # those of one window, and a few more
MOST_REPORTS = 8  # those of a minute, and one more
SIGNALS_WINDOW_S = 60.0  # seconds for quantiles: some requests of a quiet engine end within it
FORGET_S = 2 * IDLE_EVERY_S + 5  # seconds; an older look is no evidence that the engine is alive
# Threads, started when needed; a hung engine blocks one of them for a few seconds.
MOST_AT_ONCE = 32


class _Engine:
    """One engine's last samples and load, as this worker knows them. Only the event loop changes
    it.
    """

    def __init__(self, deployment: Deployment) -> None:
        """Start without any sample of this deployment's engine."""
        self.deployment = deployment
        self.pages = pages_of(deployment.provider)
        self.is_asked = False
        self.asked_s = float("-inf")
        self.group = 0
        self.sent = 0
        self.sent_s = float("-inf")
        self._looks: deque[tuple[float, EngineMetrics]] = deque(maxlen=MOST_LOOKS)
        self._answered: bool | None = None
        self._looked_s = self._moved_s = float("-inf")
        self._seen: EngineLoad | None = None
        self._seen_s = float("-inf")
        self._sent_then = 0
        self._room: float | None = None
        self._full_per_s: float | None = None
        self._noted: LoadHeader | None = None
        self._noted_s = float("-inf")
        self._sent_when_noted = 0
        # Reports of the last minute, one every ten seconds, and the newest one.
        self._reports: deque[tuple[float, EngineReport]] = deque(maxlen=MOST_REPORTS)
        self._report = EngineReport()

    def is_due(self, now_s: float) -> bool:
        """Return True if the engine's next sample is due: after 1 s while this worker uses it,
        after 10 s if idle.
        """
        every_s = BUSY_EVERY_S if now_s - self.sent_s <= BUSY_FOR_S else IDLE_EVERY_S
        return not self.is_asked and now_s - self.asked_s >= every_s

    def note_look(self, report: EngineReport | None, *, at_s: float, sent_then: int) -> None:
        """Record a sample of the engine that began at `at_s` and has ended; `report` is None
        without an answer.
        """
        self._answered, self._looked_s = report is not None, at_s
        if report is None:
            return
        self._report, figures = report, report.metrics
        if figures == EngineMetrics():
            # Not reachable, or not yet: an engine that loads its model has no figures.
            if not self._looks:
                self.group = (self.group + 1) % len(self.pages)
            return
        if not self._looks or is_moving(self._looks[-1][1], figures):
            self._moved_s = at_s
        if self._looks and was_restarted(self._looks[-1][1], figures):
            self._looks.clear()
            self._reports.clear()
            self._room = self._full_per_s = None
        since_s, before = self._window_start(at_s)
        self._seen = self._with_room(load_between(before, figures, seconds=at_s - since_s))
        self._seen_s, self._sent_then = at_s, sent_then
        self._looks.append((at_s, figures))
        if not self._reports or at_s - self._reports[-1][0] >= IDLE_EVERY_S:
            self._reports.append((at_s, report))

    def signals(self, now_s: float) -> EngineSignals | None:
        """Return the engine's signals of its newest sample, rates and quantiles over the last
        minute; None if it was silent then or was not sampled for long.
        """
        if not self.is_up(now_s):
            return None
        reports = list(self._reports)  # a copy: another thread may read them
        within = [one for at_s, one in reports if now_s - at_s <= SIGNALS_WINDOW_S]
        return signals_between(within[0] if within else self._report, self._report, room=self._room)

    def is_up(self, now_s: float) -> bool | None:
        """Return True if the engine's page answered the newest sample; None if that is too old."""
        return self._answered if now_s - self._looked_s <= FORGET_S else None

    def _with_room(self, load: EngineLoad) -> EngineLoad:
        """Return the load with its free room, and the completion rate measured while the room was
        used.

        An engine with few requests completes few, so its rate then means little. A room that the
        engine states is not observed again.
        """
        if load.room is not None:
            self._room = load.room
        if load.waiting and load.running:
            if load.room is None:
                self._room = max(load.running, self._room or 0.0)
            self._full_per_s = load.finished_per_s or self._full_per_s
            return replace(load, room=self._room)
        rates = [rate for rate in (load.finished_per_s, self._full_per_s) if rate is not None]
        return replace(load, room=self._room, finished_per_s=max(rates, default=None))

    def note_header(self, noted: LoadHeader, now_s: float) -> None:
        """Record the load that the engine reported in an answer's header; it counts until the next
        sample.
        """
        self._noted, self._noted_s, self._sent_when_noted = noted, now_s, self.sent

    def load(self, now_s: float) -> EngineLoad | None:
        """Return the engine's load from its newest sample or load header, None if both are too
        old.
        """
        seen = self._seen if now_s - self._seen_s <= FRESH_S else None
        noted = (
            self._noted
            if self._noted_s > self._seen_s and now_s - self._noted_s <= FRESH_S
            else None
        )
        if noted is None:
            if seen is None:
                return None
            return replace(seen, sent_since=self.sent - self._sent_then, age_s=now_s - self._seen_s)
        load = seen or EngineLoad()
        return replace(
            load,
            waiting=load.waiting if noted.waiting is None else noted.waiting,
            kv_use=load.kv_use if noted.kv_use is None else noted.kv_use,
            sent_since=self.sent - self._sent_when_noted,
            age_s=now_s - self._noted_s,
        )

    def looks_alive(self, now_s: float) -> bool | None:
        """Return False if the engine is silent or its counters stand still with work to do; None if
        unknown.
        """
        is_up = self.is_up(now_s)
        if not is_up:
            return is_up
        if len(self._looks) < 2 or self._looks[-1][1].progress is None:
            return None
        last_s, last = self._looks[-1]
        if self._moved_s == last_s:
            return True
        # A page that does not show requests sent two looks ago also counts as still.
        is_owed = self._moved_s < self.sent_s
        if not last.is_busy and not is_owed:
            return True
        is_late = last.is_busy or self.sent_s < self._looks[-2][0]
        return False if is_late and last_s - self._moved_s >= STILL_S else None

    def _window_start(self, at_s: float) -> tuple[float, EngineMetrics | None]:
        """Return the oldest sample of the measuring window, else the last sample."""
        within = ((look_s, figures) for look_s, figures in self._looks if at_s - look_s <= WINDOW_S)
        return next(within, self._looks[-1] if self._looks else (at_s, None))


class EngineLoads:
    """Samples the engines of the current policy and returns their load.

    `page` fetches a metrics page's text by deployment and path. It returns None if nothing
    answered, and raises nothing. Each engine has one look at a time, each in a thread, so a hung
    engine delays no other.
    """

    def __init__(
        self,
        *,
        policy: Callable[[], PolicyVersion | None],
        page: Callable[[Deployment, str], str | None],
        clock: Clock,
    ) -> None:
        """Start without engines; `run` samples those of the policy."""
        self._policy, self._page, self._clock = policy, page, clock
        self._engines: dict[str, _Engine] = {}
        self._looks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="engine-load")

    def of(self, deployment: str) -> EngineLoad | None:
        """Return the current load of a deployment's engine; None if it is not self-hosted or was
        silent for five seconds.
        """
        engine = self._engines.get(deployment)
        return None if engine is None else engine.load(self._clock.monotonic())

    def began(self, deployment: str) -> None:
        """Count an attempt that is sent to the deployment, since the engine's sample does not show
        it yet.
        """
        engine = self._engines.get(deployment)
        if engine is not None:
            engine.sent += 1
            engine.sent_s = self._clock.monotonic()

    def note_header(self, deployment: str, value: str) -> None:
        """Record the load in an answer's `endpoint-load-metrics` header."""
        engine = self._engines.get(deployment)
        if engine is not None and (noted := read_load(value)) is not None:
            engine.note_header(noted, self._clock.monotonic())

    def looks_alive(self, deployment: str) -> bool | None:
        """Return False for an engine with a silent metrics page, or with work and counters that
        stand still for seconds.

        Return None if unknown. Work includes the requests on the page and those sent since its last
        change.
        """
        engine = self._engines.get(deployment)
        return None if engine is None else engine.looks_alive(self._clock.monotonic())

    def signals(self) -> Mapping[str, EngineSignals | None]:
        """Return the live signals of each engine that was sampled lately; None for one whose page
        was silent. May be called from another thread.
        """
        now_s, engines = self._clock.monotonic(), list(self._engines.items())
        return {
            name: engine.signals(now_s)
            for name, engine in engines
            if engine.is_up(now_s) is not None
        }

    async def run(self) -> None:
        """Sample the engines whenever they are due, until cancelled."""
        while True:
            self.start_due_samples()
            await asyncio.sleep(TURN_S)

    async def close(self) -> None:
        """Cancel the samples under way and stop the threads; `run` has ended."""
        for look in self._looks:
            look.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def start_due_samples(self) -> None:
        """Start a sample of every engine that is due, each in a task of its own."""
        policy = self._policy()
        if policy is None:
            return
        own = {name: one for name, one in policy.policy.deployments.items() if one.is_self_hosted}
        for name in self._engines.keys() - own.keys():
            del self._engines[name]
        now_s = self._clock.monotonic()
        for name, deployment in own.items():
            engine = self._engines.get(name)
            if engine is None or not _is_same(engine.deployment, deployment):
                engine = self._engines[name] = _Engine(deployment)
            engine.deployment = deployment  # its key may have changed
            if engine.is_due(now_s):
                engine.is_asked, engine.asked_s = True, now_s
                look = asyncio.create_task(self._sample(engine, engine.sent))
                self._looks.add(look)
                look.add_done_callback(self._looks.discard)

    async def wait_for_samples(self) -> None:
        """Wait until the samples under way have ended."""
        await asyncio.gather(*self._looks)

    async def _sample(self, engine: _Engine, sent_then: int) -> None:
        """Read one engine's load in a thread and record it."""
        try:
            report = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._report, engine
            )
            engine.note_look(report, at_s=engine.asked_s, sent_then=sent_then)
        except Exception:  # the task's boundary; the next turn retries
            log.exception("engine_load_not_read", deployment=engine.deployment.name)
        finally:
            engine.is_asked = False

    def _report(self, engine: _Engine) -> EngineReport | None:
        """Fetch and parse one engine's pages, in a thread: parsing takes under 1 ms but still
        longer than a request's work. None if the first page is silent.
        """
        deployment = engine.deployment
        pages = engine.pages[engine.group]
        return report_on(pages, deployment.model, partial(self._page, deployment))


def _is_same(known: Deployment, now: Deployment) -> bool:
    """Return True if both deployments name the same engine. Another engine behind the name starts
    without history.
    """
    return known is now or _place(known) == _place(now)


def _place(deployment: Deployment) -> tuple[str, str, str]:
    """Return the members that name an engine; its provider tells where its pages are."""
    return deployment.base_url, deployment.model, deployment.provider

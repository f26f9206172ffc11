"""Runs load in an open loop (arrivals drawn beforehand) or a closed one (N streams)."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from engine.errors import UsageError
from engine.load.client import LoadClient
from engine.load.measured import LoadRun, MeasuredRequest
from engine.load.prompts import PromptWriter
from engine.load.workload import Workload, arrival_times

Body = Mapping[str, Any]
OnDone = Callable[[MeasuredRequest], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The loop and the length of one run: `rate_per_s` or `concurrency`, `requests` or
    `seconds`.
    """

    rate_per_s: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    seconds: float | None = None
    warmup: int = 0
    """Requests before the run, in a closed loop; they are not measured."""

    def __post_init__(self) -> None:
        """Check that one loop and one length is given. Raises `UsageError`."""
        if (self.rate_per_s is None) == (self.concurrency is None):
            raise UsageError("Give one of --rate (open loop) and --concurrency (closed loop).")
        if self.requests is None and self.seconds is None:
            raise UsageError("Give one of --requests and --seconds.")


def run_load(
    client: LoadClient,
    settings: LoadSettings,
    workload: Workload,
    writer: PromptWriter,
    *,
    begin: int = 0,
    on_done: OnDone = lambda _: None,
) -> LoadRun:
    """Run the warm-up and then the load; return the measured requests.

    `begin` is the number of the first request: a later run of the same workload goes on there, so
    that it repeats no prompt.
    """
    bodies = (writer.body(request) for request in islice(workload.requests(), begin, None))
    seed = workload.seed + begin
    return asyncio.run(_run(client, settings, bodies, seed=seed, on_done=on_done))


async def _run(
    client: LoadClient,
    settings: LoadSettings,
    bodies: Iterator[Body],
    *,
    seed: int,
    on_done: OnDone,
) -> LoadRun:
    """Run warm-up and load in one event loop."""
    streams = settings.concurrency or settings.warmup
    if settings.requests is not None:  # a stream without a request would only cost memory
        streams = min(streams, max(settings.requests, settings.warmup))
    try:
        if settings.warmup:
            before = islice(bodies, settings.warmup)
            await closed_loop(client, before, streams=min(streams, settings.warmup))
        counted = islice(bodies, settings.requests)
        gc.collect()  # a collection during the run would delay all its streams
        if settings.rate_per_s is not None:
            times = arrival_times(settings.rate_per_s, seed)
            if (end_s := settings.seconds) is not None:
                times = takewhile(lambda moment_s: moment_s < end_s, times)
            return await open_loop(client, zip(times, counted, strict=False), on_done=on_done)
        return await closed_loop(
            client, counted, streams=streams, seconds=settings.seconds, on_done=on_done
        )
    finally:
        client.close()


@dataclass(slots=True, kw_only=True)
class _Recorder:
    """The measurements of a run, and its begin by the client's clock."""

    began: float
    on_done: OnDone
    done: list[MeasuredRequest] = field(default_factory=list)

    async def take(self, measuring: Awaitable[MeasuredRequest]) -> None:
        """Wait for one request and record it."""
        measured = await measuring
        self.done.append(measured)
        self.on_done(measured)

    def run(self) -> LoadRun:
        """Return the run."""
        ended_s = max((one.ended_s for one in self.done), default=0.0)
        return LoadRun(requests=tuple(self.done), began=self.began, duration_s=ended_s)


async def closed_loop(
    client: LoadClient,
    bodies: Iterable[Body],
    *,
    streams: int,
    seconds: float | None = None,
    on_done: OnDone = lambda _: None,
) -> LoadRun:
    """Send requests on N streams; each begins its next request at the end of its last one.

    After `seconds` no request begins; those that run are waited for.
    """
    recorder = _Recorder(began=client.clock(), on_done=on_done)
    shared = iter(bodies)

    async def stream() -> None:
        """Send the requests of one stream."""
        for body in shared:
            await recorder.take(client.measure(body, began=recorder.began, scheduled_s=None))
            if seconds is not None and client.clock() - recorder.began >= seconds:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return recorder.run()


async def open_loop(
    client: LoadClient,
    arrivals: Iterable[tuple[float, Body]],
    *,
    on_done: OnDone = lambda _: None,
) -> LoadRun:
    """Send each request at its moment, in seconds from now, whatever the server does meanwhile."""
    recorder = _Recorder(began=client.clock(), on_done=on_done)
    async with asyncio.TaskGroup() as group:
        for moment_s, body in arrivals:
            await asyncio.sleep(max(0.0, recorder.began + moment_s - client.clock()))
            group.create_task(
                recorder.take(client.measure(body, began=recorder.began, scheduled_s=moment_s))
            )
    return recorder.run()

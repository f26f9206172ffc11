"""Starts engines of several profiles and runs load on them in turns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.levers.seen import Seen
from engine.bench.engines import engine_of
from engine.bench.ratios import Ratio, ratios
from engine.load.prompts import PromptWriter, prompt_writer
from engine.progress import StageProgress

Profiles = Mapping[str, str]
"""The YAML of each profile by its name."""
RunRound = Callable[[str, PromptWriter, int], Seen]
"""Runs one round on an engine: its address, the writer of its prompts, the round's number."""


@contextmanager
def engines_of(profiles: Profiles, models: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Serve all profiles for the block; yield their addresses by name."""
    progress = StageProgress(stage="levers", format="text", out=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        urls = {}
        for name, text in profiles.items():
            path = Path(folder) / f"{name}.yaml"
            path.write_text(text, encoding="utf-8")
            engine = engine_of(str(path), model=models[name], progress=progress)
            urls[name] = stack.enter_context(engine)
        yield urls


def in_turns(
    profiles: Profiles,
    models: Mapping[str, str],
    cases: Mapping[str, RunRound],
    *,
    rounds: int,
) -> dict[tuple[str, str], list[Seen]]:
    """Run rounds of each case on all engines, and return them by profile and case.

    Every other round begins with the last engine. Round 0 warms up and is left out.
    """
    with engines_of(profiles, models) as urls:
        return take_turns(urls, cases, rounds=rounds)


def take_turns(
    urls: Mapping[str, str], cases: Mapping[str, RunRound], *, rounds: int
) -> dict[tuple[str, str], list[Seen]]:
    """Run rounds of each case on engines that are up, as `in_turns` does."""
    writers = {name: prompt_writer(url, model=None, key=None, seed=0) for name, url in urls.items()}
    seen: dict[tuple[str, str], list[Seen]] = {(name, case): [] for name in urls for case in cases}
    for number in range(rounds + 1):
        for case, run_round in cases.items():
            for name in urls if number % 2 else reversed(list(urls)):
                one = run_round(urls[name], writers[name], number)
                if number:
                    seen[name, case].append(one)
    return seen


def gain(first: Sequence[Seen], second: Sequence[Seen], metric: str) -> Ratio:
    """Return second / first of a metric with its interval."""
    found = ratios([one.run for one in first], [one.run for one in second])
    return next(one for one in found if one.metric == metric)


def with_interval(ratio: Ratio) -> str:
    """Return a ratio with its interval for a table."""
    assert ratio.ratio is not None
    if ratio.low is None or ratio.high is None:
        return f"×{ratio.ratio:.2f}"
    return f"×{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"

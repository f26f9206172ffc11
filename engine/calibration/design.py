"""Draws the load of a calibration: the windows that the weights are fitted to, and the held-out
ones that check them.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product

from engine.errors import UsageError
from engine.load.workload import LoadRequest

PROMPT_PARTS = (0.25, 0.5, 1.0)
"""Three lengths of prompts, because two cannot show a bend."""
ANSWER_PARTS = (0.25, 1.0)
CACHED_SHARES = (0.0, 0.75)
CONCURRENCY_PARTS = (0.25, 1.0)
HELD_OUT_WINDOWS = 4
ALL_WINDOWS = HELD_OUT_WINDOWS + len(PROMPT_PARTS) * len(ANSWER_PARTS) * len(CACHED_SHARES) * len(
    CONCURRENCY_PARTS
)
LEAST_CONCURRENCY = 4
LEAST_PROMPT, LEAST_ANSWER = 64, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRange:
    """The longest prompt and answer, in tokens, and the highest concurrency of a calibration."""

    prompt: int
    answer: int
    concurrency: int

    def __post_init__(self) -> None:
        """Check that the parts of the range differ. Raises `UsageError`."""
        for name, value, least in (
            ("prompt", self.prompt, LEAST_PROMPT),
            ("answer", self.answer, LEAST_ANSWER),
            ("concurrency", self.concurrency, LEAST_CONCURRENCY),
        ):
            if value < least:
                raise UsageError(f"--{name} {value} is too small; it is at least {least}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWindow:
    """The requests of one window: `streams` of them run at once, from ranges of lengths.

    In a fitted window each range is one value.
    """

    streams: int
    prompts: tuple[int, int]
    answers: tuple[int, int]
    cached_shares: tuple[float, float]
    is_held_out: bool = False

    def requests(self, rng: random.Random, numbers: Iterator[int]) -> Iterator[LoadRequest]:
        """Yield requests without end. A number is used once, so that no two texts are alike."""
        for number in numbers:
            prompt = _between(rng, self.prompts)
            shared = rng.uniform(*self.cached_shares)
            yield LoadRequest(
                number=number,
                prompt_tokens=prompt,
                shared_tokens=round(prompt * shared),
                answer_tokens=_between(rng, self.answers),
            )

    @property
    def longest(self) -> LoadRequest:
        """Return the request with the longest prompt; it fills the prefix cache."""
        prompt = self.prompts[1]
        return LoadRequest(
            number=0,
            prompt_tokens=prompt,
            shared_tokens=round(prompt * self.cached_shares[1]),
            answer_tokens=1,
        )


def fitted_windows(load: LoadRange, rng: random.Random) -> list[PlannedWindow]:
    """Return all combinations of the lengths, cached shares and concurrencies, in random order: a
    drift of the machine's speed then looks like noise, not like one of them.
    """
    found = [
        PlannedWindow(
            streams=round(load.concurrency * streams),
            prompts=_one(load.prompt * prompt),
            answers=_one(load.answer * answer),
            cached_shares=(cached, cached),
        )
        for prompt, answer, cached, streams in product(
            PROMPT_PARTS, ANSWER_PARTS, CACHED_SHARES, CONCURRENCY_PARTS
        )
    ]
    rng.shuffle(found)
    return found


def held_out_windows(
    load: LoadRange, rng: random.Random, fitted: Sequence[PlannedWindow]
) -> list[PlannedWindow]:
    """Return windows of mixed lengths at concurrencies that no fitted window had, inside the
    fitted ranges.
    """
    used = {window.streams for window in fitted}
    free = [one for one in range(min(used), max(used)) if one not in used]
    return [
        PlannedWindow(
            streams=rng.choice(free),
            prompts=_part(rng, load.prompt, PROMPT_PARTS[0]),
            answers=_part(rng, load.answer, ANSWER_PARTS[0]),
            cached_shares=(0.0, rng.choice((0.0, CACHED_SHARES[1]))),
            is_held_out=True,
        )
        for _ in range(HELD_OUT_WINDOWS)
    ]


def request_numbers() -> Iterator[int]:
    """Yield the numbers of a calibration's requests; 0 is the one that fills the cache."""
    return count(1)


def _one(tokens: float) -> tuple[int, int]:
    """Return the range of one length."""
    return round(tokens), round(tokens)


def _part(rng: random.Random, longest: int, least_part: float) -> tuple[int, int]:
    """Return a range of lengths inside the fitted one, whose middle is drawn; even on a log
    scale.
    """
    ends = sorted(longest * least_part ** rng.uniform(0, 1) for _ in range(2))
    return math.ceil(ends[0]), max(math.ceil(ends[0]), math.floor(ends[1]))


def _between(rng: random.Random, ends: tuple[int, int]) -> int:
    """Return a length between two ends, even on a log scale."""
    low, high = ends
    drawn: float = low * (high / low) ** rng.uniform(0, 1)
    return min(high, max(low, round(drawn)))

"""Recorded usages of five dialects, as an outside project's extractors read them and as ours do.

The file holds 1,577 usages of recorded answers from `tests/dataset/usages.json` of
pydantic/genai-prices (MIT, Copyright (c) Pydantic Services Inc. 2025 to present; commit and date
stand in its first line), and the counts that its extractor for the dialect reads in each.
`CORPUS=FILE` reads another one of the same form.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway.domain.pricing.settlement import Evidence
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.anthropic import usage as anthropic
from gateway.wire.bedrock import usage as bedrock
from gateway.wire.gemini import usage as gemini
from gateway.wire.openai import usage as openai

HERE = Path(__file__).parent
FILE = Path(os.environ.get("CORPUS") or HERE / "recorded_usages.jsonl.gz")
LISTED: list[dict[str, Any]] = json.loads((HERE / "recorded_differences.json").read_text())
HELD = "held"
TOTALS = ("total_tokens", "totalTokens", "totalTokenCount")
_READERS: Mapping[str, Callable[[bytes], TokenUsage | None]] = {
    "chat": openai.usage_from_wire,
    "responses": openai.usage_from_wire,
    "anthropic": anthropic.usage_from_wire,
    "gemini": gemini.usage_from_gemini,
    "bedrock": lambda body: bedrock.usage_from_wire(json.loads(body)),
}
# Their names of the counts that decide a price here.
_COUNTS = {
    "input_tokens": "input_tokens",
    "cache_read_tokens": "cached_input_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "cache_write_1h_tokens": "cache_write_1h_tokens",
    "input_audio_tokens": "audio_input_tokens",
    "cache_audio_read_tokens": "cached_audio_input_tokens",
    "input_image_tokens": "image_input_tokens",
    "output_tokens": "output_tokens",
    "output_reasoning_tokens": "reasoning_tokens",
    "output_audio_tokens": "audio_output_tokens",
    "output_image_tokens": "image_output_tokens",
    "web_searches": "web_search_calls",
}


class Recorded(NamedTuple):
    """One usage: as recorded, and the counts that the extractor reads; `times` bodies have it."""

    dialect: str
    usage: dict[str, Any]
    theirs: dict[str, int]
    times: int

    @property
    def ours(self) -> TokenUsage | None:
        """The counts that the gateway reads."""
        return _READERS[self.dialect](json.dumps(self.usage).encode())

    @property
    def total(self) -> int | None:
        """The total that the provider states."""
        return next((self.usage[name] for name in TOTALS if name in self.usage), None)

    @property
    def booked(self) -> int | None:
        """The tokens that are booked; None if the attempt is held, for a person to look at."""
        ours = self.ours
        if ours is None or not Evidence(was_served=True).can_be(ours):
            return None
        return (ours.input_tokens or 0) + (ours.output_tokens or 0)

    @property
    def differences(self) -> dict[str, tuple[int, int]]:
        """The counts that differ: ours, then theirs. A contradiction is one of its own."""
        ours = self.ours
        assert ours is not None, "a body was not read"
        found = {
            name: (getattr(ours, count) or 0, self.theirs.get(name, 0))
            for name, count in _COUNTS.items()
        }
        if ours.unexplained_tokens:
            found[HELD] = (ours.unexplained_tokens, 0)
        return {name: pair for name, pair in found.items() if pair[0] != pair[1]}

    @property
    def shape(self) -> str:
        """The members of the usage, and which of them are 0."""
        return f"{self.dialect} {_shape(self.usage)}"


def recorded() -> Iterator[Recorded]:
    """Yield each distinct usage of the file."""
    with gzip.open(FILE, "rt") as lines:
        next(lines)
        for line in lines:
            yield Recorded(*json.loads(line))


def found_differences() -> Counter[tuple[str, str]]:
    """Return the number of distinct usages that differ, by dialect and count."""
    return Counter((one.dialect, name) for one in recorded() for name in one.differences)


def table() -> str:
    """Return the result as docs/provider-facts.md shows it."""
    rows = ["| dialect | bodies | distinct | read | as the extractor | differing | held |"]
    rows.append("| --- | --: | --: | --: | --: | --: | --: |")
    everything = list(recorded())
    for dialect in sorted(_READERS):
        own = [one for one in everything if one.dialect == dialect]
        differing = sum(bool(one.differences) for one in own)
        counts = (
            sum(one.times for one in own),
            len(own),
            sum(one.ours is not None for one in own),
            len(own) - differing,
            differing,
            sum(one.booked is None for one in own),
        )
        rows.append(f"| {dialect} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(rows)


def _shape(value: Any) -> Any:
    """Return a value without its figures."""
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in sorted(value.items())}
    if isinstance(value, list):
        return sorted({str(_shape(inner)) for inner in value})
    return bool(value)


if __name__ == "__main__":
    print(table())

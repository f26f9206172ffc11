"""Mutants of the meter: a reader that drops any one usage member fails the golden suite.

A member is dropped from the upstream's bytes, which is the same as a reader that passes over its
name. A member that may be dropped is listed with its reason.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest

from gateway.wire.anthropic import usage as anthropic
from gateway.wire.bedrock import usage as bedrock
from gateway.wire.gemini import usage as gemini
from gateway.wire.ollama import answer as ollama
from gateway.wire.openai import usage as openai
from gateway.wire.openai import usage_detail
from gateway.wire.triton import answer as triton
from tests.event_messages import framed
from tests.unit.test_golden import (
    CASES,
    GOLDEN,
    answered,
    expected_of,
    metered,
    upstream_file,
)

Path = tuple[str, ...]
HOLDERS = frozenset({"usage", "usageMetadata", "timings"})
# Members outside a usage that decide a price or a count.
FLAT = frozenset(
    {
        "x_groq",
        "service_tier",
        "serviceTier",
        "prompt_eval_count",
        "eval_count",
        "total_duration",
        "load_duration",
        "prompt_eval_duration",
        "eval_duration",
        "num_input_tokens",
        "num_output_tokens",
        "webSearchQueries",
    }
)


class Walk:
    """Drops one member wherever it stands, and collects the members that stand in a body."""

    def __init__(self, target: Path | None = None) -> None:
        self.target = target
        self.seen: set[Path] = set()

    def through(self, value: Any, at: Path = ()) -> Any:
        """Return a copy of a JSON value without the member."""
        if isinstance(value, list):
            return [self.through(one, at) for one in value]
        if not isinstance(value, dict):
            return value
        copy = {}
        for name, inner in value.items():
            path = self._path(name, inner, at)
            if path and inner is not None:
                self.seen.add(path)
            if not path or path != self.target:
                copy[name] = self.through(inner, path)
        return copy

    def _path(self, name: str, inner: Any, at: Path) -> Path:
        """Return the names from the usage on; empty for a member outside of one."""
        if name in HOLDERS or (not at and name in FLAT):
            return (name,)
        if name == "type" and isinstance(inner, str) and f'"{inner}"'.encode() in openai._CALLS:
            return ("output", inner)
        return (*at, name) if at and at[0] in HOLDERS else ()


@cache
def file_of(case: str) -> bytes:
    return upstream_file(GOLDEN / case).read_bytes()


def rewritten(case: str, walk: Walk) -> bytes:
    """Return the upstream's bytes of a case after a walk through each of its JSON texts."""
    body, suffix = file_of(case), upstream_file(GOLDEN / case).suffix
    if suffix == ".json":
        return json.dumps(walk.through(json.loads(body))).encode()
    if suffix == ".bin":
        return b"".join(_messages(body, walk))
    return b"\n".join(_line(line, walk) for line in body.split(b"\n"))


def _line(line: bytes, walk: Walk) -> bytes:
    """Return a line of a stream: an event's data, or a line of JSON."""
    head, text = (b"data: ", line[5:].strip()) if line.startswith(b"data:") else (b"", line)
    if not text.startswith(b"{"):
        return line
    return head + json.dumps(walk.through(json.loads(text))).encode()


def _messages(body: bytes, walk: Walk) -> Iterator[bytes]:
    """Yield the messages of an AWS event stream."""
    while body:
        size, headers = struct.unpack("!II", body[:8])
        names, at = {}, 12
        while at < 12 + headers:
            name = body[at + 1 : at + 1 + body[at]].decode()
            at += 2 + body[at]
            (length,) = struct.unpack("!H", body[at : at + 2])
            names[name] = body[at + 2 : at + 2 + length].decode()
            at += 2 + length
        payload = walk.through(json.loads(body[12 + headers : size - 4]))
        yield framed(names, json.dumps(payload).encode())
        body = body[size:]


def outcome(case: str, walk: Walk) -> dict[str, Any]:
    """Return what is metered of the rewritten upstream's bytes."""
    return metered(case, answered(GOLDEN / case, 10**9, rewritten(case, walk))[2])


@cache
def members_of(case: str) -> frozenset[Path]:
    walk = Walk()
    rewritten(case, walk)
    return frozenset(walk.seen)


def by_provider() -> dict[tuple[str, Path], list[str]]:
    """Return the cases of each member of each provider's transcripts."""
    found = defaultdict(list)
    for case in CASES:
        for path in members_of(case):
            found[case.partition("/")[0], path].append(case)
    return dict(sorted(found.items()))


MEMBERS = by_provider()
TOTAL = (
    "the sum of counts beside it; it decides only if reasoning or thoughts stand beside the rest"
)
RATE = "a rate of two counts beside it"
PER_TURN = "the parts of a count beside it, one a turn"
# Members that may be dropped without a change of what is metered, and why.
WITHOUT_MONEY: dict[Path, str] = {
    ("usage", "total_tokens"): TOTAL,
    (
        "usage",
        "totalTokens",
    ): "shows only that counts of the cache are missing (test_converse_answer.py)",
    ("usage", "server_tool_use", "web_fetch_requests"): "a fetch costs its tokens alone",
    ("usage", "completion_tokens_details", "accepted_prediction_tokens"): "inside the answer",
    ("usage", "completion_tokens_details", "rejected_prediction_tokens"): "inside the answer",
    ("usage", "completion_tokens_details", "text_tokens"): "the rest of the answer",
    ("usage", "prompt_tokens_details", "text_tokens"): "the rest of the prompt",
    ("usage", "prompt_tokens_details", "video_tokens"): "no price differs by it",
    ("usage", "iterations", "model"): "the cost of another model's part is unknown, whatever model",
    ("timings", "predicted_per_second"): RATE,
    ("timings", "predicted_per_token_ms"): RATE,
    ("timings", "prompt_per_second"): RATE,
    ("timings", "prompt_per_token_ms"): RATE,
    ("usage", "input_tokens_details", "cached_tokens_per_turn"): PER_TURN,
    ("usage", "input_tokens_details", "input_tokens_per_turn"): PER_TURN,
    ("usage", "output_tokens_details", "output_tokens_per_turn"): PER_TURN,
    ("usage", "output_tokens_details", "tool_output_tokens_per_turn"): PER_TURN,
    ("usage", "output_tokens_details", "tool_output_tokens"): (
        "output of tools, which a self-hosted engine does not price apart"
    ),
}
# The same for one provider alone.
SAID_TWICE: dict[tuple[str, Path], str] = {
    ("sglang", ("usage", "completion_tokens_details")): "reasoning_tokens at the top says the same",
    ("sglang", ("usage", "completion_tokens_details", "reasoning_tokens")): (
        "reasoning_tokens at the top says the same"
    ),
    ("deepseek", ("usage", "prompt_tokens_details")): "prompt_cache_hit_tokens says the same",
    ("deepseek", ("usage", "prompt_tokens_details", "cached_tokens")): (
        "prompt_cache_hit_tokens says the same"
    ),
}
# Members that an excuse of all covers and that decide for these: xAI counts reasoning beside the
# answer, and its total alone shows that.
DECIDING: tuple[tuple[str, Path], ...] = (("xai", ("usage", "total_tokens")),)


class Asked(dict[str, Any]):
    """An object that records the members which a reader asks it for."""

    def __init__(self, seen: set[Path], at: Path) -> None:
        super().__init__()
        self._seen, self._at = seen, at

    def get(self, name: str, default: Any = None) -> Any:
        """Return a count, or objects that record in turn."""
        path = (*self._at, name)
        self._seen.add(path)
        return [Asked(self._seen, path)] if name.endswith("etails") else 1


def read_by_structs() -> dict[tuple[str, str], set[Path]]:
    """Return the paths of each field of the structs that readers decode a usage into."""
    found: dict[tuple[str, str], set[Path]] = defaultdict(set)
    for kind, holder in (
        (openai._Timings, "timings"),
        (anthropic._Usage, "usage"),
        (anthropic._Words, "usage"),
    ):
        _add_fields(msgspec.inspect.type_info(kind), (holder,), found)
    return found


def _add_fields(info: Any, at: Path, found: dict[tuple[str, str], set[Path]]) -> None:
    """Add the fields of a struct, of those in a list and of those that may be null."""
    for one in (*getattr(info, "types", ()), getattr(info, "item_type", None)):
        _add_fields(one, at, found) if one is not None else None
    for field in getattr(info, "fields", ()):
        path = (*at, field.encode_name)
        found[info.cls.__name__, field.encode_name].add(path)
        _add_fields(field.type, path, found)


def read_by_name() -> set[Path]:
    """Return the members that the other readers ask for."""
    of_gemini: set[Path] = set()
    for read_gemini in (gemini.usage_of, gemini.tier_of, gemini.detail_of):
        read_gemini(Asked(of_gemini, ("usageMetadata",)))
    of_bedrock: set[Path] = set()
    bedrock.usage_from_wire(Asked(of_bedrock, ("usage",)))
    of_ollama: set[Path] = set()
    ollama.usage_of(Asked(of_ollama, ()))
    of_openai = {("usage", name) for name in usage_detail._KNOWN}
    of_openai |= {("usage", at, one) for at, names in usage_detail._NESTED.items() for one in names}
    of_openai |= {("timings", name) for name in usage_detail._TIMINGS}
    of_openai |= {("output", kind.decode().strip('"')) for kind in openai._CALLS}
    of_triton = {(triton.INPUT,), (triton.OUTPUT,)}
    return {*of_gemini, *of_bedrock, *of_ollama, *of_openai, *of_triton, *_FLAT_PATHS}


_FLAT_PATHS = {(name,) for name in FLAT}
IN_TRANSCRIPTS = {path for _, path in MEMBERS}


@pytest.mark.parametrize("case", CASES)
def test_a_body_that_is_written_again_is_metered_the_same(case: str) -> None:
    """So a difference below comes from the dropped member."""
    expected, found = expected_of(case), outcome(case, Walk())
    assert found == {name: expected[name] for name in found}


@pytest.mark.parametrize("provider", sorted({provider for provider, _ in MEMBERS}))
def test_a_dropped_usage_member_is_noticed(provider: str) -> None:
    """By at least one of the provider's transcripts, unless the member carries no money."""
    excused, survived = set(), set()
    for (of, path), cases in MEMBERS.items():
        if of != provider or any(
            outcome(case, Walk(path)) != outcome(case, Walk()) for case in cases
        ):
            continue
        is_excused = path in WITHOUT_MONEY or (of, path) in SAID_TWICE
        (excused if is_excused else survived).add(path)
    assert survived == set()
    assert excused >= {path for of, path in SAID_TWICE if of == provider}


def test_each_excuse_is_needed() -> None:
    """A member that is metered by all of its providers needs no excuse."""
    needless = {
        path
        for path in WITHOUT_MONEY
        if all(
            any(outcome(case, Walk(path)) != outcome(case, Walk()) for case in cases)
            for (_, one), cases in MEMBERS.items()
            if one == path
        )
    }
    assert needless == set()


@pytest.mark.parametrize(("provider", "path"), DECIDING)
def test_an_excuse_covers_no_member_that_decides(provider: str, path: Path) -> None:
    """Without the total, all of a provider's reasoning went uncounted."""
    cases = MEMBERS[provider, path]
    assert any(outcome(case, Walk(path)) != outcome(case, Walk()) for case in cases)


def test_a_transcript_has_each_member_that_a_struct_reads() -> None:
    """A reader of a member that no transcript has could be deleted unnoticed."""
    unseen = {field for field, paths in read_by_structs().items() if not paths & IN_TRANSCRIPTS}
    assert unseen == set()


def test_a_transcript_has_each_member_that_a_reader_names() -> None:
    """The readers that look at single members have no struct."""
    assert read_by_name() - IN_TRANSCRIPTS == set()

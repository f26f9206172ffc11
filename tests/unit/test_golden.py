"""Wire behaviour against files: a provider's bytes, the caller's bytes, the metered usage.

`tests/golden/<provider>/<case>/` holds the caller's request, the upstream's answer, the expected
usage (`case.json`), the upstream request (`sent.json`) and the caller's answer (`answer.*`). The
last two are written by `TOLLGATE_WRITE_GOLDEN=1 pytest tests/unit/test_golden.py` and read by a
person before they are committed. `error*` holds an error answer, its status and the caller's error.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from openai.types.chat import ChatCompletionChunk

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment, FieldLoss
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.table import PROVIDERS
from gateway.providers.google.gemini import Vertex
from gateway.providers.google.google_tokens import GoogleTokens
from gateway.providers.registry import build_providers
from gateway.providers.vllm import Vllm
from gateway.wire.dialect import written
from gateway.wire.observed import Observed
from gateway.wire.openai.dialect import OpenAIDialect
from gateway.wire.sse import EventSplitter, data_of
from tests import factories
from tests.answers import PricedStream, at_once
from tests.factories import NOW

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(
    path.parent.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/*/case.json")
)
CASES = [folder for folder in FOLDERS if "/error" not in folder]
ERRORS = [folder for folder in FOLDERS if "/error" in folder]
WRITES = bool(os.environ.get("TOLLGATE_WRITE_GOLDEN"))


def cost(usage: TokenUsage) -> str:
    """A nano-dollar a token, so that the file shows which usage was priced."""
    return f"0.{(usage.input_tokens or 0) + (usage.output_tokens or 0):09d}"


def upstream_file(folder: Path) -> Path:
    """Return the file with the upstream's bytes."""
    return next(folder.glob("upstream.*"))


class GoldenTokens(GoogleTokens):
    """Access tokens that need no exchange."""

    async def token(self, deployment: Deployment) -> str:
        """Return the same token for each deployment."""
        return "golden"


def answered(
    folder: Path, piece_bytes: int, upstream: bytes | None = None
) -> tuple[bytes, bytes, Observed]:
    """Return the upstream call, the caller's answer and the observations; the stream arrives in
    pieces of this size. The upstream's bytes are the file's unless others are given.
    """
    case = json.loads((folder / "case.json").read_text())
    read = factories.read((folder / "request.json").read_bytes(), Operation(case["operation"]))
    # Plain answers that are assembled from a stream have files of their own: vllm/assembled-*.
    own = {"vllm": Vllm(b"golden"), "vertex": Vertex(GoldenTokens(lambda: NOW))}
    provider = {**build_providers(salt_key=b"golden"), **own}[case["provider"]]
    facts = PROVIDERS[case["provider"]]
    places = {name: case[name] for name in ("base_url", "model") if name in case}
    one = factories.deployment(
        provider=facts.name,
        is_self_hosted=facts.is_engine,
        native=frozenset(case.get("native", facts.native)),
        untranslatable=FieldLoss(case.get("untranslatable", "refuse")),
        **places,
    )
    translation = provider.translate(one, read)
    call = at_once(provider.call(one, factories.request(read), translation=translation))
    upstream = upstream_file(folder).read_bytes() if upstream is None else upstream
    if not read.facts.is_stream:
        seen = Observed()
        return call.body, written(provider.rewrite(read, call, upstream, seen), cost), seen
    stream = PricedStream(provider.stream(read, call), cost)
    pieces = [upstream[at : at + piece_bytes] for at in range(0, len(upstream), piece_bytes)]
    answer = b"".join(stream.feed(piece) for piece in pieces) + stream.end()
    return call.body, answer, stream.observed


def expected_of(case: str) -> dict[str, Any]:
    """Return the hand-checked expectation of a case; a value that it leaves out must be absent."""
    expected: dict[str, Any] = json.loads((GOLDEN / case / "case.json").read_text())
    defaults = {"usage_detail": {}, "service_tier": None, "stated_geo": None}
    return {**defaults, **expected}


def metered(case: str, seen: Observed) -> dict[str, Any]:
    """Return what was metered, as a case writes it: a count that it leaves out is absent if it is
    None.
    """
    named = expected_of(case)["usage"] or {}
    usage = seen.usage and {
        name: n for name, n in asdict(seen.usage).items() if n is not None or name in named
    }
    return {
        "usage": usage,
        "is_final": seen.is_final,
        "finish_reason": seen.finish_reason,
        "upstream_id": seen.upstream_id,
        "usage_detail": seen.usage_detail,
        "service_tier": seen.service_tier,
        "stated_geo": seen.stated_geo,
    }


def check_file(path: Path, content: bytes) -> None:
    if WRITES:
        path.write_bytes(content)
    assert content == path.read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_usage_is_normalised(case: str) -> None:
    """The provider's spelling, the one normal form; None for an unreported count."""
    _, _, seen = answered(GOLDEN / case, 10**9)
    # Some upstreams report no usage: their text is counted.
    found, expected = metered(case, seen), expected_of(case)
    assert found == {name: expected[name] for name in found}
    assert seen.is_done != seen.is_error


@pytest.mark.parametrize("case", CASES)
def test_the_caller_gets_these_bytes(case: str) -> None:
    """However the stream was cut on its way."""
    folder = GOLDEN / case
    suffix = upstream_file(folder).suffix.replace(".bin", ".sse")
    sent, answer, _ = answered(folder, 10**9)
    check_file(folder / "sent.json", sent)
    check_file(folder / f"answer{suffix}", answer)
    for size in (1, 7, 100):
        assert answered(folder, size)[1] == answer


@pytest.mark.parametrize("case", [case for case in CASES if "/chat-stream" in case])
def test_chunks_are_valid_for_the_official_client(case: str) -> None:
    """Each is a chunk by OpenAI's own types, or an error: no provider's oddity is made worse by
    us.
    """
    for payload in map(data_of, EventSplitter().feed(answered(GOLDEN / case, 10**9)[1])):
        if payload is None or payload == b"[DONE]" or b'"error"' in payload:
            continue
        chunk = ChatCompletionChunk.model_validate_json(payload, strict=True)
        assert chunk.model == "assistant"


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_answer_becomes_the_callers_error(case: str) -> None:
    """By its status and its type or code; the message is the upstream's only if the caller can fix
    the request.
    """
    folder = GOLDEN / case
    expected: dict[str, Any] = json.loads((folder / "case.json").read_text())
    name = expected["provider"]
    one = factories.deployment(provider=name, is_self_hosted=PROVIDERS[name].is_engine)
    body = (folder / "upstream.json").read_bytes()
    provider = build_providers(salt_key=b"golden")[name]
    error = provider.error(one, expected["status"], {}, body=body)
    found = {"error": type(error).__name__, "param": error.param}
    assert found == {name: expected[name] for name in found}
    answer = OpenAIDialect().error_body(error.code, error.message, param=error.param)
    check_file(folder / "answer.json", answer)


def test_every_provider_has_an_error() -> None:
    """The shapes of errors differ most of all."""
    assert {case.partition("/")[0] for case in ERRORS} == set(PROVIDERS)


def test_every_provider_has_cases() -> None:
    """Adding a provider means adding a folder."""
    assert {case.partition("/")[0] for case in CASES} >= {
        "openai",
        "vllm",
        "deepseek",
        "groq",
        "mistral",
    }
    assert {
        json.loads((GOLDEN / case / "case.json").read_text())["provider"] for case in CASES
    } == set(build_providers(salt_key=b""))

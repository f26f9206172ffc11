"""Figures beside tokens: the provider's own cost, times and words; never content."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.observed import MAX_DETAILS, Observed
from gateway.wire.openai.usage_detail import timings_detail, usage_detail


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (b'{"cost":0.092374,"is_byok":false}', {"provider_cost_usd": "0.092374", "is_byok": False}),
        (b'{"cost":0}', {"provider_cost_usd": "0"}),
        (b'{"cost":1e-7}', {"provider_cost_usd": "0.0000001"}),
        (b'{"cost":10}', {"provider_cost_usd": "10"}),
        (b'{"cost_in_usd_ticks":2733600}', {"provider_cost_usd": "0.00027336"}),
        (
            b'{"cost_details":{"server_tool_cost":0.010,"note":"hi"}}',
            {"cost_details.server_tool_cost": "0.01"},
        ),
        (b'{"queue_time":0.5,"num_sources_used":3}', {"queue_time": 0.5, "num_sources_used": 3}),
        (b'{"speed":"fast","inference_geo":"us"}', {"speed": "fast", "inference_geo": "us"}),
    ],
)
def test_known_figures_are_kept(raw: bytes, detail: dict[str, Any]) -> None:
    """Money as plain text: as a float it would lose digits on its way."""
    assert usage_detail(raw) == detail


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"cost":"text"}',
        b'{"cost":null}',
        b'{"cost":1e99}',
        b'{"queue_time":[1]}',
        b'{"speed":"a sentence of the answer"}',
        b'{"other":1}',
        b'{"cost_details":[1]}',
        b'{"cost_details":{"server_tool_cost":"x"}}',
        b'{"cost":1' + b" " * 2**17 + b"}",
    ],
)
def test_nothing_else_is_kept(raw: bytes) -> None:
    """Unknown names, long texts and absurd numbers could carry content or fill the ledger."""
    assert usage_detail(raw) == {}


def test_the_times_of_llama_cpp_are_kept() -> None:
    """Its counts stand in the usage."""
    raw = b'{"prompt_n":1,"prompt_ms":30.958,"draft_n":null,"draft_n_accepted":3}'
    assert timings_detail(raw) == {"timings.prompt_ms": 30.958, "timings.draft_n_accepted": 3}
    assert timings_detail(b"[]") == {}
    assert timings_detail(b"{" + b" " * 2**17 + b"}") == {}


def test_no_figure_has_the_name_of_a_count() -> None:
    """They share a column of the ledger."""
    everything = b'{"prompt_cache_miss_tokens":1,"prompt_audio_seconds":2}'
    assert usage_detail(everything).keys().isdisjoint(TokenUsage.__struct_fields__)


def test_an_answers_figures_are_bounded() -> None:
    """A new value of a known name is still taken."""
    observed = Observed()
    observed.note_detail({f"n{number}": number for number in range(MAX_DETAILS + 5)})
    observed.note_detail({"n0": 7, "late": 1})
    assert len(observed.usage_detail) == MAX_DETAILS
    assert observed.usage_detail["n0"] == 7

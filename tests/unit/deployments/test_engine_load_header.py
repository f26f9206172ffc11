"""vLLM's load header is read in both its forms, and nothing else in it is believed."""

from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.vllm_load import ASK_FORMAT, ASK_HEADER, LOAD_HEADER, LoadHeader, read_load

# As vLLM 0.32 sent them on 2026-11-22.
JSON = (
    'JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": '
    "0.00512820512820511}}"
)
TEXT = (
    "TEXT named_metrics.num_requests_waiting=3.0, "
    "named_metrics.kv_cache_usage_perc=0.00512820512820511"
)
PARSED = LoadHeader(waiting=3, kv_use=0.00512820512820511)


@pytest.mark.parametrize(
    "value", [JSON, TEXT, f" {JSON} ", JSON.replace("JSON", "json"), TEXT.replace(", ", ",")]
)
def test_both_forms_are_read(value: str) -> None:
    """We ask for JSON; a proxy in between may ask for the other."""
    assert read_load(value) == PARSED


def test_the_requested_header_is_the_parsed_header() -> None:
    """The names are vLLM's: another spelling would ask for nothing and say nothing."""
    assert (LOAD_HEADER, ASK_HEADER, ASK_FORMAT) == (
        "endpoint-load-metrics",
        "endpoint-load-metrics-format",
        "JSON",
    )


def test_half_a_report_is_read_by_halves() -> None:
    """A part that one version leaves out is not zero."""
    assert read_load('JSON {"named_metrics": {"kv_cache_usage_perc": 1}}') == LoadHeader(kv_use=1)
    assert read_load("TEXT named_metrics.num_requests_waiting=2") == LoadHeader(waiting=2)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "JSON",
        "JSON {",
        "JSON []",
        'JSON {"named_metrics": 3}',
        "JSON {}",
        "BIN 00",
        "TEXT",
        "TEXT a=b,,=",
        'JSON {"named_metrics": {"num_requests_waiting": true}}',
        'JSON {"named_metrics": {"num_requests_waiting": -1}}',
        'JSON {"named_metrics": {"kv_cache_usage_perc": 40}}',
        "TEXT named_metrics.num_requests_waiting=nan",
        "TEXT named_metrics.num_requests_waiting=inf",
        'JSON {"named_metrics": {"num_requests_waiting": "3"}}',
        "JSON " + "[" * 4000,
        'JSON {"named_metrics": {"num_requests_waiting": 1%s}}' % ("0" * 400),
        JSON.replace("}}", "}, " + '"x": "' + "y" * 5000 + '"}'),
        "JSON \ud800",
    ],
)
def test_an_unreadable_load_header_is_ignored(value: str) -> None:
    """A header is not worth an error: the page says the same a second later."""
    assert read_load(value) is None


@given(st.text(max_size=200), st.sampled_from(["", "JSON ", "TEXT ", 'JSON {"named_metrics": ']))
def test_no_header_is_too_odd(value: str, start: str) -> None:
    """It comes from outside, on the path of an answer."""
    noted = read_load(start + value)
    assert noted is None or all(
        n is None or (isfinite(n) and n >= 0) for n in (noted.waiting, noted.kv_use)
    )

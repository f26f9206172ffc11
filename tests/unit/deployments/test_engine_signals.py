"""Live signals: quantiles as Prometheus computes them, nothing invented for a missing figure, and a
pressure that follows the queue.
"""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.deployments.engine_load import EngineMetrics
from gateway.domain.deployments.engine_pages import pages_of
from gateway.domain.deployments.engine_signals import (
    EngineReport,
    EngineSignals,
    Histogram,
    report_on,
    signals_between,
)

TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"


def histogram(name: str, *counts: tuple[str, int], model: str = "m-1") -> str:
    """Return the lines of one histogram."""
    return "".join(
        f'{name}_bucket{{engine="0",le="{end}",model_name="{model}"}} {count}.0\n'
        for end, count in counts
    )


PAGE = (
    "vllm:num_requests_running 2.0\nvllm:num_requests_waiting 3.0\n"
    "vllm:kv_cache_usage_perc 0.25\n"
    "vllm:prefix_cache_queries_total 100.0\nvllm:prefix_cache_hits_total 40.0\n"
    + histogram(TTFT, ("0.1", 0), ("0.5", 8), ("1.0", 10), ("+Inf", 10))
    + histogram(TPOT, ("0.01", 10), ("0.05", 20), ("+Inf", 20))
)


def report(page: str, provider: str = "vllm", **others: str) -> EngineReport:
    """Return the report on an engine's only page, or on its pages by path."""
    found = report_on(pages_of(provider)[0], "m-1", lambda path: others.get(path, page))
    assert found is not None
    return found


def test_a_page_of_vllm_has_all_signals() -> None:
    """By hand: the fifth of ten answers lies 5/8 into the bucket from 0.1 to 0.5 s."""
    found = signals_between(None, report(PAGE))
    assert (found.queue, found.running, found.kv_use, found.prefix_hit_rate) == (3, 2, 0.25, 0.4)
    assert found.ttft.quantile(0.5) == pytest.approx(0.1 + 0.4 * 5 / 8)
    assert found.ttft.quantile(0.95) == pytest.approx(0.5 + 0.5 * 1.5 / 2)
    assert found.tpot.quantile(0.5) == pytest.approx(0.01)


def test_over_a_time_only_its_own_answers_count() -> None:
    """A slow morning is in the counters for ever."""
    later = PAGE.replace('le="1.0",model_name="m-1"} 10', 'le="1.0",model_name="m-1"} 14').replace(
        'le="+Inf",model_name="m-1"} 10', 'le="+Inf",model_name="m-1"} 14'
    )
    later = later.replace("queries_total 100", "queries_total 150").replace(
        "hits_total 40", "hits_total 50"
    )
    found = signals_between(report(PAGE), report(later))
    assert found.ttft.quantile(0.5) == pytest.approx(0.75)
    assert (found.tpot.quantile(0.5), found.prefix_hit_rate) == (None, 0.2)


def test_a_restart_begins_anew() -> None:
    """Its counters fell, so what it shows is of the new process alone."""
    before = report(PAGE.replace("queries_total 100", "queries_total 1000"))
    assert signals_between(before, report(PAGE)) == signals_between(None, report(PAGE))


def test_the_histogram_of_its_own_model_is_taken() -> None:
    """An engine may serve several; of two cores both count."""
    other = histogram(TTFT, ("0.1", 900), ("+Inf", 900), model="other")
    assert report(PAGE + other).ttft == report(PAGE).ttft
    both = PAGE + histogram(TTFT, ("0.1", 1), ("0.5", 1), ("1.0", 1), ("+Inf", 1))
    assert report(both).ttft.buckets == ((0.1, 1), (0.5, 9), (1.0, 11), (inf, 11))


@pytest.mark.parametrize(
    ("provider", "pages", "expected"),
    [
        (
            "llamacpp",
            {
                "/metrics": "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n",
                "/slots": '[{"is_processing": true, "n_ctx": 100, "n_prompt_tokens": 50}]',
            },
            EngineSignals(queue=1, running=2, room=1, kv_use=0.5),
        ),
        ("ollama", {"/api/ps": '{"models": [{"name": "m-1"}]}'}, EngineSignals()),
        (
            "trtllm",
            {
                "/prometheus/metrics": "trtllm_num_requests_running 5.0\n"
                "trtllm_max_num_active_requests 8\n"
                + histogram("trtllm_time_to_first_token_seconds", ("0.2", 4), ("+Inf", 4))
            },
            EngineSignals(running=5, room=8, ttft=Histogram(((0.2, 4), (inf, 4)))),
        ),
        (
            "sglang",
            {"/metrics": "sglang:num_queue_reqs 4\nsglang:token_usage 0.3\n"},
            EngineSignals(queue=4, kv_use=0.3),
        ),
    ],
)
def test_other_engines_show_what_they_have(
    provider: str, pages: dict[str, str], expected: EngineSignals
) -> None:
    """A missing figure is unknown and never 0."""
    assert signals_between(None, report("", provider, **pages)) == expected


@pytest.mark.parametrize(
    ("signals", "pressure"),
    [
        (EngineSignals(), None),
        (EngineSignals(running=3), None),  # its room is not known
        (EngineSignals(running=0, queue=0), 0.0),
        (EngineSignals(running=3, kv_use=0.4), 0.4),
        (EngineSignals(running=4, queue=0, room=8), 0.5),
        (EngineSignals(running=8, queue=0, room=8), 1.0),
        (EngineSignals(running=8, queue=8, room=8, kv_use=0.9), 2.0),
        (EngineSignals(running=1, queue=0, room=8, kv_use=0.9), 0.9),
        (EngineSignals(running=4, queue=2), 1.5),  # others wait, so four are its room
        (EngineSignals(running=0, queue=2), 2.0),
        (EngineSignals(queue=0, room=8), 0.0),
    ],
)
def test_pressure_is_demand_by_capacity(signals: EngineSignals, pressure: float | None) -> None:
    """1.0 is full; a queue lies above it."""
    assert signals.pressure == pressure


COUNTS = st.lists(
    st.tuples(st.floats(0.001, 100), st.floats(0, 1e9)), unique_by=lambda pair: pair[0]
)


@given(COUNTS, st.floats(0, 1))
def test_a_quantile_is_a_time_within_the_buckets(
    pairs: list[tuple[float, float]], share: float
) -> None:
    """Whatever an engine writes, also falling counts: a time or nothing."""
    buckets = (*sorted(pairs), (inf, 1e9))
    found = Histogram(buckets).quantile(share)
    assert found is None or (
        isfinite(found) and 0 <= found <= max(end for end, _ in pairs or [(0, 0)])
    )
    assert Histogram(buckets).since(Histogram(buckets)).quantile(share) is None
    assert Histogram(buckets).since(Histogram()) == Histogram()


def test_counts_that_are_no_numbers_give_no_quantile() -> None:
    """Every comparison with such a count is false."""
    assert Histogram(((0.1, nan), (inf, nan))).quantile(0.5) is None


def test_absurd_figures_are_unknown() -> None:
    """The counts of two cores add up to infinity: the quantile was NaN, which is no JSON, and the
    pressure infinite.
    """
    assert Histogram(((0.1, inf), (inf, inf))).quantile(0.5) is None
    assert Histogram(((1e308, 1e308), (inf, 1e308))).quantile(0.5) is None
    assert EngineSignals(running=1e308, queue=1e308, room=1.0).pressure is None


@given(st.integers(0, len(PAGE)), st.text(max_size=80))
def test_a_broken_page_gives_signals_all_the_same(at: int, junk: str) -> None:
    """An engine may be cut off in the middle of a line."""
    for page in (PAGE[:at], PAGE[:at] + junk + PAGE[at:]):
        found = signals_between(EngineReport(metrics=EngineMetrics()), report(page))
        assert found.pressure is None or found.pressure >= 0

"""A metrics page of an engine that takes minutes to read, or that stops the sampling of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gateway.domain.deployments.engine_load import EngineMetrics, read_page
from gateway.domain.deployments.engine_sample import EngineSample
from gateway.providers.engine_sampler import (
    MOST_LINE_CHARS,
    MOST_LINES,
    EngineSampler,
    _wanted,
)
from tests import factories, plain_http
from tests.attacks.odd_engine import http, odd_engine
from tests.attacks.raw_callers import two_teams
from tests.gateway_process import StartGateway
from tests.waiting import eventually, plain_loop_s

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
RUNNING = b"vllm:num_requests_running 1\nvllm:prompt_tokens_total 7\n"
DIGITS = b"1" * 400  # an integer, and no number of C
COSTLY = {
    "one label": b"vllm:cache_config_info{" + b"a" * 4_000_000 + b"} 1\n",
    "labels": b"vllm:prompt_tokens_total{" + b'a="",' * 800_000 + b"} 1\n",
    "quotes": b'vllm:prompt_tokens_total{a="' + b'\\"' * 2_000_000 + b'"} 1\n',
    "lines": b"vllm:prompt_tokens_total 1\n" * 150_000,
    "other lines": b"a 1\n" * 1_000_000,
}
ODD_LINES = {
    "value": b"vllm:generation_tokens_total " + DIGITS + b"\n",
    "time": b"vllm:generation_tokens_total 1 " + DIGITS + b"\n",
    "label": b'vllm:generation_tokens_total{ ="x"} 1\n',
    "half": b"vllm:generation_tokens_total 12",
}


def sample(page: bytes) -> EngineSample:
    """Return the probe's sample of an engine with this page."""
    with odd_engine(page) as engine:
        deployment = factories.deployment("odd", base_url=engine.url, is_self_hosted=True)
        return EngineSampler(lambda: NOW, timeout_s=20).sample(deployment)


def load(page: bytes) -> EngineMetrics:
    """Return the figures for routing."""
    return read_page(page.decode())


def test_the_work_for_a_long_label_grows_as_the_label_does() -> None:
    """A pattern for labels took 30 s for 80 KB, and no other thread ran meanwhile."""
    page = RUNNING + COSTLY["one label"][:32_000] + b"} 1\n"
    began_s = time.thread_time()
    load(page)
    assert time.thread_time() - began_s < 20 * plain_loop_s(len(page))


@pytest.mark.parametrize("page", COSTLY.values(), ids=COSTLY)
def test_the_parser_gets_a_bounded_part_of_any_page(page: bytes) -> None:
    """It takes minutes for a line of 4 MB."""
    lines = _wanted((RUNNING + page).decode()).splitlines(keepends=True)
    assert 1 <= len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_LINE_CHARS


@pytest.mark.parametrize("read", [load, sample])
@pytest.mark.parametrize("page", COSTLY.values(), ids=COSTLY)
def test_a_page_of_4_mb_is_read(
    read: Callable[[bytes], EngineMetrics | EngineSample], page: bytes
) -> None:
    """Its first lines are figures like any other engine's."""
    assert read(RUNNING + page).running == 1


@pytest.mark.parametrize("line", ODD_LINES.values(), ids=ODD_LINES)
def test_an_odd_line_costs_no_other_figure(line: bytes) -> None:
    """An error here was one of the whole round: no engine was recorded, and no GPU hour billed.
    A line without its end has too few digits.
    """
    found = sample(RUNNING + line)
    assert (found.is_up, found.running, found.prompt_tokens) == (True, 1, 7)
    assert found.generation_tokens is None


def test_a_sum_beyond_postgres_costs_no_round() -> None:
    """llama.cpp counts prompts in two parts. Each fitted, their sum did not, and the error was one
    of the whole round: no engine was recorded, and no GPU hour billed.
    """
    parts = (b"llamacpp:prompt_tokens_total", b"llamacpp:prompt_tokens_cached_total")
    found = sample(
        b"llamacpp:requests_processing 1\n" + b"".join(b"%b 9e18\n" % one for one in parts)
    )
    assert (found.is_up, found.running, found.prompt_tokens) == (True, 1, None)


def test_a_part_of_a_page_is_no_sum() -> None:
    """An engine has a line for each of its cores. Unknown attempts were settled from the sum of
    those that had arrived.
    """
    page = b"".join(
        b'vllm:prompt_tokens_total{engine="%d",model_name="m"} 500\n' % core for core in range(2)
    )
    with odd_engine(page) as engine:
        deployment = factories.deployment("odd", base_url=engine.url, is_self_hosted=True)
        probe = EngineSampler(lambda: NOW, timeout_s=20)
        assert probe.sample(deployment).prompt_tokens == 1000
        engine.page = engine.page[: -len(page) // 2]
        cut = probe.sample(deployment)
    assert (cut.is_up, cut.prompt_tokens) == (True, None)


def test_the_gateway_goes_on(start_gateway: StartGateway) -> None:
    """With 60 KB of one label each look at the page stopped the gateway for 17 s. The looks go on
    at a page for which that would be hours.
    """
    with odd_engine(RUNNING) as engine:
        gateway = start_gateway(two_teams(engine.url))
        url = f"http://127.0.0.1:{gateway.port}/healthz"
        pages = engine.pages
        engine.page = http(RUNNING + COSTLY["one label"])
        eventually(lambda: engine.pages > pages + 1, "two more looks", within_s=120)
        for _ in range(200):  # the second page is read meanwhile
            assert plain_http.get(url, timeout=60).status_code == 200


def test_labels_are_found_as_before() -> None:
    """The label alone counts, not one whose name ends alike."""
    page = 'vllm:cache_config_info{x_block_size="7",a="b\\"c",block_size="128",d="e"} 1\n'
    assert read_page(page).block_size == 128
    assert read_page(page.replace(",block_size", ",block")).block_size is None

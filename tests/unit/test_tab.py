"""The end of a request is told once, when nothing more can come."""

from __future__ import annotations

from typing import Any

from gateway.domain.tokens import TokenUsage
from gateway.services.tab import Tab
from tests.storage.factories import event


def heard(tab: Tab) -> list[tuple[int | None, bool]]:
    """What a listener of the tab hears, as it comes."""
    told: list[tuple[int | None, bool]] = []

    def hear(*, used_tokens: int | None, was_charged: bool) -> None:
        told.append((used_tokens, was_charged))

    tab.tell(hear)
    return told


def settled(**changes: Any) -> Any:
    return event(usage=TokenUsage(input_tokens=10, output_tokens=5), cost_nusd=7, **changes)


def test_a_request_is_over_when_its_last_attempt_is_settled() -> None:
    """A stream goes on after its request was answered."""
    tab = Tab()
    told = heard(tab)
    tab.begin()
    tab.close()
    assert told == []
    tab.settle(settled())
    assert told == [(15, True)]


def test_the_tokens_of_all_attempts_count() -> None:
    """One that failed after it had generated something used the limit too."""
    tab = Tab()
    told = heard(tab)
    for _ in range(2):
        tab.begin()
        tab.settle(settled())
    tab.close()
    assert told == [(30, True)]


def test_a_request_without_an_attempt_used_nothing() -> None:
    """Refused before anything was sent: what was taken for it goes back."""
    tab = Tab()
    told = heard(tab)
    tab.close()
    tab.close()
    assert told == [(0, False)]


def test_what_cost_nothing_was_not_charged() -> None:
    """Its key may be used for another try."""
    tab = Tab()
    told = heard(tab)
    tab.begin()
    tab.settle(event(usage=TokenUsage(input_tokens=0, output_tokens=0), cost_nusd=0))
    tab.close()
    assert told == [(0, False)]


def test_an_unknown_cost_alone_may_be_a_charge_and_any_number_of_tokens() -> None:
    """Unknown is never zero: a key that was let go of would buy the answer a second time."""
    tab = Tab()
    told = heard(tab)
    tab.begin()
    tab.settle(event(usage=TokenUsage(input_tokens=1, output_tokens=1), cost_nusd=None))
    tab.close()
    assert told == [(None, True)]


def test_one_unknown_attempt_makes_the_tokens_of_its_request_unknown() -> None:
    """Whether it comes before a charged one or after it."""
    for costs in ((None, 7), (7, None)):
        tab = Tab()
        told = heard(tab)
        for cost_nusd in costs:
            tab.begin()
            tab.settle(event(usage=TokenUsage(input_tokens=1, output_tokens=1), cost_nusd=cost_nusd))
        tab.close()
        assert told == [(None, True)]

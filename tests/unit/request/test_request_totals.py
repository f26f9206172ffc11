"""The end of a request is reported once, when nothing more can come."""

from __future__ import annotations

from typing import Any

from gateway.domain.pricing.tokens import TokenUsage
from gateway.services.request.totals import RequestTotals
from tests.storage.factories import event


def recorded_ends(totals: RequestTotals) -> list[tuple[int | None, bool]]:
    """Return the calls of a listener to the request's end, as they come."""
    ends: list[tuple[int | None, bool]] = []
    totals.on_end.append(lambda ended: ends.append((ended.used_tokens, ended.was_charged)))
    return ends


def settled(**changes: Any) -> Any:
    return event(usage=TokenUsage(input_tokens=10, output_tokens=5), cost_nusd=7, **changes)


def test_a_request_is_over_when_its_last_attempt_is_settled() -> None:
    """A stream goes on after its request was answered."""
    totals = RequestTotals()
    ends = recorded_ends(totals)
    totals.note_attempt_started()
    totals.close()
    assert ends == []
    totals.note_settled(settled())
    assert ends == [(15, True)]


def test_the_tokens_of_all_attempts_count() -> None:
    """One that failed after it had generated something used the limit too."""
    totals = RequestTotals()
    ends = recorded_ends(totals)
    for _ in range(2):
        totals.note_attempt_started()
        totals.note_settled(settled())
    totals.close()
    assert ends == [(30, True)]


def test_a_request_without_an_attempt_used_nothing() -> None:
    """Refused before anything was sent: everything taken for it is returned."""
    totals = RequestTotals()
    ends = recorded_ends(totals)
    totals.close()
    totals.close()
    assert ends == [(0, False)]


def test_a_request_that_cost_nothing_was_not_charged() -> None:
    """Its key may be used for another try."""
    totals = RequestTotals()
    ends = recorded_ends(totals)
    totals.note_attempt_started()
    totals.note_settled(event(usage=TokenUsage(input_tokens=0, output_tokens=0), cost_nusd=0))
    totals.close()
    assert ends == [(0, False)]


def test_an_unknown_cost_alone_may_be_a_charge_and_any_number_of_tokens() -> None:
    """Unknown is never zero: a key that was let go of would buy the answer a second time."""
    totals = RequestTotals()
    ends = recorded_ends(totals)
    totals.note_attempt_started()
    totals.note_settled(event(usage=TokenUsage(input_tokens=1, output_tokens=1), cost_nusd=None))
    totals.close()
    assert ends == [(None, True)]


def test_one_unknown_attempt_makes_the_tokens_of_its_request_unknown() -> None:
    """Whether it comes before a charged one or after it."""
    for costs in ((None, 7), (7, None)):
        totals = RequestTotals()
        ends = recorded_ends(totals)
        for cost_nusd in costs:
            totals.note_attempt_started()
            totals.note_settled(
                event(usage=TokenUsage(input_tokens=1, output_tokens=1), cost_nusd=cost_nusd)
            )
        totals.close()
        assert ends == [(None, True)]


def test_an_attempt_that_was_never_sent_used_nothing() -> None:
    """Its intent could not be written down."""
    totals = RequestTotals()
    ends = recorded_ends(totals)
    totals.note_attempt_started()
    totals.close()
    totals.note_settled(None)
    assert ends == [(0, False)]

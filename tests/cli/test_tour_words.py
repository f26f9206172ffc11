"""The tour's report on its real requests."""

from __future__ import annotations

from gateway.cli.up.tour import _tokens


def test_figures_that_a_provider_does_not_report_are_left_out() -> None:
    """ "None of them reasoning" looked like a count."""
    assert (
        _tokens({"input_tokens": 10, "output_tokens": 20, "reasoning_tokens": None})
        == "10 in, 20 out"
    )
    assert _tokens({"input_tokens": 10, "output_tokens": 20, "reasoning_tokens": 7}).endswith(
        "(7 of them reasoning)"
    )
    assert (
        _tokens({"input_tokens": None, "output_tokens": None, "reasoning_tokens": None})
        == "not known"
    )

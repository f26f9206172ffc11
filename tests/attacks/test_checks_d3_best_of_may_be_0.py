"""Checks D3: `best_of: 0` was refused with 400; OpenAI's schema allows 0 to 20."""

from __future__ import annotations

from tests.attacks.bounded import Bounded


def test_best_of_0_passes_as_it_came_and_counts_as_one(poor: Bounded) -> None:
    """The official SDK sends `best_of: 0` in its own tests."""
    body = {"model": "older", "prompt": "x", "best_of": 0, "max_tokens": 20}
    bill = poor.try_one("completions", body)
    assert bill is not None
    assert (bill.body["best_of"], bill.output_tokens) == (0, 20)


def test_best_of_is_refused_out_of_its_range(poor: Bounded) -> None:
    """A value below 0 bounds nothing."""
    for best_of in (-1, 129):
        body = {"model": "older", "prompt": "x", "best_of": best_of, "max_tokens": 20}
        answer = poor.post("completions", body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "best_of")

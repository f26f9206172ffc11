"""Security F15: a 404 repeated the model's whole name, so a megabyte was answered with a
megabyte.
"""

from __future__ import annotations

from tests.attacks.raw_callers import answer, connected, question, request
from tests.gateway_process import Gateway


def test_a_long_name_is_cut_in_the_answer(red_and_blue: Gateway) -> None:
    """200 letters are enough to find the mistake."""
    with connected(red_and_blue) as connection:
        connection.sendall(request(red_and_blue, question(model="x" * 1_000_000)))
        status, body = answer(connection)
    assert status == 404
    assert b"x" * 200 in body
    assert b"x" * 201 not in body
    assert len(body) < 2000

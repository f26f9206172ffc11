"""Addresses that a policy may not name, in forms that a resolver reads as the same addresses.

A cloud's metadata server, which hands out credentials, is at 169.254.169.254.
"""

from __future__ import annotations

import pytest

from gateway.domain.places.addresses import address_problem

FORBIDDEN = (
    "http://[::ffff:169.254.169.254]/latest",
    "https://[::ffff:a9fe:a9fe]/latest",
    "https://2852039166/latest",
    "https://0xa9fea9fe/latest",
    "https://169.254.43518/latest",
    "https://169.254.169.0xfe/latest",
    "https://0251.254.169.254/latest",
    "http://[::ffff:0.0.0.0]/",
    "http://[::ffff:8.8.8.8]/",
    "https://0/",
)
ALLOWED = (
    "http://[::ffff:10.0.0.7]:8000/v1",
    "http://10.0.0.7:8000/v1",
    "http://node-7:8000/v1",
    "http://node.7a.internal/v1",
    "https://1.llm.example/v1",
)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_it_is_refused(address: str) -> None:
    """The text decides, so it must be the text that the resolver understands."""
    assert address_problem(address) is not None


@pytest.mark.parametrize("address", ALLOWED)
def test_names_and_plain_addresses_are_not(address: str) -> None:
    """Digits in a name are no number."""
    assert address_problem(address) is None

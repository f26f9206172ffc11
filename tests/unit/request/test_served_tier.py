"""The service tier of an answer, by the words of its head and its body, and the asked tier."""

from __future__ import annotations

import pytest

from gateway.domain.providers.table import PROVIDERS
from gateway.domain.request.served_tier import served_tier


@pytest.mark.parametrize(
    ("asked", "in_head", "in_body", "is_engine", "name", "is_known"),
    [
        (None, None, None, False, None, True),
        (None, None, None, True, None, True),
        (None, "flex", None, False, "flex", True),
        (None, None, "priority", False, "priority", True),
        ("priority", "standard", None, False, "standard", True),
        ("flex", None, "default", False, "default", True),
        ("flex", "default", "standard", False, "standard", True),
        ("flex", "FLEX", "flex", False, "flex", True),
        ("flex", "flex", "standard", False, None, False),
        (None, "flex", "priority", False, None, False),
        ("flex", None, None, False, None, False),
        ("unlisted", "", "", False, None, False),
        ("flex", None, None, True, None, True),
    ],
)
def test_only_what_is_stated_is_charged(
    asked: str | None,
    in_head: str | None,
    in_body: str | None,
    is_engine: bool,
    name: str | None,
    is_known: bool,
) -> None:
    """An asked tier is no served tier, and two words that disagree are none."""
    found = served_tier(asked, in_head=in_head, in_body=in_body, silence_is_standard=is_engine)
    assert found == (name, is_known)


def test_silence_is_standard_at_engines_alone() -> None:
    """No company's page says that an answer without a tier was served in the standard one."""
    standard = {name for name, one in PROVIDERS.items() if one.silence_is_standard}
    assert standard == {name for name, one in PROVIDERS.items() if one.is_engine}
    headers = {one.tier_header for one in PROVIDERS.values()}
    assert headers == {None, "x-gemini-service-tier", "x-amzn-bedrock-service-tier"}

"""The line that a refusal tells an admin to write, as a policy reads it."""

from __future__ import annotations

import re

import hypothesis.strategies as st
from hypothesis import example, given

from gateway.domain.words import LISTED_NAME, listed_text
from gateway.wire.parsed_policy import parse
from tests.policy.documents import changed

ADDRESS = '"http://127.0.0.1:8001/v1"'
NAMES = st.one_of(st.from_regex(LISTED_NAME, fullmatch=True), st.text(max_size=30))


@given(st.lists(NAMES, max_size=4, unique=True))
@example(["anthropic-beta: adaptive-thinking-2026-01-28"])
@example(["reasoning.mode=?", "enable_search.=true", "openrouter:web_search.engine=exa"])
@example(["no", "Null", "a:", "a :b", "_", "a\n", "ü", ""])
def test_a_listed_line_says_what_it_names(names: list[str]) -> None:
    """Word by word as printed; a name that no policy can list is not offered."""
    able = {name for name in names if re.fullmatch(LISTED_NAME, name)}
    line = listed_text(names)
    assert (line is None) is (not able)
    if line is not None:
        policy = parse(changed(ADDRESS, f"{ADDRESS}\n    {line}")).policy
        assert policy.deployments["qwen-eu"].listed == able

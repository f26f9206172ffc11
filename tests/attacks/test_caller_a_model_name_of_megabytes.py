"""Every piece of an answer repeats the name of the model that its caller sent. A pattern such as
`gpt-4o-*` matched a name of megabytes.
"""

from __future__ import annotations

import pytest

from gateway.domain.policy.policy import MOST_MODEL_CHARS
from tests.factories import policy


@pytest.mark.parametrize(
    ("letters", "is_found"), [(MOST_MODEL_CHARS, True), (MOST_MODEL_CHARS + 1, False)]
)
def test_a_pattern_matches_names_up_to_a_length(letters: int, *, is_found: bool) -> None:
    found = policy().route_for("gpt-4o-".ljust(letters, "x"))
    assert (found is not None) is is_found

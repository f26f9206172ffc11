"""The fields that a translation loses: named once, in a bounded list."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.translation.conversation import MOST_TOOL_NAME_CHARS
from gateway.wire.translation.losses import MOST_NAMED, Losses, require_short_name


def test_a_lost_field_is_named_once_in_a_bounded_list() -> None:
    """The names stand in one header, and a caller chooses them."""
    losses = Losses("one", drops=True)
    for number in range(MOST_NAMED + 5):
        losses.lose(f"field_{number}")
        losses.lose("field_0")
    assert losses.fields == [f"field_{number}" for number in range(MOST_NAMED)]


def test_a_tools_name_is_short_enough_to_stand_beside_each_result() -> None:
    """Else one name would be sent thousands of times."""
    require_short_name("x" * MOST_TOOL_NAME_CHARS)
    with pytest.raises(InvalidRequest, match="Give the tool a shorter name"):
        require_short_name("x" * (MOST_TOOL_NAME_CHARS + 1))

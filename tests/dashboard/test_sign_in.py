"""If the dashboard is open beyond this machine, nothing is shown before sign-in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dashboard import sign_in
from gateway.cli import dashboard as command
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import texts
from tests.storage.factories import event


def test_nothing_is_shown_before_sign_in(
    look: Open, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No figure, no team's name, no page to click on: a button."""
    monkeypatch.setenv(sign_in.VARIABLE, "required")
    write(event(1))
    app = look()
    assert not app.exception
    assert [button.label for button in app.button] == ["Sign in"]
    assert list(app.metric) == []
    assert list(app.dataframe) == []
    assert "payments" not in texts(app)


def test_command_and_page_agree_on_the_variable() -> None:
    """They do not import each other; a name that differs would open the page to everybody."""
    assert command.SIGN_IN_VARIABLE == sign_in.VARIABLE

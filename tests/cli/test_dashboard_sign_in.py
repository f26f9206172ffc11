"""`tollgate dashboard` shows everything without sign-in on this machine alone, or by its option."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.dashboard import requires_sign_in
from gateway.errors import BadUsage

AUTH = '[auth]\ncookie_secret = "c"\nredirect_uri = "http://127.0.0.1:8501/oauth2callback"\n'


def files(home: Path) -> tuple[Path, Path]:
    """Return the places of the secrets below an operator's home and Tollgate's."""
    return home / ".streamlit" / "secrets.toml", home / "tollgate" / ".streamlit" / "secrets.toml"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home, from which the command starts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_sign_in_it_stays_on_this_machine(home: Path) -> None:
    """It shows every team's spending: who opens it to others says so."""
    assert not requires_sign_in("127.0.0.1", files(home), insecure_local=False)
    assert not requires_sign_in("0.0.0.0", files(home), insecure_local=True)
    with pytest.raises(BadUsage, match="--insecure-local"):
        requires_sign_in("0.0.0.0", files(home), insecure_local=False)


@pytest.mark.parametrize("place", [0, 1])
def test_a_sign_in_that_is_set_up_counts_everywhere(home: Path, place: int) -> None:
    """Behind a proxy on the same machine the address is loopback, and its readers are not."""
    secrets = files(home)[place]
    secrets.parent.mkdir(parents=True)
    secrets.write_text(AUTH)
    assert requires_sign_in("127.0.0.1", files(home), insecure_local=False)
    assert requires_sign_in("0.0.0.0", files(home), insecure_local=False)
    assert not requires_sign_in("127.0.0.1", files(home), insecure_local=True)

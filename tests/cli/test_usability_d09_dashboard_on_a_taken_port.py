"""Usability D9: `tollgate dashboard` on a taken port started a server and ended after 11 s with
exit 1.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import build_app
from gateway.main import build_toolbox
from gateway.settings import Settings


def test_a_taken_port_is_named_with_its_setting_before_anything_starts(tmp_path: Path) -> None:
    """As `serve` does it: exit 2, the setting, and no database made for nothing."""
    pytest.importorskip("streamlit", reason="the dashboard is not installed")
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        app = build_app(build_toolbox(Settings(home=tmp_path / "home", dashboard_port=port)))
        ended = CliRunner().invoke(app, ["dashboard"])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "TOLLGATE_DASHBOARD_PORT" in ended.stderr
    assert not (tmp_path / "home").exists()

"""The start of the dashboard's server."""

from __future__ import annotations

import subprocess
import sys

from tests.gateway_process import REPOSITORY


def test_the_import_of_the_views_prints_nothing() -> None:
    """`tollgate dashboard` began with two warnings of Streamlit that no reader could act on."""
    program = "from dashboard.__main__ import import_views; import_views()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

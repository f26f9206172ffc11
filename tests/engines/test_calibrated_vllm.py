"""`engine calibrate` on the real vLLM: it reads the engine's own times, and the client's agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from bench.calibration import served
from engine import environment
from engine.home import engine_home
from tests.gateway_process import REPOSITORY

pytestmark = pytest.mark.skipif(
    environment.installed_device(engine_home(os.environ)) is None,
    reason="needs vLLM: python -m engine setup",
)
LOAD = ("--seconds", "60", "--concurrency", "8", "--prompt", "512", "--answer", "64")


def test_a_real_engine_is_measured_by_its_own_clock() -> None:
    """The names in vLLM's per-request metrics may change with a release; so may the prefix cache
    and the usage.
    """
    with served("cpu") as url:
        done = subprocess.run(
            [sys.executable, "-m", "engine", "calibrate", "tiny", "--url", url, *LOAD],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            check=False,
        )
    assert done.returncode in (0, 1), "1: other work on this machine made it too noisy for a price"
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["clock"] == "engine"
    check = result["cross_check"]
    assert 0.5 < check["engine_share"] <= 1, "the rest of a request's time is outside the engine"
    assert 0.5 < check["ratios"]["output_tok_per_s"] < 2
    assert result["cached_input_tok_per_s"] > result["input_tok_per_s"] > result["output_tok_per_s"]
    assert any(row["cached_input_tokens"] for row in result["residuals"])
    assert result["flat_price_error"] > result["held_out_error"]


def test_the_roofline_of_this_machine_is_measured() -> None:
    """The program runs in the engine's environment and imports nothing of this package."""
    program = "import json; from engine.calibration.roofline import measure_roofline as m; "
    done = subprocess.run(
        [sys.executable, "-c", program + "print(json.dumps(m()))"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["device"] in ("cpu", "cuda")
    for name in ("matrix_flop_per_s_bfloat16", "matrix_flop_per_s_float32", "copy_bytes_per_s"):
        assert found[name] > 1e6

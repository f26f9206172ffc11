"""The windows of `engine calibrate` on the real vLLM: its own times, usage and prefix cache."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bench.calibration import served
from engine import environment
from engine.calibration.design import LoadRange, PlannedWindow, fitted_windows
from engine.calibration.experiment import Experiment, is_known_version
from engine.home import engine_home
from engine.load.client import LoadClient
from engine.load.prompts import prompt_writer
from engine.serving.readiness import probe_of
from tests.gateway_process import REPOSITORY

pytestmark = pytest.mark.skipif(
    environment.installed_device(engine_home(os.environ)) is None,
    reason="needs vLLM: python -m engine setup",
)
ANSWER = 64
LOAD = LoadRange(prompt=512, answer=ANSWER, concurrency=8)
SEED = 7


def test_a_real_engine_times_and_counts_each_window() -> None:
    """The names in vLLM's per-request metrics may change with a release; so may the prefix cache
    and the usage. The fit is checked by `bench.calibration`, which needs an idle machine.
    """
    rng = random.Random(SEED)
    planned = [
        window
        for window in fitted_windows(LOAD, rng)
        if (window.prompts[0], window.answers[0]) == (LOAD.prompt, ANSWER)
    ]
    with served("cpu") as url:
        experiment = Experiment(
            client=LoadClient(url=url),
            writer=prompt_writer(url, model=None, key=None, seed=SEED),
            window_s=1,
            rng=rng,
        )
        found = experiment.run(planned)
    assert {window.planned.cached_shares[0] > 0 for window in found} == {True, False}
    for window in found:
        by_engine, by_client = window.by_engine, window.by_client
        assert by_engine is not None, "vLLM reports no time of a request"
        assert by_engine.requests == by_client.requests
        assert by_engine.output_tokens == by_engine.requests * ANSWER
        has_cached = by_engine.cached_input_tokens > 0
        assert has_cached == (window.planned.cached_shares[0] > 0)
        own_s = by_engine.engine_s * by_engine.concurrency
        client_s = by_client.engine_s * by_client.concurrency
        # Far below 1 on a busy machine, but a thousandth would be another unit.
        assert 0.01 < own_s / client_s <= 1


def test_a_real_engine_reports_its_queue_apart_from_its_work(tmp_path: Path) -> None:
    """In vLLM 0.32 the time to the first token has no queue in it. Were it there, work and queue
    together would be longer than the client's time, and the window would be refused.
    """
    (tmp_path / "two.yaml").write_text("device: cpu\nmax_num_seqs: 2\n", encoding="utf-8")
    rng = random.Random(SEED)
    full = PlannedWindow(streams=8, prompts=(64, 64), answers=(32, 32), cached_shares=(0.0, 0.0))
    with served(str(tmp_path / "two.yaml")) as url:
        assert is_known_version(probe_of(url).version())
        experiment = Experiment(
            client=LoadClient(url=url),
            writer=prompt_writer(url, model=None, key=None, seed=SEED),
            window_s=1,
            rng=rng,
        )
        (found,) = experiment.run([full])
    assert found.by_engine is not None
    assert 0.5 < found.by_engine.concurrency <= 2.1
    assert 4 <= found.queued <= 6


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

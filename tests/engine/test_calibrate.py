"""`python -m engine calibrate` on an engine whose tokens have known times."""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_engine import CountingClient, SimulatedEngine, TokenSeconds, simulated

from engine.calibration.command import CalibrationPace, calibrate
from engine.calibration.cost_model import KINDS
from engine.calibration.design import ALL_WINDOWS, LoadRange
from engine.calibration.experiment import Experiment
from engine.calibration.text import as_text
from engine.command_line import main
from engine.load.prompts import prompt_writer
from engine.progress import StageProgress

LOAD = LoadRange(prompt=512, answer=64, concurrency=8)
TRUE = TokenSeconds()
KEYS = {
    "deployment",
    "input_tok_per_s",
    "cached_input_tok_per_s",
    "output_tok_per_s",
    "intervals",
    "r_squared",
    "held_out_error",
    "price_id",
}
"""Of the contract."""


def calibrated(engine: SimulatedEngine) -> dict[str, Any]:
    """Calibrate by the engine's simulated clock."""
    experiment = Experiment(
        client=CountingClient(url=engine.url, clock=lambda: engine.now_s, engine=engine),
        writer=prompt_writer(engine.url, model=None, key=None, seed=1),
        window_s=0.1,
        rng=random.Random(2),
    )
    return calibrate("sim", LOAD, experiment)


@pytest.fixture(scope="module")
def measured() -> Iterator[tuple[SimulatedEngine, dict[str, Any]]]:
    """An engine, and its calibration."""
    with simulated() as engine:
        yield engine, calibrated(engine)


Measured = tuple[SimulatedEngine, dict[str, Any]]


def test_the_true_weights_come_back_within_their_intervals(measured: Measured) -> None:
    """And the held-out load, of other lengths and concurrencies, is predicted; a flat price for all
    tokens is far off.
    """
    _, result = measured
    true_s = {
        "input": TRUE.input,
        "cached_input": TRUE.cached_input,
        "output": TRUE.output + TRUE.step / LOAD.concurrency,
    }
    assert result.keys() >= KEYS
    for kind in KINDS:
        low, high = result["intervals"][f"{kind}_tok_per_s"]
        assert low <= 1 / true_s[kind] <= high, kind
        assert low <= result[f"{kind}_tok_per_s"] <= high
        assert high / low < 4, "an interval that says nothing covers everything"
    assert (result["clock"], result["refused"], result["price_id"]) == ("engine", [], None)
    assert result["r_squared"] > 0.99
    assert result["held_out_error"] < 0.05 < 0.1 < result["flat_price_error"]
    assert all(abs(ratio - 1) < 1e-3 for ratio in result["cross_check"]["ratios"].values())
    fitted = {row["streams"] for row in result["residuals"]}
    assert fitted == {2, 8}
    assert not fitted & {row["streams"] for row in result["held_out"]}
    assert len(result["residuals"]) == 24
    assert all(abs(row["error"]) < 0.1 for row in result["residuals"] + result["held_out"])


def test_the_load_is_what_was_asked_for(measured: Measured) -> None:
    """By the engine's own ledger: lengths, cached tokens and requests at once."""
    engine, result = measured
    rows = result["residuals"] + result["held_out"]
    measured = sum(row["requests"] for row in rows)
    assert measured < len(engine.ledger) < 2 * measured + 100
    assert max(one["batch"] for one in engine.ledger) == LOAD.concurrency
    assert {one["prompt"] for one in engine.ledger} >= {128, 256, 512}
    assert {one["answer"] for one in engine.ledger} >= {16, 64}
    assert any(one["cached"] > 300 for one in engine.ledger)


def test_a_prefill_that_bends_is_refused_as_a_price() -> None:
    """One price for a token would be too low for long prompts and too high for short ones."""
    with simulated(true=TokenSeconds(prompt_pairs=600e-9, noise=0.005)) as engine:
        result = calibrated(engine)
    (reason, *_) = [one for one in result["refused"] if "bend" in one]
    assert "square of the prompt length" in reason
    assert reason in as_text(result)


def test_an_engine_without_times_of_its_own_is_timed_by_the_client() -> None:
    """SGLang, llama.cpp and others report none."""
    with simulated(has_metrics=False) as engine:
        result = calibrated(engine)
    assert (result["clock"], result["cross_check"]) == ("client", None)
    assert result["output_tok_per_s"] == pytest.approx(
        1 / (TRUE.output + TRUE.step / LOAD.concurrency), rel=0.05
    )
    assert "Timed by the client alone" in as_text(result)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of one command."""
    try:
        code = main(["calibrate", "sim", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_prints_json_and_the_report_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A program reads standard output; a person reads the rest. The key comes from a file."""
    key = tmp_path / "key"
    key.write_text("s3cret\n", encoding="utf-8")
    small = ("--seconds", "1", "--concurrency", "4", "--prompt", "64", "--answer", "8")
    with simulated(key="s3cret", is_slow=True) as engine:
        asked = ("--url", f"{engine.url}/v1", "--api-key-file", str(key), "--seed", "5", *small)
        code, out, err = run(capsys, *asked)
        engine.version = "0.25.1"
        of_other = json.loads(run(capsys, *asked)[1])
        refused = run(capsys, "--url", engine.url, *small)
    result = json.loads(out)
    assert code == (1 if result["refused"] else 0)
    assert result["seed"] == 5
    assert (result["clock"], of_other["clock"]) == ("engine", "client")
    for part in ("95 % interval", "R²", "Held-out windows, drawn after the fit", "one flat price"):
        assert part in err
    assert refused[:2] == (3, "")
    assert "401" in refused[2]


@pytest.mark.parametrize(("asked_s", "is_long"), [(40, True), (240, False)])
def test_a_calibration_that_takes_far_longer_than_asked_says_so(
    asked_s: float, is_long: bool
) -> None:
    """`--seconds 40` took 174 s without a word: each window sends three rounds at least."""
    now_s, out = [0.0], io.StringIO()
    progress = StageProgress(stage="calibrate", format="text", out=out, clock=lambda: now_s[0])
    pace = CalibrationPace(progress=progress, asked_s=asked_s)
    for _ in range(ALL_WINDOWS):
        pace.on_window(0, 24)
        now_s[0] += 174 / ALL_WINDOWS
    text = out.getvalue()
    assert text.count("in place of --seconds 40") == int(is_long)
    assert ("about 2 min 54 s in place" in text) == is_long
    assert "left" in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--url"),
        (("--url", "http://127.0.0.1:1"), 3, "did not answer a one-token request"),
        (("--url", "ftp://x"), 2, "no HTTP address"),
        (("--url", "http://127.0.0.1:1", "--concurrency", "3"), 2, "--concurrency 3 is too small"),
        (("--url", "http://127.0.0.1:1", "--seconds", "0"), 2, "not a whole number above 0"),
        (("--url", "http://127.0.0.1:1", "--seconds", "9" * 5000), 2, "is above 1,000,000,000"),
    ],
)
def test_bad_usage_says_the_next_step(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    """Nothing is measured before the command can succeed."""
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert message in err


def test_lengths_beyond_the_context_are_refused_before_the_load(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The engine would refuse its requests in the middle of the experiment."""
    with simulated() as engine:
        code, _, err = run(capsys, "--url", engine.url, "--prompt", "4000", "--answer", "97")
    assert (code, engine.ledger) == (2, [])
    assert "context of 4096 tokens" in err


def test_the_roofline_needs_the_engines_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's own environment has no torch; that is found before four minutes of load."""
    monkeypatch.setenv("TOLLGATE_ENGINE_HOME", str(tmp_path))
    code, _, err = run(capsys, "--url", "http://127.0.0.1:1", "--roofline")
    assert code == 2
    assert "tollgate engine setup" in err

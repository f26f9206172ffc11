"""`python -m engine bench` prints the figures of the contract, and each agrees with the ledger of
the server that it measured.
"""

import io
import json
import random
import subprocess
import sys
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from engine_factories import REPOSITORY, free_port, python_variables
from sse_server import running

from engine.bench.figures import Rent, Slo, quantile, read_slo, run_row
from engine.bench.ratios import ratios
from engine.command_line import main
from engine.errors import UsageError
from engine.load.measured import LoadRun, MeasuredRequest
from engine.load.workload import arrival_times
from engine.progress import StageProgress

STAND_IN = REPOSITORY / "tests" / "engine" / "stand_in_sse.py"
QUANTILES = {"p50", "p95", "p99"}


def bench(*arguments: str) -> list[str]:
    return ["bench", "--format", "json", "--warmup", "0", *arguments]


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def a_request(ttft_s: float, *, tpot_s: float = 0.1, tokens: int = 11, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "scheduled_s": 0.0,
        "sent_s": 0.0,
        "token_times_s": [ttft_s + tpot_s * index for index in range(tokens)],
        "ended_s": ttft_s + tpot_s * (tokens - 1),
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": tokens,
        "engine_metrics": None,
        "failure": None,
    }
    return MeasuredRequest(**(given | changes))


def a_run(*requests: Any, duration_s: float = 10.0) -> LoadRun:
    return LoadRun(requests=requests, began=0.0, duration_s=duration_s)


def test_the_json_is_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read these names."""
    with running(first_s=0.01, gap_s=0.002) as server:
        arguments = ["--url", f"{server.url}/v1", "--concurrency", "3", "--requests", "9"]
        assert main(bench(*arguments, "--prompt", "30", "--answer", "5")) == 0
    document = printed(capsys)
    assert set(document) == {"runs", "ratios"}
    assert document["ratios"] == []
    (run,) = document["runs"]
    latencies = {name: run[name] for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")}
    assert all(set(latency) == QUANTILES for latency in latencies.values())
    assert (run["profile"], run["requests"], run["failed"]) == (None, 9, 0)
    assert (run["goodput_per_s"], run["usd_per_mtok"]) == (None, None)
    first = min(one.received for one in server.ledger)
    last = max(one.finished or 0.0 for one in server.ledger)
    assert 0 < run["throughput_tok_per_s"] <= 9 * 5 / (last - first)
    assert run["ttft_s"]["p50"] >= 0.01
    assert len(server.ledger) == 9


def test_failed_requests_are_counted_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark with lost requests is no benchmark; its quantiles hold the answered ones alone.
    The warm-up, here request 0, is in no figure.
    """
    faults = {0: "refuse", 2: "error", 4: "no-finish", 5: "cut", 6: "refuse"}
    with running(faults=faults) as server:
        arguments = ["bench", "--format", "json", "--warmup", "1", "--url", server.url]
        arguments += ["--concurrency", "1", "--requests", "7", "--answer", "4"]
        assert main(arguments) == 1
    captured = capsys.readouterr()
    (run,) = json.loads(captured.out)["runs"]
    assert (run["requests"], run["failed"], len(server.ledger)) == (7, 4, 8)
    assert "1 failed: HTTP 503: " in captured.err
    assert "1 failed: error event: EngineCore died" in captured.err


def test_a_stall_shows_in_the_open_loop_and_hides_in_the_closed_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A closed loop records one slow request. In the open loop 35 of 40 were due meanwhile, the
    last of them 2 s before the stall's end.
    """
    assert list(islice(arrival_times(40, 0), 40))[-1] < 1.5
    medians = {}
    for loop in (("--rate", "40"), ("--concurrency", "1")):
        with running(faults={5: "stall"}, stall_s=3.0) as server:
            arguments = ["--url", server.url, *loop, "--requests", "40", "--answer", "1"]
            assert main(bench(*arguments)) == 0
        medians[loop[0]] = printed(capsys)["runs"][0]["ttft_s"]["p50"]
    assert medians["--rate"] > 1.5 > medians["--concurrency"]


def test_goodput_counts_requests_that_keep_every_bound() -> None:
    """Throughput beyond the SLO is worth nothing to a caller."""
    good, slow, hasty = a_request(0.2), a_request(0.6), a_request(0.2, tpot_s=0.3)
    one_token = a_request(0.2, tokens=1)
    broken = a_request(0.1, failure="HTTP 503")
    slo = Slo(ttft_s=0.5, tpot_s=0.15)
    row = run_row("p", a_run(good, slow, hasty, one_token, broken), slo=slo, rent=Rent())
    assert row["goodput_per_s"] == pytest.approx(2 / 10)
    assert (row["requests"], row["failed"]) == (5, 1)
    assert row["throughput_tok_per_s"] == pytest.approx((3 * 11 + 1) / 10)
    assert row["ttft_s"]["p50"] == pytest.approx(0.2)
    none = run_row("p", a_run(slow), slo=slo, rent=Rent())
    assert none["goodput_per_s"] == 0.0


def test_a_million_tokens_cost_the_rent_of_their_time() -> None:
    """2 GPUs at 3.60 USD write 11 tokens in 10 s: 0.02 USD for 11 tokens."""
    rent = Rent(usd_per_gpu_hour=3.6, gpus=2)
    row = run_row("p", a_run(a_request(0.2)), slo=None, rent=rent)
    assert row["usd_per_mtok"] == pytest.approx(0.02 / 11 * 1e6)
    failed = run_row("p", a_run(a_request(0.2, failure="cut")), slo=None, rent=rent)
    assert (failed["usd_per_mtok"], failed["ttft_s"]["p99"]) == (None, None)


def test_quantiles_are_numpys() -> None:
    """Other tools print the same type; values from numpy.percentile 2.3."""
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert quantile(values, 0.5) == 4.0
    assert quantile(values, 0.95) == pytest.approx(14.4)
    assert quantile([3.0], 0.99) == 3.0


def noisy_rounds(count: int, factor: float, seed: int) -> tuple[list[LoadRun], list[LoadRun]]:
    """Rounds of two engines on a machine that drifts by half; the second is `factor` slower."""
    rng = random.Random(seed)
    pairs: tuple[list[LoadRun], list[LoadRun]] = ([], [])
    for _ in range(count):
        drift = rng.uniform(1.0, 1.5)
        for rounds, slower in zip(pairs, (1.0, factor), strict=True):
            times = [0.1 * drift * slower * rng.uniform(0.9, 1.1) for _ in range(20)]
            requests = [a_request(one, tpot_s=one / 10) for one in times]
            rounds.append(a_run(*requests, duration_s=sum(times)))
    return pairs


def test_ratios_find_the_true_factor_through_the_drift_of_the_machine() -> None:
    """The drift of 50 % is common to both halves of a round; a factor of 1.3 stands out of it."""
    first, second = noisy_rounds(12, 1.3, seed=1)
    found = {one.metric: one for one in ratios(first, second)}
    assert set(found) == {"ttft_s", "tpot_s", "e2e_s", "throughput_tok_per_s"}
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        one = found[metric]
        assert one.low is not None
        assert one.high is not None
        assert one.low < 1.3 < one.high
        assert one.low > 1.1
    throughput = found["throughput_tok_per_s"]
    assert throughput.ratio == pytest.approx(1 / 1.3, rel=0.05)
    same = ratios(first, first)
    assert {(one.ratio, one.low, one.high) for one in same} == {(1.0, 1.0, 1.0)}


def test_two_rounds_give_no_interval() -> None:
    """An interval from two rounds would be their two values."""
    first, second = noisy_rounds(2, 1.3, seed=1)
    assert {(one.low, one.high) for one in ratios(first, second)} == {(None, None)}


@pytest.mark.skipif(sys.platform != "linux", reason="serve looks for processes in /proc")
def test_two_profiles_run_side_by_side(tmp_path: Path) -> None:
    """Both are started through `serve`, measured in turns, compared and drained."""
    for name, sequences in (("slow", 1), ("fast", 8)):
        (tmp_path / f"{name}.yaml").write_text(f"device: cpu\nmax_num_seqs: {sequences}\n")
    picture = tmp_path / "ab.svg"
    load = "--concurrency 2 --requests 8 --rounds 4 --prompt 20 --answer 4 --gpu-usd-per-hour 2"
    arguments = bench("--compare", "slow.yaml", "fast.yaml", *load.split())
    variables = {"TOLLGATE_ENGINE_VLLM": str(STAND_IN), "STAND_IN": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "engine", *arguments, "--picture", str(picture)],
        cwd=tmp_path,
        env=python_variables() | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [run["profile"] for run in document["runs"]] == ["slow.yaml", "fast.yaml"]
    assert [run["requests"] for run in document["runs"]] == [8, 8]
    tpot = next(one for one in document["ratios"] if one["metric"] == "tpot_s")
    assert tpot["low"] <= tpot["ratio"] <= tpot["high"]
    assert tpot["ratio"] < 1  # 1/40 by the servers' orders
    for run in document["runs"]:
        rate = run["throughput_tok_per_s"]
        assert run["usd_per_mtok"] == pytest.approx(2e6 / 3600 / rate)
    started = {path.name.partition("-")[2] for path in tmp_path.glob("started-*")}
    ended = {path.name.partition("-")[2] for path in tmp_path.glob("ended-*")}
    assert started == ended
    assert len(started) == 2
    drawn = ElementTree.parse(picture).getroot()
    assert len([one for one in drawn.iter() if one.tag.endswith("rect")]) == 1 + 2 + 4 * 3 * 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--profile", "cpu", "--rate", "1"], 2, "python -m engine setup"),
        (["--url", "localhost:1", "--rate", "1"], 2, "no HTTP address"),
        (["--url", "http://h", "--rate", "1", "--slo", "ttft=5"], 2, "ttft_ms"),
        (["--url", "http://h", "--rate", "1", "--workload", "ledger"], 2, "tollgate report demand"),
        (["--url", f"http://127.0.0.1:{free_port()}", "--rate", "1"], 3, "No server answers"),
        (["--profile", "absent.yaml", "--rate", "1"], 2, "No profile absent.yaml"),
    ],
)
def test_what_cannot_run_says_so(
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each message names the next step; nothing was started."""
    monkeypatch.setenv("TOLLGATE_ENGINE_HOME", str(tmp_path))
    assert main(bench(*arguments)) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "http://h"],
        ["--rate", "1"],
        ["--url", "http://h", "--profile", "cpu", "--rate", "1"],
        ["--url", "http://h", "--rate", "1", "--concurrency", "2"],
        ["--url", "http://h", "--rate", "0"],
        ["--url", "http://h", "--rate", "1", "--requests", "0"],
    ],
)
def test_bad_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A load without a loop, or with two, has no meaning."""
    with pytest.raises(SystemExit) as ended:
        main(bench(*arguments))
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_seconds_bound_the_arrivals(capsys: pytest.CaptureFixture[str]) -> None:
    """A run of unknown speed is bounded by time."""
    with running() as server:
        arguments = ["--url", server.url, "--rate", "100", "--seconds", "0.5", "--answer", "1"]
        assert main(bench(*arguments)) == 0
    (run,) = printed(capsys)["runs"]
    due = list(takewhile(lambda moment_s: moment_s < 0.5, arrival_times(100, 0)))
    assert run["requests"] == len(server.ledger) == len(due)


@pytest.mark.parametrize("shape", ["table", "csv"])
def test_people_and_spreadsheets_get_the_same_figures(
    shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table shows what was not measured as such."""
    with running() as server:
        arguments = ["--url", server.url, "--concurrency", "2", "--requests", "4"]
        assert main(["bench", "--format", shape, *arguments]) == 0
    out = capsys.readouterr().out
    if shape == "csv":
        heads, values = (line.split(",") for line in out.splitlines())
        assert dict(zip(heads, values, strict=True))["requests"] == "4"
        assert "ttft_s_p95" in heads
    else:
        assert "TTFT p95" in out
        assert "- (no price)" in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines() -> None:
    """A bar in a log file would be one endless line."""
    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        progress = StageProgress(stage="bench", format="text", out=out, clock=lambda: 0.0)
        progress.advance("load", "Load", done=5, total=10, unit="requests")
        progress.advance("load", "Load", done=10, total=10, unit="requests")
    last = terminal.getvalue().split("\r")[-1]
    assert last == f"\x1b[K[{'#' * 30}] Load: 10 of 10 requests\n"
    assert pipe.getvalue() == "Load: 5 of 10 requests\n"


def test_a_wrong_slo_is_refused_by_its_part() -> None:
    """The message names the part, not the whole text."""
    assert read_slo("ttft_ms=500, tpot_ms=50") == Slo(ttft_s=0.5, tpot_s=0.05)
    with pytest.raises(UsageError, match="'tpot_ms=x'"):
        read_slo("ttft_ms=500,tpot_ms=x")

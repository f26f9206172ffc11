"""`python -m engine plan` for its users: JSON, months, and each error with its exit code."""

import http.server
import io
import json
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.command_line import main
from engine.errors import EngineError
from engine.plan.architecture import count
from engine.plan.config import read_config, shipped_models
from engine.plan.demand import capacity, parse_demand
from engine.plan.gpus import gpu_named
from engine.plan.layout import Layout, Served, fit
from engine.plan.levers import largest_batch
from engine.plan.report import COLUMNS, usd_per_mtok
from engine.plan.roofline import Work, predict

TINY = Path(__file__).parents[2] / "engine" / "models" / "tiny"
DEMAND: dict[str, Any] = {
    "requests_per_day": 200_000,
    "prompt_tokens": {"p50": 900, "p95": 4000},
    "output_tokens": {"p50": 200, "p95": 700},
    "cached_share": 0.3,
    "growth_per_month": 0.1,
    "peak_to_mean": 3,
    "start": "2027-01",
    "slo": {"ttft_ms": 1000, "tpot_ms": 50},
}
BASE = ("plan", "--model", "Llama-3.1-8B", "--gpu", "H100")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of one command."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--format", "json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def demand_file(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "demand.yaml"
    document = {key: value for key, value in (DEMAND | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def test_the_json_has_the_names_of_the_contract(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Scripts rely on every name."""
    document = planned(capsys, *BASE, "--demand", demand_file(tmp_path))
    assert list(document) == ["model", "rows", "levers", "months"]
    assert list(document["model"]) == [
        "name",
        "parameters",
        "active_parameters",
        "weight_bytes",
        "kv_bytes_per_token",
        "kv_bytes_per_sequence",
    ]
    assert all(tuple(row) == COLUMNS for row in document["rows"])
    assert all(list(row) == ["lever", "value", "factor", "reason"] for row in document["levers"])
    assert list(document["months"][0]) == ["month", "tokens", "replicas", "gpus", "usd"]
    assert document["model"]["parameters"] == 8_030_261_248


def test_a_row_is_one_batch_and_its_price_follows_its_throughput(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """USD per million tokens = rent / tokens, at the utilisation."""
    asked = (*BASE, "--batch", "64", "--gpu-usd-per-hour", "3.6")
    (row,) = planned(capsys, *asked)["rows"]
    assert (row["batch"], row["gpus"], row["layout"]) == (64, 1, "TP1")
    assert row["usd_per_mtok"] == pytest.approx(1000 / row["throughput_tok_per_s"])
    (half,) = planned(capsys, *asked, "--utilisation", "0.5")["rows"]
    assert half["usd_per_mtok"] == pytest.approx(2 * row["usd_per_mtok"])
    batches = [row["batch"] for row in planned(capsys, *BASE)["rows"]]
    assert batches == sorted(set(batches))
    rates = [row["throughput_tok_per_s"] for row in planned(capsys, *BASE)["rows"]]
    assert rates == sorted(rates)


def test_a_gpu_on_which_it_does_not_fit_stands_beside_one_on_which_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without --gpus the other GPUs are still shown."""
    document = planned(capsys, "plan", "--model", "Kimi-K2", "--gpu", "RTX3090,H200")
    by_gpu = {row["gpu"]: row for row in document["rows"]}
    assert not by_gpu["RTX3090"]["fits"]
    assert "bytes" in by_gpu["RTX3090"]["reason"]
    assert by_gpu["RTX3090"]["throughput_tok_per_s"] is None
    assert by_gpu["H200"]["fits"]
    assert document["levers"]
    code, _, err = run(capsys, "plan", "--model", "Kimi-K2", "--gpu", "RTX3090")
    assert code == 1
    assert "bytes" in err


def test_a_batch_that_does_not_fit_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the engine: the others wait."""
    (row,) = planned(capsys, *BASE, "--batch", "100000", "--gpus", "1")["rows"]
    assert row["batch"] < 100_000
    assert "wait" in row["reason"]


def test_quantization_and_cache_change_the_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Half the bits of the cache; half those of the matrices."""
    plain = planned(capsys, *BASE)["model"]
    small = planned(capsys, *BASE, "--quantization", "fp8", "--kv-cache", "fp8")["model"]
    assert small["kv_bytes_per_token"] * 2 == plain["kv_bytes_per_token"]
    assert 0.5 < small["weight_bytes"] / plain["weight_bytes"] < 0.6
    own = planned(capsys, "plan", "--model", "DeepSeek-V3", "--gpu", "H200")["model"]
    asked = (
        "plan",
        "--model",
        "DeepSeek-V3",
        "--gpu",
        "H200",
        "--quantization",
        "none",
    )
    assert planned(capsys, *asked)["model"]["weight_bytes"] > 1.9 * own["weight_bytes"]


def test_levers_are_sorted_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The one that helps most comes first, and each has a reason."""
    levers = planned(capsys, *BASE, "--gpus", "4", "--batch", "16")["levers"]
    assert [one["factor"] for one in levers] == sorted(
        (one["factor"] for one in levers), reverse=True
    )
    assert all(one["factor"] > 1 and one["reason"] for one in levers)
    assert {"batch", "quantization", "prefix-caching"} <= {one["lever"] for one in levers}
    old = planned(capsys, "plan", "--model", "Llama-3.1-8B", "--gpu", "A100-80GB")["levers"]
    assert ("quantization", "fp8") not in {(one["lever"], one["value"]) for one in old}


def test_months_grow_and_add_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Tokens, GPUs and USD by hand; the first month has not grown."""
    asked = (*BASE, "--demand", demand_file(tmp_path), "--gpu-usd-per-hour", "2")
    rows = planned(capsys, *asked, "--months", "14")["months"]
    assert [row["month"] for row in rows[:2]] == ["2027-01", "2027-02"]
    assert rows[13]["month"] == "2028-02"
    assert rows[0]["tokens"] == 200_000 * 1100 * 31
    assert rows[1]["tokens"] == round(200_000 * 1.1 * 1100 * 28)
    for row, days in zip(rows, (31, 28, 31), strict=False):
        assert row["gpus"] == row["replicas"]
        assert row["usd"] == pytest.approx(row["gpus"] * 24 * days * 2)
    replicas = [row["replicas"] for row in rows]
    assert replicas == sorted(replicas)
    assert len(planned(capsys, *asked)["months"]) == 12


def test_more_traffic_or_a_tighter_slo_never_needs_fewer_replicas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The peak is carried within the SLO."""

    def replicas(**changes: Any) -> int:
        rows = planned(capsys, *BASE, "--demand", demand_file(tmp_path, **changes))["months"]
        return int(rows[-1]["replicas"])

    loose = replicas(requests_per_day=5_000_000)
    assert replicas() <= loose
    assert loose <= replicas(requests_per_day=5_000_000, peak_to_mean=6)
    assert loose < replicas(requests_per_day=5_000_000, slo={"ttft_ms": 1000, "tpot_ms": 9})
    assert replicas(requests_per_day=5_000_000, cached_share=0.9) <= loose


def test_a_demand_beyond_the_context_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message was about a context that nobody gave."""
    file = tmp_path / "demand.yaml"
    file.write_text(yaml.safe_dump(DEMAND | {"prompt_tokens": {"p50": 900, "p95": 200_000}}))
    code, _, errors = run(capsys, *BASE, "--demand", str(file))
    assert code == 1
    assert "A prompt and answer at the p95 of the demand of 200700 tokens" in errors


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(("Llama-3.1-8B", "gpt-oss-20b", "Qwen3-30B-A3B")),
    gpu=st.sampled_from(("H100", "A100-80GB", "L40S")),
    layout=st.sampled_from((Layout(), Layout(data=2), Layout(tensor=2), Layout(pipeline=2))),
    prompt=st.integers(10, 6000),
    answer=st.integers(2, 900),
    ttft_s=st.floats(0.05, 5),
    tpot_s=st.floats(0.005, 0.5),
)
def test_a_replica_carries_the_best_batch_within_the_slo(
    name: str, gpu: str, layout: Layout, prompt: int, answer: int, ttft_s: float, tpot_s: float
) -> None:
    """Found by bisection: a batch has up to 1,024 sequences a copy, and each one is predicted."""
    model, card = count(read_config(name)), gpu_named(gpu)
    asked = Served(model=model, quantization=model.own_format, kv_cache="auto", context=8192)
    found = fit(asked, card, layout)
    demand = replace(
        parse_demand(json.dumps(DEMAND), name="demand"),
        prompt_p50=prompt,
        prompt_p95=prompt,
        answer_p50=answer,
        answer_p95=answer,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
    )
    small = replace(found, kv_bytes_per_gpu=found.kv_bytes_per_gpu * 0.02)
    room = largest_batch(asked, card, small, prompt + answer)
    rates = []
    for batch in range(1, room + 1):
        work = Work(
            prompt=prompt, answer=answer, batch=batch, cached=min(prompt - 1, round(prompt * 0.3))
        )
        times = predict(asked, card, layout, work)
        slowest = max(times.tpot_s, batch / times.throughput_tok_per_s)
        if times.ttft_s + times.tpot_s > ttft_s or slowest > tpot_s:
            break
        rates.append(times.throughput_tok_per_s / answer)
    if rates:
        carried = capacity(demand, asked, card, small)
        assert carried.requests_per_s >= 0.98 * max(rates)
    else:
        with pytest.raises(EngineError):
            capacity(demand, asked, card, small)


def test_a_demand_is_read_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `tollgate report demand` can be piped in: the engine reads no ledger."""
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(DEMAND)))
    assert len(planned(capsys, *BASE, "--demand", "-")["months"]) == 12


def test_an_slo_that_cannot_be_kept_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the times that are possible."""
    path = demand_file(tmp_path, slo={"ttft_ms": 1, "tpot_ms": 50})
    code, out, err = run(capsys, *BASE, "--demand", path)
    assert (code, out) == (1, "")
    assert "ttft_ms 1" in err


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slo": None}, "slo"),
        ({"sloo": 1}, "sloo"),
        ({"start": "2027-13"}, "2027-13"),
        ({"requests_per_day": "many"}, "requests_per_day"),
        ({"peak_to_mean": 0.5}, "peak_to_mean"),
        ({"cached_share": 1.5}, "cached_share"),
        ({"prompt_tokens": 900}, "prompt_tokens"),
        ({"slo": {"ttft_ms": 1000}}, "slo.tpot_ms"),
    ],
)
def test_a_wrong_demand_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    """A finding: exit code 1."""
    code, out, err = run(capsys, *BASE, "--demand", demand_file(tmp_path, **changes))
    assert (code, out) == (1, "")
    assert named in err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--gpu", "H900"), 2, "H200, H100"),
        (("--quantization", "fp3"), 2, "none, fp8, int8, awq, gptq"),
        (("--kv-cache", "int4"), 2, "auto"),
        (("--gpus", "0"), 2, "above 0"),
        (("--months", "11"), 2, "12 to 18"),
        (("--utilisation", "1.5"), 2, "above 1"),
        (("--gpu-usd-per-hour", "nan"), 2, "above 0"),
        (("--demand", "/no/such/file"), 2, "/no/such/file"),
        (("--from-ledger", "a month"), 2, "such as 30d"),
        (("--from-ledger", "30d", "--demand", "x"), 2, "not both"),
        (("--prompt", "9000", "--context", "8000"), 2, "--context 8000"),
        (("--context", "200000"), 1, "A context of 200000 tokens is beyond the 131072"),
        (("--prompt", "200000"), 1, "A prompt and answer of 200001 tokens is beyond the 131072"),
        (("--model", "no-such-model"), 1, "no-such-model"),
        (("--gpus", "3"), 1, "32 heads"),
        (("--gpu", "A5000", "--model", "Llama-3.3-70B", "--gpus", "2"), 1, "bytes"),
        (("--picture", "/no/such/folder/p.svg"), 2, "/no/such/folder"),
    ],
)
def test_each_error_has_its_exit_code_and_names_its_cause(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, named: str
) -> None:
    """And prints no plan."""
    found, out, err = run(capsys, *BASE, *arguments)
    assert (found, out) == (code, "")
    assert named in err


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        (("--context", "1024"), (820, 204)),
        (("--context", "10"), (8, 2)),
        (("--context", "1280"), (1024, 256)),
        (("--context", "1024", "--prompt", "1000"), (1000, 24)),
        (("--context", "1024", "--answer", "900"), (124, 900)),
    ],
)
def test_the_lengths_that_were_not_given_fit_the_context(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], lengths: tuple[int, int]
) -> None:
    """A plan was refused for 1,024 and 256 tokens, which the caller had not asked for."""
    prompt, answer = map(str, lengths)
    asked = (*BASE, *given, "--batch", "4")
    assert planned(capsys, *asked) == planned(
        capsys, *asked, "--prompt", prompt, "--answer", answer
    )


@given(st.integers(2, 5000))
@settings(max_examples=20, deadline=None)
def test_a_model_of_any_context_has_a_plan(context: int) -> None:
    """Below 1,280 tokens none had."""
    fields = dict(read_config("Llama-3.2-1B").fields) | {"max_position_embeddings": context}
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        with redirect_stdout(io.StringIO()) as out:
            assert main(["plan", "--model", folder, "--gpu", "H100", "--format", "json"]) == 0
    assert all(row["context"] <= context for row in json.loads(out.getvalue())["rows"])


@pytest.mark.parametrize(
    ("given", "near"),
    [
        (("--model", "Llama-3.1-8B-Instruct"), "Nearest: Llama-3.1-8B."),
        (("--model", "qwen/Qwen3-14"), "Nearest: Qwen3-14B."),
        (("--gpu", "A100"), "Nearest: A100-80GB, A100-40GB."),
        (("--gpu", "H100-SXM"), "Nearest: H100."),
        (("--quantization", "fp88"), "Nearest: fp8."),
    ],
)
def test_an_unknown_name_has_the_nearest_ones(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], near: str
) -> None:
    """The hub's names of a model differ by their ending alone."""
    assert near in run(capsys, *BASE, *given)[2]


def test_a_format_is_known_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    """As GPUs and models are."""
    assert planned(capsys, *BASE, "--quantization", "FP8") == planned(
        capsys, *BASE, "--quantization", "fp8"
    )


def test_the_table_has_the_price_behind_its_usd(capsys: pytest.CaptureFixture[str]) -> None:
    """Spot prices, a managed service's and list prices made a ranking that was wrong."""
    asked = ("plan", "--model", "Qwen3-8B", "--gpu")
    mixed = run(capsys, *asked, "H100,A100-40GB")[1]
    assert "H100: 3.50 USD an hour, the middle of 1.99 to 5.00, on demand" in mixed
    assert "do not rank the GPUs by USD" in mixed
    assert "TTFT is that of one prompt alone" in mixed
    assert "do not rank" not in run(capsys, *asked, "H100,H200")[1]
    own = run(capsys, *asked, "H100,A100-40GB", "--gpu-usd-per-hour", "2")[1]
    assert "USD at 2 for an hour of one GPU, as given." in own
    assert "do not rank" not in own


def test_a_model_and_a_gpu_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the lists need neither."""
    assert run(capsys, "plan")[0] == 2
    code, out, _ = run(capsys, "plan", "--list", "models", "--format", "json")
    assert code == 0
    assert {row["model"] for row in json.loads(out)} == set(shipped_models())
    code, out, _ = run(capsys, "plan", "--list", "gpus")
    assert code == 0
    assert "RTX3090" in out
    code, out, _ = run(capsys, "plan", "--list", "gpus", "--format", "csv")
    assert out.startswith("gpu,memory_bytes")


def test_a_folder_without_a_quantization_table_can_be_asked_in_any_format(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """--quantization overrules a format that could not be counted."""
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "bitsandbytes"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = ("plan", "--model", str(tmp_path), "--gpu", "A5000")
    assert run(capsys, *asked)[0] == 1
    assert planned(capsys, *asked, "--quantization", "int8")["model"]["parameters"] == 3_672_832


def test_the_table_and_the_picture_are_readable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A small price never prints as zero, and the picture is well-formed with its units."""
    path = tmp_path / "plan.svg"
    asked = (*BASE[:-1], "H100,A5000", "--demand", demand_file(tmp_path), "--picture", str(path))
    code, out, _ = run(capsys, *asked, "--gpu-usd-per-hour", "0.00001")
    assert code == 0
    for words in ("TTFT", "tok/s", "Levers", "replicas", "2027-12"):
        assert words in out
    assert " 0.000 " not in out
    drawing = path.read_text(encoding="utf-8")
    assert len(ET.fromstring(drawing).findall(".//{*}polyline")) == 2
    assert "ms per output token" in drawing
    code, out, _ = run(capsys, *BASE, "--format", "csv")
    assert out.splitlines()[0] == ",".join(COLUMNS)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Examples, the demand file and the exit codes."""
    code, out, _ = run(capsys, "plan", "--help")
    assert code == 0
    for words in ("--model Llama-3.1-8B", "peak_to_mean", "Exit codes", "TP", "--list gpus"):
        assert words in out


class Hub(http.server.BaseHTTPRequestHandler):
    """Plays the hub with one model."""

    def do_GET(self) -> None:
        found = self.path == "/org/name/resolve/main/config.json"
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write((TINY / "config.json").read_bytes() if found else b"")

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("hub")
def test_the_hub_is_asked_only_with_download(capsys: pytest.CaptureFixture[str]) -> None:
    """Over a real socket; a model that the hub lacks is exit code 3."""
    asked = ("plan", "--model", "org/name", "--gpu", "A5000")
    assert run(capsys, *asked)[0] == 1
    assert planned(capsys, *asked, "--download")["model"]["parameters"] == 3_672_832
    code, _, err = run(capsys, "plan", "--model", "org/none", "--gpu", "A5000", "--download")
    assert code == 3
    assert "org/none" in err


def test_the_middle_of_the_price_range_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """And a GPU without a range has no price, not a price of zero."""
    (row,) = planned(capsys, *BASE, "--batch", "8")["rows"]
    low, high = gpu_named("H100").usd_per_hour or (0, 0)
    hourly = row["usd_per_mtok"] * row["throughput_tok_per_s"] * 3600 / 1e6
    assert hourly == pytest.approx((low + high) / 2)
    unpriced = replace(gpu_named("H100"), usd_per_hour=None)
    assert unpriced.middle_usd_per_hour is None
    assert usd_per_mtok(None, gpus=1, throughput_tok_per_s=1.0, utilisation=1.0) is None

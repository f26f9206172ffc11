"""Configs, demands and profiles with values of any type: each is refused in words, and none is a
plan of negative bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.command_line import main
from engine.errors import EngineError, UsageError
from engine.plan.architecture import count
from engine.plan.config import MOST_BYTES, ModelConfig, read_config
from engine.plan.demand import parse_demand
from engine.serving.model_config import facts_of
from engine.serving.profile import parse_profile, read_profile

LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}
EXPERTS = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 768,
}
LINEAR = EXPERTS | {
    "model_type": "qwen3_next",
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
LATENT = EXPERTS | {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
WINDOWS = LLAMA | {"model_type": "gemma3_text", "head_dim": 128, "sliding_window": 512}
GROUPS = {"g": {"weights": {"type": ["float"], "num_bits": 8}}}
ODD: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {"architectures": 5}),
    ({}, {"architectures": [1, 2]}),
    (LLAMA, {"model_type": ["llama"]}),
    (LLAMA, {"model_type": {}}),
    (LLAMA, {"layer_types": [["full_attention"]] * 4}),
    (LINEAR, {"full_attention_interval": 0}),
    (LINEAR, {"full_attention_interval": "4"}),
    (LINEAR, {"full_attention_interval": float("nan")}),
    (WINDOWS, {"sliding_window_pattern": 0}),
    (WINDOWS, {"sliding_window_pattern": "6"}),
    (LATENT, {"q_lora_rank": "1536"}),
    (LATENT, {"q_lora_rank": -1_000_000}),
    (LATENT, {"first_k_dense_replace": "1"}),
    (LATENT, {"moe_layer_freq": [0, 1, 1, 1]}),
    (EXPERTS, {"mlp_only_layers": 3}),
    (EXPERTS, {"decoder_sparse_step": 0}),
    (LLAMA, {"hidden_size": 16}),
    (LLAMA, {"hidden_size": 10**400}),
    (LLAMA, {"num_hidden_layers": 10**9}),
    (LLAMA, {"num_key_value_heads": 7}),
    (LLAMA, {"num_key_value_heads": 64}),
    (LLAMA, {"tie_word_embeddings": "false"}),
    (LLAMA, {"quantization_config": {"quant_method": "gptq", "bits": "8"}}),
    (
        LLAMA,
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": GROUPS}},
    ),
)
DEMAND = {
    "requests_per_day": "200000",
    "prompt_tokens": "{p50: 900, p95: 4000}",
    "output_tokens": "{p50: 200, p95: 700}",
    "cached_share": "0.3",
    "growth_per_month": "0.1",
    "peak_to_mean": "3",
    "start": "2027-01",
    "slo": "{ttft_ms: 1000, tpot_ms: 50}",
}
BOMB = "[&a [1, 1, 1], &b [*a, *a, *a], &c [*b, *b, *b], &d [*c, *c, *c], [*d, *d, *d]]"
ODD_DEMANDS = {
    "requests_per_day": ".inf",
    "peak_to_mean": "1.0e+308",
    "prompt_tokens": "{p50: 4000, p95: 900}",
    "output_tokens": "{p50: 1, p95: .inf}",
    "slo": "{ttft_ms: .inf, tpot_ms: 50}",
    "start": "2027-13-45",
    "cached_share": BOMB,
    "growth_per_month": "0x_",
    "1": "an unknown key that is a number\nunknown: 1",
}
ODD_PROFILES = {
    "a bomb": f"max_num_seqs: {BOMB}\n",
    "a value in itself": "max_num_seqs: &a [*a]\n",
    "no date": "max_num_seqs: 2027-13-45\n",
    "no number": "max_num_seqs: 0x_\n",
    "deep": "[" * 5_000,
}


def config(fields: dict[str, Any]) -> ModelConfig:
    """Return a config with these fields."""
    return ModelConfig(name="odd", source="a test", fields=fields)


@pytest.mark.parametrize("known", [LLAMA, EXPERTS, LINEAR, LATENT, WINDOWS])
def test_the_configs_below_are_counted_as_they_are(known: dict[str, Any]) -> None:
    """Else the next test would pass for another reason."""
    assert count(config(known)).parameters > 0


@pytest.mark.parametrize(("known", "odd"), ODD)
def test_a_wrong_field_is_named(known: dict[str, Any], odd: dict[str, Any]) -> None:
    """Most of them ended with a traceback. A negative rank was a model of -40 billion parameters
    and -14,474 tokens per second, with exit code 0.
    """
    with pytest.raises(EngineError, match="odd"):
        count(config(known | odd))


@pytest.mark.parametrize(
    "odd",
    [
        {"architectures": 5},
        {"rope_scaling": {"type": "linear", "factor": float("inf")}},
        {"rope_scaling": {"type": "linear", "factor": float("nan")}},
        {"rope_scaling": {"type": ["linear"], "factor": 2}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": GROUPS}},
    ],
)
def test_serve_leaves_odd_fields_to_vllm(odd: dict[str, Any]) -> None:
    """`--dry-run` ended with a traceback."""
    assert facts_of(LLAMA | odd).attention_heads == 32


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, " " * (MOST_BYTES + 1)])
def test_a_config_that_is_no_models_is_refused(tmp_path: Path, text: str) -> None:
    """Deep JSON ended with a traceback, and a file of any length was read whole."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngineError, match=r"config\.json is longer|is not JSON"):
        read_config(str(tmp_path))


@pytest.mark.parametrize("name", ["a" * 5_000, "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with a traceback."""
    assert main(["plan", "--model", name, "--gpu", "H200"]) == 1
    assert main(["serve", "--dry-run", "--model", name]) == 2
    assert main(["serve", "--dry-run", "--profile", name]) == 2
    assert "Traceback" not in capsys.readouterr().err


def demand(**odd: str) -> str:
    """Return a demand file."""
    return "".join(f"{key}: {value}\n" for key, value in (DEMAND | odd).items())


def test_the_demand_below_is_read_as_it_is() -> None:
    """Else the next test would pass for another reason."""
    assert parse_demand(demand(), "odd").prompt_p95 == 4000


@pytest.mark.parametrize(("key", "value"), ODD_DEMANDS.items(), ids=ODD_DEMANDS)
def test_a_demand_that_cannot_be_is_refused(key: str, value: str) -> None:
    """Most of them ended with a traceback; a p95 below the p50 was planned."""
    with pytest.raises(EngineError) as refused:
        parse_demand(demand(**{key: value}), "odd")
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("text", ODD_PROFILES.values(), ids=ODD_PROFILES)
def test_a_profile_that_cannot_be_is_refused(text: str) -> None:
    """A few lines of aliases were gigabytes once the value was printed."""
    with pytest.raises(EngineError, match="Nothing was started"):
        parse_profile(text, source="odd")


def test_a_profile_of_other_bytes_is_refused(tmp_path: Path) -> None:
    """It ended with a traceback."""
    (tmp_path / "odd.yaml").write_bytes(b"dtype: \xff\xfe\n")
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(str(tmp_path / "odd.yaml"))


def test_a_refused_value_does_not_move_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile of somebody else is checked at a terminal."""
    (tmp_path / "odd.yaml").write_text('dtype: "\\e[2J\\e]0;x\\a"\n')
    assert main(["serve", "--dry-run", "--profile", str(tmp_path / "odd.yaml")]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["refused"][0]["key"] == "dtype"
    assert "\x1b" not in shown.out + shown.err


@pytest.mark.parametrize("value", [".inf", "{2027-01-01: x}", "[.nan]"])
def test_a_refused_value_is_json(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`Infinity` is no JSON, and a date as a key ended with a traceback."""
    (tmp_path / "odd.yaml").write_text(f"max_num_seqs: {value}\n")
    assert main(["serve", "--dry-run", "--profile", str(tmp_path / "odd.yaml")]) == 1
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["refused"]


def test_no_name_is_a_flag_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder's name is also the served name."""
    folder = tmp_path / "--trust-remote-code"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for model in (str(folder), "--trust-remote-code/x"):
        assert main(["serve", "--dry-run", f"--model={model}"]) == 2
        assert "read it as a flag" in capsys.readouterr().err

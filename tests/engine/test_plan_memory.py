"""Weights and KV cache of known models, by hand and against published totals."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, UnknownStateError
from engine.plan.architecture import Model, count
from engine.plan.config import ModelConfig, read_config, shipped_models
from engine.plan.memory import (
    QUANTIZATIONS,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    kv_tokens,
    weight_bytes,
)

NAMES = sorted(shipped_models())
TINY = Path(__file__).parents[2] / "engine" / "models" / "tiny"


@cache
def model(name: str) -> Model:
    return count(read_config(name))


def changed(name: str, **fields: Any) -> ModelConfig:
    config = read_config(name)
    return ModelConfig(name=name, source="test", fields={**config.fields, **fields})


# Total and active parameters as the publishers' model cards state them; DeepSeek-V3 without its 14B
# of next-token-prediction layers. OpenAI's active figure leaves out one embedding matrix.
PUBLISHED = {
    "Llama-3.1-8B": (8.03e9, 8.03e9),
    "Llama-3.1-70B": (70.6e9, 70.6e9),
    "Llama-3.1-405B": (406e9, 406e9),
    "Mixtral-8x7B-v0.1": (46.7e9, 12.9e9),
    "Mixtral-8x22B-v0.1": (141e9, 39e9),
    "Qwen2.5-72B": (72.7e9, 72.7e9),
    "Qwen3-30B-A3B": (30.5e9, 3.3e9),
    "Qwen3-235B-A22B": (235e9, 22e9),
    "Qwen3-Next-80B-A3B": (80e9, 3.9e9),
    "DeepSeek-V3": (671e9, 37e9),
    "gpt-oss-20b": (20.9e9, 3.6e9 + 201088 * 2880),
    "gpt-oss-120b": (116.8e9, 5.1e9 + 201088 * 2880),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_totals(name: str) -> None:
    """A wrong count would size the wrong GPU."""
    total, active = PUBLISHED[name]
    assert model(name).parameters == pytest.approx(total, rel=0.01)
    assert model(name).active_parameters == pytest.approx(active, rel=0.03)


def test_llama_is_counted_as_by_hand() -> None:
    """Llama 3.1 8B: 32 layers of attention, MLP and two norms; embedding, head, final norm."""
    attention = 4096 * 4096 * 2 + 2 * 4096 * 1024
    layer = attention + 3 * 4096 * 14336 + 2 * 4096
    ends = 2 * 128256 * 4096 + 4096
    found = model("Llama-3.1-8B")
    assert found.parameters == 32 * layer + ends == 8_030_261_248
    assert weight_bytes(found, "none") == 2 * found.parameters
    matrices = 32 * (layer - 2 * 4096)
    rest = found.parameters - matrices
    assert weight_bytes(found, "fp8") == matrices + 2 * rest
    assert weight_bytes(found, "awq") == matrices * (4 + 20 / 128) / 8 + 2 * rest


def test_kv_bytes_are_those_of_each_kind_of_attention() -> None:
    """Grouped heads, all heads, latent, windows, and linear layers, each by hand."""
    assert kv_bytes_per_token(model("Llama-3.1-8B")) == 32 * 2 * 8 * 128 * 2
    assert kv_bytes_per_token(model("Llama-3.1-8B"), "fp8") == 32 * 2 * 8 * 128
    assert kv_bytes_per_token(model("Llama-2-7b")) == 32 * 2 * 32 * 128 * 2
    assert kv_bytes_per_token(model("DeepSeek-V3")) == 61 * (512 + 64) * 2
    gemma = model("gemma-3-27b")  # 62 layers, each sixth of them full
    assert kv_bytes_per_token(gemma) == 62 * 2 * 16 * 128 * 2
    assert kv_bytes_per_sequence(gemma, 8192) == 2 * 16 * 128 * 2 * (10 * 8192 + 52 * 1024)
    hybrid = model("Qwen3-Next-80B-A3B")
    state = 32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 3
    assert kv_bytes_per_token(hybrid) == 12 * 2 * 2 * 256 * 2
    assert kv_bytes_per_sequence(hybrid, 1000) == 12 * 2 * 2 * 256 * 2 * 1000 + 36 * state * 2


def test_kv_tokens_are_those_that_vllm_logged_on_a_cpu() -> None:
    """vLLM 0.32 on a CPU gave the tiny model 524,288 tokens in 1 GiB (2026-11-20)."""
    tiny = count(read_config(str(TINY)))
    assert kv_bytes_per_token(tiny) == 2048
    assert kv_tokens(tiny, 2**30, context=4096, kv_cache="auto") == 524_288
    # The same run with 12 layers and 6 KV heads of 64 in 2 GiB: 116,480, in blocks of 128.
    mid = ModelConfig(
        name="mid",
        source="test",
        fields={
            **read_config(str(TINY)).fields,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 6,
            "layer_types": ["full_attention"] * 12,
        },
    )
    found = kv_tokens(count(mid), 2 * 2**30, context=4096, kv_cache="auto")
    assert found // 128 * 128 == 116_480


def test_the_shipped_table_has_many_models_each_with_a_source() -> None:
    """A figure without a source cannot be checked."""
    assert len(NAMES) >= 20
    assert all(len(entry["source"]) > 20 for entry in shipped_models().values())
    assert read_config("LLAMA-3.1-8b").name == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None)
@given(context=st.integers(min_value=1, max_value=200_000))
def test_windows_never_cost_more_than_full_attention(name: str, context: int) -> None:
    """Nor does a longer context ever cost less, nor an 8-bit cache more than a 16-bit one."""
    found = model(name)
    whole = kv_bytes_per_sequence(found, context)
    states = kv_bytes_per_sequence(found, 0)
    assert whole - states <= context * kv_bytes_per_token(found)
    assert whole <= kv_bytes_per_sequence(found, context + 1)
    assert kv_bytes_per_sequence(found, context, "fp8") <= whole
    for split in (2, 4, 8):
        part = kv_bytes_per_sequence(found, context, tensor_parallel=split)
        assert whole / split <= part <= whole


@pytest.mark.parametrize("name", NAMES)
def test_fewer_bits_never_weigh_more(name: str) -> None:
    """And a format below 16 bits is always lighter than none."""
    found = model(name)
    sizes = [weight_bytes(found, name) for name in ("awq", "fp8", "none")]
    assert sizes == sorted(sizes)
    assert found.active_parameters <= found.parameters
    assert all(weight_bytes(found, one) > 0 for one in QUANTIZATIONS)


@pytest.mark.parametrize(
    "field",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_key_value_heads",
        "vocab_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
    ],
)
def test_a_missing_field_is_named(field: str) -> None:
    """A default could make the cache wrong by a factor of eight."""
    with pytest.raises(EngineError, match=field):
        count(changed("Llama-3.1-8B", **{field: None}))
    with pytest.raises(EngineError, match=field):
        count(changed("Llama-3.1-8B", **{field: "many"}))


def test_an_architecture_that_cannot_be_counted_is_named() -> None:
    """No guess at a model of an unknown kind."""
    with pytest.raises(EngineError, match="rwkv7"):
        count(changed("Llama-3.1-8B", model_type="rwkv7"))
    with pytest.raises(EngineError, match="NewForCausalLM"):
        count(changed("Llama-3.1-8B", model_type=None, architectures=["NewForCausalLM"]))
    with pytest.raises(EngineError, match="mamba"):
        count(changed("Llama-3.1-8B", layer_types=["mamba"] * 32))
    with pytest.raises(EngineError, match="bitsandbytes"):
        count(changed("Llama-3.1-8B", quantization_config={"quant_method": "bitsandbytes"}))


@pytest.mark.parametrize(
    "quantization",
    [
        "fp8",
        {"quant_method": "compressed-tensors", "config_groups": ["group_0"]},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": 8}}},
    ],
)
def test_a_broken_quantization_is_named(quantization: object) -> None:
    """A traceback would not say which file to mend."""
    with pytest.raises(EngineError, match="quantization_config of "):
        count(changed("Llama-3.1-8B", quantization_config=quantization))


def test_the_configs_own_format_counts() -> None:
    """An FP8 checkpoint is not loaded at 16 bits."""
    assert model("DeepSeek-V3").own_format == "fp8"
    groups = {"g": {"weights": {"type": "int", "num_bits": 8}}}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert count(changed("Llama-3.1-8B", quantization_config=quantization)).own_format == "int8"


def test_a_config_is_read_from_a_folder_or_refused(tmp_path: Path) -> None:
    """Not JSON, a vision tower, or no such model: each by name."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EngineError, match="not JSON"):
        read_config(str(tmp_path))
    wrapped = {"text_config": read_config("gemma-3-1b").fields}
    (tmp_path / "config.json").write_text(json.dumps({**wrapped, "vision_config": {"layers": 1}}))
    with pytest.raises(EngineError, match="vision_config"):
        read_config(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(wrapped))
    assert count(read_config(str(tmp_path))).parameters == model("gemma-3-1b").parameters
    with pytest.raises(EngineError, match="no-such-model"):
        read_config("no-such-model")


def test_a_hub_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked only with --download; without, the name alone is refused."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnknownStateError, match=r"config\.json"):
        read_config("org/name", may_download=True)
    with pytest.raises(EngineError, match="--download"):
        read_config("org/name")

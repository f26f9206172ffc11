"""Translates a profile into the flags of `vllm serve`.

The flags and their forms are those of vllm/engine/arg_utils.py and vllm/config/speculative.py in
vLLM 0.32.0, read 2026-11-26.
"""

import json
from collections.abc import Iterator

from engine.environment import Device
from engine.serving.model_config import ModelFacts
from engine.serving.profile import Profile, Speculation

NGRAM_WINDOW = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
"""Lengths of the n-grams that are looked up in the prompt; 4 and 2 gave 1.4 times the tokens per
second on repetitive text, and 0.8 times on other text (measured 2026-11-20).
"""
NUMBERS = {
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
}
SWITCHES = {"chunked_prefill": "enable-chunked-prefill", "prefix_caching": "enable-prefix-caching"}
SIZES = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "data_parallel_size": "--data-parallel-size",
}


def profile_flags(
    profile: Profile, device: Device, model: ModelFacts, draft: ModelFacts | None
) -> tuple[str, ...]:
    """Return the flags of a profile, without those that every engine gets."""
    return tuple(_flags(profile, device, model, draft))


def _flags(
    profile: Profile, device: Device, model: ModelFacts, draft: ModelFacts | None
) -> Iterator[str]:
    """Yield the flags of a profile one by one."""
    for setting, flag in NUMBERS.items():
        if (value := getattr(profile, setting)) is not None:
            yield from (flag, str(value))
    for setting, flag in SWITCHES.items():
        if (value := getattr(profile, setting)) is not None:
            yield f"--{flag}" if value else f"--no-{flag}"
    if profile.dtype != "auto":
        yield from ("--dtype", profile.dtype)
    if profile.kv_cache_dtype != "auto":
        yield from ("--kv-cache-dtype", profile.kv_cache_dtype)
    if (method := quantization_method(profile, device, model)) is not None:
        yield from ("--quantization", method)
    for setting, flag in SIZES.items():
        if (size := getattr(profile, setting)) > 1:
            yield from (flag, str(size))
    if profile.speculative is not None:
        yield from ("--speculative-config", speculative_config(profile.speculative, draft))


def quantization_method(profile: Profile, device: Device, model: ModelFacts) -> str | None:
    """Return vLLM's name of the profile's quantization, or None to leave it to the checkpoint.

    The name must be that of the checkpoint (vllm/config/model.py, `_verify_quantization`). Weights
    of 16 bits are quantized while they load; `fp8` itself no longer does that
    (vllm/model_executor/layers/quantization/fp8.py), so a name of vllm/config/quantization.py does.
    """
    if profile.quantization == "none":
        return None
    if model.quantization == profile.quantization:
        return model.quantization_method
    if profile.quantization == "fp8":
        return "fp8_per_channel" if device == "cpu" else "fp8_per_tensor"
    return (
        "int8_per_channel_weight_only" if profile.quantization == "int8" else profile.quantization
    )


def speculative_config(speculation: Speculation, draft: ModelFacts | None) -> str:
    """Return the JSON of `--speculative-config`."""
    method: str = speculation.method
    if method == "draft":
        method = "draft_model"
    elif method == "eagle" and draft is not None and draft.is_eagle3:
        method = "eagle3"
    config: dict[str, object] = {"method": method, "num_speculative_tokens": speculation.tokens}
    if speculation.method == "ngram":
        config |= NGRAM_WINDOW
    else:
        config["model"] = speculation.model
    return json.dumps(config)

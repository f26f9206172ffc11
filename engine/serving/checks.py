"""Checks a profile against the hardware, the model and itself, and returns each impossible setting.

The hardware's part is data (`rules.yaml`). Here are the combinations that vLLM 0.32.0 refuses after
it has loaded for a minute; each names the place in vLLM's source.
"""

from collections.abc import Iterator

from engine.environment import Device
from engine.serving.hardware import Hardware
from engine.serving.hardware_rules import rule_for
from engine.serving.model_config import ModelFacts
from engine.serving.profile import Profile, Refused

SIXTEEN_BITS = frozenset({"awq", "gptq", "fp8"})
"""Quantizations whose kernels compute in 16 bits: `get_supported_act_dtypes` of auto_awq.py,
auto_gptq.py and fp8.py in vllm/model_executor/layers/quantization.
"""


def refusals(
    profile: Profile,
    hardware: Hardware,
    model: ModelFacts,
    *,
    draft: ModelFacts | None = None,
    installed: Device | None = None,
) -> tuple[Refused, ...]:
    """Return the settings that cannot work together here, each once.

    `draft` are the facts of the model that speculation uses; `installed` is the device that the
    engine's environment was made for, None if there is none to compare with.
    """
    found = (
        *_device(profile, hardware, installed),
        *_hardware(profile, hardware, model),
        *_quantization(profile, model),
        *_lengths(profile, model),
        *parallel_refusals(profile, model),
        *_kv_cache(profile, hardware, model),
        *_speculation(profile, model, draft),
    )
    return tuple({(item.key, str(item.value)): item for item in reversed(found)}.values())[::-1]


def quantization_of(profile: Profile, model: ModelFacts) -> str | None:
    """Return the quantization that will be served: the profile's, else the checkpoint's."""
    return model.quantization if profile.quantization == "none" else profile.quantization


def _device(profile: Profile, hardware: Hardware, installed: Device | None) -> Iterator[Refused]:
    """Yield a refusal if the device is absent, or the installed vLLM is built for the other."""
    if hardware.device == "gpu" and not hardware.gpus:
        yield Refused(key="device", value=profile.device, reason="nvidia-smi lists no GPU here")
    if installed is not None and installed != hardware.device:
        yield Refused(
            key="device",
            value=profile.device,
            reason=f"the engine's environment holds vLLM for the {installed}; install the other "
            f"with: python -m engine setup --device {hardware.device}",
        )


def _hardware(profile: Profile, hardware: Hardware, model: ModelFacts) -> Iterator[Refused]:
    """Yield the settings that the rule table refuses on this hardware."""
    sizes = {
        name: getattr(profile, name)
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    }
    asked: dict[str, object] = {name: size for name, size in sizes.items() if size > 1}
    if profile.dtype != "auto":
        asked["dtype"] = profile.dtype
    if profile.kv_cache_dtype != "auto":
        asked["kv_cache_dtype"] = profile.kv_cache_dtype
    if (quantization := quantization_of(profile, model)) is not None:
        asked["quantization"] = quantization
    if profile.speculative is not None:
        asked["speculative.method"] = profile.speculative.method
    for setting, value in asked.items():
        rule = rule_for(setting, value, hardware.device)
        if rule is None:  # a checkpoint of another method: vLLM decides
            continue
        if (reason := rule.refusal(hardware, sizes)) is not None:
            yield Refused(key=setting, value=value, reason=reason)


def _quantization(profile: Profile, model: ModelFacts) -> Iterator[Refused]:
    """Yield a refusal if the checkpoint cannot give the quantization, or its data type is wrong."""
    asked, is_plain = profile.quantization, model.is_known and model.quantization is None
    if asked != "none" and model.quantization not in (None, asked):
        # vllm/config/model.py, _verify_quantization
        yield Refused(
            key="quantization",
            value=asked,
            reason=f"the model's config.json says {model.quantization_method}",
        )
    elif asked in ("awq", "gptq") and is_plain:
        yield Refused(
            key="quantization",
            value=asked,
            reason=f"the model's weights are not quantized with {asked}; take a checkpoint that is",
        )
    elif asked == "int8" and is_plain and not model.has_experts:
        # vllm/config/quantization.py, _ONLINE_SHORTHANDS: int8 leaves linear layers as they are
        yield Refused(
            key="quantization",
            value=asked,
            reason="the model's weights are 16 bits wide, and vLLM quantizes only experts to int8 "
            "while it loads; take a checkpoint with int8 weights (compressed-tensors, W8A8)",
        )
    served = quantization_of(profile, model)
    if profile.dtype == "float32" and served in SIXTEEN_BITS:
        yield Refused(
            key="dtype", value="float32", reason=f"the kernels of {served} compute in 16 bits"
        )


def _lengths(profile: Profile, model: ModelFacts) -> Iterator[Refused]:
    """Yield the limits that contradict the model's context or each other."""
    length, batch = profile.max_model_len, profile.max_num_batched_tokens
    context = model.context_tokens
    if isinstance(length, int) and context is not None and length > context:
        # vllm/config/model.py, _get_and_verify_max_len
        yield Refused(
            key="max_model_len", value=length, reason=f"the model's context is {context} tokens"
        )
    if batch is not None and profile.max_num_seqs is not None and batch < profile.max_num_seqs:
        # vllm/config/scheduler.py: each running sequence writes a token in a step
        yield Refused(
            key="max_num_batched_tokens",
            value=batch,
            reason=f"must be at least max_num_seqs ({profile.max_num_seqs})",
        )
    longest = length if isinstance(length, int) else context
    is_whole = profile.chunked_prefill is False
    if is_whole and batch is not None and longest is not None and batch < longest:
        # vllm/config/scheduler.py: without chunks a prompt must fit into one step
        yield Refused(
            key="max_num_batched_tokens",
            value=batch,
            reason=f"without chunked_prefill it must be at least the context ({longest})",
        )


def parallel_refusals(profile: Profile, model: ModelFacts) -> Iterator[Refused]:
    """Yield the parallel sizes that do not divide the model."""
    tensor, pipeline = profile.tensor_parallel_size, profile.pipeline_parallel_size
    if model.attention_heads is not None and model.attention_heads % tensor:
        # vllm/config/model.py, verify_with_parallel_config
        yield Refused(
            key="tensor_parallel_size",
            value=tensor,
            reason=f"does not divide the model's {model.attention_heads} attention heads",
        )
    if model.layers is not None and pipeline > model.layers:
        yield Refused(
            key="pipeline_parallel_size",
            value=pipeline,
            reason=f"the model has {model.layers} layers",
        )


def _kv_cache(profile: Profile, hardware: Hardware, model: ModelFacts) -> Iterator[Refused]:
    """Yield a refusal if an FP8 cache does not fit the model's heads on a CPU."""
    is_odd = model.head_dim is not None and model.head_dim % 32 != 0
    if profile.kv_cache_dtype == "fp8" and hardware.device == "cpu" and is_odd:
        # vllm/v1/attention/backends/cpu_attn.py, _get_attn_isa
        yield Refused(
            key="kv_cache_dtype",
            value="fp8",
            reason=f"on a CPU the model's head_dim ({model.head_dim}) must be a multiple of 32",
        )


def _speculation(
    profile: Profile, model: ModelFacts, draft: ModelFacts | None
) -> Iterator[Refused]:
    """Yield a refusal if the drafting model is of the wrong kind."""
    speculation = profile.speculative
    if speculation is None or draft is None:
        return
    if speculation.method == "eagle" and not draft.is_eagle:
        yield Refused(
            key="speculative.model",
            value=speculation.model,
            reason="is no EAGLE head: its config.json names no such architecture",
        )
    is_other = None not in (model.vocabulary, draft.vocabulary)
    if speculation.method == "draft" and is_other and model.vocabulary != draft.vocabulary:
        # vllm/config/speculative.py: both must read the same token ids
        yield Refused(
            key="speculative.model",
            value=speculation.model,
            reason=f"its vocabulary ({draft.vocabulary}) is not the model's ({model.vocabulary})",
        )

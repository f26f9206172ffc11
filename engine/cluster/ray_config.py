"""Translates a profile into the configuration of Ray Serve LLM, and names settings that it lacks.

The forms are those of `LLMConfig` and `LLMServingArgs` in ray/llm/_internal/serve (Ray 2.60.0), and
of `AsyncEngineArgs` and `FrontendArgs` in vLLM 0.32.0; both were read on 2026-11-26.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from engine import vllm_command
from engine.environment import Device
from engine.serving.flags import quantization_method, speculative_config
from engine.serving.model_config import ModelFacts
from engine.serving.profile import AUTO, Profile, Refused
from engine.vllm_command import Serving

FEWEST_INGRESS_REPLICAS = 2
"""With one, the death of its machine stopped every request for 18 s (measured 2026-11-20)."""

HEALTH_CHECK = {"health_check_period_s": 2, "health_check_timeout_s": 10}
"""Seconds. With a period of 2 s, Ray replaced a killed replica after 0.6 to 2.4 s (2026-11-20)."""

PASSED_ON = ("VLLM_", "OMP_", "HF_", "NCCL_", "GLOO_")
"""Prefixes of the caller's variables that every engine of the cluster gets."""

SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Words in the names of variables that stay here: Ray shows an engine's environment to anyone."""

NAMES = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_queued_reqs": "max_num_queued_reqs",
    "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
}
"""The keys of a profile that vLLM takes as they are, with vLLM's names."""


def refused_options(
    options: argparse.Namespace, variables: Mapping[str, str]
) -> tuple[Refused, ...]:
    """Return the options of `serve` that Ray Serve LLM cannot honour, with the reason of each."""
    return tuple(_refused_options(options, variables))


def _refused_options(
    options: argparse.Namespace, variables: Mapping[str, str]
) -> Iterator[Refused]:
    """Yield the refused options one by one."""
    if program := variables.get(vllm_command.PROGRAM_VARIABLE):
        yield Refused(
            key=vllm_command.PROGRAM_VARIABLE,
            value=program,
            reason="Ray Serve LLM runs the vLLM of the engine's environment",
        )
    if options.api_key_file is not None:
        yield Refused(
            key="--api-key-file",
            value=options.api_key_file,
            reason="Ray Serve LLM asks for no key; keep the cluster on a closed network",
        )
    if options.runner != "generate":
        yield Refused(
            key="--runner", value=options.runner, reason="with --cluster only generate is served"
        )
    if options.extra:
        yield Refused(
            key="--",
            value=" ".join(options.extra),
            reason="Ray Serve LLM takes no arguments of vllm serve; set the profile's keys",
        )


def single_machine_part(profile: Profile, device: Device) -> Profile:
    """Return a profile without the parallel sizes that one machine need not hold.

    `data_parallel_size` becomes Ray's replicas. Stages of a pipeline may lie on several machines
    with GPUs; on CPUs, Ray starts all ranks of a replica on one machine (`mp` executor).
    """
    stages = 1 if device == "gpu" else profile.pipeline_parallel_size
    return replace(profile, data_parallel_size=1, pipeline_parallel_size=stages)


def ray_config(
    profile: Profile,
    serving: Serving,
    *,
    source: str,
    variables: Mapping[str, str],
    model: ModelFacts,
    draft: ModelFacts | None,
) -> dict[str, Any]:
    """Return the arguments of `ray.serve.llm.build_openai_app`, as plain JSON values.

    `source` is the model's folder, the same on every machine, or its name on the hub. `variables`
    are the environment variables of each engine.
    """
    replicas = profile.data_parallel_size
    llm: dict[str, Any] = {
        "model_loading_config": {"model_id": serving.served_model_name, "model_source": source},
        "engine_kwargs": _engine_kwargs(profile, serving, model, draft),
        "deployment_config": {
            "num_replicas": replicas,
            # vLLM bounds its own queue; without this number Ray would have none at all (1e9).
            "max_ongoing_requests": 2 * serving.max_queued_requests,
            "graceful_shutdown_timeout_s": vllm_command.SHUTDOWN_TIMEOUT_S,
            **HEALTH_CHECK,
        },
        "runtime_env": {"env_vars": dict(variables)},
    }
    if serving.device == "cpu":
        ranks = profile.tensor_parallel_size * profile.pipeline_parallel_size
        llm["accelerator_config"] = {"kind": "cpu"}
        llm["placement_group_config"] = {"bundles": [{"CPU": 1}] * ranks, "strategy": "STRICT_PACK"}
    ingress = {"num_replicas": max(FEWEST_INGRESS_REPLICAS, replicas)}
    return {"llm_configs": [llm], "ingress_deployment_config": ingress}


def _engine_kwargs(
    profile: Profile, serving: Serving, model: ModelFacts, draft: ModelFacts | None
) -> dict[str, Any]:
    """Return vLLM's settings, by the names of its Python arguments."""
    kwargs: dict[str, Any] = {
        name: value for key, name in NAMES.items() if (value := getattr(profile, key)) is not None
    }
    kwargs["max_num_queued_reqs"] = serving.max_queued_requests
    if profile.max_model_len is not None:
        # vllm/engine/arg_utils.py turns the word auto into -1
        kwargs["max_model_len"] = -1 if profile.max_model_len == AUTO else profile.max_model_len
    if profile.dtype != "auto" or serving.number_format == "float32":
        kwargs["dtype"] = profile.dtype if profile.dtype != "auto" else serving.number_format
    if profile.kv_cache_dtype != "auto":
        kwargs["kv_cache_dtype"] = profile.kv_cache_dtype
    if (method := quantization_method(profile, serving.device, model)) is not None:
        kwargs["quantization"] = method
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(profile, name) > 1:
            kwargs[name] = getattr(profile, name)
    if profile.speculative is not None:
        kwargs["speculative_config"] = json.loads(speculative_config(profile.speculative, draft))
    if serving.reasoning_parser != vllm_command.NO_PARSER:
        kwargs["reasoning_parser"] = serving.reasoning_parser
    if serving.tool_call_parser != vllm_command.NO_PARSER:
        kwargs |= {"enable_auto_tool_choice": True, "tool_call_parser": serving.tool_call_parser}
    if serving.device == "cpu":
        kwargs["enforce_eager"] = True
    # Without the details, cached tokens would be billed in full.
    return kwargs | {"enable_prompt_tokens_details": True, "enable_per_request_metrics": True}


def engine_variables(defaults: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of each engine: ours, and the caller's with vLLM's
    prefixes, without secrets.

    The rest of the caller's environment stays on the caller's machine.
    """
    own = {
        name: value
        for name, value in inherited.items()
        if name.startswith(PASSED_ON) and not any(word in name for word in SECRETS)
    }
    return {**defaults, **own}

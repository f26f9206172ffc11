"""Other gateways to measure beside: LiteLLM's proxy and the vLLM router, as their users would run
them.

Each has its own virtual environment (`bash bench/install.sh --peers`), one worker, the gateway's
core, a key, no retries, no database, no callbacks. Every window gets a fresh process: LiteLLM
continues with requests that the load left open, which would spoil the next measurement.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(os.environ.get("TOLLGATE_BENCH_PEERS", "~/.tollgate/bench")).expanduser()
VERSIONS = {"litellm": "1.106.2", "vllm-router": "0.1.17"}
KEY = "sk-bench-9d2f7c61a8e34b05b7f1c2d3e4a59687"  # LiteLLM refuses a weak one
NAMES = tuple(VERSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A peer's start command, with its users' production settings."""

    argv: list[str]
    variables: dict[str, str]
    boots_within_s: float


def binary(name: str) -> Path:
    """Return the peer's program; it may be absent."""
    return FOLDER / name / "bin" / name


def litellm(folder: Path, port: int, upstreams: dict[str, int]) -> Command:
    """LiteLLM's proxy with one model for each upstream."""
    config = {
        "model_list": [
            {
                "model_name": name,
                "litellm_params": {
                    "model": "openai/upstream-model",
                    "api_base": f"http://127.0.0.1:{at}/v1",
                    "api_key": "sk-upstream",
                },
            }
            for name, at in upstreams.items()
        ],
        "litellm_settings": {
            "num_retries": 0,
            "request_timeout": 60,
            "callbacks": [],
            "telemetry": False,
        },
        "general_settings": {"master_key": KEY, "disable_spend_logs": True},
    }
    file = folder / "litellm.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    variables = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_DOCS": "True",
        "PATH": f"{binary('litellm').parent}:{os.environ['PATH']}",
    }
    argv = [
        str(binary("litellm")),
        "--config",
        str(file),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
        "--telemetry",
        "False",
    ]
    return Command(argv=argv, variables=variables, boots_within_s=120)


def vllm_router(port: int, metrics_port: int, upstream: int) -> Command:
    """Return the vLLM router, which knows workers and not models: one router for each upstream."""
    argv = [
        str(binary("vllm-router")),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--policy",
        "round_robin",
        "--worker-urls",
        f"http://127.0.0.1:{upstream}",
        "--api-key",
        KEY,
        "--log-level",
        "error",
        "--prometheus-port",
        str(metrics_port),
        "--disable-retries",
    ]
    return Command(argv=argv, variables={}, boots_within_s=60)

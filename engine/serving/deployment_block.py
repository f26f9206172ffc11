"""Writes the deployment block of a running engine, for the `deployments` of a policy."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LONGEST_NAME = 63
NOTES = """\
# For `deployments` of the policy. Set `region` to the engine's place in the policy's `regions`,
# and give it a price: `gpu` (cost per GPU hour and speed) or `price`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """The facts of one running engine that the policy needs."""

    url: str
    served_model_name: str
    region: str
    context_tokens: int | None
    api_key_file: Path | None
    is_pooling: bool
    has_tools: bool
    has_reasoning: bool
    native: tuple[str, ...] = ()
    """The operations that the server speaks itself, if they are fewer than vLLM's."""


def deployment_block(facts: DeploymentFacts) -> str:
    """Return the YAML list of one deployment. It names the key's file and never has the key."""
    block: dict[str, Any] = {
        "name": _name(facts.served_model_name),
        "provider": "vllm",
        "base_url": f"{facts.url}/v1",
        "model": facts.served_model_name,
    }
    if facts.api_key_file is not None:
        block["api_key"] = f"file:{facts.api_key_file.expanduser().absolute()}"
    block["region"] = facts.region
    if facts.context_tokens is not None:
        block["context_window"] = facts.context_tokens
    if facts.native:
        block["native"] = list(facts.native)
    if facts.is_pooling:
        block["operations"] = ["embeddings"]
    else:
        block["capabilities"] = [
            *(["tools"] if facts.has_tools else []),
            "json_schema",
            *(["reasoning"] if facts.has_reasoning else []),
        ]
    return NOTES + yaml.safe_dump([block], sort_keys=False, allow_unicode=True)


def _name(served_model_name: str) -> str:
    """Return a deployment's name of the letters that a policy allows."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", served_model_name)[:LONGEST_NAME].strip("-._")
    return name or "engine"


def dialable_url(host: str, port: int) -> str:
    """Return the address by which this machine reaches a server that listens at `host`."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared, not bound
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"

"""A deployment of each provider with a dialect of its own, and the smallest request of each
operation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.providers.table import PROVIDERS
from tests import factories

TURNS = {"messages": [{"role": "user", "content": "x"}]}
ASKED: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: TURNS,
    Operation.MESSAGES: TURNS | {"max_tokens": 50},
    Operation.RESPONSES: {"input": "x"},
    Operation.COMPLETIONS: {"prompt": "x"},
}
NATIVE = {  # the others speak all operations that the table has
    "ollama": frozenset[Operation](),
    "triton": frozenset[Operation](),
    "groq": frozenset({Operation.CHAT}),
}
OWN = frozenset({"ollama", "triton"})  # they have a dialect of their own at an address without path


def target(provider: str, folder: Path, *, name: str = "one") -> Deployment:
    """Return a deployment whose key is a file in this folder."""
    key = folder / "key"
    key.write_text("sk-0123456789")
    facts = PROVIDERS[provider]
    address = {"base_url": "http://127.0.0.1:9"} if provider in OWN else {}
    return factories.deployment(
        name,
        provider=provider,
        is_self_hosted=facts.is_engine,
        native=NATIVE.get(provider, facts.native),
        api_key=f"file:{key}",
        capabilities=frozenset({"tools"}),
        **address,
    )

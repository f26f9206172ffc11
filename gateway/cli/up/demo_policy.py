"""Builds the text of the policy that `up` applies: one local engine, one forbidden place, and
OpenAI if there is a key; it applies nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

TEAM = "demo"
ROUTE = "assistant"
OUT_OF_BOUNDS_ROUTE = "elsewhere"
EXTERNAL_ROUTE = "external"
EXTERNAL_MODEL = "gpt-5-mini"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The inputs of the demo policy's document.

    `engine_key` is a reference (`file:…`), None for an engine without a key.
    """

    engine_url: str
    engine_model: str
    engine_key: str | None
    context_window: int
    has_external: bool
    may_fall_back: bool


def document(demo: Demo) -> str:
    """Return the demo policy's document. Strings are written as JSON, which YAML reads
    unchanged.
    """
    key = f"\n    api_key: {json.dumps(demo.engine_key)}" if demo.engine_key else ""
    behind_route = (
        "tiny-local, openai" if demo.has_external and demo.may_fall_back else "tiny-local"
    )
    routes = f"{ROUTE}, {OUT_OF_BOUNDS_ROUTE}" + (
        f", {EXTERNAL_ROUTE}" if demo.has_external else ""
    )
    return f"""\
# The demo policy of `tollgate up`. Write your own, then: tollgate policy apply FILE
version: 1
regions: {{home: [this-machine], us: [us-east]}}
classes:
  public:       {{regions: [any]}}
  internal:     {{regions: [any]}}
  confidential: {{regions: [home]}}
  restricted:   {{regions: [home], self_hosted: true}}
deployments:
  - name: tiny-local
    provider: vllm
    base_url: {json.dumps(demo.engine_url.rstrip("/") + "/v1")}
    model: {json.dumps(demo.engine_model)}{key}
    region: this-machine
    # A demo rate: nobody bills this CPU by the hour, but the arithmetic is the real one.
    gpu: {{type: demo CPU, count: 1, usd_per_gpu_hour: 0.10, input_tok_per_s: 2000, output_tok_per_s: 200,
          target_utilisation: 0.5}}
    context_window: {demo.context_window}
    capabilities: [tools, json_schema, reasoning]
  # Nothing listens there, and nothing of class confidential is ever sent there: the tour shows the refusal.
  - name: far-away
    provider: openai_compatible
    base_url: "https://llm.example.invalid/v1"
    model: large
    region: us-east
    price: {{input_usd_per_mtok: 1.00, output_usd_per_mtok: 4.00}}
    max_output_tokens: 1024
{_external_deployment() if demo.has_external else ""}routes:
  - {{name: {ROUTE}, aliases: [tiny, "gpt-4o*"], deployments: [{behind_route}], objective: priority}}
  - {{name: {OUT_OF_BOUNDS_ROUTE}, deployments: [far-away], objective: priority}}
{_external_route() if demo.has_external else ""}teams:
  - name: {TEAM}
    cost_centre: CC-DEMO
    data_class: internal
    routes: [{routes}]
    budgets: [{{period: month, limit_usd: 5, kind: soft}}]
"""  # noqa: E501


def _external_deployment() -> str:
    """Return the document's block of the OpenAI deployment."""
    return f"""\
  - name: openai
    provider: openai
    base_url: "https://api.openai.com/v1"
    api_key: "env:OPENAI_API_KEY"
    model: {EXTERNAL_MODEL}
    region: global
    max_output_tokens: 128000
"""


def _external_route() -> str:
    """Return the document's line of the route that goes only to OpenAI."""
    return f"  - {{name: {EXTERNAL_ROUTE}, deployments: [openai], objective: priority}}\n"

"""The policy that the integration tests share: one route for each tested behaviour."""

from __future__ import annotations

PRICE = "{input_usd_per_mtok: 1.25, cached_input_usd_per_mtok: 0.125, output_usd_per_mtok: 10}"
TIMEOUTS = "{connect_s: 1, first_byte_s: 0.5, idle_s: 0.8, total_s: 20}"
USD_PER_TOKEN = {"input": 1250, "cached": 125, "output": 10_000}  # PRICE in nano-dollars per token


def shared(upstream: str, *, forbidden_port: int, closed_port: int) -> str:
    """Return the policy document.

    `upstream` is the fake; no connection to `forbidden_port` is allowed; `closed_port` has no
    listener.
    """
    # The fake upstream gets its instructions in a member that no dialect knows.
    ok = (
        f'base_url: "{upstream}/v1", price: {PRICE}, timeouts: {TIMEOUTS}, '
        "allows: [unknown_fields], listed: [fake]"
    )
    compatible = f"provider: openai_compatible, region: eu-de, {ok}"
    forbidden = f'base_url: "http://127.0.0.1:{forbidden_port}/v1", price: {PRICE}'
    return f"""\
version: 1
regions: {{eu: [eu-de, eu-fr], us: [us-east]}}
classes:
  confidential: {{regions: [eu]}}
  internal: {{regions: [any]}}
deployments:
  - {{name: plain, model: plain-1, {compatible}, operations: [chat, completions, responses, embeddings, rerank, score, messages]}}
  - {{name: vllm, model: "fake/style:vllm", provider: vllm, region: eu-de, {ok}}}
  - {{name: hosted, model: gpt-fake, provider: openai, api_key: "env:FAKE_KEY", region: eu-fr, {ok}}}
  - {{name: down, model: "fake/500", {compatible}}}
  - {{name: busy, model: "fake/503", {compatible}}}
  - {{name: silent, model: "fake/hang", {compatible}}}
  - {{name: cuts-first, model: "fake/cut@0", {compatible}}}
  - {{name: closed, model: plain-1, provider: openai_compatible, region: eu-de,
     base_url: "http://127.0.0.1:{closed_port}/v1", price: {PRICE}}}
  - {{name: no-key, model: gpt-fake, provider: openai, api_key: "env:NOT_SET", region: eu-de, {ok}}}
  - {{name: in-us, model: us-1, provider: openai_compatible, region: us-east,
     {forbidden}}}
  - {{name: unpriced, model: unpriced-1, provider: openai_compatible, region: eu-de, base_url: "{upstream}/v1"}}
routes:
  - {{name: chat, aliases: [gpt-4o, "gpt-4o-*"], deployments: [plain]}}
  - {{name: vllm, deployments: [vllm]}}
  - {{name: hosted, deployments: [hosted]}}
  - {{name: after-500, deployments: [down, plain]}}
  - {{name: after-503, deployments: [busy, plain]}}
  - {{name: after-refused, deployments: [closed, plain]}}
  - {{name: after-silence, deployments: [silent, plain]}}
  - {{name: after-cut, deployments: [cuts-first, plain]}}
  - {{name: after-no-key, deployments: [no-key, plain]}}
  - {{name: unreachable, deployments: [closed]}}
  - {{name: us-only, deployments: [in-us]}}
  - {{name: us-first, deployments: [in-us, plain]}}
  - {{name: us-fallback, deployments: [down, in-us]}}
  - {{name: unpriced, deployments: [unpriced]}}
teams:
  - name: payments
    cost_centre: CC-1207
    data_class: confidential
    routes: [chat, vllm, hosted, after-500, after-503, after-refused, after-silence, after-cut, after-no-key,
             unreachable, us-only, us-first, us-fallback, unpriced]
  - {{name: search, cost_centre: CC-0042, data_class: internal, routes: [vllm]}}
"""  # noqa: E501


def small(upstream: str) -> str:
    """Return a policy with one team, one deployment and one route, for tests that start a
    separate gateway.
    """
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: vllm, model: "fake/style:vllm", provider: vllm, region: unknown, base_url: "{upstream}/v1", price: {PRICE}, listed: [fake]}}
routes: [{{name: vllm, deployments: [vllm]}}]
teams: [{{name: payments, cost_centre: CC-1207, data_class: internal, routes: [vllm]}}]
"""  # noqa: E501

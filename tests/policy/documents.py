"""Policy documents for tests: one that uses every field, and ways to break it."""

from __future__ import annotations

from gateway.errors import Finding, PolicyRejected
from gateway.wire.parsed_policy import parse

# Without budgets and limits: `ALLOWED` has those.
EXAMPLE = """\
version: 1
regions: {eu: [eu-de, eu-fr], us: [us-east]}
classes:
  restricted:   {regions: [eu], self_hosted: true}
  confidential: {regions: [eu]}
  internal:     {regions: [eu, us]}
  public:       {regions: [any]}
deployments:
  - name: qwen-eu
    provider: vllm
    base_url: "http://127.0.0.1:8001/v1"
    model: qwen3-32b
    region: eu-de
    gpu: {type: H200, count: 1, usd_per_gpu_hour: 3.10, input_tok_per_s: 40000, output_tok_per_s: 2500,
          target_utilisation: 0.5}
    context_window: 32768
    capabilities: [tools, json_schema, reasoning]
  - name: gpt-eu
    provider: openai
    base_url: "https://eu.api.openai.com/v1"
    api_key: "env:OPENAI_API_KEY"
    model: gpt-5.5
    region: eu
  - name: partner
    provider: openai_compatible
    base_url: "https://llm.partner.example/v1"
    api_key: "file:/run/secrets/partner"
    model: m-large
    region: eu-fr
    price: {input_usd_per_mtok: 0.80, cached_input_usd_per_mtok: 0.20, output_usd_per_mtok: 3.20}
    timeouts: {total_s: 120}
    allows: [store]
routes:
  - {name: assistant, aliases: [gpt-4o, "gpt-4o-*"], deployments: [qwen-eu, gpt-eu]}
  - {name: partner-chat, deployments: [partner], objective: priority}
teams:
  - {name: payments, cost_centre: CC-1207, data_class: confidential, routes: [assistant]}
  - {name: search, cost_centre: CC-0042, data_class: internal, routes: [assistant, partner-chat]}
"""  # noqa: E501

# The same with every kind of budget and limit. Nothing in it is worth a note.
ALLOWED = (
    EXAMPLE.partition("routes:\n  - {name: assistant")[0].replace(
        "allows: [store]", "max_output_tokens: 8192"
    )
    + """\
    limits: {concurrent: 8}
routes:
  - {name: assistant, aliases: [gpt-4o, "gpt-4o-*"], deployments: [qwen-eu, gpt-eu], max_output_tokens: 4096}
  - {name: partner-chat, deployments: [partner]}
teams:
  - name: payments
    cost_centre: CC-1207
    data_class: confidential
    routes: [assistant]
    time_zone: Europe/Berlin
    budgets:
      - {period: month, limit_usd: 5000, alert_at: [0.5, 1.0, 0.80]}
      - {period: once, limit_usd: 200.000000001, name: pilot-2026, overdraft_usd: 1}
    limits: {requests_per_minute: 600, tokens_per_minute: 200000, concurrent: 50}
    projects:
      - {name: checkout, budgets: [{period: week, limit_usd: 700, kind: soft}], limits: {tokens_per_minute: 9000}}
      - {name: "*", budgets: [{period: month, limit_usd: 1000}]}
    keys:
      - {key: "*", budgets: [{period: day, limit_usd: 20}], limits: {requests_per_minute: 60}}
      - {key: 0A1b2C3d4E, budgets: [{period: hour, limit_usd: 0.5, name: night-job}]}
  - {name: search, cost_centre: CC-0042, data_class: internal, routes: [assistant, partner-chat]}
cost_centres:
  - {name: CC-0042, time_zone: America/Havana, budgets: [{period: month, limit_usd: 9000000}]}
alerts: {webhook: "https://hooks.example/messages", secret: "env:TOLLGATE_ALERT_SECRET"}
"""  # noqa: E501
)


def changed(old: str, new: str, *, text: str = EXAMPLE) -> str:
    """The example with one piece replaced; the piece must be there exactly once."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def findings(text: str) -> tuple[Finding, ...] | None:
    """Return `parse`'s findings; None if the document is accepted."""
    try:
        parse(text)
    except PolicyRejected as rejected:
        return rejected.findings
    return None

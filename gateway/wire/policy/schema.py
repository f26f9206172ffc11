"""Every field of a policy document: its reader, its default and its text in the reference."""

from __future__ import annotations

from decimal import Decimal

from gateway.domain.policy.policy import (
    DEFAULT_OPERATIONS,
    EndUserRule,
    LatencyPrior,
    Operation,
    OutputLimit,
    Priority,
    Timeouts,
)
from gateway.domain.policy.request_fields import FEATURES
from gateway.wire.policy.allowances import ALERTS, BUDGET, COST_CENTRE, KEY, LIMITS, PROJECT
from gateway.wire.policy.findings import Findings, Spot, Wrong
from gateway.wire.policy.names import (
    LABELS,
    address,
    class_key,
    model_name,
    name,
    region_key,
    secret_reference,
    tag_key,
    time_zone,
    upstream_model,
    words,
)
from gateway.wire.policy.places import CLASS, FACTS, PROVIDERS, RULE
from gateway.wire.policy.rates import GPU, PRICE
from gateway.wire.policy.readers import (
    Block,
    Field,
    boolean,
    decimal,
    integer,
    list_of,
    map_of,
    one_of,
)
from gateway.wire.policy.routes import BALANCE, BOUND, ROUTE

CAPABILITIES = ("tools", "json_schema", "vision", "reasoning")
_DEFAULT_TIMEOUTS = Timeouts()
_DEFAULT_PRIOR = LatencyPrior()


def version_one(spot: Spot, findings: Findings) -> int:
    """Read the document's format version."""
    if getattr(spot.node, "value", None) != "1":
        raise Wrong(spot, "must be 1, the only version this Tollgate reads")
    return 1


def _seconds(name: str, default: float, meaning: str) -> Field:
    return Field(
        name=name,
        read=decimal(above="0", most="86400", unit="seconds"),
        meaning=meaning,
        example="30",
        default=Decimal(str(default)).normalize(),
        default_text=f"{default:g}",
    )


TIMEOUTS = Block(
    name="timeouts block",
    fields=(
        _seconds("connect_s", _DEFAULT_TIMEOUTS.connect_s, "Longest wait for a connection."),
        _seconds(
            "first_byte_s",
            _DEFAULT_TIMEOUTS.first_byte_s,
            "Longest wait for the first byte of the answer.",
        ),
        _seconds(
            "first_token_s",
            _DEFAULT_TIMEOUTS.first_token_s,
            "Longest wait for the first content of the answer; an engine may send status and "
            "headers long before it.",
        ),
        _seconds(
            "idle_s", _DEFAULT_TIMEOUTS.idle_s, "Longest silence between two bytes of the answer."
        ),
        _seconds("total_s", _DEFAULT_TIMEOUTS.total_s, "Longest time for the whole answer."),
    ),
)


def _milliseconds(name: str, default_s: float, meaning: str) -> Field:
    return Field(
        name=name,
        read=decimal(above="0", most="3600000", unit="milliseconds"),
        meaning=meaning,
        example="300",
        default=Decimal(str(default_s)) * 1000,
        default_text=f"{default_s * 1000:g}",
    )


PRIOR = Block(
    name="latency block",
    fields=(
        _milliseconds("ttft_ms", _DEFAULT_PRIOR.ttft_s, "Time to the first token."),
        _milliseconds("tpot_ms", _DEFAULT_PRIOR.tpot_s, "Time for each token after the first."),
    ),
)

_VERIFY = (
    "TLS certificates are always checked and nothing turns that off; remove the field. "
    "To trust a private CA, name its file in the gateway's SSL_CERT_FILE"
)

DEPLOYMENT = Block(
    name="deployment",
    fields=(
        Field(
            name="name",
            read=name,
            is_required=True,
            example="gpt-eu",
            meaning="Unique name; shown in headers, the ledger and reports.",
        ),
        Field(
            name="provider",
            read=one_of(PROVIDERS),
            is_required=True,
            example="openai",
            meaning="The dialect to speak: `vllm`, `openai` or `openai_compatible`.",
        ),
        Field(
            name="base_url",
            read=address,
            is_required=True,
            example="https://eu.api.openai.com/v1",
            meaning="Address up to and including `/v1`. `http://` only on this machine or a "
            "private network.",
        ),
        Field(
            name="api_key",
            read=secret_reference,
            example="env:OPENAI_API_KEY",
            default_text="none; required for `openai`",
            meaning="Reference to the upstream's key: `env:NAME` or `file:/absolute/path`; never "
            "the key.",
        ),
        Field(
            name="model",
            read=upstream_model,
            is_required=True,
            example="gpt-5.5",
            meaning="The model's name at the upstream.",
        ),
        Field(
            name="region",
            read=name,
            is_required=True,
            example="eu-de",
            meaning="The processing region; `global` or `unknown` if no place is promised.",
        ),
        Field(
            name="residency",
            read=FACTS,
            example="{at_rest: eu, source: ..., as_of: 2026-11-20}",
            default_text="the bundled facts about its host",
            meaning="Further facts about its place, with source and date.",
        ),
        Field(
            name="self_hosted",
            read=boolean,
            example="true",
            default_text="`true` for `vllm`, else `false`",
            meaning="Whether you run it yourself; classes may demand that.",
        ),
        Field(
            name="gpu",
            read=GPU,
            example="{type: H200, ...}",
            default_text="none",
            meaning="Price per token from GPU hours; only for self-hosted deployments, and not "
            "with `price`.",
        ),
        Field(
            name="price",
            read=PRICE,
            example="{input_usd_per_mtok: 0.80, output_usd_per_mtok: 3.20}",
            default_text="the price book",
            meaning="A negotiated price; wins over all others.",
        ),
        Field(
            name="stand_in_price",
            read=PRICE,
            example="{input_usd_per_mtok: 5, output_usd_per_mtok: 20}",
            default_text="none: without any price, requests are refused",
            meaning="Used only while nothing else prices it; its events are flagged "
            "`is_stand_in_price`. The fields are those of `price`.",
        ),
        Field(
            name="operations",
            read=list_of(one_of(tuple(Operation))),
            example="[chat, embeddings]",
            default_text=f"`[{', '.join(o for o in Operation if o in DEFAULT_OPERATIONS)}]`",
            meaning=f"Endpoints it serves, of {', '.join(f'`{o}`' for o in Operation)}.",
        ),
        Field(
            name="capabilities",
            read=list_of(one_of(CAPABILITIES)),
            example="[tools, json_schema]",
            default_text="not declared: nothing is ruled out",
            meaning=f"The model's capabilities, from {', '.join(f'`{c}`' for c in CAPABILITIES)}; "
            "requests that need another one are not sent to it.",
        ),
        Field(
            name="allows",
            read=list_of(one_of(tuple(FEATURES))),
            example="[store]",
            default_text="`[]`",
            meaning="Request features it may be sent although they store, fetch or send data "
            f"elsewhere or steer the engine, of {', '.join(f'`{f}`' for f in FEATURES)}.",
        ),
        Field(
            name="context_window",
            read=integer(least=1, most=100_000_000),
            example="32768",
            default_text="not declared",
            meaning="Most tokens of prompt and answer together.",
        ),
        Field(
            name="max_output_tokens",
            read=integer(least=1, most=100_000_000),
            example="8192",
            default_text="not declared",
            meaning="Most tokens of one answer.",
        ),
        Field(
            name="output_limit",
            read=one_of(tuple(OutputLimit)),
            example="max_tokens",
            default_text="`both` for `vllm` and `openai_compatible` (`max_tokens` for Mistral's "
            "host), `max_completion_tokens` for `openai`",
            meaning="The member in which a chat is sent the most tokens of its answer: "
            "`max_tokens`, `max_completion_tokens` or `both`, for a server that refuses the other "
            "one.",
        ),
        Field(
            name="input_overhead_tokens",
            read=integer(least=0, most=1_000_000),
            example="64",
            default=64,
            default_text="`64`",
            meaning="Tokens that the upstream's chat template may add to a prompt; part of the "
            "cost bound.",
        ),
        Field(
            name="limits",
            read=LIMITS,
            example="{concurrent: 64}",
            default_text="none",
            meaning="Its limits for all teams together; while one is full, the next deployment is "
            "tried.",
        ),
        Field(
            name="max_in_flight",
            read=integer(least=1, most=1_000_000),
            example="64",
            default_text="half of `TOLLGATE_MAX_STREAMS`",
            meaning="Most attempts that one gateway process has there at the same time; while it "
            "is full, the next deployment is tried.",
        ),
        Field(
            name="group",
            read=name,
            example="qwen",
            default_text="none",
            meaning="Deployments with the same group are replicas of one engine: a session stays "
            "at one of them while none is much fuller than the others.",
        ),
        Field(
            name="latency",
            read=PRIOR,
            example="{ttft_ms: 300, tpot_ms: 12}",
            default_text="see below",
            meaning="Assumed latency until it was measured.",
        ),
        Field(
            name="timeouts",
            read=TIMEOUTS,
            example="{total_s: 300}",
            default_text="see below",
            meaning="How long to wait for it.",
        ),
    ),
    refused=dict.fromkeys(
        (
            "verify",
            "verify_tls",
            "verify_ssl",
            "tls_verify",
            "ssl_verify",
            "insecure",
            "skip_verify",
            "insecure_skip_verify",
        ),
        _VERIFY,
    ),
)

TEAM = Block(
    name="team",
    fields=(
        Field(
            name="name",
            read=name,
            is_required=True,
            example="payments",
            meaning="Unique name of the paying team.",
        ),
        Field(
            name="cost_centre",
            read=words,
            is_required=True,
            example="CC-1207",
            meaning="Cost centre in finance.",
        ),
        Field(
            name="data_class",
            read=one_of(LABELS),
            is_required=True,
            example="confidential",
            meaning="The least class of its requests; a request may raise it, never lower it.",
        ),
        Field(
            name="routes",
            read=list_of(model_name),
            is_required=True,
            example="[assistant]",
            meaning="Routes it may call.",
        ),
        Field(
            name="data_tags",
            read=list_of(name),
            example="[phi]",
            default_text="`[]`",
            meaning="Data tags of all its requests; a request may add others.",
        ),
        Field(
            name="residency",
            read=RULE,
            example="{deny_providers: [openai]}",
            default_text="none",
            meaning="A rule for all its requests, besides those of their class and tags.",
        ),
        Field(
            name="end_user",
            read=one_of(tuple(EndUserRule)),
            example="keep",
            default="hash",
            default_text="`hash`",
            meaning="The ledger's form of a request's `user`: `hash` a keyed hash of it, `keep` "
            "the name itself.",
        ),
        Field(
            name="priority",
            read=one_of(tuple(Priority)),
            example="low",
            default="normal",
            default_text="`normal`",
            meaning="Precedence when capacity is short: `high`, `normal` or `low`; for `low` a "
            "route's latency bound counts at half.",
        ),
        Field(
            name="time_zone",
            read=time_zone,
            example="Europe/Berlin",
            default="UTC",
            default_text="`UTC`",
            meaning="IANA time zone in which the periods of its budgets begin.",
        ),
        Field(
            name="budgets",
            read=list_of(BUDGET),
            example="[{period: month, limit_usd: 5000}]",
            default_text="`[]`",
            meaning="The whole team's budgets.",
        ),
        Field(
            name="limits",
            read=LIMITS,
            example="{requests_per_minute: 600, concurrent: 50}",
            default_text="none",
            meaning="How much the whole team may ask at once.",
        ),
        Field(
            name="projects",
            read=list_of(PROJECT),
            example="[{name: checkout, budgets: [...]}]",
            default_text="`[]`",
            meaning="Budgets and limits of single projects, besides the team's.",
        ),
        Field(
            name="keys",
            read=list_of(KEY),
            example='[{key: "*", limits: {...}}]',
            default_text="`[]`",
            meaning="Budgets and limits of single API keys, besides the team's.",
        ),
    ),
)

DOCUMENT = Block(
    name="policy",
    fields=(
        Field(
            name="version",
            read=version_one,
            is_required=True,
            example="1",
            meaning="Version of the format: `1`.",
        ),
        Field(
            name="regions",
            read=map_of(region_key, list_of(name)),
            example="{eu: [eu-de, eu-fr]}",
            default_text="`{}`",
            meaning="Regions besides the built-in ones: parents and their children, any depth; a "
            "child that is itself a key is a parent.",
        ),
        Field(
            name="classes",
            read=map_of(class_key, CLASS),
            is_required=True,
            example="{internal: {regions: [any]}}",
            meaning="The allowed places of each data class; keys: "
            f"{', '.join(f'`{c}`' for c in LABELS)}.",
        ),
        Field(
            name="data_tags",
            read=map_of(tag_key, RULE),
            example="{phi: {at_rest: [eu], max_retention_days: 0}}",
            default_text="`{}`",
            meaning="Kinds of data that teams and requests name, with the rule that each adds.",
        ),
        Field(
            name="facts_valid_days",
            read=integer(least=1, most=3_650),
            example="90",
            default_text="none: facts do not expire",
            meaning="Facts of deployments that are older count as unknown, and so do undated ones "
            "of deployments that are not self-hosted.",
        ),
        Field(
            name="deployments",
            read=list_of(DEPLOYMENT),
            is_required=True,
            example="[]",
            meaning="Concrete models at providers or engines.",
        ),
        Field(
            name="routes",
            read=list_of(ROUTE),
            is_required=True,
            example="[]",
            meaning="Model names that teams ask for.",
        ),
        Field(
            name="teams",
            read=list_of(TEAM),
            is_required=True,
            example="[]",
            meaning="The teams, which call and pay.",
        ),
        Field(
            name="cost_centres",
            read=list_of(COST_CENTRE),
            example="[]",
            default_text="`[]`",
            meaning="Budgets of all teams of a cost centre together.",
        ),
        Field(
            name="alerts",
            read=ALERTS,
            example="{webhook: ..., secret: ...}",
            default_text="none: budget alerts are only in log and metrics",
            meaning="The destination of budget alerts.",
        ),
    ),
)

# For the reference and its completeness test: the heading of each block.
BLOCKS: dict[str, Block] = {
    "Document": DOCUMENT,
    "classes": CLASS,
    "data_tags": RULE,
    "deployments": DEPLOYMENT,
    "deployments: residency": FACTS,
    "deployments: gpu": GPU,
    "deployments: price": PRICE,
    "deployments: latency": PRIOR,
    "deployments: timeouts": TIMEOUTS,
    "routes": ROUTE,
    "routes: balance": BALANCE,
    "routes: latency": BOUND,
    "teams": TEAM,
    "budgets": BUDGET,
    "limits": LIMITS,
    "teams: projects": PROJECT,
    "teams: keys": KEY,
    "cost_centres": COST_CENTRE,
    "alerts": ALERTS,
}

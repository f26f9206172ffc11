"""Every field of a policy document: how it is read, its default, and what the reference says of it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from gateway.domain.known_places import KNOWN_PROVIDERS
from gateway.domain.policy import DEFAULT_OPERATIONS, EndUserRule, Operation, Timeouts
from gateway.domain.request_fields import FEATURES
from gateway.domain.routing import OBJECTIVES
from gateway.domain.selfhost import BilledHours
from gateway.domain.tokens import CALL_KINDS, TokenKind
from gateway.wire.policy.allowances import ALERTS, BUDGET, COST_CENTRE, KEY, LIMITS, PROJECT
from gateway.wire.policy.findings import Findings, Spot, Wrong
from gateway.wire.policy.names import (
    LABELS,
    address,
    alias,
    class_key,
    day,
    model_name,
    name,
    region_key,
    secret_reference,
    source,
    tag_key,
    tier_key,
    time_zone,
    words,
)
from gateway.wire.policy.readers import Block, Field, boolean, decimal, integer, list_of, map_of, one_of

PROVIDERS = ("vllm", "openai", "openai_compatible")
DENIABLE_PROVIDERS = tuple(sorted({*PROVIDERS, *KNOWN_PROVIDERS}))
MODES = ("enforced", "shadow")
CAPABILITIES = ("tools", "json_schema", "vision", "reasoning")
# How a price block names each kind: tokens by the million, calls of a provider's own tools by the thousand.
RATES: dict[TokenKind, str] = {
    kind: f"{kind}_usd_per_1k_calls" if kind in CALL_KINDS else f"{kind}_usd_per_mtok" for kind in TokenKind
}
CALLS_PER_RATE = 1000

_DEFAULT_TIMEOUTS = Timeouts()

usd_per_mtok = decimal(least="0", most="1000000", unit="USD per million tokens")
usd_per_1k_calls = decimal(least="0", most="1000000", unit="USD per thousand calls")
tok_per_s = decimal(above="0", most="1000000000", unit="tokens per second")


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


def _not_enforced(what: str) -> str:
    return f"{what} not enforced by this version of Tollgate; remove the field"


_RULE_FIELDS = (
    Field(
        name="regions", read=list_of(name), example="[eu]", default_text="no say",
        meaning="Regions that may process it; a parent stands for all under it; `any` allows every place, `global` and "
        "`unknown` included; `[]` allows none.",
    ),
    Field(
        name="at_rest", read=list_of(name), example="[eu]", default_text="no say",
        meaning="Regions where the deployment may keep data; what is unknown is allowed by `any` alone.",
    ),
    Field(
        name="telemetry", read=list_of(name), example="[eu, us]", default_text="no say",
        meaning="Regions where the deployment may send telemetry; what is unknown is allowed by `any` alone.",
    ),
    Field(
        name="self_hosted", read=boolean, example="true", default=False, default_text="`false`",
        meaning="If true, only deployments with `self_hosted: true` may process it.",
    ),
    Field(
        name="max_retention_days", read=integer(least=0, most=36_500), example="0", default_text="no say",
        meaning="Longest time a deployment may keep data; unknown is too long.",
    ),
    Field(
        name="deny_regions", read=list_of(name), example="[cn]", default_text="`[]`",
        meaning="Regions that nothing may be processed, kept or sent telemetry in, not even in part; where one of the "
        "three is unknown, it is denied.",
    ),
    Field(
        name="deny_providers", read=list_of(one_of(DENIABLE_PROVIDERS)), example="[openai]", default_text="`[]`",
        meaning="Providers that may not have it, by the deployment's `provider` or by its host; of "
        f"{', '.join(f'`{p}`' for p in DENIABLE_PROVIDERS)}.",
    ),
    Field(
        name="gateway_regions", read=list_of(name), example="[eu]", default_text="no say",
        meaning="Regions that the gateway itself must run in, as its `TOLLGATE_REGION` says.",
    ),
    Field(
        name="mode", read=one_of(MODES), example="shadow", default="enforced", default_text="`enforced`",
        meaning="`shadow` denies nothing: what it would deny is counted and shown.",
    ),
)  # fmt: skip

RULE = Block(name="residency rule", fields=_RULE_FIELDS)
CLASS = Block(
    name="class",
    fields=(replace(_RULE_FIELDS[0], is_required=True), *_RULE_FIELDS[1:]),
)

FACTS = Block(
    name="residency block",
    fields=(
        Field(
            name="at_rest", read=name, example="eu", default_text="what ships about its host, else `unknown`",
            meaning="Where it keeps data: a region, `global` or `unknown`.",
        ),
        Field(
            name="telemetry", read=name, example="eu", default_text="what ships about its host, else `unknown`",
            meaning="Where it sends telemetry: a region, `global` or `unknown`.",
        ),
        Field(
            name="retention_days", read=integer(least=0, most=36_500), example="30",
            default_text="what ships about its host, else unknown", meaning="How long it keeps data; 0: not at all.",
        ),
        Field(
            name="sub_processor", read=words, example="Example Hosting GmbH",
            default_text="what ships about its host, else unknown",
            meaning="Who else processes it; shown, not decided by.",
        ),
        Field(
            name="source", read=source, example="contract 2026-114, annex 2", default_text="none",
            meaning="Who says all this, the `region` included: words or an address; goes with `as_of`.",
        ),
        Field(
            name="as_of", read=day, example="2026-11-20", default_text="none",
            meaning="The day on which it was so; goes with `source`.",
        ),
    ),
)  # fmt: skip

GPU = Block(
    name="gpu block",
    fields=(
        Field(
            name="type", read=words, is_required=True, example="H200",
            meaning="The GPU's name, for the price's source.",
        ),
        Field(
            name="count", read=integer(least=1, most=10_000), example="1", default=1, default_text="`1`",
            meaning="GPUs that this deployment occupies.",
        ),
        Field(
            name="usd_per_gpu_hour", read=decimal(above="0", most="10000", unit="USD per GPU hour"),
            is_required=True, example="3.10", meaning="What one GPU costs per hour, in USD.",
        ),
        Field(
            name="input_tok_per_s", read=tok_per_s, is_required=True, example="40000",
            meaning="Prompt tokens per second of the whole deployment at full load.",
        ),
        Field(
            name="output_tok_per_s", read=tok_per_s, is_required=True, example="2500",
            meaning="Answer tokens per second of the whole deployment at full load.",
        ),
        Field(
            name="cached_input_tok_per_s", read=tok_per_s, example="400000",
            default_text="priced as plain input", meaning="Cached prompt tokens per second.",
        ),
        Field(
            name="target_utilisation", read=decimal(above="0", most="1", unit="a share"),
            is_required=True, example="0.5",
            meaning="Share of an hour in which the GPU is expected to work; 0.5 doubles a token's price.",
        ),
        Field(
            name="hours", read=one_of(tuple(BilledHours)), example="always", default="seen", default_text="`seen`",
            meaning="Which hours are billed: `seen` those in which the engine was up; `always` all of them, as on a "
            "reserved machine.",
        ),
    ),
)  # fmt: skip

_HELD = "none: such tokens are held as unknown"
_HELD_CALLS = "none: such calls are held as unknown"
_RATE_FIELDS = (
    Field(
        name="input_usd_per_mtok", read=usd_per_mtok, is_required=True, example="0.80",
        meaning="USD per million input tokens.",
    ),
    Field(
        name="cached_input_usd_per_mtok", read=usd_per_mtok, example="0.20",
        default_text="priced as input",
        meaning="USD per million input tokens read from the provider's cache.",
    ),
    Field(
        name="cache_write_usd_per_mtok", read=usd_per_mtok, example="1.00",
        default_text="priced as input",
        meaning="USD per million input tokens written to the provider's cache.",
    ),
    Field(
        name="cache_write_30m_usd_per_mtok", read=usd_per_mtok, example="1.00",
        default_text="as input without `cache_write`, else none: held as unknown",
        meaning="The same, kept for 30 minutes.",
    ),
    Field(
        name="cache_write_1h_usd_per_mtok", read=usd_per_mtok, example="1.60",
        default_text="as input without `cache_write`, else none: held as unknown",
        meaning="The same, kept for an hour.",
    ),
    Field(
        name="cache_write_12h_usd_per_mtok", read=usd_per_mtok, example="2.40",
        default_text="as input without `cache_write`, else none: held as unknown",
        meaning="The same, kept for twelve hours.",
    ),
    Field(
        name="audio_input_usd_per_mtok", read=usd_per_mtok, example="32", default_text=_HELD,
        meaning="USD per million audio tokens of the prompt, where the upstream counts them apart.",
    ),
    Field(
        name="image_input_usd_per_mtok", read=usd_per_mtok, example="0.80", default_text=_HELD,
        meaning="USD per million image tokens of the prompt, where the upstream counts them apart.",
    ),
    Field(
        name="output_usd_per_mtok", read=usd_per_mtok, example="3.20",
        default_text="required, unless `operations` is `[embeddings]`",
        meaning="USD per million output tokens.",
    ),
    Field(
        name="reasoning_usd_per_mtok", read=usd_per_mtok, example="3.20", default_text="priced as output",
        meaning="USD per million reasoning tokens.",
    ),
    Field(
        name="audio_output_usd_per_mtok", read=usd_per_mtok, example="64", default_text=_HELD,
        meaning="USD per million audio tokens of the answer.",
    ),
    Field(
        name="image_output_usd_per_mtok", read=usd_per_mtok, example="30", default_text=_HELD,
        meaning="USD per million image tokens of the answer.",
    ),
    Field(
        name="web_search_usd_per_1k_calls", read=usd_per_1k_calls, example="10", default_text=_HELD_CALLS,
        meaning="USD per thousand web searches that the provider ran.",
    ),
    Field(
        name="file_search_usd_per_1k_calls", read=usd_per_1k_calls, example="2.50", default_text=_HELD_CALLS,
        meaning="USD per thousand file searches that the provider ran.",
    ),
    Field(
        name="code_interpreter_usd_per_1k_calls", read=usd_per_1k_calls, example="30", default_text=_HELD_CALLS,
        meaning="USD per thousand runs of the provider's code interpreter.",
    ),
    Field(
        name="image_generation_usd_per_1k_calls", read=usd_per_1k_calls, example="40", default_text=_HELD_CALLS,
        meaning="USD per thousand images that the provider's tool drew.",
    ),
)  # fmt: skip

TIER_PRICE = Block(name="service tier's price", fields=_RATE_FIELDS)

PRICE = Block(
    name="price block",
    fields=(
        *_RATE_FIELDS,
        Field(
            name="service_tiers", read=map_of(tier_key, TIER_PRICE),
            example="{priority: {input_usd_per_mtok: 1.60, output_usd_per_mtok: 6.40}}",
            default_text="none: answers from another tier are held as unknown",
            meaning="All rates of answers whose `service_tier` is not the standard one, by its name; the fields "
            "are those above.",
        ),
    ),
)  # fmt: skip

TIMEOUTS = Block(
    name="timeouts block",
    fields=(
        _seconds("connect_s", _DEFAULT_TIMEOUTS.connect_s, "Longest wait for a connection."),
        _seconds("first_byte_s", _DEFAULT_TIMEOUTS.first_byte_s, "Longest wait for the first byte of the answer."),
        _seconds("idle_s", _DEFAULT_TIMEOUTS.idle_s, "Longest silence between two bytes of the answer."),
        _seconds("total_s", _DEFAULT_TIMEOUTS.total_s, "Longest time for the whole answer."),
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
            name="name", read=name, is_required=True, example="gpt-eu",
            meaning="Unique name; shown in headers, the ledger and reports.",
        ),
        Field(
            name="provider", read=one_of(PROVIDERS), is_required=True, example="openai",
            meaning="The dialect to speak: `vllm`, `openai` or `openai_compatible`.",
        ),
        Field(
            name="base_url", read=address, is_required=True, example="https://eu.api.openai.com/v1",
            meaning="Address up to and including `/v1`. `http://` only on this machine or a private network.",
        ),
        Field(
            name="api_key", read=secret_reference, example="env:OPENAI_API_KEY",
            default_text="none; required for `openai`",
            meaning="Where the upstream's key is: `env:NAME` or `file:/absolute/path`; never the key.",
        ),
        Field(
            name="model", read=model_name, is_required=True, example="gpt-5.5",
            meaning="The model's name at the upstream.",
        ),
        Field(
            name="region", read=name, is_required=True, example="eu-de",
            meaning="Where it processes: a region; `global` or `unknown` if no place is promised.",
        ),
        Field(
            name="residency", read=FACTS, example="{at_rest: eu, source: ..., as_of: 2026-11-20}",
            default_text="what ships about its host",
            meaning="What else is known of its place, from whom and since when.",
        ),
        Field(
            name="self_hosted", read=boolean, example="true", default_text="`true` for `vllm`, else `false`",
            meaning="Whether you run it yourself; classes may demand that.",
        ),
        Field(
            name="gpu", read=GPU, example="{type: H200, ...}", default_text="none",
            meaning="Price per token from GPU hours; only for self-hosted deployments, and not with `price`.",
        ),
        Field(
            name="price", read=PRICE, example="{input_usd_per_mtok: 0.80, output_usd_per_mtok: 3.20}",
            default_text="the price book",
            meaning="A negotiated price; wins over all others.",
        ),
        Field(
            name="stand_in_price", read=PRICE, example="{input_usd_per_mtok: 5, output_usd_per_mtok: 20}",
            default_text="none: without any price, requests are refused",
            meaning="Used only while nothing else prices it; its events are flagged `is_stand_in_price`. "
            "The fields are those of `price`.",
        ),
        Field(
            name="operations", read=list_of(one_of(tuple(Operation))), example="[chat, embeddings]",
            default_text=f"`[{', '.join(o for o in Operation if o in DEFAULT_OPERATIONS)}]`",
            meaning=f"Endpoints it serves, of {', '.join(f'`{o}`' for o in Operation)}.",
        ),
        Field(
            name="capabilities", read=list_of(one_of(CAPABILITIES)), example="[tools, json_schema]",
            default_text="not declared: nothing is ruled out",
            meaning=f"What the model can do, of {', '.join(f'`{c}`' for c in CAPABILITIES)}; requests that "
            "need something else are not sent to it.",
        ),
        Field(
            name="allows", read=list_of(one_of(tuple(FEATURES))), example="[store]", default_text="`[]`",
            meaning="Request features it may be sent although they store, fetch or send data elsewhere or "
            f"steer the engine, of {', '.join(f'`{f}`' for f in FEATURES)}.",
        ),
        Field(
            name="context_window", read=integer(least=1, most=100_000_000), example="32768",
            default_text="not declared", meaning="Most tokens of prompt and answer together.",
        ),
        Field(
            name="max_output_tokens", read=integer(least=1, most=100_000_000), example="8192",
            default_text="not declared", meaning="Most tokens of one answer.",
        ),
        Field(
            name="input_overhead_tokens", read=integer(least=0, most=1_000_000), example="64", default=64,
            default_text="`64`",
            meaning="Tokens that the upstream's chat template may add to a prompt; part of the cost bound.",
        ),
        Field(
            name="limits", read=LIMITS, example="{concurrent: 64}", default_text="none",
            meaning="What it takes from all teams together; while it is full, the next deployment is tried.",
        ),
        Field(
            name="timeouts", read=TIMEOUTS, example="{total_s: 300}", default_text="see below",
            meaning="How long to wait for it.",
        ),
    ),
    refused=dict.fromkeys(
        ("verify", "verify_tls", "verify_ssl", "tls_verify", "ssl_verify", "insecure", "skip_verify",
         "insecure_skip_verify"),
        _VERIFY,
    ),
)  # fmt: skip

ROUTE = Block(
    name="route",
    fields=(
        Field(
            name="name", read=model_name, is_required=True, example="assistant",
            meaning="The model name that callers send.",
        ),
        Field(
            name="aliases", read=list_of(alias), example='[gpt-4o, "gpt-4o-*"]', default_text="`[]`",
            meaning="Other model names that mean this route; `*` stands for anything. Exact names win over "
            "patterns, earlier routes over later ones.",
        ),
        Field(
            name="deployments", read=list_of(name), is_required=True, example="[qwen-eu, gpt-eu]",
            meaning="The deployments behind it, in order of preference.",
        ),
        Field(
            name="shadow_deployments", read=list_of(name), example="[gpt-eu, qwen-eu]", default_text="`[]`",
            meaning="Ranked beside the real ones for each request; what would have been first is recorded, never used "
            "(`tollgate report shadow`).",
        ),
        Field(
            name="objective",
            read=one_of(
                tuple(OBJECTIVES),
                refused={
                    word: f"'{word}' is not enforced by this version of Tollgate; write priority"
                    for word in ("cheapest", "fastest", "balanced", "weighted")
                    if word not in OBJECTIVES
                },
            ),
            example="priority", default="priority", default_text="`priority`",
            meaning="How eligible deployments are ordered: `priority` takes them as listed.",
        ),
        Field(
            name="max_output_tokens", read=integer(least=1, most=100_000_000), example="4096",
            default_text="none: a caller without a maximum gets the deployment's",
            meaning="Most tokens of an answer where the caller gives no maximum; sent upstream.",
        ),
    ),
    refused={
        "latency": _not_enforced("latency goals are"),
        "degrade_to": _not_enforced("degrading to another route is"),
    },
)  # fmt: skip

TEAM = Block(
    name="team",
    fields=(
        Field(name="name", read=name, is_required=True, example="payments", meaning="Unique name; who pays."),
        Field(
            name="cost_centre", read=words, is_required=True, example="CC-1207",
            meaning="Where finance books it.",
        ),
        Field(
            name="data_class", read=one_of(LABELS), is_required=True, example="confidential",
            meaning="The least class of its requests; a request may raise it, never lower it.",
        ),
        Field(
            name="routes", read=list_of(model_name), is_required=True, example="[assistant]",
            meaning="Routes it may call.",
        ),
        Field(
            name="data_tags", read=list_of(name), example="[phi]", default_text="`[]`",
            meaning="Data tags of all its requests; a request may add others.",
        ),
        Field(
            name="residency", read=RULE, example="{deny_providers: [openai]}", default_text="none",
            meaning="A rule for all its requests, besides those of their class and tags.",
        ),
        Field(
            name="end_user", read=one_of(tuple(EndUserRule)), example="keep", default="hash", default_text="`hash`",
            meaning="What the ledger keeps of a request's `user`: `hash` a keyed hash of it, `keep` the name itself.",
        ),
        Field(
            name="time_zone", read=time_zone, example="Europe/Berlin", default="UTC", default_text="`UTC`",
            meaning="IANA time zone in which the periods of its budgets begin.",
        ),
        Field(
            name="budgets", read=list_of(BUDGET), example="[{period: month, limit_usd: 5000}]", default_text="`[]`",
            meaning="What the whole team may spend.",
        ),
        Field(
            name="limits", read=LIMITS, example="{requests_per_minute: 600, concurrent: 50}", default_text="none",
            meaning="How much the whole team may ask at once.",
        ),
        Field(
            name="projects", read=list_of(PROJECT), example="[{name: checkout, budgets: [...]}]", default_text="`[]`",
            meaning="Budgets and limits of single projects, besides the team's.",
        ),
        Field(
            name="keys", read=list_of(KEY), example='[{key: "*", limits: {...}}]', default_text="`[]`",
            meaning="Budgets and limits of single API keys, besides the team's.",
        ),
    ),
)  # fmt: skip

DOCUMENT = Block(
    name="policy",
    fields=(
        Field(
            name="version", read=version_one, is_required=True, example="1",
            meaning="Version of the format: `1`.",
        ),
        Field(
            name="regions", read=map_of(region_key, list_of(name)), example="{eu: [eu-de, eu-fr]}",
            default_text="`{}`",
            meaning="Regions besides the built-in ones: parents and their children, any depth; a child that is itself "
            "a key is a parent.",
        ),
        Field(
            name="classes", read=map_of(class_key, CLASS), is_required=True,
            example="{internal: {regions: [any]}}",
            meaning=f"Where each data class may be processed; keys: {', '.join(f'`{c}`' for c in LABELS)}.",
        ),
        Field(
            name="data_tags", read=map_of(tag_key, RULE), example="{phi: {at_rest: [eu], max_retention_days: 0}}",
            default_text="`{}`",
            meaning="Kinds of data that teams and requests name, with the rule that each adds.",
        ),
        Field(
            name="facts_valid_days", read=integer(least=1, most=3_650), example="90",
            default_text="none: facts do not expire",
            meaning="Facts of deployments that are older count as unknown, and so do undated ones of deployments that "
            "are not self-hosted.",
        ),
        Field(
            name="deployments", read=list_of(DEPLOYMENT), is_required=True, example="[]",
            meaning="Concrete models at providers or engines.",
        ),
        Field(
            name="routes", read=list_of(ROUTE), is_required=True, example="[]",
            meaning="Model names that teams ask for.",
        ),
        Field(
            name="teams", read=list_of(TEAM), is_required=True, example="[]",
            meaning="Who may call, and who pays.",
        ),
        Field(
            name="cost_centres", read=list_of(COST_CENTRE), example="[]", default_text="`[]`",
            meaning="Budgets of all teams of a cost centre together.",
        ),
        Field(
            name="alerts", read=ALERTS, example="{webhook: ..., secret: ...}",
            default_text="none: budget alerts are only in log and metrics",
            meaning="Where budget alerts are sent.",
        ),
    ),
)  # fmt: skip

# For the reference and the test that it is complete: the heading of each block there.
BLOCKS: dict[str, Block] = {
    "Document": DOCUMENT,
    "classes": CLASS,
    "data_tags": RULE,
    "deployments": DEPLOYMENT,
    "deployments: residency": FACTS,
    "deployments: gpu": GPU,
    "deployments: price": PRICE,
    "deployments: timeouts": TIMEOUTS,
    "routes": ROUTE,
    "teams": TEAM,
    "budgets": BUDGET,
    "limits": LIMITS,
    "teams: projects": PROJECT,
    "teams: keys": KEY,
    "cost_centres": COST_CENTRE,
    "alerts": ALERTS,
}

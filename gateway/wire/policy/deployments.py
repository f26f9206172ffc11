"""Declares the blocks of a deployment, its timeouts and its assumed latency in a policy document,
and converts them to domain values and back.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar, Self

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import (
    AMBIENT,
    DEFAULT_ROUNDS,
    Billing,
    Credentials,
    Deployment,
    FieldLoss,
    HostedToolsRule,
    LatencyPrior,
    PromptCache,
    Timeouts,
    default_operations,
    default_output_limit,
)
from gateway.domain.policy.request_fields import FEATURES
from gateway.domain.policy.unlisted import DROP_UNLISTED, REFUSE_UNLISTED, Unlisted
from gateway.domain.providers.facts import provider_facts_of
from gateway.domain.providers.own_members import REFUSABLE, StreamUsage
from gateway.domain.providers.table import PROVIDERS, OutputLimit
from gateway.domain.words import LISTED_NAME, listed, shown
from gateway.wire.policy.idle_cost import IdleCostBlock
from gateway.wire.policy.limits import LimitsBlock
from gateway.wire.policy.prices import GpuBlock, PriceBlock
from gateway.wire.policy.residency import FactsBlock
from gateway.wire.policy.scalars import (
    ApiVersion,
    BaseAddress,
    BilledName,
    Milliseconds,
    Name,
    Seconds,
    SecretReference,
    Tokens,
    UpstreamModel,
)
from gateway.wire.yaml_blocks.blocks import Block, Items, OrWord, Scalar, optional, required
from gateway.wire.yaml_blocks.findings import Spot, Wrong
from gateway.wire.yaml_blocks.scalars import (
    Boolean,
    decimal,
    integer,
    member_of,
    one_of,
    plain_text,
    text,
)

CAPABILITIES = ("tools", "json_schema", "vision", "reasoning")
Operations = Annotated[list[Annotated[Operation, member_of(Operation)]], Items()]
Capabilities = Annotated[list[Annotated[str, one_of(CAPABILITIES)]], Items()]
Features = Annotated[list[Annotated[str, one_of(tuple(FEATURES))]], Items()]
Refused = Annotated[list[Annotated[str, one_of(REFUSABLE)]], Items()]
Members = Annotated[
    list[
        Annotated[
            str,
            text(
                LISTED_NAME,
                "write the name of a member, as NAME, NAME.PART, NAME.PART=VALUE or "
                "'anthropic-beta: NAME'",
            ),
        ]
    ],
    Items(is_unique=True),
]
_PROVIDER = one_of(PROVIDERS)
_TIMEOUTS, _PRIOR = Timeouts(), LatencyPrior()
_ENGINES = [name for name, provider in PROVIDERS.items() if provider.is_engine]
_NEED_KEYS = [name for name, provider in PROVIDERS.items() if provider.needs_key]
_AMBIENT = [name for name, one in PROVIDERS.items() if "ambient" in one.takes_credentials]
_VERSIONED = [name for name, one in PROVIDERS.items() if one.takes_api_version]
_VERIFY = (
    "TLS certificates are always checked and nothing turns that off; remove the field. "
    "To trust a private CA, name its file in the gateway's SSL_CERT_FILE"
)
_VERIFY_NAMES = (
    "verify",
    "verify_tls",
    "verify_ssl",
    "tls_verify",
    "ssl_verify",
    "insecure",
    "skip_verify",
    "insecure_skip_verify",
)


def _read_provider(spot: Spot) -> str:
    """Return a provider's name. Raises `Wrong` with those of the company, or of the product, that
    was named.
    """
    name = plain_text(spot)
    word = name.lower()
    meant = [
        f"'{one.name}'"
        for one in PROVIDERS.values()
        if word == one.company or word in one.title.lower().split()
    ]
    if meant and name not in PROVIDERS:
        raise Wrong(f"'{shown(name)}' is not known; did you mean {' or '.join(meant)}?")
    return str(_PROVIDER.read(spot))


class TimeoutsBlock(Block):
    """Deadlines of one attempt, in seconds."""

    title = "timeouts block"
    makes = Timeouts
    connect_s: Seconds = optional(
        "Longest wait for a connection.", "30", _TIMEOUTS.connect_s, shown="2"
    )
    first_byte_s: Seconds = optional(
        "Longest wait for the first byte of the answer.", "30", _TIMEOUTS.first_byte_s, shown="60"
    )
    first_token_s: Seconds = optional(
        "Longest wait for the first content of the answer; an engine may send status and "
        "headers long before it.",
        "30",
        _TIMEOUTS.first_token_s,
        shown="60",
    )
    idle_s: Seconds = optional(
        "Longest silence between two bytes of the answer.", "30", _TIMEOUTS.idle_s, shown="60"
    )
    total_s: Seconds = optional(
        "Longest time for the whole answer.", "30", _TIMEOUTS.total_s, shown="600"
    )


class LatencyBlock(Block):
    """The assumed latency of a deployment."""

    title = "latency block"
    makes = LatencyPrior
    ttft_s: Milliseconds = optional(
        "Time to the first token.", "300", _PRIOR.ttft_s, shown="500", alias="ttft_ms"
    )
    tpot_s: Milliseconds = optional(
        "Time for each token after the first.", "300", _PRIOR.tpot_s, shown="20", alias="tpot_ms"
    )


class CredentialsBlock(Block):
    """The parts of a signing key."""

    title = "credentials block"
    makes = Credentials
    access_key_id: SecretReference = required("Reference to the key's id.", "env:AWS_ACCESS_KEY_ID")
    secret_access_key: SecretReference = required(
        "Reference to the secret key.", "env:AWS_SECRET_ACCESS_KEY"
    )
    session_token: SecretReference | None = optional(
        "Reference to the token of a temporary key.", "env:AWS_SESSION_TOKEN"
    )


class BillingBlock(Block):
    """The lines of a provider's bill that belong to a deployment."""

    title = "billing block"
    makes = Billing
    account: BilledName | None = optional(
        "The provider's account that is billed: an organisation, a billing account.",
        "org-acme",
        shown="any account",
    )
    project: BilledName | None = optional(
        "The provider's project, workspace or subaccount.", "proj_eu", shown="any project"
    )
    key: BilledName | None = optional(
        "The id of the key at the provider, as its exports name it; never the key.",
        "key_tollgate_eu",
        shown="any key",
    )


class UnlistedBlock(Block):
    """The factor of the hold for requests with unlisted members."""

    title = "unlisted block"
    makes = Unlisted
    factor: Annotated[Decimal, decimal("a factor of the hold", least="1", most="1000")] = required(
        "How many times the cost of the request is held at the most.", "16"
    )


class DeploymentBlock(Block):
    """One model at one provider or engine."""

    title = "deployment"
    makes = Deployment
    sets = ("operations", "native", "capabilities", "allows", "listed", "refuses")
    refused: ClassVar[dict[str, str]] = dict.fromkeys(_VERIFY_NAMES, _VERIFY)
    name: Name = required("Unique name; shown in headers, the ledger and reports.", "gpt-eu")
    provider: Annotated[str, Scalar(_read_provider, _PROVIDER.schema)] = required(
        f"The company or the kind of engine: {listed(PROVIDERS)}. `openai_compatible` is any other "
        "server of OpenAI's dialect.",
        "openai",
    )
    base_url: BaseAddress = required(
        "Address as in [Providers](providers.md), usually up to and including `/v1`. `http://` "
        "only on this machine or a private network.",
        "https://eu.api.openai.com/v1",
    )
    api_version: ApiVersion | None = optional(
        f"Sent as `api-version` in the query of every address (for {listed(_VERSIONED)}): the "
        "addresses below `/openai/deployments/NAME` need it, those below `/openai/v1` do not.",
        "2024-10-21",
    )
    api_key: SecretReference | None = optional(
        "Reference to the upstream's key: `env:NAME` or `file:/absolute/path`; never the key.",
        "env:OPENAI_API_KEY",
        shown=f"none; required for {listed(_NEED_KEYS)}",
    )
    credentials: Annotated[CredentialsBlock, OrWord((("ambient", AMBIENT),))] | None = optional(
        f"Instead of `api_key`: `ambient`, the identity that the platform gives to the gateway "
        f"(for {listed(_AMBIENT)}), or the parts of a signing key, each a reference (see below).",
        "ambient",
    )
    billing: BillingBlock | None = optional(
        "Which lines of the provider's bills are its own, for `tollgate reconcile` (see below).",
        "{account: org-acme, project: proj_eu}",
        shown="every line of the provider that names its model",
    )
    model: UpstreamModel = required("The model's name at the upstream.", "gpt-5.5")
    region: Name = required(
        "The processing region; `global` or `unknown` if no place is promised.", "eu-de"
    )
    is_self_hosted: Boolean | None = optional(
        "Whether you run it yourself; classes may demand that.",
        "true",
        shown=f"`true` for {listed(_ENGINES)}, else `false`",
        alias="self_hosted",
    )
    residency: FactsBlock | None = optional(
        "Further facts about its place, with source and date.",
        "{at_rest: eu, source: ..., as_of: 2026-11-20}",
        shown="the bundled facts about its host",
    )
    gpu: GpuBlock | None = optional(
        "Price per token from GPU hours; only for self-hosted deployments, and not with `price`.",
        "{type: H200, ...}",
    )
    price: PriceBlock | None = optional(
        "A negotiated price; wins over all others.",
        "{input_usd_per_mtok: 0.80, output_usd_per_mtok: 3.20}",
        shown="the price book",
    )
    stand_in_price: PriceBlock | None = optional(
        "Used only while nothing else prices it; its events are flagged "
        "`is_stand_in_price`. The fields are those of `price`.",
        "{input_usd_per_mtok: 5, output_usd_per_mtok: 20}",
        shown="none: without any price, requests are refused",
    )
    idle_cost: IdleCostBlock | None = optional(
        "Which teams bear the cost of its idle GPU time, in `idle_usd` of `report spend`; only for "
        "self-hosted deployments.",
        "{rule: proportional}",
        shown="`{rule: show}`: no team",
    )
    operations: Operations | None = optional(
        f"Endpoints it serves, of {listed(Operation)}.",
        "[chat, embeddings]",
        shown="`[chat, completions, responses, messages]`, as far as `provider` speaks them or "
        "they can be translated; the others are always stated",
    )
    native: Operations | None = optional(
        "The operations that this server speaks itself, if they are fewer than its provider's; "
        "other conversations are translated.",
        "[chat]",
        shown="those of `provider`",
    )
    untranslatable: Annotated[FieldLoss, member_of(FieldLoss)] = optional(
        "What happens to a field of a translated request that has no place in the server's "
        "dialect: `refuse` the request, or `drop` the field and name it in "
        "`x-tollgate-dropped-fields`.",
        "drop",
        FieldLoss.REFUSE,
        shown="`refuse`",
    )
    prompt_cache: Annotated[PromptCache, member_of(PromptCache)] | None = optional(
        "Whether teams share its cached prompts: `separate` (each team's salt is sent where the "
        "engine takes one, and elsewhere you know that it keeps them apart), `shared` (no salt; "
        "answers and receipts show callers neither cached tokens nor costs) or `trusted` (no "
        "salt; a team can find out by cached tokens and cost whether another one sent a text).",
        "separate",
        shown="not stated: the salt is sent to `vllm` and `sglang`; others share it, which "
        "`validate` notes",
    )
    capabilities: Capabilities | None = optional(
        f"The model's capabilities, from {listed(CAPABILITIES)}; requests that need another "
        "one are not sent to it.",
        "[tools, json_schema]",
        shown="not declared: nothing is ruled out",
    )
    allows: Features | None = optional(
        "Request features it may be sent although they store, fetch or send data elsewhere "
        f"or steer the engine, of {listed(FEATURES)}.",
        "[store]",
        shown="`[]`",
    )
    hosted_rounds: Annotated[int, integer(1, 1000)] = optional(
        "Under a hard budget: the most rounds in which the provider runs its own tools for one "
        "request (see below). It is sent as the provider's bound, unless the caller's own is "
        "smaller, and one context window more is held.",
        "8",
        DEFAULT_ROUNDS,
    )
    hosted_tools: Annotated[HostedToolsRule, member_of(HostedToolsRule)] = optional(
        "Under a hard budget, for a tool whose rounds nothing bounds at the provider: "
        "`refuse` the request, `drop` the tool and name it in `x-tollgate-dropped-fields`, or "
        "`hold` `hosted_rounds` + 1 windows for it, if you know that there are no more.",
        "drop",
        HostedToolsRule.REFUSE,
        shown="`refuse`",
    )
    unlisted: (
        Annotated[UnlistedBlock, OrWord((("refuse", REFUSE_UNLISTED), ("drop", DROP_UNLISTED)))]
        | None
    ) = optional(
        "Under a hard budget, the treatment of a member that the provider's published schema does "
        "not list, or whose effect on the cost has no bound: `refuse` it, `drop` it and name it in "
        "`x-tollgate-dropped-fields`, or send it and hold a multiple of the cost, `{factor: N}`. "
        "See [Budgets](../guides/budgets.md).",
        "{factor: 16}",
        REFUSE_UNLISTED,
        shown="`refuse`",
    )
    listed: Members | None = optional(
        "Members that you know to do nothing to the cost, besides those of the provider's "
        "published schema: `NAME`, `NAME.PART`, `NAME.PART=VALUE` or `anthropic-beta: NAME`; and "
        "tools without a fee (`TYPE`, also for an answer that shows their work unasked: "
        "`web_search`, `unpriced_tool`), and their arguments that your price covers "
        "(`TYPE.NAME=VALUE`).",
        "[watermark_key]",
        shown="`[]`",
    )
    context_window: Tokens | None = optional(
        "Most tokens of prompt and answer together.", "32768", shown="not declared"
    )
    max_output_tokens: Tokens | None = optional(
        "Most tokens of one answer.", "8192", shown="not declared"
    )
    output_limit: Annotated[OutputLimit, member_of(OutputLimit)] | None = optional(
        "The member in which a chat is sent the most tokens of its answer: `max_tokens`, "
        "`max_completion_tokens` or `both`, for a server that refuses the other one.",
        "max_tokens",
        shown="`both` for `vllm` and `openai_compatible` (`max_tokens` for Mistral's host), "
        "`max_completion_tokens` for `openai`",
    )
    stream_usage: Annotated[StreamUsage, member_of(StreamUsage)] | None = optional(
        "How much usage a stream is asked for, for a server that refuses the members: `final` (at "
        "its end; no `continuous_usage_stats` and no `timings_per_token`) or `unasked` (no "
        "`stream_options` either: the usage of its streams is an estimate).",
        "unasked",
        shown="all that `provider` reports",
    )
    refuses: Refused | None = optional(
        "Words that this server refuses and `provider` takes: `developer`, the role (its messages "
        "go as `system`), or `tool_choice`, the `auto` that the gateway adds at `trtllm`.",
        "[developer]",
        shown="`[]`",
    )
    input_overhead_tokens: Annotated[int, integer(0, 1_000_000)] = optional(
        "Tokens that the upstream's chat template may add to a prompt; part of the cost bound.",
        "64",
        64,
    )
    limits: LimitsBlock | None = optional(
        "Its limits for all teams together; while one is full, the next deployment is tried.",
        "{concurrent: 64}",
    )
    max_in_flight: Annotated[int, integer(1, 1_000_000)] | None = optional(
        "Most attempts that one gateway process has there at the same time; while it is "
        "full, the next deployment is tried.",
        "64",
        shown="half of `TOLLGATE_MAX_STREAMS`",
    )
    group: Name | None = optional(
        "Deployments with the same group are replicas of one engine: a session stays at "
        "one of them while none is much fuller than the others.",
        "qwen",
    )
    prior: LatencyBlock | None = optional(
        "Assumed latency until it was measured.",
        "{ttft_ms: 300, tpot_ms: 12}",
        shown="see below",
        alias="latency",
    )
    timeouts: TimeoutsBlock | None = optional(
        "How long to wait for it.", "{total_s: 300}", shown="see below"
    )

    def is_own(self) -> bool:
        """Return True if the deployment is declared self-hosted, or is so by its provider."""
        declared: bool | None = self.of("self_hosted")
        if declared is not None:
            return declared
        provider = PROVIDERS.get(self.of("provider") or "")
        return provider is not None and provider.is_engine

    def value(self, **others: Any) -> Any:
        """Return the deployment that this block declares."""
        named, price, stand_in = (self.provider, self.model), self.price, self.stand_in_price
        facts = provider_facts_of(self.provider, self.base_url)
        native = facts.native if self.native is None else frozenset(self.native)
        operations = self.operations
        return super().value(
            native=native,
            operations=frozenset(operations) if operations else default_operations(native, facts),
            price=price and price.price(*named),
            stand_in_price=stand_in and stand_in.price(*named, is_stand_in=True),
            output_limit=self.output_limit or default_output_limit(self.provider, self.base_url),
            is_self_hosted=self.is_own(),
            **others,
        )

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the block of a deployment, with every default written out."""
        idle = IdleCostBlock.of_value(value.idle_cost) if value.is_self_hosted else None
        limits = LimitsBlock.of_limits(value.limits)
        return super().of_value(value, limits=limits, idle_cost=idle, **others)

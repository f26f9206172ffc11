"""Lists the invented deployments, kinds of work and names of the demo organisation; generates
nothing.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from gateway.domain.operation import Operation
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import BilledHours, GpuRate
from gateway.domain.pricing.tokens import TokenKind


class BilledAccount(NamedTuple):
    """The provider's account, project and key that a deployment's requests are billed to."""

    account: str
    project: str
    key: str


class Destination(NamedTuple):
    """A deployment of the organisation. `ttft_s` and `tpot_s` are medians without load."""

    provider: str
    model: str
    region: str
    ttft_s: float
    tpot_s: float
    gpu: GpuRate | None = None
    billed_to: BilledAccount | None = None


QWEN = GpuRate(
    type="H200",
    count=2,
    usd_per_gpu_hour=Decimal("3.10"),
    input_tok_per_s=Decimal(12_000),
    output_tok_per_s=Decimal(1_200),
    target_utilisation=Decimal("0.5"),
    cached_input_tok_per_s=Decimal(120_000),
)
LLAMA = GpuRate(
    type="H100",
    count=4,
    usd_per_gpu_hour=Decimal("2.40"),
    input_tok_per_s=Decimal(16_000),
    output_tok_per_s=Decimal(1_600),
    target_utilisation=Decimal("0.45"),
    cached_input_tok_per_s=Decimal(150_000),
    hours=BilledHours.ALWAYS,
)
OPENAI_EU = BilledAccount("org-acme", "proj_eu", "key_tollgate_eu")
OPENAI_US = BilledAccount("org-acme", "proj_us", "key_tollgate_us")
ANTHROPIC = BilledAccount("org-acme-anthropic", "wrkspc_agents", "apikey_tollgate")
GOOGLE = BilledAccount("billing-0173", "acme-llm", "tollgate")
BEDROCK = BilledAccount("410000000017", "acme-eu", "tollgate-role")
GROQ = BilledAccount("acme", "default", "gsk-tollgate")
PARTNER = BilledAccount("C-4711", "main", "tollgate")

SONNET_EU = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
OSS_120B = "openai/gpt-oss-120b"
DESTINATIONS = {
    "qwen-eu": Destination("vllm", "qwen3-32b", "eu-de", 0.16, 0.021, gpu=QWEN),
    "llama-eu": Destination("vllm", "llama-3.3-70b", "eu-fr", 0.24, 0.026, gpu=LLAMA),
    "gpt-eu": Destination("openai", "gpt-5.5", "eu", 0.62, 0.012, billed_to=OPENAI_EU),
    "mini-us": Destination("openai", "gpt-5-mini", "us-east", 0.38, 0.007, billed_to=OPENAI_US),
    "claude-us": Destination(
        "anthropic", "claude-sonnet-4-6", "us", 0.95, 0.014, billed_to=ANTHROPIC
    ),
    "haiku-us": Destination(
        "anthropic", "claude-haiku-4-5", "us", 0.42, 0.006, billed_to=ANTHROPIC
    ),
    "claude-eu": Destination("bedrock", SONNET_EU, "eu-central-1", 1.1, 0.016, billed_to=BEDROCK),
    "gemini": Destination("gemini", "gemini-2.5-pro", "global", 0.8, 0.008, billed_to=GOOGLE),
    "flash": Destination("gemini", "gemini-2.5-flash", "global", 0.34, 0.004, billed_to=GOOGLE),
    "oss-groq": Destination("groq", OSS_120B, "unknown", 0.22, 0.002, billed_to=GROQ),
    "partner": Destination("openai_compatible", "m-large", "eu-fr", 0.55, 0.011, billed_to=PARTNER),
}


def partner_price(usd_per_mtok: tuple[str, str, str], *, contract: str) -> Price:
    """Return a negotiated price of `partner`: input, cached input and output."""
    kinds = (TokenKind.INPUT, TokenKind.CACHED_INPUT, TokenKind.OUTPUT)
    rates = tuple(
        Rate(kind=kind, usd_per_mtok=Decimal(usd))
        for kind, usd in zip(kinds, usd_per_mtok, strict=True)
    )
    return Price(
        provider="openai_compatible", model="m-large", source=f"policy ({contract})", rates=rates
    )


# The partner's price falls at the calendar's `new_price`: a change with a date in the ledger.
PARTNER_PRICES = (
    partner_price(("0.80", "0.20", "3.20"), contract="contract of the first year"),
    partner_price(("0.64", "0.16", "2.56"), contract="contract of the second year"),
)

OFFICE, EVENING, BATCH, STEADY = "office", "evening", "batch", "steady"


class Hours(NamedTuple):
    """The weight of each hour (UTC) of one kind of use, and the weekend's share of a day's."""

    weights: tuple[int, ...]
    weekend: float


HOURS = {
    OFFICE: Hours(
        (1, 1, 1, 1, 2, 4, 14, 34, 60, 74, 76, 62, 48, 62, 74, 70, 52, 28, 12, 7, 5, 3, 2, 1),
        0.08,
    ),
    EVENING: Hours(
        (9, 5, 3, 3, 4, 8, 16, 24, 30, 34, 36, 40, 44, 42, 40, 42, 48, 56, 66, 72, 70, 56, 36, 18),
        1.15,
    ),
    BATCH: Hours(
        (80, 84, 76, 60, 40, 18, 6, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 4, 6, 12, 30, 60, 74), 0.6
    ),
    STEADY: Hours((40,) * 24, 0.9),
}


class DemoRoute(NamedTuple):
    """A route and its deployments in order: the second one answers if the first fails.

    `stays_in_eu`: a confidential team may use it. `written` is the share of a prompt's uncached
    tokens that goes to the provider's cache.
    """

    name: str
    order: tuple[str, str]
    stays_in_eu: bool
    written: float = 0.0
    operation: Operation = Operation.CHAT


SMALL = DemoRoute("assistant-small", ("mini-us", "flash"), stays_in_eu=False)
FAST = DemoRoute("assistant-fast", ("oss-groq", "flash"), stays_in_eu=False)
ASSISTANT = DemoRoute("assistant", ("qwen-eu", "gpt-eu"), stays_in_eu=True)
ANALYST = DemoRoute("analyst", ("gpt-eu", "qwen-eu"), stays_in_eu=True)
WRITER = DemoRoute("writer", ("gemini", "partner"), stays_in_eu=False)
CODER = DemoRoute(
    "coder",
    ("claude-us", "claude-eu"),
    stays_in_eu=False,
    written=0.9,
    operation=Operation.MESSAGES,
)
REVIEWER = DemoRoute("reviewer", ("claude-eu", "claude-us"), stays_in_eu=False, written=0.5)
EXTRACTOR = DemoRoute("extractor", ("llama-eu", "qwen-eu"), stays_in_eu=True)
TRANSLATOR = DemoRoute("translator", ("partner", "qwen-eu"), stays_in_eu=True)
SUMMARISER = DemoRoute("summariser", ("flash", "mini-us"), stays_in_eu=False)
CLASSIFIER = DemoRoute(
    "classifier",
    ("haiku-us", "mini-us"),
    stays_in_eu=False,
    written=0.4,
    operation=Operation.MESSAGES,
)


class DemoActivity(NamedTuple):
    """One kind of work.

    `prompt` is its median tokens and the cached share, `answer` its median tokens and the reasoning
    share; `streamed` is a share. `end_users` and `customers` are numbers of names.
    """

    name: str
    route: DemoRoute
    hours: str
    weight: float
    prompt: tuple[int, float]
    answer: tuple[int, float]
    streamed: float
    end_users: int = 0
    customers: int = 0


WORKS = (
    DemoActivity("reply-drafts", SMALL, OFFICE, 5.0, (5_200, 0.75), (420, 0.1), 0.95, 60),
    DemoActivity("chat-widget", ASSISTANT, EVENING, 6.0, (3_800, 0.65), (380, 0.0), 1.0, 4_000, 24),
    DemoActivity("case-review", ANALYST, OFFICE, 1.6, (9_000, 0.35), (1_100, 0.45), 0.3, 90),
    DemoActivity("long-reports", WRITER, OFFICE, 0.8, (15_000, 0.3), (2_600, 0.55), 0.7, 40),
    DemoActivity("coding-agents", CODER, OFFICE, 2.6, (32_000, 0.85), (900, 0.15), 1.0, 80),
    DemoActivity("pull-requests", REVIEWER, OFFICE, 0.9, (11_000, 0.4), (1_200, 0.3), 0.1),
    DemoActivity("documents", EXTRACTOR, BATCH, 4.0, (6_400, 0.3), (520, 0.0), 0.0, 0, 24),
    DemoActivity("query-rewrites", FAST, STEADY, 5.0, (1_400, 0.5), (160, 0.35), 0.2, 900),
    DemoActivity("translations", TRANSLATOR, STEADY, 2.2, (2_600, 0.2), (2_300, 0.0), 0.4, 120, 24),
    DemoActivity("meeting-notes", SUMMARISER, OFFICE, 1.8, (12_500, 0.1), (800, 0.2), 0.1, 300),
    DemoActivity("ticket-triage", CLASSIFIER, STEADY, 2.4, (2_100, 0.8), (60, 0.0), 0.0),
    DemoActivity("nightly-evals", ANALYST, BATCH, 0.6, (9_800, 0.7), (3_200, 0.35), 0.0),
)
# The spike: one key repeats a failing evaluation all day, with long prompts that no cache holds.
RUNAWAY = DemoActivity("runaway-evals", ANALYST, STEADY, 0.0, (24_000, 0.1), (3_600, 0.4), 0.0)

# A team is an area and a function: 20 × 20 names.
_AREAS = (
    "payments support search engineering marketing research logistics legal claims onboarding "
    "pricing fraud catalogue mobile partners people finance security data stores"
)
_FUNCTIONS = (
    "core platform insights automation assistants quality operations tools europe americas apac "
    "enterprise growth content planning risk integrations analytics labs backoffice"
)
AREAS, FUNCTIONS = _AREAS.split(), _FUNCTIONS.split()
MOST_TEAMS = len(AREAS) * len(FUNCTIONS)

# Days on which offices are closed in most of Europe, as (month, day).
HOLIDAYS = frozenset({(1, 1), (1, 6), (5, 1), (10, 3), (11, 1), (12, 24), (12, 25), (12, 26)})
HOLIDAY_SHARE, AUGUST_SHARE, GROWTH_PER_MONTH = 0.12, 0.84, 1.045

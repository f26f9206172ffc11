"""The invented teams of the demo data, their work, and the deployments that they use."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gateway.domain.operation import Operation
from gateway.domain.pricing.selfhost import GpuRate


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoDeployment:
    """A destination of demo traffic and its speed. Times are medians."""

    name: str
    provider: str
    model: str
    region: str
    ttft_s: float
    tpot_s: float
    gpu: GpuRate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWork:
    """One kind of work that a demo team does. Tokens are medians; shares are 0 to 1.

    `write_share` is the part of a prompt's uncached tokens that is written to the provider's cache.
    """

    project: str
    key_id: str
    route: str
    order: tuple[str, ...]
    feature: str
    weight: int
    input_tokens: int
    output_tokens: int
    cached_share: float
    reasoning_share: float
    streamed_share: float
    write_share: float = 0.0
    writes_for_an_hour: bool = False
    operation: Operation = Operation.CHAT
    end_users: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTeam:
    """A paying team of the demo. `left_out` explains why a deployment of its routes may not be
    used.
    """

    name: str
    cost_centre: str
    data_class: str
    share: float
    works: tuple[DemoWork, ...]
    left_out: tuple[tuple[str, str], ...] = ()


DEPLOYMENTS = {
    deployment.name: deployment
    for deployment in (
        DemoDeployment(
            name="qwen-eu",
            provider="vllm",
            model="qwen3-32b",
            region="eu-de",
            ttft_s=0.16,
            tpot_s=0.021,
            gpu=GpuRate(
                type="H200",
                count=2,
                usd_per_gpu_hour=Decimal("3.10"),
                input_tok_per_s=Decimal(12000),
                output_tok_per_s=Decimal(1200),
                target_utilisation=Decimal("0.5"),
                cached_input_tok_per_s=Decimal(120000),
            ),
        ),
        DemoDeployment(
            name="gpt-eu",
            provider="openai",
            model="gpt-5.5",
            region="eu",
            ttft_s=0.62,
            tpot_s=0.012,
        ),
        DemoDeployment(
            name="mini-us",
            provider="openai",
            model="gpt-5-mini",
            region="us-east",
            ttft_s=0.38,
            tpot_s=0.007,
        ),
        DemoDeployment(
            name="claude-us",
            provider="anthropic",
            model="claude-sonnet-4-6",
            region="us",
            ttft_s=0.95,
            tpot_s=0.014,
        ),
        DemoDeployment(
            name="claude-eu",
            provider="bedrock",
            model="eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
            region="eu-central-1",
            ttft_s=1.1,
            tpot_s=0.016,
        ),
        DemoDeployment(
            name="gemini",
            provider="gemini",
            model="gemini-2.5-pro",
            region="global",
            ttft_s=0.8,
            tpot_s=0.008,
        ),
        DemoDeployment(
            name="oss-groq",
            provider="groq",
            model="openai/gpt-oss-120b",
            region="unknown",
            ttft_s=0.22,
            tpot_s=0.002,
        ),
    )
}

TEAMS = (
    DemoTeam(
        name="payments",
        cost_centre="CC-1207",
        data_class="confidential",
        share=0.34,
        left_out=(("mini-us", "is in us-east (confidential→eu)"),),
        works=(
            DemoWork(
                project="checkout",
                key_id="demoPayChk",
                route="assistant",
                order=("qwen-eu", "gpt-eu"),
                weight=5,
                feature="dispute-summary",
                input_tokens=4800,
                output_tokens=640,
                cached_share=0.55,
                reasoning_share=0.0,
                streamed_share=0.8,
            ),
            DemoWork(
                project="fraud-review",
                key_id="demoPayFrd",
                route="analyst",
                order=("gpt-eu", "qwen-eu"),
                weight=2,
                feature="case-triage",
                input_tokens=9000,
                output_tokens=1100,
                cached_share=0.35,
                reasoning_share=0.45,
                streamed_share=0.2,
            ),
        ),
    ),
    DemoTeam(
        name="research",
        cost_centre="CC-3100",
        data_class="internal",
        share=0.22,
        works=(
            DemoWork(
                project="papers",
                key_id="demoResPap",
                route="analyst",
                order=("gpt-eu", "qwen-eu"),
                weight=4,
                feature="literature",
                input_tokens=15000,
                output_tokens=1900,
                cached_share=0.25,
                reasoning_share=0.55,
                streamed_share=0.5,
            ),
            DemoWork(
                project="evals",
                key_id="demoResEvl",
                route="assistant",
                order=("qwen-eu", "gpt-eu"),
                weight=3,
                feature="nightly-eval",
                input_tokens=9800,
                output_tokens=4200,
                cached_share=0.7,
                reasoning_share=0.2,
                streamed_share=0.1,
            ),
        ),
    ),
    DemoTeam(
        name="support",
        cost_centre="CC-2044",
        data_class="internal",
        share=0.44,
        works=(
            DemoWork(
                project="helpdesk",
                key_id="demoSupHlp",
                route="assistant-small",
                order=("mini-us", "qwen-eu"),
                feature="reply-draft",
                input_tokens=5200,
                output_tokens=420,
                cached_share=0.75,
                weight=5,
                reasoning_share=0.1,
                streamed_share=0.95,
                end_users=40,
            ),
            DemoWork(
                project="chat-widget",
                key_id="demoSupWid",
                route="assistant",
                order=("qwen-eu", "gpt-eu"),
                weight=4,
                feature="self-service",
                input_tokens=3800,
                output_tokens=380,
                cached_share=0.65,
                reasoning_share=0.0,
                streamed_share=1.0,
                end_users=400,
            ),
            DemoWork(
                project="helpdesk",
                key_id="demoSupHlp",
                route="analyst",
                order=("gpt-eu", "qwen-eu"),
                weight=2,
                feature="escalation",
                input_tokens=7800,
                output_tokens=900,
                cached_share=0.6,
                reasoning_share=0.3,
                streamed_share=0.9,
                end_users=40,
            ),
        ),
    ),
    DemoTeam(
        name="engineering",
        cost_centre="CC-5002",
        data_class="internal",
        share=0.17,
        works=(
            DemoWork(
                project="coding-agents",
                key_id="demoEngAgt",
                route="coder",
                order=("claude-us", "claude-eu"),
                feature="agent-session",
                weight=5,
                input_tokens=32000,
                output_tokens=900,
                cached_share=0.85,
                reasoning_share=0.15,
                streamed_share=1.0,
                write_share=0.9,
                writes_for_an_hour=True,
                operation=Operation.MESSAGES,
                end_users=25,
            ),
            DemoWork(
                project="code-review",
                key_id="demoEngRev",
                route="reviewer",
                order=("claude-eu", "claude-us"),
                feature="pull-request",
                weight=3,
                input_tokens=11000,
                output_tokens=1200,
                cached_share=0.4,
                reasoning_share=0.3,
                streamed_share=0.1,
                write_share=0.5,
            ),
        ),
    ),
    DemoTeam(
        name="marketing",
        cost_centre="CC-4180",
        data_class="public",
        share=0.13,
        works=(
            DemoWork(
                project="campaigns",
                key_id="demoMktCmp",
                route="writer",
                order=("gemini", "oss-groq"),
                feature="long-form",
                weight=3,
                input_tokens=6500,
                output_tokens=2600,
                cached_share=0.35,
                reasoning_share=0.55,
                streamed_share=0.7,
            ),
            DemoWork(
                project="site-search",
                key_id="demoMktSrc",
                route="assistant-fast",
                order=("oss-groq", "gemini"),
                feature="query-rewrite",
                weight=6,
                input_tokens=1400,
                output_tokens=240,
                cached_share=0.5,
                reasoning_share=0.35,
                streamed_share=0.4,
                end_users=300,
            ),
        ),
    ),
)

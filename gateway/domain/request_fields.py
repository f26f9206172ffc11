"""Request fields that store, fetch or send data elsewhere, or steer the engine.

They are refused unless the chosen deployment lists the feature under `allows`. Everything not in this
table passes through untouched.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.pricing import STANDARD_TIERS, tier_name


@dataclass(frozen=True, slots=True)
class Feature:
    """A kind of field that needs leave. `leaves_region` decides the error: 403 residency, else 400."""

    name: str
    fields: tuple[str, ...]
    leaves_region: bool
    why: str


FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature("store", ("store", "background"), True, "the provider would keep the answer"),
        Feature(
            "stored_state",
            ("previous_response_id", "conversation", "prompt", "file_id"),
            True,
            "it fetches data kept elsewhere",
        ),
        Feature(
            "hosted_tools", ("tools", "web_search_options"), True, "a tool run by the provider sends data elsewhere"
        ),
        Feature("remote_media", ("messages", "input"), True, "the upstream would fetch an address the caller names"),
        Feature(
            "engine_control",
            (
                "kv_transfer_params", "priority", "cache_salt", "chat_template", "request_id", "vllm_xargs",
                "mm_processor_kwargs", "media_io_kwargs", "data_parallel_rank", "ec_transfer_params",
            ),
            False,
            "it steers an engine that other teams share",
        ),
        Feature("service_tier", ("service_tier",), False, "this tier has another price, which is not known here"),
        Feature("audio", ("modalities", "audio", "messages", "input"), False, "audio tokens have no price here yet"),
    )
}  # fmt: skip

# Top-level members that need leave whatever their value is (null and, for `store`, false excepted).
FEATURE_OF_MEMBER: dict[str, str] = {
    "background": "store",
    "previous_response_id": "stored_state",
    "conversation": "stored_state",
    "web_search_options": "hosted_tools",
    "audio": "audio",
    **dict.fromkeys(FEATURES["engine_control"].fields, "engine_control"),
}

# Tool types a provider runs on its own side. Types we do not know pass: tomorrow's must work today.
HOSTED_TOOL_PREFIXES = (
    "web_search", "file_search", "code_interpreter", "computer", "image_generation", "mcp",
)  # fmt: skip

# Service tiers that prices name. A deployment whose price covers the tier may be sent it without more leave: its
# feature then is `service_tier=flex`. The names are known ones, so that a caller cannot invent features without end.
KNOWN_TIERS = frozenset({"flex", "priority", "scale", "fast", "performance"})
_TIER_MARK = "="


def tier_feature(service_tier: str) -> str | None:
    """The feature that asking for this service tier needs; None for the standard one."""
    if service_tier in STANDARD_TIERS:
        return None
    name = tier_name(service_tier)
    return f"service_tier{_TIER_MARK}{name}" if name in KNOWN_TIERS else "service_tier"


def feature_and_tier(feature: str) -> tuple[str, str | None]:
    """A feature's name in `FEATURES`, and the service tier it asks for, if it is that one and the tier is known."""
    name, _, tier = feature.partition(_TIER_MARK)
    return name, tier or None

"""Random policies, requests, faults and edits, as plain documents that a user could write.

Every draw comes from the seed of its case, so a case that fails is run again by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any

from tests.residency.oracle import CLASSES

TODAY = date(2026, 11, 22)
TEAM, ROUTE = "payments", "assistant"
ENDPOINTS = 5
BEHAVIOURS = (
    "answers",
    "answers",
    "answers",
    "down",
    "stalls",
    "redirects",
    "fails",
    "cuts",
    "lies",
    "wanders",
)

# Regions that hang in each other in every way that a document can say, and some that the world
# knows by itself.
DECLARED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("eu", ("eu-1", "eu-2")),
    ("de", ("de-a", "de-b")),
    ("us", ("us-east", "us-west")),
    ("home", ("de", "ch")),
    ("campus", ("hall-1", "hall-2")),
    ("hall-1", ("rack-1", "rack-2")),
    ("nordics", ("no", "se", "fi")),
)
KNOWN = ("europe", "eea", "eu", "de", "fr", "se", "fi", "no", "ch", "uk", "us")
ENGINES = ("vllm", "sglang", "trtllm", "llamacpp", "lmstudio", "ollama", "triton")
COMPANIES = (
    "openai",
    "azure_openai",
    "anthropic",
    "gemini",
    "vertex",
    "bedrock",
    "groq",
    "mistral",
    "deepseek",
    "openrouter",
    "together",
    "fireworks",
    "xai",
    "cerebras",
)
PROVIDERS = (*ENGINES, *COMPANIES, "openai_compatible")
DENIABLE = (*PROVIDERS, "google", "amazon")
# Providers that speak a dialect of their own alone, so that `native` can name no operation.
TRANSLATED_ALONE = ("gemini", "vertex", "bedrock")
# A model of Bedrock's: one in its own region, and profiles that run it anywhere in a group.
MODELS = {
    "bedrock": (
        "anthropic.claude-opus-4-6-v1",
        "eu.anthropic.claude-opus-4-6-v1",
        "us.anthropic.claude-opus-4-6-v1",
        "global.anthropic.claude-opus-4-6-v1",
    )
}
DIALECTS = ("chat", "chat", "responses", "messages")
KEY_VARIABLE = "RESIDENCY_CASES_KEY"
REFERENCE = f"env:{KEY_VARIABLE}"
SIGNING_KEY = {"access_key_id": REFERENCE, "secret_access_key": REFERENCE}
LISTS = ("regions", "at_rest", "telemetry", "deny_regions", "gateway_regions")


@dataclass(frozen=True)
class Ask:
    """One request, with the place and time of its service."""

    data_class: str | None
    data_tags: tuple[str, ...]
    gateway_region: str
    day: date
    dialect: str = "chat"


@dataclass(frozen=True)
class Case:
    """A policy, a request, the endpoints' behaviour, and the edits during the request or after
    it.
    """

    number: int
    document: dict[str, Any]
    ask: Ask
    behaviours: tuple[str, ...]
    edited: dict[str, Any]
    edits_in_flight: bool


def case(seed: int, number: int) -> Case:
    """The case of this number."""
    draw = Random(f"{seed}/{number}")
    document = policy(draw)
    tags = tuple(sorted(document.get("data_tags", {})))
    ask = Ask(
        data_class=draw.choice([None, None, *document["classes"]]),
        data_tags=tuple(tag for tag in tags if draw.random() < 0.3),
        gateway_region=draw.choice(_places(draw, document)),
        day=TODAY + timedelta(days=draw.choice((0, 0, 0, 45, 200))),
        dialect=draw.choice(DIALECTS),
    )
    behaviours = tuple(draw.choice(BEHAVIOURS) for _ in document["deployments"])
    if number % 8 == 7:
        behaviours = _without_places(draw, document)
    edited = deepcopy(document)
    for _ in range(draw.randint(1, 2)):
        _edit(draw, edited)
    return Case(
        number=number,
        document=document,
        ask=ask,
        behaviours=behaviours,
        edited=edited,
        edits_in_flight=draw.random() < 0.3,
    )


def policy(draw: Random) -> dict[str, Any]:
    """A document that is valid."""
    regions = {name: list(children) for name, children in DECLARED if draw.random() < 0.5}
    document: dict[str, Any] = {"version": 1, "regions": regions}
    labels = sorted(draw.sample(CLASSES, draw.randint(1, 4)), key=CLASSES.index)
    document["classes"] = {label: rule(draw, document, is_class=True) for label in labels}
    if tags := draw.sample(("phi", "gdpr", "export"), draw.choice((0, 0, 1, 2))):
        document["data_tags"] = {tag: rule(draw, document) for tag in tags}
    if draw.random() < 0.3:
        document["facts_valid_days"] = draw.choice((30, 90, 365))
    document["deployments"] = [
        _deployment(draw, document, f"d-{number}") for number in range(draw.randint(2, ENDPOINTS))
    ]
    names = [one["name"] for one in document["deployments"]]
    draw.shuffle(names)
    document["routes"] = [{"name": ROUTE, "deployments": names, "objective": "priority"}]
    team: dict[str, Any] = {
        "name": TEAM,
        "cost_centre": "CC-1",
        "data_class": draw.choice(labels),
        "routes": [ROUTE],
    }
    if own := [tag for tag in tags if draw.random() < 0.3]:
        team["data_tags"] = own
    if draw.random() < 0.25:
        team["residency"] = rule(draw, document)
    document["teams"] = [team]
    return document


def _without_places(draw: Random, document: dict[str, Any]) -> tuple[str, ...]:
    """Leave one server of no place, which states one, where any place is allowed, or forbidden in
    shadow alone: often a model of Ollama's cloud, behind an own server or not. Return the server's
    behaviour.
    """
    rules = ({"regions": ["any"]}, {"regions": ["eu"], "mode": "shadow"})
    document["classes"] = {label: draw.choice(rules) for label in document["classes"]}
    document["data_tags"] = {tag: {} for tag in document.get("data_tags", {})}
    document["teams"][0].pop("residency", None)
    (one, *_) = document["deployments"]
    one["region"] = draw.choice(("global", "unknown"))
    if draw.random() < 0.5 and one["provider"] not in COMPANIES:
        one |= {"provider": "ollama", "self_hosted": draw.random() < 0.5}
    document["deployments"] = [one]
    document["routes"][0]["deployments"] = [one["name"]]
    return (draw.choice(("lies", "wanders")),)


def rule(draw: Random, document: dict[str, Any], *, is_class: bool = False) -> dict[str, Any]:
    """A rule of random strictness, often one that allows something."""
    places = _places(draw, document)
    found: dict[str, Any] = {}
    if is_class or draw.random() < 0.4:
        found["regions"] = (
            ["any"] if draw.random() < 0.35 else _some(draw, ["eu", "europe", *places], most=6)
        )
    for field, odds in (("at_rest", 0.1), ("telemetry", 0.06), ("gateway_regions", 0.05)):
        if draw.random() < odds:
            found[field] = _some(draw, ["any", "eu", "europe", *places], most=5)
    if draw.random() < 0.12:
        found["deny_regions"] = _some(
            draw, [place for place in places if place not in ("global", "unknown")], most=2
        )
    if draw.random() < 0.1:
        found["deny_providers"] = _some(draw, DENIABLE, most=8)
    if draw.random() < 0.12:
        found["self_hosted"] = draw.random() < 0.5
    if draw.random() < 0.06:
        found["max_retention_days"] = draw.choice((0, 7, 30))
    if draw.random() < 0.15:
        found["mode"] = draw.choice(("shadow", "enforced"))
    # A place without a promise cannot be allowed by name.
    for field in ("regions", "at_rest", "telemetry", "gateway_regions"):
        if field in found:
            found[field] = [place for place in found[field] if place not in ("global", "unknown")]
    return found


def _deployment(draw: Random, document: dict[str, Any], name: str) -> dict[str, Any]:
    places = _places(draw, document)
    found: dict[str, Any] = {
        "name": name,
        **_provider(draw),
        "region": draw.choice(places),
        "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2},
        "timeouts": {"connect_s": 1, "first_byte_s": 0.15, "idle_s": 0.15, "total_s": 2},
    }
    if draw.random() < 0.3:
        found["self_hosted"] = found["provider"] not in COMPANIES and draw.random() < 0.5
    if draw.random() < 0.6:
        facts: dict[str, Any] = {
            "source": "a contract",
            "as_of": (TODAY - timedelta(days=draw.choice((0, 20, 30, 60, 90, 400)))).isoformat(),
        }
        if draw.random() < 0.8:
            facts["at_rest"] = draw.choice(places)
        if draw.random() < 0.8:
            facts["telemetry"] = draw.choice(places)
        if draw.random() < 0.6:
            facts["retention_days"] = draw.choice((0, 7, 30, 90))
        found["residency"] = facts
    return found


def _provider(draw: Random) -> dict[str, Any]:
    """Return the members that say who answers, and in which dialect."""
    name = draw.choice(PROVIDERS)
    found: dict[str, Any] = {
        "provider": name,
        "model": draw.choice(MODELS.get(name, ("m-1",))),
    }
    if name == "vertex":
        found["credentials"] = "ambient"
    elif name == "bedrock" and draw.random() < 0.5:
        found["credentials"] = SIGNING_KEY
    elif name in COMPANIES:
        found["api_key"] = REFERENCE
    if name not in TRANSLATED_ALONE and draw.random() < 0.2:
        found["native"] = ["messages" if name == "anthropic" else "chat"]
    if draw.random() < 0.2:
        found["untranslatable"] = draw.choice(("drop", "refuse"))
    return found


def _edit(draw: Random, document: dict[str, Any]) -> None:
    """Change one thing, to the stricter or to the laxer."""
    what = draw.choice(("rule", "rule", "region", "facts", "team", "deployment"))
    if what == "rule":
        label = draw.choice(list(document["classes"]))
        document["classes"][label] = rule(draw, document, is_class=True)
    elif what == "region" and document["regions"]:
        children = document["regions"][draw.choice(list(document["regions"]))]
        # A region that others refer to stays known; a child that is removed from a parent stands
        # alone.
        if len(children) > 1 and not _is_named(document, children[-1]):
            children.pop()
    elif what == "facts":
        document["facts_valid_days"] = draw.choice((30, 90, 365))
    elif what == "team":
        document["teams"][0]["residency"] = rule(draw, document)
    else:
        chosen = draw.randrange(len(document["deployments"]))
        kept = document["deployments"][chosen]
        new = _deployment(draw, document, kept["name"])
        document["deployments"][chosen] = new


def _is_named(document: dict[str, Any], region: str) -> bool:
    return (
        f'"{region}"'
        in _text(
            [
                document["classes"],
                document.get("data_tags"),
                document["deployments"],
                document["teams"],
            ]
        )
        or region in document["regions"]
    )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(_text(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return " ".join(_text(inner) for inner in value)
    return f'"{value}"'


def _places(draw: Random, document: dict[str, Any]) -> list[str]:
    declared = {
        name for parent, children in document["regions"].items() for name in (parent, *children)
    }
    return sorted(declared | set(draw.sample(KNOWN, 6)) | {"global", "unknown"})


def _some(draw: Random, names: Sequence[str], *, most: int) -> list[str]:
    return sorted({draw.choice(names) for _ in range(draw.randint(1, most))})

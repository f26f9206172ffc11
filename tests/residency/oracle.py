"""The specification of docs/decisions/0012 as sets of places, sharing no code with the gateway.

The gateway walks a tree from names to names. Here every name means a set of places, and every
question is one about sets: a region is covered if its places are among the allowed ones. The
geography is written down here once more, from the treaties and not from the gateway's table.

Documents and requests are plain dicts, as a user writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

Place = str

EU = (
    "at",
    "be",
    "bg",
    "hr",
    "cy",
    "cz",
    "dk",
    "ee",
    "fi",
    "fr",
    "de",
    "gr",
    "hu",
    "ie",
    "it",
    "lv",
    "lt",
    "lu",
    "mt",
    "nl",
    "pl",
    "pt",
    "ro",
    "sk",
    "si",
    "es",
    "se",
)
EEA_BESIDES = ("is", "li", "no")
EUROPE_BESIDES = ("ch", "uk")
PLACELESS = ("global", "unknown")
CLASSES = ("public", "internal", "confidential", "restricted")
LISTS = ("regions", "at_rest", "telemetry")
ENGINES = ("vllm", "sglang", "trtllm", "llamacpp", "lmstudio", "ollama", "triton")
# The company behind a provider of another name.
COMPANY = {"gemini": "google", "vertex": "google", "bedrock": "amazon"}


class World:
    """Which places a name means.

    `global` and `unknown` mean no set: whoever asks must ask for them first.
    """

    def __init__(self, declared: Mapping[str, Sequence[str]]) -> None:
        self._children: dict[str, list[str]] = {
            name: list(children) for name, children in declared.items()
        }
        self._children.setdefault("eu", []).extend(EU)
        self._children.setdefault("eea", []).extend(("eu", *EEA_BESIDES))
        self._children.setdefault("europe", []).extend(("eea", *EUROPE_BESIDES))
        self._places: dict[str, frozenset[Place]] = {}

    def places(self, name: str) -> frozenset[Place]:
        """All places of a region."""
        if name not in self._places:
            children = self._children.get(name)
            if children is None:
                found = {name}
            else:
                found = {place for child in children for place in self.places(child)}
                if name == "europe":
                    found.add("(the rest of europe)")
            self._places[name] = frozenset(found)
        return self._places[name]

    def is_covered(self, name: str, by: Iterable[str]) -> bool:
        """Whether everything that a fact may mean is allowed."""
        by = set(by)
        if "any" in by:
            return True
        if name in PLACELESS:
            return False
        return self.places(name) <= {place for region in by for place in self.places(region)}

    def touches(self, name: str, region: str) -> bool:
        """Whether a fact may mean a place of this region."""
        return name in PLACELESS or bool(self.places(name) & self.places(region))


@dataclass(frozen=True)
class Verdict:
    """The specification's verdict on one deployment: the enforced denials, and those that are
    only shown.
    """

    denials: frozenset[tuple[str, str]]
    shadows: frozenset[tuple[str, str]]

    @property
    def is_allowed(self) -> bool:
        return not self.denials


def judge(
    document: Mapping[str, Any],
    deployment: Mapping[str, Any],
    request: Mapping[str, Any],
    shipped: Mapping[str, Any],
) -> Verdict:
    """Return whether a deployment may take a request.

    `shipped` are the gateway's bundled facts about the deployment's host.

    A request has `team`, `data_class` and `data_tags` (None and empty: the team's),
    `gateway_region` and `day`.
    """
    world = World(document.get("regions", {}))
    facts = facts_of(document, deployment, shipped, day=request["day"])
    denials, shadows = set(), set()
    for rule_id, rule in rules_of(document, request):
        broken = {
            (rule_id, field) for field in broken_fields(world, rule, deployment, facts, request)
        }
        (shadows if rule.get("mode", "enforced") == "shadow" else denials).update(broken)
    return Verdict(frozenset(denials), frozenset(shadows))


def rules_of(
    document: Mapping[str, Any], request: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Every rule that applies."""
    team = next(team for team in document["teams"] if team["name"] == request["team"])
    asked = request["data_class"]
    label = team["data_class"]
    if asked is not None and CLASSES.index(asked) > CLASSES.index(label):
        label = asked
    found = [(f"class:{label}", document["classes"][label])]
    for tag in {*team.get("data_tags", ()), *request["data_tags"]}:
        found.append((f"tag:{tag}", document["data_tags"][tag]))
    if "residency" in team:
        found.append((f"team:{team['name']}", team["residency"]))
    return found


def facts_of(
    document: Mapping[str, Any],
    deployment: Mapping[str, Any],
    shipped: Mapping[str, Any],
    *,
    day: date,
) -> dict[str, Any]:
    """Return the valid facts of a deployment on a day."""
    own = deployment.get("residency", {})
    facts = {"processing": deployment["region"]}
    for name in ("at_rest", "telemetry", "retention_days"):
        facts[name] = own.get(name, shipped.get(name, "unknown"))
    dated = tuple(facts)
    providers = {deployment["provider"], shipped.get("provider")}
    facts["names"] = providers | {COMPANY.get(one) for one in providers} | {shipped.get("company")}
    valid_days = document.get("facts_valid_days")
    if valid_days is None:
        return facts
    for name in dated:
        # The region is the document's own word; its date is that of the block it stands beside.
        as_of = own.get("as_of") if name == "processing" or name in own else shipped.get("as_of")
        if (
            name == "processing"
            and as_of is None
            and shipped.get("processing") == deployment["region"]
        ):
            as_of = shipped.get("as_of")
        if as_of is None:
            is_valid = is_self_hosted(deployment)
        else:
            is_valid = (day - date.fromisoformat(str(as_of))).days <= valid_days
        if not is_valid:
            facts[name] = "unknown"
    return facts


def broken_fields(
    world: World,
    rule: Mapping[str, Any],
    deployment: Mapping[str, Any],
    facts: Mapping[str, Any],
    request: Mapping[str, Any],
) -> set[str]:
    """The fields of one rule that a deployment does not satisfy."""
    broken = set()
    for field, fact in zip(LISTS, ("processing", "at_rest", "telemetry"), strict=True):
        if field in rule and not world.is_covered(facts[fact], rule[field]):
            broken.add(field)
    if rule.get("self_hosted", False) and not is_self_hosted(deployment):
        broken.add("self_hosted")
    if "max_retention_days" in rule:
        kept = facts["retention_days"]
        if kept == "unknown" or kept > rule["max_retention_days"]:
            broken.add("max_retention_days")
    for region in rule.get("deny_regions", ()):
        if any(
            world.touches(facts[fact], region) for fact in ("processing", "at_rest", "telemetry")
        ):
            broken.add("deny_regions")
    if facts["names"] & set(rule.get("deny_providers", ())):
        broken.add("deny_providers")
    if "gateway_regions" in rule and not world.is_covered(
        request["gateway_region"], rule["gateway_regions"]
    ):
        broken.add("gateway_regions")
    return broken


def is_self_hosted(deployment: Mapping[str, Any]) -> bool:
    """As the document says, else by its provider."""
    return bool(deployment.get("self_hosted", deployment["provider"] in ENGINES))


def contradicts(
    document: Mapping[str, Any],
    deployment: Mapping[str, Any],
    request: Mapping[str, Any],
    shipped: Mapping[str, Any],
    stated: str,
) -> bool:
    """Return whether an answer from this place breaks the promise or the rules of a request."""
    promised = deployment["region"]
    if stated in PLACELESS:
        is_elsewhere = stated == "unknown" and is_self_hosted(deployment)  # one's own server is not
        return is_elsewhere or promised not in PLACELESS
    world = World(document.get("regions", {}))
    if promised not in PLACELESS and not world.touches(stated, promised):
        return True
    # A fact of today cannot be too old.
    today = {name: value for name, value in document.items() if name != "facts_valid_days"}
    return not judge(today, {**deployment, "region": stated}, request, shipped).is_allowed

"""Readers of names, references and addresses, for all blocks of a policy document."""

from __future__ import annotations

import re
from datetime import date
from functools import cache
from zoneinfo import available_timezones

import yaml

from gateway.domain.budgets.budgets import EACH, BudgetScope
from gateway.domain.places.regions import ANY, UNPLACED
from gateway.domain.policy.api_keys import KID_LENGTH
from gateway.domain.policy.policy import DataClass
from gateway.domain.pricing.pricing import STANDARD_TIERS
from gateway.wire.policy.addresses import address_problem, base_address_problem
from gateway.wire.policy.findings import Findings, Spot, Wrong, nearest, shown, suggestion
from gateway.wire.policy.readers import plain_text, text

LABELS = tuple(c.label for c in DataClass)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NAME_RULE = "use letters, digits, '.', '_' and '-', at most 63, the first a letter or digit"
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_UPSTREAM_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,199}")
_MODEL_RULE = "use letters, digits and . _ : / @ + -, at most 200, the first a letter or digit"
_ALIAS = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._:/@+*-]{0,199}")
_WORDS = re.compile(r"\S(.{0,98}\S)?")
_SOURCE = re.compile(r"\S(.{0,298}\S)?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIER = re.compile(r"[a-z][a-z0-9_-]{0,29}")
# The names that a request may use in x-tollgate-project (api.attribution), and the wildcard for
# each of them.
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+ -]{0,63}|\*")
_KEY = re.compile(rf"[0-9A-Za-z]{{{KID_LENGTH}}}|\*")
_SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:(?:~?/)[^\x00-\x1f\x7f]{1,1000}")

name = text(_NAME, rule=_NAME_RULE)
model_name = text(_MODEL, rule=_MODEL_RULE)
upstream_model = text(_UPSTREAM_MODEL, rule=_MODEL_RULE.replace("+ -", "+ = -"))
alias = text(_ALIAS, rule=f"{_MODEL_RULE}; '*' stands for anything")
words = text(_WORDS, rule="use 1 to 100 characters on one line, without blanks at the ends")
source = text(_SOURCE, rule="use 1 to 300 characters on one line, without blanks at the ends")
project = text(
    _PROJECT,
    rule="use letters, digits, blanks and . _ : / @ + -, at most 64, the first a letter or digit; "
    f'or "{EACH}" for each project that is not named',
)
key_id = text(
    _KEY,
    rule=f"write the {KID_LENGTH} letters and digits that 'tollgate key list' shows (never the "
    "key itself), "
    f'or "{EACH}" for each key that is not named',
)


def region_key(spot: Spot, region: str) -> None:
    """Raise `Wrong` unless a region may be declared under this name."""
    if region == ANY or region in UNPLACED:
        raise Wrong(spot, f"'{region}' is reserved and cannot be declared; choose another name")
    if not _NAME.fullmatch(region):
        raise Wrong(spot, f"'{shown(region)}' is not allowed: {_NAME_RULE}")


def deployment_key(spot: Spot, deployment: str) -> None:
    """Raise `Wrong` unless a deployment may have this name."""
    if not _NAME.fullmatch(deployment):
        raise Wrong(spot, f"'{shown(deployment)}' is not allowed: {_NAME_RULE}")


def tag_key(spot: Spot, tag: str) -> None:
    """Raise `Wrong` unless a data tag may have this name.

    A request names classes and tags in one header.
    """
    if tag.lower() in LABELS:
        raise Wrong(spot, f"'{tag}' is a data class; choose another name for a tag")
    if not _NAME.fullmatch(tag):
        raise Wrong(spot, f"'{shown(tag)}' is not allowed: {_NAME_RULE}")


def class_key(spot: Spot, label: str) -> None:
    """Raise `Wrong` unless `label` is one of the four data classes."""
    if label not in LABELS:
        raise Wrong(spot, f"'{shown(label)}' is not a data class{suggestion(label, LABELS)}")


def tier_key(spot: Spot, tier: str) -> None:
    """Raise `Wrong` unless `tier` may name a service tier beside the standard one."""
    if tier in STANDARD_TIERS:
        raise Wrong(spot, f"'{tier}' is the standard tier; its rates are those of the price itself")
    if not _TIER.fullmatch(tier):
        raise Wrong(
            spot,
            f"'{shown(tier)}' is not allowed: write the tier as answers report it, such as "
            "priority",
        )


def day(spot: Spot, findings: Findings) -> date:
    """Read a day. YAML parses an unquoted one as a date, which is intended."""
    wanted = "must be a day, written as in 2026-11-20"
    if not isinstance(spot.node, yaml.ScalarNode) or not _DAY.fullmatch(spot.node.value):
        raise Wrong(spot, wanted)
    try:
        return date.fromisoformat(spot.node.value)
    except ValueError:
        raise Wrong(spot, f"{wanted}; there is no such day") from None


def secret_reference(spot: Spot, findings: Findings) -> str:
    """Read a reference to a secret.

    An invalid reference may be the secret itself, so it is never quoted.
    """
    try:
        value = plain_text(spot)
    except Wrong:
        value = ""
    if not _SECRET.fullmatch(value):
        raise Wrong(
            spot,
            "must be a reference to the secret, never the secret itself; write env:NAME or "
            "file:/absolute/path (if a key stood here, replace it at the provider)",
        )
    return value


def address(spot: Spot, findings: Findings) -> str:
    """Read a base address, without its final slash."""
    value = plain_text(spot)
    problem = base_address_problem(value)
    if problem:
        raise Wrong(spot, problem)
    return value.rstrip("/")


def webhook(spot: Spot, findings: Findings) -> str:
    """Read an address that is called exactly as written."""
    value = plain_text(spot)
    problem = address_problem(value)
    if problem:
        raise Wrong(spot, problem)
    return value


def budget_name(spot: Spot, findings: Findings) -> str:
    """Read a budget's own name.

    It has no '/' and no ':', so it never equals the id of a budget without a name.
    """
    value: str = name(spot, findings)
    if value == BudgetScope.COST_CENTRE:
        raise Wrong(spot, f"'{value}' is reserved; choose another name")
    return value


def time_zone(spot: Spot, findings: Findings) -> str:
    """Read an IANA time zone."""
    value = plain_text(spot)
    if value not in _time_zones():
        near = nearest(value, _time_zones())
        instead = f"did you mean '{near}'?" if near else "write an IANA name such as Europe/Berlin"
        raise Wrong(spot, f"'{shown(value)}' is not a time zone; {instead}")
    return value


@cache  # reads hundreds of files
def _time_zones() -> frozenset[str]:
    """Return this machine's time zones, except a placeholder and the one that follows the
    machine's setting.
    """
    return frozenset(available_timezones() - {"localtime", "Factory"})

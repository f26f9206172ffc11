"""Declares the field types of a policy document (names, amounts, addresses, references to secrets),
each checked and read as the domain's value.

Decimals are exact, times are seconds, money is nano-dollars.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import Annotated
from zoneinfo import available_timezones

from gateway.domain.alerts.mail import ADDRESS
from gateway.domain.budgets.budgets import EACH, BudgetScope
from gateway.domain.money import nusd_from_usd, plain_usd, usd_from_nusd
from gateway.domain.names import (
    ALIAS,
    MODEL,
    MODEL_RULE,
    NAME,
    NAME_RULE,
    PROJECT,
    PROJECT_RULE,
    UPSTREAM_MODEL,
    line,
)
from gateway.domain.places.addresses import address_problem, base_address_problem
from gateway.domain.places.regions import ANY, UNPLACED
from gateway.domain.policy.api_keys import KID_LENGTH
from gateway.domain.policy.policy import DataClass
from gateway.domain.pricing.pricing import STANDARD_TIERS
from gateway.domain.words import nearest, shown, suggestion
from gateway.wire.yaml_blocks.blocks import Items, Scalar
from gateway.wire.yaml_blocks.findings import Spot, Wrong
from gateway.wire.yaml_blocks.scalars import (
    converted,
    decimal,
    float_of,
    integer,
    one_of,
    plain_text,
    text,
    text_without,
)

MOST_USD = 9_000_000  # the sum of many such limits still fits into 64 bits of nano-dollars
LABELS = tuple(c.label for c in DataClass)
_TIER = re.compile(r"[a-z][a-z0-9_-]{0,29}")
_SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:(?:~?/)[^\x00-\x1f\x7f]{1,1000}")
_NAME = re.compile(NAME)
_API_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,49}")
_LINE_RULE = "use 1 to {} characters on one line, without blanks at the ends and without NUL"
_PROJECT_RULE = f'{PROJECT_RULE}; or "{EACH}" for each project that is not named'
_KEY_RULE = (
    f"write the {KID_LENGTH} letters and digits that 'tollgate key list' shows (never the key "
    f'itself), or "{EACH}" for each key that is not named'
)


def dollars(*, above: str | None = None, least: str | None = None) -> Scalar:
    """Return the field type of an amount of money: USD in the document, nano-dollars in the
    policy.
    """

    def take(amount: Decimal) -> int:
        """Return dollars in nano-dollars. Raises `Wrong` for more than nine decimals."""
        amount_nusd = nusd_from_usd(amount)
        if usd_from_nusd(amount_nusd) != amount:
            raise Wrong("has more than nine decimals; money is counted in nano-dollars")
        return amount_nusd

    number = decimal("USD", above=above, least=least, most=str(MOST_USD))
    return converted(number, take, lambda nusd: Decimal(plain_usd(nusd)))


def _seconds(milliseconds: Decimal) -> float:
    """Return a document's milliseconds in seconds."""
    return float(milliseconds / 1000)  # as a decimal: written again, it is the same number


def _milliseconds(seconds: float) -> Decimal:
    """Return a policy's seconds as milliseconds: exactly the number in its document."""
    return Decimal(f"{(Decimal(str(seconds)) * 1000).normalize():f}")


def _read_secret(spot: Spot) -> str:
    """Return a reference to a secret. An invalid reference may be the secret itself, so it is never
    quoted.
    """
    try:
        value = plain_text(spot)
    except Wrong:
        value = ""
    if not _SECRET.fullmatch(value):
        raise Wrong(
            "must be a reference to the secret, never the secret itself; write env:NAME or "
            "file:/absolute/path (if a key stood here, replace it at the provider)"
        )
    return value


def _time_zone_problem(name: str) -> str | None:
    """Return the error in a time zone's name, with the fix; None if this machine knows it."""
    if name in _time_zones():
        return None
    near = nearest(name, _time_zones())
    instead = f"did you mean '{near}'?" if near else "write an IANA name such as Europe/Berlin"
    return f"'{shown(name)}' is not a time zone; {instead}"


@cache  # reads hundreds of files
def _time_zones() -> frozenset[str]:
    """Return this machine's time zones, except a placeholder and the one that follows the
    machine's setting.
    """
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _read_version(spot: Spot) -> int:
    """Return 1, the only version of the document's format. Raises `Wrong` for another."""
    if getattr(spot.node, "value", None) != "1":
        raise Wrong("must be 1, the only version this Tollgate reads")
    return 1


def _read_api_version(spot: Spot) -> str:
    """Return the version of an API, often a day: YAML reads an unquoted one as a date, which is
    intended.
    """
    value = getattr(spot.node, "value", None)
    if not isinstance(value, str) or not _API_VERSION.fullmatch(value):
        raise Wrong("must be a version such as 2024-10-21, 2025-04-01-preview or preview")
    return value


def _budget_name_problem(name: str) -> str | None:
    """Return the error in a name that the author gives a budget; None unless it is reserved for ids
    of unnamed budgets.
    """
    return f"'{name}' is reserved; choose another name" if name == BudgetScope.COST_CENTRE else None


def _line(most: int) -> Scalar:
    """Return the field type of a text on one line of at most `most` characters."""
    return text(line(most), _LINE_RULE.format(most))


_NAMED = text(NAME, NAME_RULE)
_BASE_ADDRESS = text_without(base_address_problem)
_SECRET_SCHEMA = {"type": "string", "pattern": r"^(?:env:|file:~?/)"}
_API_VERSION_SCHEMA = {"type": "string", "pattern": f"^{_API_VERSION.pattern}$"}
_MILLISECONDS = decimal("milliseconds", above="0", most="3600000")

Version = Annotated[int, Scalar(_read_version, {"enum": [1, "1"]})]
Name = Annotated[str, _NAMED]
Names = Annotated[list[Name], Items()]
ModelName = Annotated[str, text(MODEL, MODEL_RULE)]
UpstreamModel = Annotated[str, text(UPSTREAM_MODEL, MODEL_RULE.replace("+ -", "+ = -"))]
ApiVersion = Annotated[str, Scalar(_read_api_version, _API_VERSION_SCHEMA)]
Alias = Annotated[str, text(ALIAS, f"{MODEL_RULE}; '*' stands for anything")]
WORDS = _line(100)
Words = Annotated[str, WORDS]
BilledName = Annotated[str, _line(200)]
Claim = Annotated[str, _line(100)]
ClaimValue = Annotated[str, _line(300)]
Source = Annotated[str, _line(300)]
ProjectName = Annotated[str, text(rf"{PROJECT}|\*", _PROJECT_RULE)]
KeyId = Annotated[str, text(rf"[0-9A-Za-z]{{{KID_LENGTH}}}|\*", _KEY_RULE)]
BudgetName = Annotated[str, text_without(_budget_name_problem, _NAMED)]
Label = Annotated[str, one_of(LABELS)]
SecretReference = Annotated[str, Scalar(_read_secret, _SECRET_SCHEMA)]
BaseAddress = Annotated[str, converted(_BASE_ADDRESS, lambda at: at.rstrip("/"), str)]
Address = Annotated[str, text_without(address_problem)]
MailAddress = Annotated[str, text(ADDRESS, "write a plain address such as finops@example.com")]
MailAddresses = Annotated[list[MailAddress], Items(is_unique=True)]
TimeZone = Annotated[str, text_without(_time_zone_problem)]
Seconds = Annotated[float, float_of(decimal("seconds", above="0", most="86400"))]
Milliseconds = Annotated[float, converted(_MILLISECONDS, _seconds, _milliseconds)]  # as seconds
Days = Annotated[int, integer(0, 36_500)]
Tokens = Annotated[int, integer(1, 100_000_000)]
Weight = Annotated[float, float_of(decimal("a weight", above="0"))]
Share = Annotated[float, float_of(decimal("a weight", least="0"))]
IsShadow = Annotated[
    bool,
    converted(
        one_of(("enforced", "shadow")),
        lambda mode: mode == "shadow",
        lambda is_shadow: "shadow" if is_shadow else "enforced",
    ),
]


def check_region(region: str) -> None:
    """Raise `Wrong` unless a policy's author may declare a region of this name: built-in words such
    as `any` are reserved.
    """
    if region == ANY or region in UNPLACED:
        raise Wrong(f"'{region}' is reserved and cannot be declared; choose another name")
    check_name(region)


def check_name(name: str) -> None:
    """Raise `Wrong` unless a name that is a key of a mapping (a deployment, region or data tag) has
    only allowed characters.
    """
    if not _NAME.fullmatch(name):
        raise Wrong(f"'{shown(name)}' is not allowed: {NAME_RULE}")


def check_tag(tag: str) -> None:
    """Raise `Wrong` unless a data tag may have this name: not that of a data class, which requests
    name in the same header.
    """
    if tag.lower() in LABELS:
        raise Wrong(f"'{tag}' is a data class; choose another name for a tag")
    check_name(tag)


def check_label(label: str) -> None:
    """Raise `Wrong` unless `label` is one of the four data classes."""
    if label not in LABELS:
        raise Wrong(f"'{shown(label)}' is not a data class{suggestion(label, LABELS)}")


def check_tier(tier: str) -> None:
    """Raise `Wrong` unless `tier` may name a service tier beside the standard one."""
    if tier in STANDARD_TIERS:
        raise Wrong(f"'{tier}' is the standard tier; its rates are those of the price itself")
    if not _TIER.fullmatch(tier):
        example = "write the tier as answers report it, such as priority"
        raise Wrong(f"'{shown(tier)}' is not allowed: {example}")

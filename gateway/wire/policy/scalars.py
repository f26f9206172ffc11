"""The scalars of a policy document: names, numbers, days, addresses, references to secrets.

Each is a type for the fields of blocks. Its value is the domain's: exact decimals, seconds,
nano-dollars. Numbers are read from the text: a float on the way would change a price.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Annotated, Any
from zoneinfo import available_timezones

import yaml

from gateway.domain.budgets.budgets import EACH, BudgetScope
from gateway.domain.money import nusd_from_usd, plain_usd, usd_from_nusd
from gateway.domain.places.regions import ANY, UNPLACED
from gateway.domain.policy.api_keys import KID_LENGTH
from gateway.domain.policy.policy import DataClass
from gateway.domain.pricing.pricing import STANDARD_TIERS
from gateway.wire.policy.addresses import address_problem, base_address_problem
from gateway.wire.policy.blocks import TAG, Items, Scalar, kind_of
from gateway.wire.policy.findings import Spot, Wrong, nearest, shown, suggestion

MOST_USD = 9_000_000  # the sum of many such limits still fits into 64 bits of nano-dollars
LABELS = tuple(c.label for c in DataClass)
_INTEGER = re.compile(r"0|[1-9][0-9]{0,14}")
_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,11})(\.[0-9]{1,12})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIER = re.compile(r"[a-z][a-z0-9_-]{0,29}")
_SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:(?:~?/)[^\x00-\x1f\x7f]{1,1000}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NAME_RULE = "use letters, digits, '.', '_' and '-', at most 63, the first a letter or digit"
_MODEL_RULE = "use letters, digits and . _ : / @ + -, at most 200, the first a letter or digit"


def plain_text(spot: Spot) -> str:
    """Return the text of a scalar. Raises `Wrong` if YAML reads another type (`no` is false)."""
    value = _scalar(spot, "text")
    if spot.node.tag != TAG + "str":
        kind = kind_of(spot.node)
        raise Wrong(spot, f'must be text; YAML reads this as {kind}, so put it in quotes: "…"')
    return value


def _scalar(spot: Spot, wanted: str) -> str:
    if not isinstance(spot.node, yaml.ScalarNode) or spot.node.tag == TAG + "null":
        raise Wrong(spot, f"must be {wanted}, not {kind_of(spot.node)}")
    return str(spot.node.value)


def text(pattern: str, rule: str) -> Scalar:
    """Return text that matches a pattern completely; `rule` describes the pattern in words."""
    compiled = re.compile(pattern)

    def read(spot: Spot) -> str:
        value = plain_text(spot)
        if not compiled.fullmatch(value):
            raise Wrong(spot, f"'{shown(value)}' is not allowed: {rule}")
        return value

    return Scalar(read, {"type": "string", "pattern": f"^(?:{pattern})$"})


def one_of(names: Collection[str]) -> Scalar:
    """Return one name out of a known set."""

    def read(spot: Spot) -> str:
        value = plain_text(spot)
        if value not in names:
            raise Wrong(spot, f"'{shown(value)}' is not known{suggestion(value, names)}")
        return value

    return Scalar(read, {"type": "string", "enum": list(names)})


def member_of(kind: type[StrEnum]) -> Scalar:
    """Return a member of an enumeration, by its value."""
    name = one_of([member.value for member in kind])
    return Scalar(lambda spot: kind(name.read(spot)), name.schema, lambda member: str(member.value))


def integer(least: int, most: int) -> Scalar:
    """Return a whole number within bounds."""

    def read(spot: Spot) -> int:
        value = _scalar(spot, "a whole number")
        if not _INTEGER.fullmatch(value) or not least <= int(value) <= most:
            raise Wrong(spot, f"must be a whole number from {least} to {most}, written in digits")
        return int(value)

    number = {"type": "integer", "minimum": least, "maximum": most}
    return Scalar(read, _or_quoted(number, _INTEGER))


def decimal(
    unit: str, *, above: str | None = None, least: str | None = None, most: str = "1000000"
) -> Scalar:
    """Return an exact decimal within bounds."""
    limit, bound = (above, "exclusiveMinimum") if above is not None else (least or "0", "minimum")
    named = f"above {above}" if above is not None else f"from {least}"
    wanted = f"must be {unit}, {named} to {most}, as a plain decimal such as 0.80"

    def read(spot: Spot) -> Decimal:
        value = _scalar(spot, "a number")
        if not _DECIMAL.fullmatch(value):
            raise Wrong(spot, wanted)
        number = Decimal(value)
        is_small = number <= Decimal(limit) if above is not None else number < Decimal(limit)
        if is_small or number > Decimal(most):
            raise Wrong(spot, wanted)
        return number

    schema = {"type": "number", bound: int(limit), "maximum": int(most)}
    return Scalar(read, _or_quoted(schema, _DECIMAL))


def _or_quoted(schema: dict[str, Any], pattern: re.Pattern[str]) -> dict[str, Any]:
    """Return the schema of a number that may stand in quotes."""
    return {"anyOf": [schema, {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}]}


def _converted(
    number: Scalar, take: Callable[[Decimal], Any], write: Callable[[Any], Decimal]
) -> Scalar:
    """Return a number that the domain has in another unit."""
    return Scalar(lambda spot: take(number.read(spot)), number.schema, write)


def dollars(*, above: str | None = None, least: str | None = None) -> Scalar:
    """Return an amount in nano-dollars."""
    number = decimal("USD", above=above, least=least, most=str(MOST_USD))

    def read(spot: Spot) -> int:
        amount: Decimal = number.read(spot)
        amount_nusd = nusd_from_usd(amount)
        if usd_from_nusd(amount_nusd) != amount:
            raise Wrong(spot, "has more than nine decimals; money is counted in nano-dollars")
        return amount_nusd

    return Scalar(read, number.schema, lambda nusd: Decimal(plain_usd(nusd)))


def _of_float(number: float) -> Decimal:
    return Decimal(str(number))


def _milliseconds(seconds: float) -> Decimal:
    """Return a policy's seconds as milliseconds: exactly the number in its document."""
    return Decimal(f"{(Decimal(str(seconds)) * 1000).normalize():f}")


def _read_boolean(spot: Spot) -> bool:
    """Read `true` or `false`; readers mistake YAML's other spellings (yes, on, ...) easily."""
    value = _scalar(spot, "true or false")
    if value not in ("true", "false"):
        raise Wrong(spot, "must be true or false")
    return value == "true"


def _read_day(spot: Spot) -> date:
    """Read a day. YAML parses an unquoted one as a date, which is intended."""
    wanted = "must be a day, written as in 2026-11-20"
    if not isinstance(spot.node, yaml.ScalarNode) or not _DAY.fullmatch(spot.node.value):
        raise Wrong(spot, wanted)
    try:
        return date.fromisoformat(spot.node.value)
    except ValueError:
        raise Wrong(spot, f"{wanted}; there is no such day") from None


def _read_secret(spot: Spot) -> str:
    """Read a reference. An invalid reference may be the secret itself, so it is never quoted."""
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


def _address(problem_of: Callable[[str], str | None], *, is_base: bool) -> Callable[[Spot], str]:
    def read(spot: Spot) -> str:
        value = plain_text(spot)
        problem = problem_of(value)
        if problem:
            raise Wrong(spot, problem)
        return value.rstrip("/") if is_base else value

    return read


def _read_time_zone(spot: Spot) -> str:
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


def _read_version(spot: Spot) -> int:
    if getattr(spot.node, "value", None) != "1":
        raise Wrong(spot, "must be 1, the only version this Tollgate reads")
    return 1


_NAMED = text(_NAME.pattern, _NAME_RULE)
_ALIAS = r"[A-Za-z0-9*][A-Za-z0-9._:/@+*-]{0,199}"
_MODEL = r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}"
_UPSTREAM_MODEL = r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,199}"
# The names that a request may use in x-tollgate-project (api.attribution), and the wildcard.
_PROJECT = r"[A-Za-z0-9][A-Za-z0-9._:/@+ -]{0,63}|\*"


def _read_budget_name(spot: Spot) -> str:
    """Read a name without '/' and ':', so that it never equals the id of a budget without one."""
    value: str = _NAMED.read(spot)
    if value == BudgetScope.COST_CENTRE:
        raise Wrong(spot, f"'{value}' is reserved; choose another name")
    return value


Version = Annotated[int, Scalar(_read_version, {"enum": [1, "1"]})]
Name = Annotated[str, _NAMED]
ModelName = Annotated[str, text(_MODEL, _MODEL_RULE)]
UpstreamModel = Annotated[str, text(_UPSTREAM_MODEL, _MODEL_RULE.replace("+ -", "+ = -"))]
Alias = Annotated[str, text(_ALIAS, f"{_MODEL_RULE}; '*' stands for anything")]
Words = Annotated[
    str,
    text(r"\S(.{0,98}\S)?", "use 1 to 100 characters on one line, without blanks at the ends"),
]
Source = Annotated[
    str,
    text(r"\S(.{0,298}\S)?", "use 1 to 300 characters on one line, without blanks at the ends"),
]
ProjectName = Annotated[
    str,
    text(
        _PROJECT,
        "use letters, digits, blanks and . _ : / @ + -, at most 64, the first a letter or digit; "
        f'or "{EACH}" for each project that is not named',
    ),
]
KeyId = Annotated[
    str,
    text(
        rf"[0-9A-Za-z]{{{KID_LENGTH}}}|\*",
        f"write the {KID_LENGTH} letters and digits that 'tollgate key list' shows (never the key "
        f'itself), or "{EACH}" for each key that is not named',
    ),
]
BudgetName = Annotated[str, Scalar(_read_budget_name, _NAMED.schema)]
Label = Annotated[str, one_of(LABELS)]
Boolean = Annotated[
    bool,
    Scalar(_read_boolean, {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}]}),
]
Day = Annotated[
    date,
    Scalar(
        _read_day, {"type": "string", "pattern": f"^{_DAY.pattern}$"}, lambda day: day.isoformat()
    ),
]
SecretReference = Annotated[
    str, Scalar(_read_secret, {"type": "string", "pattern": r"^(?:env:|file:~?/)"})
]
BaseAddress = Annotated[
    str, Scalar(_address(base_address_problem, is_base=True), {"type": "string"})
]
Address = Annotated[str, Scalar(_address(address_problem, is_base=False), {"type": "string"})]
TimeZone = Annotated[str, Scalar(_read_time_zone, {"type": "string"})]
Seconds = Annotated[
    float, _converted(decimal("seconds", above="0", most="86400"), float, _of_float)
]
Milliseconds = Annotated[  # in a document; the value is in seconds
    float,
    _converted(
        decimal("milliseconds", above="0", most="3600000"),
        lambda number: float(number / 1000),  # as a decimal: written again, it is the same number
        _milliseconds,
    ),
]
Days = Annotated[int, integer(0, 36_500)]
Tokens = Annotated[int, integer(1, 100_000_000)]
Mode = Annotated[str, one_of(("enforced", "shadow"))]
Names = Annotated[list[Name], Items()]
Weight = Annotated[float, _converted(decimal("a weight", above="0"), float, _of_float)]
Share = Annotated[float, _converted(decimal("a weight", least="0"), float, _of_float)]


def check_region(spot: Spot, region: str) -> None:
    """Raise `Wrong` unless a region may be declared under this name."""
    if region == ANY or region in UNPLACED:
        raise Wrong(spot, f"'{region}' is reserved and cannot be declared; choose another name")
    check_name(spot, region)


def check_name(spot: Spot, name: str) -> None:
    """Raise `Wrong` unless a deployment may have this name."""
    if not _NAME.fullmatch(name):
        raise Wrong(spot, f"'{shown(name)}' is not allowed: {_NAME_RULE}")


def check_tag(spot: Spot, tag: str) -> None:
    """Raise `Wrong` unless a data tag may have this name: a request names classes and tags in one
    header.
    """
    if tag.lower() in LABELS:
        raise Wrong(spot, f"'{tag}' is a data class; choose another name for a tag")
    check_name(spot, tag)


def check_label(spot: Spot, label: str) -> None:
    """Raise `Wrong` unless `label` is one of the four data classes."""
    if label not in LABELS:
        raise Wrong(spot, f"'{shown(label)}' is not a data class{suggestion(label, LABELS)}")


def check_tier(spot: Spot, tier: str) -> None:
    """Raise `Wrong` unless `tier` may name a service tier beside the standard one."""
    if tier in STANDARD_TIERS:
        raise Wrong(spot, f"'{tier}' is the standard tier; its rates are those of the price itself")
    if not _TIER.fullmatch(tier):
        raise Wrong(
            spot,
            f"'{shown(tier)}' is not allowed: write the tier as answers report it, such as "
            "priority",
        )


def listed(names: Iterable[str]) -> str:
    """Return names for a description: `a`, `b`."""
    return ", ".join(f"`{name}`" for name in names)

"""Parses the dates, months and rates of price commands, checks the terms of `tollgate price add`,
and builds its price; `audit residency` parses months here too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.pricing import STANDARD_TIERS, Price, Rate
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.errors import BadUsage

CALLS_PER_RATE = 1000
MOST_USD = 1_000_000
_USD = re.compile(r"(0|[1-9][0-9]{0,6})(\.[0-9]{1,12})?")
_RATE = re.compile(
    r"(?P<kind>[a-z0-9_]+)(@(?P<tokens>[1-9][0-9]{0,8}))?(/(?P<tier>[a-z][a-z0-9_-]{0,29}))?=(?P<usd>.+)"
)
_KINDS = {kind.value: kind for kind in TokenKind}
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTerms:
    """The target of an added price, and the reason.

    It names a model, perhaps at one provider, or a deployment.
    """

    model: str | None
    deployment: str | None
    provider: str | None
    source: str | None
    reason: str

    def check(
        self, rates: Sequence[Rate], *, is_withdrawn: bool, meant: Sequence[Deployment]
    ) -> None:
        """Raise `BadUsage` unless these terms and rates can be added as a price, or can end one."""
        if (self.model is None) == (self.deployment is None):
            raise BadUsage("Give either a MODEL or --deployment NAME.")
        if self.provider is not None and self.model is None:
            raise BadUsage("--provider goes with a MODEL; a deployment has its provider.")
        if not self.reason.strip():
            raise BadUsage(
                "Give --reason: a price is never edited, so the book must explain each entry."
            )
        if is_withdrawn:
            if rates:
                raise BadUsage("--withdraw ends a price and takes no rates.")
            return
        if not (self.source or "").strip():
            raise BadUsage("Give --source, the origin of the figures, such as 'contract 2026-117'.")
        _check_tiers(
            rates,
            writes_output=any(one.writes_output for d in meant for one in d.operations)
            or not meant,
        )

    def price(self, rates: Sequence[Rate], meant: Sequence[Deployment]) -> Price:
        """Return the price that these rates form, named after the deployments that are meant."""
        providers = {deployment.provider for deployment in meant}
        models = {deployment.model for deployment in meant}
        return Price(
            provider=self.provider or (providers.pop() if len(providers) == 1 else "negotiated"),
            model=self.model or models.pop(),
            source=self.source or "",
            rates=tuple(rates),
        )


def rates_of(named: Mapping[str, str | None], others: Sequence[str]) -> list[Rate]:
    """Return the rates of the options: one for each kind, and `KIND[@TOKENS][/TIER]=USD`.

    Raises `BadUsage`.
    """
    rates = [
        Rate(kind=TokenKind(kind), usd_per_mtok=_usd(f"--{kind.replace('_', '-')}", usd))
        for kind, usd in named.items()
        if usd is not None
    ]
    rates += [_rate(text) for text in others]
    places = [(rate.kind, rate.from_input_tokens, rate.service_tier) for rate in rates]
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice is not None:
        raise BadUsage(f"There are two rates for {twice[0]}. Give one.")
    return rates


def moment_of(text: str) -> datetime:
    """Parse a date or a time of an option; without an offset it is UTC. Raises `BadUsage`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadUsage(
            f"'{text[:40]}' is no moment. Write a day or a time in UTC: 2026-12-01 or "
            "2026-12-01T08:00."
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def month_of(text: str) -> date:
    """Parse `YYYY-MM` as the first day of that month. Raises `BadUsage`."""
    if not _MONTH.fullmatch(text) or not "1970" <= text[:4] < "3000":
        raise BadUsage(f"'{text[:40]}' is no month. Write it as YYYY-MM, from 1970-01 to 2999-12.")
    return date.fromisoformat(f"{text}-01")


def _check_tiers(rates: Sequence[Rate], *, writes_output: bool) -> None:
    """Raise `BadUsage` if a service tier lacks its rate for input or output: absent is not 0, and
    not the standard tier's.
    """
    for tier in [
        None,
        *sorted({rate.service_tier for rate in rates if rate.service_tier is not None}),
    ]:
        kinds = {
            rate.kind for rate in rates if rate.service_tier == tier and rate.from_input_tokens == 0
        }
        missing = {TokenKind.INPUT, *((TokenKind.OUTPUT,) if writes_output else ())} - kinds
        if missing:
            place = "" if tier is None else f"/{tier}"
            options = " and ".join(f"--rate {kind}{place}=USD" for kind in sorted(missing))
            raise BadUsage(f"A rate is missing; give {options} (absent is not 0).")


def _rate(text: str) -> Rate:
    """Parse one `--rate KIND[@TOKENS][/TIER]=USD`. Raises `BadUsage`."""
    match = _RATE.fullmatch(text)
    if match is None or match["kind"] not in _KINDS or match["tier"] in STANDARD_TIERS:
        raise BadUsage(
            f"--rate '{text[:60]}' is not KIND[@TOKENS][/TIER]=USD. Kinds: {', '.join(_KINDS)}."
        )
    kind = _KINDS[match["kind"]]
    usd = _usd("--rate", match["usd"])
    return Rate(
        kind=kind,
        usd_per_mtok=usd * CALLS_PER_RATE if kind in CALL_KINDS else usd,
        from_input_tokens=int(match["tokens"] or 0),
        service_tier=match["tier"],
    )


def _usd(option: str, text: str) -> Decimal:
    """Parse an option's amount in plain dollars. Raises `BadUsage` outside 0 to the maximum."""
    if not _USD.fullmatch(text) or Decimal(text) > MOST_USD:
        raise BadUsage(
            f"{option} {text[:40]}: write plain dollars from 0 to {MOST_USD}, such as 0.80."
        )
    return Decimal(text)

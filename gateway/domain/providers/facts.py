"""Looks up the facts about a deployment's place in its policy block and the bundled host data, with
source and date, and ignores expired ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from gateway.domain.places.regions import UNKNOWN
from gateway.domain.providers.known_hosts import KnownPlace, Statement, known_place
from gateway.domain.providers.table import (
    AT_ROOT,
    PROVIDERS,
    ProviderFacts,
    provider_at,
    provider_of,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """One known fact. `source` is empty and `as_of` None if only the policy states it."""

    value: T
    source: str = ""
    as_of: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a deployment. Places are regions, `unknown` without a statement; other facts are
    then None.

    `providers` are the dialect and, if the host is known, the provider and the company that run
    it.
    """

    host: str
    providers: frozenset[str]
    is_self_hosted: bool
    processing: Fact[str]
    at_rest: Fact[str]
    telemetry: Fact[str]
    retention_days: Fact[int | None]
    sub_processor: Fact[str | None]

    def still_counts(self, as_of: date | None, *, day: date, valid_days: int | None) -> bool:
        """Return False for a fact that is too old, and for an undated one about a system that
        others run; True for all facts if `valid_days` is None.
        """
        if valid_days is None:
            return True
        if as_of is None:
            return self.is_self_hosted
        return (day - as_of).days <= valid_days

    def place(self, fact: Fact[str], *, day: date, valid_days: int | None) -> str:
        """Return the region that a fact names, `unknown` if the fact has expired."""
        return (
            fact.value if self.still_counts(fact.as_of, day=day, valid_days=valid_days) else UNKNOWN
        )


class Known(NamedTuple):
    """The facts that are valid on a day."""

    processing: str
    at_rest: str
    telemetry: str
    retention_days: int | None
    providers: frozenset[str]
    is_self_hosted: bool


@lru_cache(maxsize=4096)  # a policy has a few deployments
def facts_of(
    provider: str, base_url: str, region: str, is_self_hosted: bool, declared: Statement | None
) -> Facts:
    """Return a deployment's facts: the document's, else those bundled for its host, else none.

    The processing region is always the document's. Its date is that of the deployment's own block,
    else that of the host's bundled facts, if they agree.
    """
    host = host_of(base_url)
    known = known_place(host)
    statements = [
        one for one in (declared, None if known is None else known.statement) if one is not None
    ]
    return Facts(
        host=host,
        providers=_providers(provider, host, known),
        is_self_hosted=is_self_hosted,
        processing=_processing(region, declared, known),
        at_rest=_first(statements, lambda one: one.at_rest) or Fact(UNKNOWN),
        telemetry=_first(statements, lambda one: one.telemetry) or Fact(UNKNOWN),
        retention_days=_first(statements, lambda one: one.retention_days) or Fact(None),
        sub_processor=_first(statements, lambda one: one.sub_processor) or Fact(None),
    )


@lru_cache(maxsize=4096)  # asked for each attempt
def known_of(
    provider: str,
    base_url: str,
    region: str,
    is_self_hosted: bool,
    declared: Statement | None,
    day: date | None,
    valid_days: int | None,
) -> Known:
    """Return the facts that are valid on a day; without a day, if facts do not expire, all of
    them.
    """
    facts = facts_of(provider, base_url, region, is_self_hosted, declared)
    on, days = (date.min, None) if day is None else (day, valid_days)
    retention = facts.retention_days
    return Known(
        processing=facts.place(facts.processing, day=on, valid_days=days),
        at_rest=facts.place(facts.at_rest, day=on, valid_days=days),
        telemetry=facts.place(facts.telemetry, day=on, valid_days=days),
        retention_days=retention.value
        if facts.still_counts(retention.as_of, day=on, valid_days=days)
        else None,
        providers=facts.providers,
        is_self_hosted=is_self_hosted,
    )


def host_of(base_url: str) -> str:
    """Return the host of an address, in lower case and without a trailing dot."""
    return (urlsplit(base_url).hostname or "").rstrip(".")


@lru_cache(maxsize=4096)  # asked for each attempt
def provider_facts_of(provider: str, base_url: str) -> ProviderFacts:
    """Return a deployment's entry in the table of providers, by its host if that says more than its
    provider's name; for an address without a path, that of the provider's own dialect.
    """
    if provider in AT_ROOT and urlsplit(base_url).path in ("", "/"):
        return AT_ROOT[provider]
    return provider_of(provider, host_of(base_url))


def _providers(provider: str, host: str, known: KnownPlace | None) -> frozenset[str]:
    """Return every name by which a rule may deny a deployment: of its dialect, of the provider
    whose usual host it is at, and of their companies.
    """
    entries = [PROVIDERS[provider]]
    if (at_host := provider_at(host)) is not None:
        entries.append(at_host)
    names = {name for entry in entries for name in (entry.name, entry.company)}
    if known is not None:
        names.add(known.provider)
    return frozenset(names - {""})


def _processing(region: str, declared: Statement | None, known: KnownPlace | None) -> Fact[str]:
    """Return a deployment's processing region as a fact, with the source and date that confirm it,
    if any.
    """
    if declared is not None and declared.as_of is not None:
        return Fact(region, declared.source, declared.as_of)
    if known is not None and known.processing == region:
        return Fact(region, known.statement.source, known.statement.as_of)
    return Fact(region)


def _first(
    statements: Iterable[Statement], part: Callable[[Statement], T | None]
) -> Fact[T] | None:
    """Return one part of the first statement that has it, with that statement's source and date;
    None if none has it.
    """
    for one in statements:
        value = part(one)
        if value is not None:
            return Fact(value, one.source, one.as_of)
    return None

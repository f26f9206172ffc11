"""Builds the words of a residency denial: the denied fact, its value and source, and the values
that the rule allows; denies nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

from gateway.domain.places.regions import UNKNOWN, RegionTree
from gateway.domain.policy.policy import ResidencyRule
from gateway.domain.providers.facts import Fact, Facts


class DenialWords:
    """Explains the denial of a deployment on a day, for one field of a rule at a time."""

    def __init__(
        self,
        facts: Facts,
        *,
        regions: RegionTree,
        gateway_region: str,
        day: date,
        valid_days: int | None,
    ) -> None:
        """Take the deployment's facts, and the regions, gateway and day that the rules are applied
        with.
        """
        self._facts, self._regions, self._gateway_region = facts, regions, gateway_region
        self._day, self._valid_days = day, valid_days

    def why(self, rule: ResidencyRule, field: str) -> str:
        """Return the complete reason why one field of a rule denies the deployment, ending with the
        rule and the field.
        """
        return f"{self._reason(rule, field)} ({rule.rule_id}/{field})"

    def _reason(self, rule: ResidencyRule, field: str) -> str:
        """Return the deployment's fact that one field of a rule denies, with the values that it
        allows.
        """
        match field:
            case "regions":
                return f"{self._processing()}, allowed is {listed(rule.regions)}"
            case "at_rest":
                return f"{self._at_rest()}, allowed is {listed(rule.at_rest)}"
            case "telemetry":
                return f"{self._telemetry()}, allowed is {listed(rule.telemetry)}"
            case "self_hosted":
                return "is not self-hosted"
            case "max_retention_days":
                return f"{self._retention()}, allowed are {rule.max_retention_days} days"
            case "deny_regions":
                return (
                    f"{self._overlapping(rule.deny_regions)}, denied is {listed(rule.deny_regions)}"
                )
            case "deny_providers":
                return (
                    f"is of {listed(self._facts.providers & rule.deny_providers)}, which is denied"
                )
            case _:
                return (
                    f"is asked by a gateway in {self._gateway_region}, allowed is "
                    f"{listed(rule.gateway_regions)}"
                )

    def _processing(self) -> str:
        """Return in words the place that processes the deployment's requests, with its source."""
        return f"is in {self._facts.processing.value}{self._source_of(self._facts.processing)}"

    def _at_rest(self) -> str:
        """Return in words the place that keeps the deployment's data at rest, with its source."""
        fact = self._facts.at_rest
        if fact.value == UNKNOWN:
            return "has no statement on where it keeps data at rest"
        return f"keeps data at rest in {fact.value}{self._source_of(fact)}"

    def _telemetry(self) -> str:
        """Return in words the place that gets the deployment's telemetry, with its source."""
        fact = self._facts.telemetry
        if fact.value == UNKNOWN:
            return "has no statement on where it sends telemetry"
        return f"sends telemetry to {fact.value}{self._source_of(fact)}"

    def _retention(self) -> str:
        """Return in words the time for which the deployment keeps data, with its source."""
        fact = self._facts.retention_days
        if fact.value is None:
            return "has no statement on how long it keeps data"
        return f"keeps data for {fact.value} days{self._source_of(fact)}"

    def _overlapping(self, denied: frozenset[str]) -> str:
        """Return in words each place of the deployment that overlaps with the denied regions."""
        facts = self._facts
        stated = (
            (facts.processing, self._processing),
            (facts.at_rest, self._at_rest),
            (facts.telemetry, self._telemetry),
        )
        places = (
            (facts.place(fact, day=self._day, valid_days=self._valid_days), words)
            for fact, words in stated
        )
        return " and ".join(
            words() for place, words in places if self._regions.overlaps(place, denied)
        )

    def _source_of(self, fact: Fact[str] | Fact[int | None]) -> str:
        """Return a fact's source and date in words, and whether the fact is valid."""
        counts = self._facts.still_counts(fact.as_of, day=self._day, valid_days=self._valid_days)
        if fact.as_of is None:
            return "" if counts else ", which counts for nothing without a source and a date"
        source_text = f" ({fact.source}, {fact.as_of})"
        return (
            source_text
            if counts
            else f"{source_text}, which is older than {self._valid_days} days and no longer counts"
        )


def listed(names: Collection[str] | None) -> str:
    """Return regions or providers in a rule's notation."""
    return "|".join(sorted(names or ())) or "nowhere"

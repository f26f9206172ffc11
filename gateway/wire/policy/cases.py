"""Cases of a policy, from YAML text: a request, and its expected deployments or its expected
denial.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.policy.policy import Operation
from gateway.errors import CasesRejected, PolicyRejected
from gateway.wire.policy.findings import Findings, Wrong
from gateway.wire.policy.names import LABELS, model_name, name
from gateway.wire.policy.nodes import read_document
from gateway.wire.policy.readers import Block, Entry, Field, Listed, entries, list_of, one_of
from gateway.wire.policy.schema import CAPABILITIES

# The denials that a case may expect instead of deployments, with the error code that the caller
# would get.
DENIALS = {
    "residency": "residency_denied",
    "route": "route_not_allowed",
    "model": "model_not_found",
    "price": "unpriced_model",
    "operation": "not_supported",
    "capability": "invalid_request",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One expectation, from one line of a file: the deployments in order, or the reason for the
    denial.
    """

    line: int
    team: str
    route: str
    data_class: str | None = None
    data_tags: frozenset[str] = frozenset()
    operation: Operation = Operation.CHAT
    needs: frozenset[str] = frozenset()
    expect: tuple[str, ...] = ()
    denied: str | None = None


_CASE = Block(
    name="case",
    fields=(
        Field(name="team", read=name, is_required=True, meaning="Who asks.", example="payments"),
        Field(
            name="route",
            read=model_name,
            is_required=True,
            meaning="The requested route.",
            example="assistant",
        ),
        Field(
            name="class",
            read=one_of(LABELS),
            meaning="The class it raises its own to.",
            example="restricted",
        ),
        Field(
            name="data_tags", read=list_of(name), meaning="The data tags it adds.", example="[phi]"
        ),
        Field(
            name="operation", read=one_of(tuple(Operation)), meaning="The endpoint.", example="chat"
        ),
        Field(
            name="needs",
            read=list_of(one_of(CAPABILITIES)),
            meaning="The needed capabilities.",
            example="[tools]",
        ),
        Field(
            name="expect",
            read=list_of(name),
            meaning="The deployments, in their order.",
            example="[qwen-eu]",
        ),
        Field(
            name="denied",
            read=one_of(tuple(DENIALS)),
            meaning="Why it is refused.",
            example="residency",
        ),
    ),
)
_DOCUMENT = Block(
    name="document",
    fields=(
        Field(
            name="cases",
            read=list_of(_CASE),
            is_required=True,
            meaning="The expected result.",
            example="[{team: payments, route: assistant, expect: [qwen-eu]}]",
        ),
    ),
)


def parse_cases(text: str) -> tuple[Case, ...]:
    """Parse a file of cases. Raises `CasesRejected` with every error found."""
    findings = Findings()
    try:
        document = _DOCUMENT(read_document(text), findings)
        listed = document.of("cases", Listed)
        for entry in entries(listed):
            _check(entry, findings)
        if listed is not None and not listed and not findings.errors:
            findings.error(document.place("cases"), "is empty: there is nothing to test")
    except Wrong as wrong:
        findings.error(wrong.spot, wrong.message)
    except PolicyRejected as rejected:
        raise CasesRejected(rejected.findings) from None
    if findings.errors:
        raise CasesRejected(findings.rejected().findings)
    return tuple(_case(entry) for entry in entries(listed))


def _check(entry: Entry, findings: Findings) -> None:
    """Add a finding unless exactly one of the two is expected."""
    given = [name for name in ("expect", "denied") if name in entry.spots]
    if len(given) != 1:
        findings.error(
            entry.spot, "write either expect: [deployments in their order] or denied: residency"
        )
    listed = entry.of("expect", Listed)
    if listed is not None and not listed:
        findings.error(
            entry.place("expect"), f"is empty; write denied: and one of {', '.join(DENIALS)}"
        )


def _case(entry: Entry) -> Case:
    values = entry.values
    return Case(
        line=entry.spot.line,
        team=values["team"],
        route=values["route"],
        data_class=values["class"],
        data_tags=_names(entry, "data_tags"),
        needs=_names(entry, "needs"),
        operation=Operation(values["operation"] or Operation.CHAT),
        expect=tuple(_listed(entry, "expect")),
        denied=values["denied"],
    )


def _names(entry: Entry, field: str) -> frozenset[str]:
    return frozenset(_listed(entry, field))


def _listed(entry: Entry, field: str) -> tuple[str, ...]:
    listed = entry.of(field, Listed)
    return () if listed is None else listed.items

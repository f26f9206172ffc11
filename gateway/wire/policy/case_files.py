"""Parses a file of policy test cases: each a request with its expected deployments or denial;
`services.policy.cases` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from gateway.domain.operation import Operation
from gateway.errors import CasesRejected, PolicyRejected
from gateway.wire.policy.deployments import Capabilities
from gateway.wire.policy.scalars import Label, ModelName, Name, Names
from gateway.wire.yaml_blocks.blocks import Block, Items, optional, required
from gateway.wire.yaml_blocks.nodes import read_document
from gateway.wire.yaml_blocks.scalars import member_of, one_of

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


class CaseBlock(Block):
    """One expectation."""

    title = "case"
    team: Name = required("Who asks.", "payments")
    route: ModelName = required("The requested route.", "assistant")
    data_class: Label | None = Field(None, alias="class", description="The class it raises to.")
    data_tags: Names | None = optional("The data tags it adds.", "[phi]")
    operation: Annotated[Operation, member_of(Operation)] = optional(
        "The endpoint.", "chat", Operation.CHAT
    )
    needs: Capabilities | None = optional("The needed capabilities.", "[tools]")
    expect: Names | None = optional("The deployments, in their order.", "[qwen-eu]")
    denied: Annotated[str, one_of(tuple(DENIALS))] | None = optional(
        "Why it is refused.", "residency"
    )

    def case(self) -> Case:
        """Return the expectation that this block of a cases file states."""
        return Case(
            line=self.spot.line,
            team=self.team,
            route=self.route,
            data_class=self.data_class,
            data_tags=frozenset(self.data_tags or ()),
            needs=frozenset(self.needs or ()),
            operation=self.operation,
            expect=tuple(self.expect or ()),
            denied=self.denied,
        )


class CasesDocument(Block):
    """A file of cases."""

    title = "document"
    cases: Annotated[list[CaseBlock], Items()] = required(
        "The expected result.", "[{team: payments, route: assistant, expect: [qwen-eu]}]"
    )


def parse_cases(text: str) -> tuple[Case, ...]:
    """Return the cases in a file's text. Raises `CasesRejected` with every error found."""
    try:
        root = read_document(text)
        document = CasesDocument.read(root)
        if document is not None:
            _check(document)
    except PolicyRejected as rejected:
        raise CasesRejected(rejected.findings) from None
    if document is None or root.findings.errors:
        raise CasesRejected(root.findings.rejected().findings)
    return tuple(case.case() for case in document.cases)


def _check(document: CasesDocument) -> None:
    """Report an error unless each case expects exactly one of the two: deployments or a denial."""
    for case in document.blocks_of("cases"):
        if case.has("expect") == case.has("denied"):
            case.spot.error(
                "write either expect: [deployments in their order] or denied: residency"
            )
        if case.of("expect") == []:
            case.error("expect", f"is empty; write denied: and one of {', '.join(DENIALS)}")
    if document.of("cases") == [] and not document.spot.findings.errors:
        document.error("cases", "is empty: there is nothing to test")

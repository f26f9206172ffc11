"""Lists the readers of exports by the kind of file, and reads a file with one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from gateway.domain.reconciliation.bills import BillFileKind
from gateway.errors import BillRejected
from gateway.wire.bills.exports import anthropic, aws_cur, focus, gcp_billing, generic, openai
from gateway.wire.bills.exports.collected import ParsedExport, ReadLine, collected
from gateway.wire.bills.exports.mapping import NO_MAPPING, ExportMapping, read_mapping
from gateway.wire.bills.exports.text import WrongExport, decoded

Reader = Callable[[Iterable[str], ExportMapping], Iterator[ReadLine]]
READERS: Mapping[BillFileKind, Reader] = {
    BillFileKind.OPENAI_USAGE: openai.read_usage,
    BillFileKind.OPENAI_COSTS: openai.read_costs,
    BillFileKind.ANTHROPIC_USAGE: anthropic.read_usage,
    BillFileKind.ANTHROPIC_COST: anthropic.read_cost,
    BillFileKind.AWS_CUR: aws_cur.read,
    BillFileKind.GCP_BILLING: gcp_billing.read,
    BillFileKind.FOCUS: focus.read,
    BillFileKind.CSV: generic.read,
}

# A page of JSON has a member for each kind of token; only these members go by other names.
_OF_PAGES = frozenset({"account", "project", "key", "model"})
MAPPED: Mapping[BillFileKind, frozenset[str]] = {
    BillFileKind.OPENAI_USAGE: _OF_PAGES,
    BillFileKind.OPENAI_COSTS: _OF_PAGES,
    BillFileKind.ANTHROPIC_USAGE: _OF_PAGES,
    BillFileKind.ANTHROPIC_COST: _OF_PAGES | {"amount"},
}


def parse_export(
    chunks: Iterable[bytes],
    *,
    kind: BillFileKind,
    name: str,
    account: str | None = None,
    mapping: ExportMapping = NO_MAPPING,
) -> ParsedExport:
    """Return the lines of an export, read in pieces; memory grows with its sums by day alone.

    `account` stands for one that the file does not name. Raises `BillRejected` with the line of the
    first mistake; `name` is the file's, for its message.
    """
    unknown = sorted(mapping.columns.keys() - MAPPED.get(kind, mapping.columns.keys()))
    if unknown:
        finding = f"line 1: a mapping cannot name `{unknown[0]}` in a file of kind {kind.value}."
        raise BillRejected(name, [finding])
    try:
        lines = READERS[kind](decoded(chunks), mapping)
        return collected(lines, kind, account=account, models=mapping.models)
    except WrongExport as wrong:
        raise BillRejected(name, [f"line {wrong.line}: {wrong.finding}."]) from None


def parse_mapping(data: bytes, *, name: str) -> ExportMapping:
    """Return the mapping in a file. Raises `BillRejected` with the line of a mistake."""
    try:
        return read_mapping("".join(decoded([data])))
    except WrongExport as wrong:
        raise BillRejected(name, [f"line {wrong.line}: {wrong.finding}."]) from None

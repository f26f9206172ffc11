"""Reads the mapping of an export: our columns by theirs, and our models by theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from gateway.wire.bills.exports.text import WrongExport

COLUMNS = (
    "day",
    "account",
    "project",
    "key",
    "model",
    "token_kind",
    "quantity",
    "amount",
    "currency",
)
MOST_CHARS = 2**20


@dataclass(frozen=True, slots=True)
class ExportMapping:
    """Their column by ours, and our model by theirs."""

    columns: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)


NO_MAPPING = ExportMapping()


def read_mapping(text: str) -> ExportMapping:
    """Return the mapping of a YAML document. Raises `WrongExport` with the line of a mistake."""
    if len(text) > MOST_CHARS:
        raise WrongExport(1, f"the mapping has more than {MOST_CHARS:,} characters")
    try:
        # Composed, not loaded: nothing of the document is run, and each node knows its line.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        raise WrongExport(line, "the mapping is no YAML") from None
    except (ValueError, RecursionError):
        raise WrongExport(1, "the mapping is no YAML") from None
    columns: dict[str, str] = {}
    models: dict[str, str] = {}
    for name, node in _entries(root).items():
        if name == "models":
            models = {theirs: _text(ours) for theirs, ours in _entries(node).items()}
        elif name in COLUMNS:
            columns[name] = _text(node)
        else:
            raise WrongExport(
                node.start_mark.line + 1,
                f"`{name[:60]}` is no column. There are: {', '.join(COLUMNS)}, models",
            )
    return ExportMapping(columns, models)


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the members of a mapping. Raises `WrongExport` if it is none, or names one twice."""
    if not isinstance(node, yaml.MappingNode):
        line = 1 if node is None else node.start_mark.line + 1
        raise WrongExport(
            line, "write a mapping such as `amount: Cost`, or `models: {theirs: ours}`"
        )
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _text(key)
        if name in found:
            raise WrongExport(key.start_mark.line + 1, f"`{name[:60]}` stands there twice")
        found[name] = value
    return found


def _text(node: yaml.Node) -> str:
    """Return a scalar's text. Raises `WrongExport` if it is empty or another node."""
    if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
        raise WrongExport(node.start_mark.line + 1, "write a name here")
    return str(node.value).strip()

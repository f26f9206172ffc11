"""Walks and compares trees of YAML nodes, and finds the end of a node's text."""

from __future__ import annotations

from collections.abc import Iterator

import yaml


def parts_of(node: yaml.Node) -> list[yaml.Node]:
    """Return the items of a list, or the keys and values of a mapping; nothing of a scalar."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def nodes_under(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yield a node and all nodes below it, keys included."""
    yield node
    for part in parts_of(node):
        yield from nodes_under(part)


def is_same(one: yaml.Node, other: yaml.Node) -> bool:
    """Return True if two trees mean the same: kinds, types, values and order."""
    if (type(one), one.tag) != (type(other), other.tag):
        return False
    if isinstance(one, yaml.ScalarNode):
        return bool(one.value == other.value)
    parts, others = parts_of(one), parts_of(other)
    return len(parts) == len(others) and all(map(is_same, parts, others))


def is_flow(node: yaml.Node) -> bool:
    """Return True for a list in brackets and a mapping in braces."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def is_block(node: yaml.Node) -> bool:
    """Return True for a list or mapping that is laid out by lines and indentation."""
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def last_line(node: yaml.Node) -> int:
    """Return the last line of a node's text, from 0.

    The end that the parser gives to a block lies behind the comments that follow it.
    """
    if is_block(node) and node.value:
        return last_line(parts_of(node)[-1])
    start, end = node.start_mark, node.end_mark
    is_before = end.column == 0 and end.line > start.line  # of a text after `|` or `>`
    return int(end.line) - is_before

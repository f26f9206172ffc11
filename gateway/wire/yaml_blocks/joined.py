"""Joins several YAML files into the tree of one document, in which each node knows its file;
`joined_text` writes its text.

Lists and mappings of the top level are joined. Nothing overrides anything: a scalar that two files
give is an error, and so is a name, which the checks of the document find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import yaml

from gateway.errors import Finding, PolicyRejected
from gateway.wire.yaml_blocks.blocks import members_of
from gateway.wire.yaml_blocks.findings import TAG, Findings, Spot, kind_of
from gateway.wire.yaml_blocks.nodes import MAX_CHARACTERS, read_document
from gateway.wire.yaml_blocks.trees import nodes_under


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a document; an empty `path` means that its findings name only lines."""

    path: str
    text: str


Members = dict[str, tuple[yaml.Node, Spot]]  # each name with its key's node and its value's place


def read_documents(files: Sequence[SourceFile]) -> Spot:
    """Return the root node of several files as one document. Raises `PolicyRejected` if a file is
    not plain YAML, with the errors of all files.
    """
    if sum(len(file.text) for file in files) > MAX_CHARACTERS:
        raise PolicyRejected(
            (Finding(1, "document", f"the files have more than {MAX_CHARACTERS:,} characters"),)
        )
    findings, broken = Findings(), list[Finding]()
    roots = []
    for file in files:
        try:
            spot = replace(read_document(file.text), findings=findings)
        except PolicyRejected as rejected:
            broken += (replace(one, file=file.path) for one in rejected.findings)
            continue
        findings.files |= {id(node): file.path for node in nodes_under(spot.node)}
        roots.append(spot)
    if broken:
        raise PolicyRejected(tuple(broken))
    return _join(roots, findings)


def _join(roots: Sequence[Spot], findings: Findings) -> Spot:
    """Return one mapping with the members of all files; report members that cannot be joined."""
    joined: Members = {}
    for root in roots:
        if isinstance(root.node, yaml.MappingNode):
            pairs = reversed(root.node.value)
            keys = {key.value: key for key, _ in pairs if isinstance(key, yaml.ScalarNode)}
            for name, spot in members_of(root).items():
                first = joined.get(name)
                value = spot if first is None else _joined_value(first[1], spot)
                joined[name] = (keys[name] if first is None else first[0], value)
        else:
            root.error(f"must be a mapping of names to values, not {kind_of(root.node)}")
    members = [(key, spot.node) for key, spot in joined.values()]
    whole = yaml.MappingNode(f"{TAG}map", members, roots[0].node.start_mark)
    findings.files[id(whole)] = roots[0].file
    return Spot(whole, "", findings)


def _joined_value(first: Spot, other: Spot) -> Spot:
    """Return a member of two files as one; report an error, and return the first, if it cannot be
    joined.
    """
    one, two = first.node, other.node
    for kind in (yaml.SequenceNode, yaml.MappingNode):
        if isinstance(one, kind) and isinstance(two, kind):
            node = kind(one.tag, [*one.value, *two.value], one.start_mark, flow_style=False)
            first.findings.files[id(node)] = first.file
            if kind is yaml.SequenceNode:
                first.findings.positions |= {id(item): at for at, item in enumerate(two.value)}
            return replace(first, node=node)
    if type(one) is type(two):
        other.error(f"is there twice (first in {first.place}); keep it in one file")
    else:
        other.error(f"is {kind_of(two)} here and {kind_of(one)} in {first.place}; write the same")
    return first

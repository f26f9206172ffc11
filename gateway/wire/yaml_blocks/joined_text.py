"""Writes the text of a document that was joined from several files: their own lines, where they can
be cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from gateway.errors import PolicyRejected
from gateway.wire.yaml_blocks.joined import SourceFile
from gateway.wire.yaml_blocks.nodes import plain_text_of, read_document
from gateway.wire.yaml_blocks.trees import is_flow, is_same, last_line

INDENT = 2  # of the items of a list that no file has as a block


def joined_text(files: Sequence[SourceFile], root: yaml.Node) -> str:
    """Return the text of a valid document in several files, whose joined tree is `root`.

    The files' comments, quotes and layout stay. A file whose top level is in braces, or in another
    rare form, cannot be cut by lines: then the whole document is written out again.

    Raises `PolicyRejected` if the text is too long.
    """
    text = _spliced(files)
    if text is not None and _means(text, root):
        return text
    written = str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=1_000))
    assert is_same(read_document(written).node, root), "the text means the document"
    return written


def _means(text: str, root: yaml.Node) -> bool:
    """Return True if a text can be read and means the document whose tree is `root`."""
    try:
        return is_same(read_document(text).node, root)
    except PolicyRejected:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One top-level member of one file: its own `lines` and the comments `above` it.

    `text` is the whole file's.
    """

    above: list[str]
    lines: list[str]
    node: yaml.Node
    text: str

    @property
    def column(self) -> int:
        """Return the column at which its items begin; 0 if they are in brackets."""
        return 0 if is_flow(self.node) else int(self.node.start_mark.column)

    def items(self, indent: int) -> list[str]:
        """Return the lines of a list's items or a mapping's entries at an indentation."""
        if is_flow(self.node):
            return [" " * indent + self._item(item) for item in self.node.value]
        more = " " * (indent - self.column)
        return [more + line if line.strip() else line for line in self.lines[1:]]

    def _item(self, item: yaml.Node | tuple[yaml.Node, yaml.Node]) -> str:
        """Return an item of a list in brackets, or an entry of a mapping in braces, as a line."""
        return (
            f"{self._source(item[0])}: {self._source(item[1])}"
            if isinstance(item, tuple)
            else f"- {self._source(item)}"
        )

    def _source(self, node: yaml.Node) -> str:
        """Return a node's own text."""
        return self.text[node.start_mark.index : node.end_mark.index]


def _spliced(files: Sequence[SourceFile]) -> str | None:
    """Return the files' members, each with the lines of all files; None if one cannot be cut by
    lines.
    """
    members: dict[str, list[_Part]] = {}
    for file in files:
        root = read_document(file.text).node
        if is_flow(root) or any(key.start_mark.column for key, _ in root.value):
            return None
        for name, part in _cut(file.text, root):
            members.setdefault(name, []).append(part)
    lines = [line for name, parts in members.items() for line in _member_lines(name, parts)]
    return "".join(f"{line}\n" for line in lines)


def _member_lines(name: str, parts: list[_Part]) -> list[str]:
    """Return the lines of a member that one file has, or several."""
    if len(parts) == 1:
        return parts[0].above + parts[0].lines
    indent = max(part.column for part in parts) or INDENT
    lines = [*parts[0].above, f"{name}:"]
    for part in parts:
        comment = "" if is_flow(part.node) else part.lines[0].partition("#")[2].strip()
        lines += part.above if part is not parts[0] else ()
        lines += [f"# {comment}"] if comment else ()
        lines += part.items(indent)
    return lines


def _cut(text: str, root: yaml.Node) -> Iterator[tuple[str, _Part]]:
    """Yield each top-level member of a file, by its name; `root` is the file's tree.

    A member's lines end with its last value. The lines above the next member belong to that one,
    and those at the end to the last one. Markers of documents are left out.
    """
    text, at = plain_text_of(text), 0
    lines = text.split("\n")
    for place, (key, value) in enumerate(root.value):
        start, end = key.start_mark.line, last_line(value) + 1
        above = [line for line in lines[at:start] if not line.startswith(("---", "%"))]
        is_last = place == len(root.value) - 1
        rest = [line for line in lines[end:] if line.lstrip().startswith("#")] if is_last else []
        yield (
            str(key.value),
            _Part(above=above, lines=lines[start:end] + rest, node=value, text=text),
        )
        at = end

"""Sets one value in the text of a YAML document, and leaves every other character as it is.

A path names members by dots and items of lists by their name: `teams.payments.limits.concurrent`.
Each new text is read again: it means the old document with that one value, or it is not returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from gateway.domain.words import shown, suggestion
from gateway.errors import BadUsage, NothingFound, PolicyRejected
from gateway.wire.yaml_blocks.findings import TAG, fields_of
from gateway.wire.yaml_blocks.nodes import read_document
from gateway.wire.yaml_blocks.trees import is_block, is_flow, is_same, last_line

# The members that name an item of a list, the first that it has. A budget without a name is the
# only one of its owner for its period.
NAMING = ("name", "key", "period")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_PLAIN_STEP = re.compile(r"[^.\[\]\"]+")


@dataclass(frozen=True, slots=True)
class Edit:
    """A document with one value changed: its text, the value's line from 1, and whether the member
    was added.
    """

    text: str
    line: int
    is_new: bool


def set_value(text: str, path: str, value: str) -> Edit:
    """Return a document in which the value at a path is another.

    `value` is YAML on one line; text that YAML would read otherwise there is quoted. A member that
    its mapping lacks is added behind the others. Raises `PolicyRejected` if the text is no plain
    YAML, `NothingFound` if nothing has that name, and `BadUsage` if the value cannot be set.
    """
    value = _one_line(value)
    if not path:
        raise BadUsage("The path is empty. Write one such as teams.payments.limits.concurrent.")
    place = _place_of(read_document(text).node, path)
    for written in _spellings(value, place.node):
        edit = _edited(text, path, written)
        if edit is not None:
            return edit
    raise BadUsage(
        f"{shown(path)} (line {place.line}) cannot be set to that without changing other text. "
        "Edit the file by hand."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place of a value in its `parent`: its position there, and its node.

    `rest` is the part of the path that the document does not have: `missing` are its names. They
    are added to the parent, whose position `at` is None, or below an empty value.
    """

    parent: yaml.Node
    at: int | None
    node: yaml.Node | None
    rest: str = ""
    missing: tuple[str, ...] = ()

    @property
    def line(self) -> int:
        """Return the value's line from 1, or that of the mapping that lacks it."""
        return int((self.node or self.parent).start_mark.line) + 1

    def value_of(self, written: str) -> str:
        """Return the text that stands behind the parent's key, in braces for each missing name."""
        for name in reversed(self.missing[1 if self.at is None else 0 :]):
            written = f"{{{_key_text(name)}: {written}}}"
        return written

    def put(self, value: yaml.Node) -> None:
        """Change the tree: the parent has the value at this place."""
        members = self.parent.value
        if self.at is None:
            members.append((yaml.ScalarNode(f"{TAG}str", self.missing[0]), value))
        elif isinstance(self.parent, yaml.MappingNode):
            members[self.at] = (members[self.at][0], value)
        else:
            members[self.at] = value


def _edited(text: str, path: str, written: str) -> Edit | None:
    """Return a document with a value as it is `written`; None if the text would mean anything else
    than the old document with that value.
    """
    root = read_document(text).node
    place = _place_of(root, path)
    value = place.value_of(written)
    source = _Source(text)
    edit = source.with_member(place, value) if place.at is None else source.with_value(place, value)
    try:
        after, wanted = read_document(edit.text).node, read_document(value).node
    except PolicyRejected:
        return None
    place.put(wanted)
    return edit if is_same(root, after) else None


class _Source:
    """A document's text with the offsets of its lines."""

    def __init__(self, text: str) -> None:
        """Find the beginnings of the lines."""
        self.text = text
        self.starts = [0, *(found.end() for found in _LINE_BREAK.finditer(text))]

    def with_value(self, place: _Place, value: str) -> Edit:
        """Return the text with another value at a place. Raises `BadUsage` for a block of lines."""
        node = place.node
        assert node is not None, "the place has a value"
        if is_block(node):
            raise BadUsage(
                f"The value in lines {place.line} to {last_line(node) + 1} is a block of several "
                "lines. Set one value in it, or edit the file by hand."
            )
        start, end = self._offset(node.start_mark), self._offset(node.end_mark)
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            end = start + len(self.text[start:end].rstrip())
        space = " " if start == end and self.text[start - 1 : start] != " " else ""
        return self._with(start, end, space + value, line=place.line, is_new=False)

    def with_member(self, place: _Place, value: str) -> Edit:
        """Return the text with a further member behind those of the place's mapping."""
        pairs, member = place.parent.value, f"{_key_text(place.missing[0])}: {value}"
        if is_flow(place.parent):
            mark = pairs[-1][1].end_mark if pairs else place.parent.start_mark
            at = self._offset(mark) + (0 if pairs else 1)
            comma = ", " if pairs else ""
            return self._with(at, at, comma + member, line=mark.line + 1, is_new=True)
        line = last_line(pairs[-1][1]) + 1
        found = _LINE_BREAK.search(self.text)
        line_break = found.group() if found else "\n"
        member = " " * pairs[0][0].start_mark.column + member
        if line < len(self.starts):
            at, member = self.starts[line], member + line_break
        else:
            at, member = len(self.text), line_break + member
        return self._with(at, at, member, line=line + 1, is_new=True)

    def _with(self, start: int, end: int, new: str, *, line: int, is_new: bool) -> Edit:
        """Return the text with other characters from `start` to `end`."""
        return Edit(self.text[:start] + new + self.text[end:], line, is_new)

    def _offset(self, mark: yaml.Mark) -> int:
        """Return the offset of a place in the text; its marks do not count a byte order mark."""
        has_mark = mark.line == 0 and self.text.startswith("\ufeff")
        return self.starts[mark.line] + int(mark.column) + has_mark


def _place_of(root: yaml.Node, path: str) -> _Place:
    """Return the place that a path leads to, also if its last names are missing.

    Raises `NothingFound` if they cannot be added, and `BadUsage` if the path means several places.
    """
    places = list(_places(_Place(parent=root, at=None, node=root, rest=path)))
    least = min(len(place.rest) for place in places)
    nearest, *others = (place for place in places if len(place.rest) == least)
    if others:
        lines = ", ".join(str(place.line) for place in (nearest, *others))
        raise BadUsage(
            f"{shown(path)} means several values, in lines {lines}. Write the position in the list "
            "in place of the name, such as [0] for the first."
        )
    if not nearest.rest:
        return nearest
    return _missing(nearest, path)


def _missing(nearest: _Place, path: str) -> _Place:
    """Return the place of a value that is not there yet. Raises `NothingFound` or `BadUsage`."""
    node, known = nearest.node, shown(path[: len(path) - len(nearest.rest)].rstrip("."))
    assert node is not None, "the document has the names before the rest"
    if isinstance(node, yaml.SequenceNode):
        labels = [label for _, label, _ in _children(node) if not label.startswith("[")]
        name = shown(nearest.rest.partition(".")[0])
        raise NothingFound(
            f"{known} (line {nearest.line}) has no item '{name}'{suggestion(name, labels)}"
        )
    names = _names(nearest.rest, path)
    if isinstance(node, yaml.MappingNode):
        return _Place(parent=node, at=None, node=None, missing=names)
    if node.tag == f"{TAG}null" and nearest.at is not None:
        return _Place(parent=nearest.parent, at=nearest.at, node=node, missing=names)
    raise NothingFound(
        f"{known or 'The document'} (line {nearest.line}) is a single value, so it has no "
        f"'{shown(nearest.rest)}'."
    )


def _places(place: _Place) -> Iterator[_Place]:
    """Yield every place that the rest of a path can mean: names may contain dots."""
    assert place.node is not None, "only places with a value are walked"
    is_known = False
    for at, label, node in _children(place.node) if place.rest else ():
        rest = _after(place.rest, label)
        if rest is not None:
            is_known = True
            yield from _places(_Place(parent=place.node, at=at, node=node, rest=rest))
    if not is_known:
        yield place


def _children(node: yaml.Node) -> Iterator[tuple[int, str, yaml.Node]]:
    """Yield the members of a mapping with their names, or the items of a list with their names and
    with their positions (`[0]`).
    """
    if isinstance(node, yaml.MappingNode):
        for at, (key, value) in enumerate(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value:
                yield at, key.value, value
    elif isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            yield at, f"[{at}]", item
            fields = fields_of(item) if isinstance(item, yaml.MappingNode) else {}
            named = next((fields[name] for name in NAMING if name in fields), None)
            if isinstance(named, yaml.ScalarNode) and named.value:
                yield at, named.value, item


def _after(rest: str, label: str) -> str | None:
    """Return the path behind a name; None if it does not begin with the name."""
    quoted = _QUOTED.match(rest)
    if quoted is not None and _unquoted(quoted.group()) == label:
        tail = rest[quoted.end() :]
    elif rest.startswith(label):
        tail = rest[len(label) :]
    else:
        return None
    if not tail or tail.startswith("["):
        return tail
    return tail[1:] if tail.startswith(".") and len(tail) > 1 else None


def _names(rest: str, path: str) -> tuple[str, ...]:
    """Return the names in the end of a path. Raises `BadUsage` if there is anything else in it."""
    names, at = [], 0
    while at < len(rest):
        found = _QUOTED.match(rest, at) or _PLAIN_STEP.match(rest, at)
        end = at if found is None else found.end()
        if found is None or rest[end : end + 1] not in ("", ".") or rest[end:] == ".":
            raise BadUsage(
                f"{shown(path)} is no path. Write names with dots between them, such as "
                "teams.payments.limits.concurrent."
            )
        names.append(_unquoted(found.group()) if rest[at] == '"' else found.group())
        at = end + 1
    return tuple(names)


def _unquoted(text: str) -> str:
    """Return the text in a pair of quotes; itself if its escapes are not those of JSON."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _one_line(value: str) -> str:
    """Return a value without blanks around it. Raises `BadUsage` if it cannot stand on one line."""
    value = value.strip()
    if not value.isprintable():
        raise BadUsage("VALUE must be one line of printable text.")
    return value


def _spellings(value: str, old: yaml.Node | None) -> list[str]:
    """Return the ways to write a value, the best first: in the quotes of the old value, as it is,
    and in quotes.
    """
    alone = _alone(value)
    quoted = json.dumps(value, ensure_ascii=False)
    if alone is None:
        return [quoted]
    if isinstance(alone, yaml.ScalarNode) and not alone.style:
        style = old.style if isinstance(old, yaml.ScalarNode) else None
        if style == '"':
            return [quoted]
        if style == "'":
            return ["'" + value.replace("'", "''") + "'"]
        if alone.tag == f"{TAG}str":
            return [value, quoted]
    return [value]


def _key_text(name: str) -> str:
    """Return a member's name as a key: in quotes if YAML would read it otherwise."""
    alone = _alone(name)
    is_text = alone is not None and alone.tag == f"{TAG}str" and alone.value == name
    is_bare = is_text and not set(name) & set(",[]{}")  # these end a name in braces
    return name if is_bare else json.dumps(name, ensure_ascii=False)


def _alone(value: str) -> yaml.Node | None:
    """Return the node that a text is by itself; None if it is no single value on one line."""
    try:
        node = read_document(value).node
    except PolicyRejected:
        return None
    is_whole = (node.start_mark.index, node.end_mark.index) == (0, len(value))
    is_text_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return node if is_whole and not is_block(node) and not is_text_block else None

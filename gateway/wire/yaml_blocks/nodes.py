"""Parses the text of a YAML document into nodes that know their lines, and refuses parts of YAML
that surprise readers.

These are anchors, aliases, tags, further documents, tabs and unprintable characters.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from gateway.domain.words import shown
from gateway.errors import Finding, PolicyRejected
from gateway.wire.yaml_blocks.findings import Findings, Spot

try:
    # Ten times faster: every replica parses the document again whenever a new version is applied.
    from yaml import CSafeLoader as Loader
except ImportError:  # pragma: no cover - a PyYAML built without libyaml
    from yaml import SafeLoader as Loader  # type: ignore[assignment]  # same interface, another base class

MAX_CHARACTERS = 2**20
MAX_DEPTH = 20
# The characters that YAML calls printable, without the rare line breaks: line numbers must match an
# editor's.
_UNPRINTABLE = re.compile(
    "[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_TAB_INDENT = re.compile(r"^ *\t", re.MULTILINE)


def read_document(text: str, *, loader: type[Any] = Loader) -> Spot:
    """Return the root node of a YAML document. Raises `PolicyRejected` if the text is not plain
    YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise _rejected(1, f"the document has more than {MAX_CHARACTERS:,} characters")
    plain = plain_text_of(text)
    _refuse_characters(plain)
    try:
        _refuse_features(plain, loader)
        root = yaml.compose(plain, Loader=loader)
    except yaml.YAMLError as broken:
        raise _syntax_error(broken, plain) from None
    except (
        ValueError,
        OverflowError,
    ):  # PyYAML without libyaml raises these for an invalid \U escape
        raise _rejected(1, "a quoted text holds an escape that is not a character") from None
    if root is None:
        raise _rejected(1, "the document is empty; it starts with 'version: 1'")
    return Spot(root, "", Findings())


def plain_text_of(text: str) -> str:
    """Return a text without a byte order mark, and with line feeds alone as its line breaks."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _refuse_characters(text: str) -> None:
    """Raise `PolicyRejected` for a tab that indents a line and for an unprintable character."""
    for pattern, searched, message in (
        # Blank lines at the end indent nothing.
        (_TAB_INDENT, text.rstrip(), "a tab indents this line; use spaces"),
        (_UNPRINTABLE, text, "this line holds a character that cannot be printed; remove it"),
    ):
        found = pattern.search(searched)
        if found:
            raise _rejected(text.count("\n", 0, found.start()) + 1, message)


def _refuse_features(text: str, loader: type[Any]) -> None:
    """Raise `PolicyRejected` on deep nesting, anchors, aliases, tags and further documents, before
    any tree is built.
    """
    found: list[Finding] = []
    depth = documents = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH:
            raise _rejected(line, f"lists and mappings are nested deeper than {MAX_DEPTH}")
        if documents > 1:
            raise _rejected(
                line, "a second document starts here; a policy is one document, so remove '---'"
            )
        # An alias event has its name in `anchor` too, so one check finds both.
        if getattr(event, "anchor", None) is not None:
            found.append(
                Finding(
                    line,
                    "document",
                    "anchors and aliases (& and *) are not allowed; write the value out",
                )
            )
        if getattr(event, "tag", None) is not None:
            found.append(
                Finding(line, "document", "tags (!) are not allowed; write the plain value")
            )
    if found:
        raise PolicyRejected(tuple(found[:100]))


def _syntax_error(broken: yaml.YAMLError, text: str) -> PolicyRejected:
    """Return the error for text that is not YAML, with its line but not its content, which may be a
    secret.
    """
    # Only the parser's short message: its full message quotes the line, which may contain a secret.
    mark = getattr(broken, "problem_mark", None) or getattr(broken, "context_mark", None)
    problem = getattr(broken, "problem", None) or "this cannot be read"
    last = text.count("\n") + 1
    line = min(mark.line + 1, last) if mark else 1
    return _rejected(
        line, f"not valid YAML: {shown(problem)}; check indentation, quotes and brackets up to here"
    )


def _rejected(line: int, message: str) -> PolicyRejected:
    """Return the exception that rejects a whole document for one error in a line."""
    return PolicyRejected((Finding(line, "document", message),))

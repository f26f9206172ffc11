"""Runs `tollgate policy set`: sets one value in a policy file and leaves every other byte as it is;
applies nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.policy.document import files_text, read_document
from gateway.cli.terminal.output import Format, FormatOption, note, show_record
from gateway.cli.terminal.replaced_file import replaced_file
from gateway.errors import BadUsage, PolicyRejected
from gateway.wire.parsed_policy import parse_files
from gateway.wire.yaml_blocks.edit import set_value
from gateway.wire.yaml_blocks.joined import SourceFile

# The members that each document has: one without them may be a part of one.
_WHOLE = frozenset({"version", "classes", "deployments", "routes", "teams"})


def set_policy_value(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A policy file.")],
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="Names with dots, such as teams.payments.limits.concurrent."
        ),
    ],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="A value in YAML, such as 80 or '[a, b]'.")
    ],
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="FILE",
            help="Another file of the same document, for the check; repeatable.",
        ),
    ] = None,
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Set one value in a policy file; comments, quotes, order and every other byte stay.

    An item of a list is meant by its name, a key by its id, a budget without a name by its period;
    [0] is the first item. A member that is missing is added behind its siblings. The document is
    checked first: with an error nothing is written. Needs no database and applies nothing.
    """
    if file == "-":
        raise BadUsage("policy set changes a file; it cannot change standard input.")
    text = read_document(file)
    edit = set_value(text, path, value)
    _require_valid(file, edit.text, others or [])
    is_changed = edit.text != text
    if is_changed:
        _replace(Path(file), before=text, after=edit.text)
    show_record(
        {"file": file, "line": edit.line, "is_changed": is_changed, "is_new": edit.is_new}, format
    )
    note(
        f"Next: tollgate policy plan {files_text([file, *(others or ())])}"
        if is_changed
        else "Nothing changed: the file has that value already."
    )


def _require_valid(file: str, text: str, others: list[str]) -> None:
    """Raise `PolicyRejected` if the document would have an error with the file's new text."""
    files = [SourceFile(file, text), *(SourceFile(one, read_document(one)) for one in others)]
    try:
        parse_files(files)
    except PolicyRejected as rejected:
        if not others and any(one.field in _WHOLE for one in rejected.findings):
            note(f"If {file} is one of several files of a document, name the others: --with FILE")
        raise


def _replace(file: Path, *, before: str, after: str) -> None:
    """Replace a file's text in one step, with its mode; a link stays a link.

    Raises `BadUsage` if the file changed meanwhile or cannot be replaced; then it is as it was.
    """
    if read_document(str(file)) != before:
        raise BadUsage(f"{file} changed meanwhile. Nothing was written; run it again.")
    with replaced_file(file) as out:
        out.write(after.encode())

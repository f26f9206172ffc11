"""Reads policy files and stored versions for the policy commands, and yields notes on missing
prices; it stores nothing.

Several files are one document: `read_policy` joins them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.output import note
from gateway.domain.policy.policy import Policy
from gateway.errors import BadUsage, Finding, NothingFound, PolicyRejected
from gateway.services.policy.apply import prices_of, unpriced, version_of
from gateway.storage.policy.price_list import builtin_price
from gateway.wire.parsed_policy import ParsedPolicy, parse_files
from gateway.wire.yaml_blocks.joined import SourceFile

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.policy.stored_policy import StoredPolicy
    from gateway.storage.policy.policies import PolicyStore

MAX_VERSION = 2**31 - 1  # of the column

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="A policy document, in one file or in several; - reads standard input.",
    ),
]


def read_document(file: str) -> str:
    """Return the text of a policy file, byte for byte.

    Raises `BadUsage` if it cannot be read or is not UTF-8.
    """
    try:
        document = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return document.decode("utf-8")
    except IsADirectoryError:
        raise BadUsage(f"{file} is a folder. Name its files, such as {file}/*.yaml.") from None
    except OSError as broken:
        raise BadUsage(f"{file} cannot be read: {broken.strerror}.") from None
    except UnicodeDecodeError:
        raise BadUsage(f"{file} is not UTF-8 text. Save it as UTF-8.") from None


def read_policy(files: Sequence[str]) -> ParsedPolicy:
    """Return the policy of one document in one file or several.

    Raises `BadUsage` if a file cannot be read or is given twice, and `PolicyRejected`.
    """
    twice = next((file for at, file in enumerate(files) if file in files[:at]), None)
    if twice is not None:
        raise BadUsage(f"{twice} is given twice. Name each file of the document once.")
    names = {"-": "standard input"}
    return parse_files([SourceFile(names.get(file, file), read_document(file)) for file in files])


def files_text(files: Sequence[str]) -> str:
    """Return the files of a document as they are written after a command."""
    return " ".join(file if file == "-" else shlex.quote(file) for file in files)


def require_version(policies: PolicyStore, version: int | None) -> StoredPolicy:
    """Return one stored policy version, the current one without a number. Raises `NothingFound`."""
    stored = policies.current() if version is None else _stored(policies, version)
    if stored is None and version is None:
        raise NothingFound(
            "No policy was applied yet. Write one and run: tollgate policy apply FILE"
        )
    if stored is None:
        raise NothingFound(
            f"There is no policy version {version}. tollgate policy history lists them."
        )
    return stored


def _stored(policies: PolicyStore, version: int) -> StoredPolicy | None:
    """Return a policy version by its number, None if there is none or Postgres could not hold the
    number.
    """
    return policies.get(version) if 0 < version <= MAX_VERSION else None


def readable(stored: StoredPolicy | None) -> Policy | None:
    """Return the stored policy, parsed, for a comparison; None if this release cannot read it."""
    try:
        return None if stored is None else version_of(stored).policy
    except PolicyRejected:
        note(
            f"Version {stored.version if stored else 0} is not valid for this Tollgate; "
            "everything is shown as added."
        )
        return None


def price_notes(parsed: ParsedPolicy, toolbox: Toolbox) -> Iterator[Finding]:
    """Yield a note for people on each deployment without any price.

    The codec knows only the document, not the price list.
    """

    policy = parsed.policy
    prices = prices_of(policy, at=toolbox.now(), builtin=builtin_price)
    for name in unpriced(policy, prices):
        if policy.deployments[name].is_self_hosted:
            continue  # the codec's own note covers it
        file, line = next(_lines_with(name, parsed), ("", 1))
        message = (
            f"deployment '{name}' has no price here or in the built-in list: its "
            "requests are refused"
        )
        yield Finding(
            line,
            "deployments",
            f"{message} (unpriced_model); add 'price' to it, or: tollgate price add --deployment "
            f"{name} …",
            is_error=False,
            file=file,
        )


def _lines_with(name: str, parsed: ParsedPolicy) -> Iterator[tuple[str, int]]:
    """Yield the lines of a document that hold a name: the path of its file, and the number."""
    for file in parsed.files:
        for number, text in enumerate(file.text.splitlines(), 1):
            if name in text:
                yield file.path, number

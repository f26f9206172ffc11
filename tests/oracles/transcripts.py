"""Reads the golden transcripts as files. It imports nothing of the gateway: the judges' environment
does not have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Transcript:
    """One folder of `tests/golden`."""

    name: str

    @property
    def folder(self) -> Path:
        """The folder of the transcript."""
        return GOLDEN / self.name

    @property
    def case(self) -> dict[str, Any]:
        """The expectation that was worked out by hand."""
        found: dict[str, Any] = json.loads((self.folder / "case.json").read_text())
        return found

    @property
    def request(self) -> dict[str, Any]:
        """The caller's request."""
        found: dict[str, Any] = json.loads((self.folder / "request.json").read_text())
        return found

    @property
    def sent(self) -> dict[str, Any]:
        """The request that the provider gets."""
        found: dict[str, Any] = json.loads((self.folder / "sent.json").read_text())
        return found

    @property
    def upstream(self) -> Path:
        """The file with the provider's bytes."""
        return next(self.folder.glob("upstream.*"))

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The whole answer to the caller, or the data of each event of its stream."""
        path = next(self.folder.glob("answer.*"))
        return list(_texts(path.read_text(), is_whole=path.suffix == ".json"))

    def __str__(self) -> str:
        """Name the test."""
        return self.name


def transcripts() -> list[Transcript]:
    """Return every transcript that is no error answer."""
    names = sorted(
        path.parent.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/*/case.json")
    )
    return [Transcript(name) for name in names if "/error" not in name]


def _texts(text: str, *, is_whole: bool) -> Iterator[dict[str, Any]]:
    if is_whole:
        yield json.loads(text)
        return
    for line in text.splitlines():
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            yield json.loads(line[5:])

"""Documents as the reader before pydantic read them: version 0.1.0 keeps its meaning."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.parsed_policy import parse
from gateway.wire.policy import document_yaml, effective
from tests.policy.documents import findings

READINGS = json.loads(
    (Path(__file__).parent / "golden" / "former_reader.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("reading", READINGS, ids=range(len(READINGS)))
def test_a_document_is_read_as_before(reading: dict[str, Any]) -> None:
    """A stored version must not change by an upgrade, nor the errors that scripts and people know.

    6,000 documents were compared when the reader changed; these 24 stand for them.
    """
    text = reading["document"]
    if "findings" in reading:
        found = findings(text) or ()
        assert [[one.line, one.field, one.message] for one in found] == reading["findings"]
        return
    parsed = parse(text)
    former = document_yaml(_as_before(effective(parsed.policy)))
    assert sha256(former.encode()).hexdigest() == reading["effective_sha256"]
    notes = [note for note in parsed.notes if "cached prompts" not in note.message]
    assert [[note.line, note.field, note.message] for note in notes] == reading["notes"]


def _as_before(document: dict[str, Any]) -> dict[str, Any]:
    """Return an effective document without the fields and the operation that came later."""
    for deployment in document["deployments"]:
        del deployment["native"], deployment["untranslatable"]
        del deployment["hosted_rounds"], deployment["hosted_tools"]
        del deployment["unlisted"], deployment["listed"], deployment["refuses"]
        deployment.pop("idle_cost", None)  # of own deployments
        deployment.pop("prompt_cache", None)
        deployment["operations"] = [one for one in deployment["operations"] if one != "messages"]
    for later in ("email", "spikes_above_usd"):
        document.get("alerts", {}).pop(later, None)
    return document

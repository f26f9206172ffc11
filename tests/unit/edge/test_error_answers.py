"""Every error the gateway raises on purpose has a status, a dialect and a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import errors
from gateway.api.errors import RETRYING_HELPS, STATUSES, error_answer
from gateway.domain.ledger.usage_event import Outcome

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def classes(
    of: type[errors.TollgateError] = errors.RequestError,
) -> Iterator[type[errors.TollgateError]]:
    for child in of.__subclasses__():
        yield child
        yield from classes(child)


REQUEST_ERRORS = sorted(classes(), key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", REQUEST_ERRORS)
def test_every_error_has_a_status_and_all_four_members(kind: type[errors.RequestError]) -> None:
    """A class without a status would be a 500; a body without a member loses its text in some
    SDK.
    """
    status, headers, body = error_answer(kind("what happened", param="field", retry_after_s=1.5))
    assert status == STATUSES[kind]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["message"], error["param"], error["code"]) == (
        "what happened",
        "field",
        kind.code,
    )
    named = dict(headers)
    assert named[b"content-type"] == b"application/json"
    assert named[b"retry-after-ms"] == b"1500"
    is_twin = kind is errors.IdempotencyConflict  # with a time to retry: its twin is in flight
    assert (named.get(b"x-should-retry") == b"false") == (
        status not in RETRYING_HELPS and not is_twin
    )


def test_retry_after_is_a_whole_number_of_seconds_or_absent() -> None:
    """SDKs read whole seconds; a zero would make them hammer, and after more than 120 they do not
    come back.
    """
    for seconds, value in ((1, b"1"), (0.02, b"1"), (1.2, b"2"), (3600, b"120")):
        _, headers, _ = error_answer(errors.RateLimited("slow down", retry_after_s=seconds))
        assert (b"retry-after", value) in headers
    assert not any(
        name.startswith(b"retry-after") for name, _ in error_answer(errors.RateLimited("x"))[1]
    )


def test_a_finished_twin_is_not_worth_a_retry() -> None:
    """The first answer is not kept: asking again can only be refused again."""
    _, headers, _ = error_answer(errors.IdempotencyConflict("it has finished"))
    assert (b"x-should-retry", b"false") in headers


@pytest.mark.parametrize("kind", REQUEST_ERRORS)
def test_every_error_is_documented_with_its_status(kind: type[errors.RequestError]) -> None:
    """Codes are a promise: docs/reference/errors.md has one row for each."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\d{3}) \| \S.* \| \S.* \|$", (REFERENCE / "errors.md").read_text(), re.M
    )
    assert (kind.code, str(STATUSES[kind])) in rows


def test_nothing_is_documented_that_does_not_exist() -> None:
    """The page lists the codes of this version, no more."""
    codes = re.findall(r"^\| `(\w+)` \| \d{3} \|", (REFERENCE / "errors.md").read_text(), re.M)
    assert sorted(codes) == sorted({kind.code for kind in REQUEST_ERRORS})


def test_every_outcome_is_documented() -> None:
    """docs/reference/outcomes.md has one row for each way an attempt can end."""
    rows = re.findall(r"^\| `(\w+)` \|", (REFERENCE / "outcomes.md").read_text(), re.M)
    assert [row for row in rows if row in [outcome.value for outcome in Outcome]] == [
        o.value for o in Outcome
    ]


def test_codes_are_unique() -> None:
    """A program that branches on a code must not meet two meanings of it."""
    codes = [kind.code for kind in REQUEST_ERRORS if kind.__base__ is errors.RequestError]
    assert len(codes) == len(set(codes))


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """A newcomer reads the drawing; it names every class and every code."""
    drawn = dict(re.findall(r"[├└]── (\w+)\s+(\w+)", errors.__doc__ or ""))
    assert {kind.__name__: kind.code for kind in REQUEST_ERRORS}.items() <= drawn.items()

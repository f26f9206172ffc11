"""`tollgate key`: two keys overlap in a rotation, a pause can be taken back, and every change says
who and why.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.cli.conftest import Cli


def created(cli: Cli, *more: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        cli.ok("key", "create", "payments", *more, "--format", "json")
    )
    return made


def listed(cli: Cli, *more: str) -> dict[str, dict[str, Any]]:
    return {
        row["key_id"]: row for row in json.loads(cli.ok("key", "list", *more, "--format", "json"))
    }


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_two_live_keys_overlap_in_a_rotation(applied: Cli) -> None:
    """Apps change over one by one: for a while both keys must work."""
    old = created(applied, "--project", "checkout")
    ran = applied(
        "key",
        "rotate",
        old["key_id"],
        "--overlap",
        "12h",
        "--reason",
        "quarterly",
        "--format",
        "json",
    )
    assert ran.code == 0
    new = json.loads(ran.out)
    assert list(new) == [
        "key",
        "key_id",
        "team",
        "project",
        "expires_at",
        "replaces",
        "replaced_until",
    ]
    assert (new["team"], new["project"], new["expires_at"], new["replaces"]) == (
        "payments",
        "checkout",
        None,
        old["key_id"],
    )
    rows = listed(applied)
    assert {row["state"] for row in rows.values()} == {"live"}
    assert rows[new["key_id"]]["replaces"] == old["key_id"]
    left = moment(rows[old["key_id"]]["expires_at"]) - moment(rows[new["key_id"]]["created_at"])
    assert abs(left - timedelta(hours=12)) < timedelta(minutes=1)
    assert new["key"] not in applied.ok("key", "list", "--all")
    assert "only time the key is shown" in ran.err


def test_a_new_key_lives_as_long_as_the_old_one_did(applied: Cli) -> None:
    """A team whose keys last 90 days must not get one for ever by rotating it."""
    old = created(applied, "--expires", "90d")
    new = json.loads(applied.ok("key", "rotate", old["key_id"], "--format", "json"))
    life = moment(new["expires_at"]) - moment(old["expires_at"])
    assert timedelta(0) <= life < timedelta(minutes=1)
    assert moment(new["replaced_until"]) < moment(old["expires_at"])


def test_a_rotation_never_lengthens_a_key(applied: Cli) -> None:
    """The overlap is for apps to change over, not for a key to outlive its end."""
    old = created(applied, "--expires", "2h")
    new = json.loads(
        applied.ok("key", "rotate", old["key_id"], "--overlap", "52w", "--format", "json")
    )
    assert new["replaced_until"] == old["expires_at"]


def test_a_key_that_is_not_live_cannot_be_rotated(applied: Cli) -> None:
    """A rotation of a stopped key would hand out a working one."""
    paused, revoked, twice = created(applied), created(applied), created(applied)
    applied.ok("key", "pause", paused["key_id"])
    applied.ok("key", "revoke", revoked["key_id"])
    new = json.loads(applied.ok("key", "rotate", twice["key_id"], "--format", "json"))
    for key, message in ((paused, "key resume"), (revoked, "is revoked"), (twice, new["key_id"])):
        ran = applied("key", "rotate", key["key_id"])
        assert ran.code == 2
        assert message in ran.err
    assert applied("key", "rotate", "AAAAAAAAAA").code == 1
    assert applied("key", "rotate", paused["key_id"], "--overlap", "soon").code == 2
    assert len(listed(applied, "--all")) == 4


def test_a_pause_is_shown_and_taken_back(applied: Cli) -> None:
    """A key that loops is stopped first and judged later."""
    key = created(applied)
    applied.ok("key", "pause", key["key"], "--reason", "loops since midnight")
    row = listed(applied)[key["key_id"]]
    assert (row["state"], row["paused_at"] is None) == ("paused", False)
    assert "paused before" in applied("key", "pause", key["key_id"]).err
    applied.ok("key", "resume", key["key_id"], "--reason", "fixed")
    assert listed(applied)[key["key_id"]]["state"] == "live"
    assert "was not paused" in applied("key", "resume", key["key_id"]).err


def test_a_revoked_key_comes_back_by_no_command(applied: Cli) -> None:
    """Revoked is for good: it may be in somebody else's hands."""
    key = created(applied)
    applied.ok("key", "pause", key["key_id"])
    applied.ok("key", "revoke", key["key_id"])
    assert listed(applied, "--all")[key["key_id"]]["state"] == "revoked"
    assert applied("key", "resume", key["key_id"]).code == 2
    assert applied("key", "pause", key["key_id"]).code == 2
    assert listed(applied, "--all")[key["key_id"]]["state"] == "revoked"


@pytest.mark.parametrize("verb", ["pause", "resume", "revoke"])
def test_an_unknown_key_is_reported(applied: Cli, verb: str) -> None:
    """A typo in an incident must not look like success."""
    ran = applied("key", verb, "AAAAAAAAAA")
    assert ran.code == 1
    assert "no key 'AAAAAAAAAA'" in ran.err


def test_every_change_of_a_key_says_why(applied: Cli) -> None:
    """Half a year later somebody asks about each of them."""
    key = created(applied, "--reason", "launch")
    for verb in ("pause", "resume", "rotate", "revoke"):
        applied.ok("key", verb, key["key_id"], "--reason", f"because of {verb}")
    acts = json.loads(applied.ok("audit", "list", "--action", "key.", "--format", "json"))
    assert [(act["action"], act["subject"], act["reason"]) for act in acts] == [
        ("key.create", key["key_id"], "launch"),
        ("key.pause", key["key_id"], "because of pause"),
        ("key.resume", key["key_id"], "because of resume"),
        ("key.rotate", key["key_id"], "because of rotate"),
        ("key.revoke", key["key_id"], "because of revoke"),
    ]


@pytest.mark.parametrize("project", ["check out", "a/b:c@d+e", "true", "x" * 64])
def test_a_key_may_have_each_project_that_the_policy_allows(applied: Cli, project: str) -> None:
    """A budget of such a project had no key: the command took fewer names than the policy."""
    key_id = created(applied, "--project", project)["key_id"]
    assert listed(applied)[key_id]["project"] == project


@pytest.mark.parametrize("project", ["", " x", "-x", "*", "ä", "x" * 65, "a=b", "a\nb"])
def test_a_key_has_no_other_project(applied: Cli, project: str) -> None:
    """No header could name it, and no policy."""
    ran = applied("key", "create", "payments", "--project", project)
    assert ran.code == 2
    assert "letters, digits, blanks and . _ : / @ + -" in ran.err

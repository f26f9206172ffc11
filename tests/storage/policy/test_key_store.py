"""Stored API keys, and the pepper that hashes them."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import text

from gateway.domain.policy.api_keys import Pepper
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.policy import pepper
from gateway.storage.policy.keys import KeyStore
from gateway.storage.postgres.database import Database
from tests.storage.factories import NOON, PEPPER, key

OTHER = Pepper(b"another pepper of enough bytes")


def test_a_key_comes_back_as_it_was_stored(database: Database) -> None:
    """A digest that lost a byte would lock its team out."""
    record = key(
        project="checkout",
        expires_at=NOON + timedelta(days=90),
        is_demo=True,
        digest=bytes(range(32)),
    )
    store = KeyStore(database)
    store.create(record, created_by="ada")
    found = store.find(record.key_id)
    assert found is not None
    assert (found.record, found.created_by, found.revoked_at, found.revoked_by) == (
        record,
        "ada",
        None,
        None,
    )
    assert store.live() == [record]
    assert store.list_all() == [found]


def test_a_revoked_key_is_not_live_but_still_listed(database: Database) -> None:
    """An audit also asks about keys that no longer work."""
    store = KeyStore(database)
    store.create(key("k000000001"), created_by="ada")
    store.create(key("k000000002"), created_by="ada")
    assert store.revoke("k000000001", revoked_by="bob")
    assert store.live() == [key("k000000002")]
    assert [(k.record.key_id, k.revoked_by) for k in store.list_all()] == [
        ("k000000001", "bob"),
        ("k000000002", None),
    ]


def test_revoking_twice_keeps_the_first_record(database: Database) -> None:
    """The person and the time of a revocation are evidence."""
    store = KeyStore(database)
    store.create(key(), created_by="ada")
    assert store.revoke("k123456789", revoked_by="bob")
    assert not store.revoke("k123456789", revoked_by="eve")
    assert not store.revoke("nosuchkey1", revoked_by="eve")
    found = store.find("k123456789")
    assert found is not None
    assert found.revoked_by == "bob"


def test_a_paused_key_is_known_as_paused(database: Database) -> None:
    """Gateways must know it; otherwise its caller would get the error for an unknown key."""
    store = KeyStore(database)
    store.create(key(), created_by="ada")
    assert store.pause("k123456789", paused_by="bob")
    assert not store.pause("k123456789", paused_by="eve")
    assert store.live() == [key(is_paused=True)]
    found = store.find("k123456789")
    assert found is not None
    assert (found.paused_by, found.state(NOON)) == ("bob", "paused")
    assert store.resume("k123456789")
    assert not store.resume("k123456789")
    assert store.live() == [key()]


def test_a_revoked_key_is_neither_paused_nor_resumed(database: Database) -> None:
    """A revocation is permanent."""
    store = KeyStore(database)
    store.create(key(), created_by="ada")
    assert store.pause("k123456789", paused_by="bob")
    assert store.revoke("k123456789", revoked_by="bob")
    assert not store.resume("k123456789")
    assert not store.pause("k123456789", paused_by="bob")
    assert store.live() == []


def test_of_two_simultaneous_rotations_one_is_refused(database: Database) -> None:
    """Two successors of one key would both be live, and the one in use by the apps would be
    unknown.
    """
    store = KeyStore(database)
    store.create(key(), created_by="ada")
    ready = Barrier(2)

    def rotate(number: int) -> str:
        ready.wait()
        made = key(f"k00000000{number}")
        try:
            store.rotate(
                "k123456789",
                make=lambda _: made,
                ends_at=NOON,
                by="ada",
                now=NOON - timedelta(days=1),
            )
        except BadUsage as refused:
            return "replaced" if "was replaced by" in refused.message else refused.message
        return "rotated"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(rotate, range(2))) == ["replaced", "rotated"]
    assert len(store.live()) == 2


def test_an_id_is_taken_once(database: Database) -> None:
    """A second key with the same id would authenticate one team as another."""
    store = KeyStore(database)
    store.create(key(team="payments"), created_by="ada")
    with pytest.raises(BadUsage, match="exists already"):
        store.create(key(team="fraud"), created_by="ada")
    assert store.live() == [key(team="payments")]


def test_an_unknown_key_is_not_found(database: Database) -> None:
    """Nothing found is an answer, not an error."""
    assert KeyStore(database).find("nosuchkey1") is None


def test_a_new_pepper_is_private_and_stays(tmp_path: Path) -> None:
    """A second `db upgrade` must not replace it: every key would stop working."""
    path = tmp_path / "home" / "pepper"
    pepper.create(path)
    first = pepper.load(path)
    pepper.create(path)
    assert pepper.load(path) == first
    assert len(first) == 1
    assert len(first[0].secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_two_peppers_are_live_during_a_rotation(tmp_path: Path) -> None:
    """The first line makes new keys; old ones still match the second."""
    path = tmp_path / "pepper"
    path.touch(mode=0o600)
    path.write_text("00" * 16 + "\n//////////////////////8=\n")
    assert [p.secret for p in pepper.load(path)] == [bytes(16), b"\xff" * 17]


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("00" * 32, 0o660, "chmod 600"),  # 0640 of root's own is a mounted Secret
        ("00" * 32, 0o604, "chmod 600"),
        ("", 0o600, "is empty. Restore it from a backup"),
        ("00" * 32 + "\n" + "11" * 32 + "\n" + "22" * 32, 0o600, "it has 3"),
        ("0011", 0o600, "at least 16 bytes"),
        ("not-hex-and-not-base64!", 0o600, "hex or base64"),
        ("é" * 40, 0o600, "hex or base64"),
    ],
)
def test_a_pepper_file_that_is_not_right_is_refused(
    tmp_path: Path, content: str, mode: int, problem: str
) -> None:
    """Each message names the remedy; none repeats the secret."""
    path = tmp_path / "pepper"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(BadUsage, match=problem) as refused:
        pepper.load(path)
    assert not content or content not in str(refused.value)


def test_a_missing_pepper_says_how_to_make_one(tmp_path: Path) -> None:
    """A missing pepper is the most common first mistake."""
    with pytest.raises(BadUsage, match=r"tollgate db upgrade.*TOLLGATE_PEPPER_FILE"):
        pepper.load(tmp_path / "none")


def test_a_pepper_of_another_database_is_refused(database: Database) -> None:
    """Otherwise every key would look mistyped: an authentication error with the wrong cause."""
    KeyStore(database).create(key(), created_by="ada")
    pepper.register(database, [PEPPER])
    with pytest.raises(BadUsage, match="belongs to another database"):
        pepper.register(database, [OTHER])
    with pytest.raises(BadUsage, match="belongs to another database"):
        pepper.check(database, [OTHER])
    pepper.check(database, [PEPPER])


def test_a_pepper_may_be_rotated(database: Database) -> None:
    """The new pepper is first used beside the old one and later alone."""
    KeyStore(database).create(key(), created_by="ada")
    pepper.register(database, [PEPPER])
    pepper.register(database, [OTHER, PEPPER])
    pepper.register(database, [OTHER])
    with database.begin() as connection:
        known = connection.execute(text("SELECT pepper_id FROM tollgate.peppers")).scalars().all()
    assert set(known) == {PEPPER.pepper_id, OTHER.pepper_id}


def test_the_gateways_role_registers_peppers_and_reads_keys(
    database: Database, database_url: str
) -> None:
    """`serve` does both at its start, in the gateway's role."""
    KeyStore(database).create(key(), created_by="ada")
    gateway = Database(database_url, role="tollgate_gateway")
    pepper.register(gateway, [PEPPER])
    pepper.register(gateway, [PEPPER])
    assert KeyStore(gateway).live() == [key()]
    with pytest.raises(DatabaseUnavailable, match="may not do this"):
        KeyStore(gateway).create(key("k000000002"), created_by="gateway")
    gateway.close()

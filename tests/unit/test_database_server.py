"""The findings about a Postgres server: each has the step that mends it, and a good server has
none.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.domain.checks import Status
from gateway.domain.database_server import UNSUITABLE, HeldLock, ServerFacts, server_checks

GOOD = ServerFacts(
    database="ledger",
    fsync=True,
    full_page_writes=True,
    settings=(),
    standbys=0,
    synchronous_standbys="",
    owner="tollgate",
    public_writes=(),
    public_locks=(),
    public_may_make_tables=False,
    public_may_make_temporary=False,
    limits_temporary_files=True,
    talkative=(),
    unlimited=(),
    read_limit=40,
    queue_share=0.0,
    locks=(),
)
HELD = HeldLock("policies", 7, "ada", "psql")


USUAL = {
    "synchronous_commit": "remote_apply",
    "statement_timeout": "5min",
    "transaction_timeout": "0",
    "idle_session_timeout": "1000",
    "default_transaction_read_only": "off",
    "session_replication_role": "origin",
}


def test_usual_settings_have_no_finding() -> None:
    """Each login of a careful administrator has limits; Tollgate's sessions set their own."""
    settings = tuple(("ROLE x", name, value) for name, value in USUAL.items())
    assert settings
    assert USUAL.keys() == UNSUITABLE.keys()
    assert list(server_checks(replace(GOOD, settings=settings))) == list(server_checks(GOOD))


def test_a_good_server_has_no_finding() -> None:
    """A warning that is always there is not read."""
    assert {check.status for check in server_checks(GOOD)} == {Status.OK}
    followed = replace(GOOD, standbys=2, synchronous_standbys="ANY 1 (*)")
    assert {check.status for check in server_checks(followed)} == {Status.OK}


@pytest.mark.parametrize(
    ("facts", "name", "status", "remedy"),
    [
        (replace(GOOD, fsync=False), "durability", Status.FAIL, "SET fsync = on"),
        (replace(GOOD, full_page_writes=False), "durability", Status.WARN, "full_page_writes = on"),
        (
            replace(GOOD, settings=(('ROLE "x"', "synchronous_commit", "off"),)),
            "synchronous_commit",
            Status.WARN,
            'ALTER ROLE "x" RESET synchronous_commit;',
        ),
        (
            replace(GOOD, settings=(("the server", "synchronous_commit", "local"),)),
            "synchronous_commit",
            Status.WARN,
            "ALTER SYSTEM RESET synchronous_commit;",
        ),
        (
            replace(
                GOOD,
                settings=(
                    ('ROLE "x" IN DATABASE "y"', "statement_timeout", "0.9 s"),
                    ("the server", "statement_timeout", "900"),
                ),
            ),
            "statement_timeout",
            Status.WARN,
            'ALTER ROLE "x" IN DATABASE "y" RESET statement_timeout;',
        ),
        (
            replace(GOOD, settings=(("DATABASE y", "default_transaction_read_only", "on"),)),
            "default_transaction_read_only",
            Status.FAIL,
            "ALTER DATABASE y RESET default_transaction_read_only;",
        ),
        (
            replace(GOOD, settings=(("ROLE ALL", "session_replication_role", "replica"),)),
            "session_replication_role",
            Status.FAIL,
            "ALTER ROLE ALL RESET session_replication_role;",
        ),
        (replace(GOOD, standbys=1), "standbys", Status.WARN, "synchronous_standby_names"),
        (replace(GOOD, public_writes=("lo_creat(integer)",)), "rights", Status.WARN, "lo_creat"),
        (
            replace(GOOD, public_locks=("pg_advisory_lock(bigint)",)),
            "rights",
            Status.WARN,
            "GRANT EXECUTE ON FUNCTION pg_advisory_lock(bigint) TO tollgate;",
        ),
        (
            replace(GOOD, talkative=("ada",)),
            "log",
            Status.WARN,
            "ALTER ROLE \"ada\" SET log_min_messages = 'fatal';",
        ),
        (replace(GOOD, public_may_make_tables=True), "rights", Status.WARN, "SCHEMA public"),
        (replace(GOOD, public_may_make_temporary=True), "rights", Status.WARN, "TEMPORARY"),
        (replace(GOOD, limits_temporary_files=False), "rights", Status.WARN, "temp_file_limit"),
        (
            replace(GOOD, unlimited=('b"i',)),
            "connections",
            Status.WARN,
            'ALTER ROLE "b""i" CONNECTION LIMIT 40;',
        ),
        (replace(GOOD, queue_share=0.6), "notifications", Status.WARN, "xact_start"),
        (
            replace(GOOD, locks=(replace(HELD, waiting=2),)),
            "locks",
            Status.WARN,
            "pg_terminate_backend(7)",
        ),
    ],
)
def test_each_finding_has_its_remedy(
    facts: ServerFacts, name: str, status: Status, remedy: str
) -> None:
    """An operator copies the SQL; without it a finding is a riddle."""
    (found,) = [check for check in server_checks(facts) if check.status is not Status.OK]
    assert (found.name, found.status) == (name, status)
    assert remedy in found.remedy


def test_holders_of_locks_are_named_without_a_wait_too() -> None:
    """An operator who is asked for the leader finds it."""
    *_, locks = server_checks(replace(GOOD, locks=(HELD,)))
    assert locks.finding == "no session waits (policies: process 7 of login ada (psql))"


@pytest.mark.parametrize("number", [1, 5, 6, 9])
def test_rights_of_roles_are_lost_loose_or_of_foreign_logins(number: int) -> None:
    """Lost ones fail; more than five are counted, so that a line stays readable."""
    found = tuple(f"right{one}" for one in range(number))
    lost = replace(GOOD, lost_rights=found)
    loose = replace(GOOD, loose_rights=found)
    foreign = replace(GOOD, foreign_logins=found, own_logins=('a"b',))
    for facts, status in ((lost, Status.FAIL), (loose, Status.WARN), (foreign, Status.WARN)):
        (check,) = [one for one in server_checks(facts) if one.status is not Status.OK]
        assert check.status is status
        assert [one for one in found if one in check.finding] == list(found[:5])
        assert (f"; and {number - 5} more" in check.finding) is (number > 5)
        assert check.remedy.startswith("as the owner of the ")
        assert ('"a""b"' in check.remedy) is (facts is foreign)

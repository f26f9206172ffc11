"""Judges the Postgres server behind an address: its losses in a crash or a failover, the rights of
every login, and waits for locks; asks no server.

A remedy for a superuser is a finding with its SQL. The embedded server has it done at its start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gateway.domain.checks import Check, Status

DURABLE = frozenset({"on", "remote_apply"})  # values of synchronous_commit that wait for disks
QUEUE_WARN_SHARE = 0.5  # of the queue of notifications; a full one stops policies and revocations
ROLE_RIGHTS = "rights of roles"  # the check of the rights that a fresh database has
MOST_NAMED = 5  # of the findings in one line
SHORTEST_MS = 1000  # of a limit that holds until a session has set its own
SERVER = "the server"  # the place of a setting that no login and no database has
TEMP_FILE_LIMIT = "8GB"  # of one session; sorting a month of ten million events takes 3 GB


_MS = {"": 1.0, "us": 0.001, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6, "d": 8.64e7}


def _is_short(limit: str) -> bool:
    """Return True for a limit of time that a session's first statement may exceed; 0 is none."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(\w*)\s*", limit)
    return found is not None and 0 < float(found[1]) * _MS.get(found[2], 1.0) < SHORTEST_MS


class _Unsuitable(NamedTuple):
    """The values of a setting that Tollgate cannot work with, and their effect."""

    has: Callable[[str], bool]
    status: Status
    effect: str


_SHORT = _Unsuitable(
    _is_short,
    Status.WARN,
    "it holds until a session of Tollgate has set its own, so Postgres may end each new one",
)
# The settings of a server, database or login that reach Tollgate's sessions: these set all others
# for themselves.
UNSUITABLE = {
    "synchronous_commit": _Unsuitable(
        lambda value: value not in DURABLE,
        Status.WARN,
        "Tollgate's sessions ask for on, but changes by hand may be undone by a crash",
    ),
    "statement_timeout": _SHORT,
    "transaction_timeout": _SHORT,
    "idle_session_timeout": _SHORT,
    "default_transaction_read_only": _Unsuitable(
        lambda value: value.lower() in ("on", "true", "yes", "1"),
        Status.FAIL,
        "nothing is booked. Hosts set it while the disk is full: make room first",
    ),
    "session_replication_role": _Unsuitable(
        lambda value: value.lower() != "origin",
        Status.FAIL,
        "the triggers that keep booked events and the audit log do not run",
    ),
}


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock of Tollgate that a session has, or for which another session waits.

    `waiting` is the number of sessions that have waited for it for more than a second.
    """

    name: str
    process: int
    login: str
    application: str
    waiting: int = 0

    @property
    def holder(self) -> str:
        """Return the session for messages, so that an administrator can end it."""
        named = f" ({self.application})" if self.application else ""
        return f"process {self.process} of login {self.login or '?'}{named}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The settings and rights of a server, as any login may read them.

    `settings` are places (`SERVER`, or `DATABASE` or `ROLE` as in SQL), the names of `UNSUITABLE`
    that they set, and the values. `public_writes` are the functions with which every login may
    write to the disk, `public_locks` those with which it may take advisory locks. Of the logins
    beside the gateway's, `talkative` are those whose statements and errors reach the server's log,
    and `unlimited` those without a limit of connections. `read_limit` is the number that suits a
    reader's; `owner` is the owner of the tables.

    `lost_rights` are those of Tollgate's roles without which a program fails, `loose_rights` the
    other differences from a fresh database. Logins of another Tollgate database that may enter
    this one are `foreign_logins`; `own_logins` are the owner and the other members of the roles.
    """

    database: str
    fsync: bool
    full_page_writes: bool
    settings: tuple[tuple[str, str, str], ...]
    standbys: int
    synchronous_standbys: str
    owner: str
    public_writes: tuple[str, ...]
    public_locks: tuple[str, ...]
    public_may_make_tables: bool
    public_may_make_temporary: bool
    limits_temporary_files: bool
    talkative: tuple[str, ...]
    unlimited: tuple[str, ...]
    read_limit: int
    queue_share: float
    locks: tuple[HeldLock, ...]
    lost_rights: tuple[str, ...] = ()
    loose_rights: tuple[str, ...] = ()
    foreign_logins: tuple[str, ...] = ()
    own_logins: tuple[str, ...] = ()


def server_checks(facts: ServerFacts) -> Iterator[Check]:
    """Yield the checks of durability, of the rights of every login, of connections and of locks."""
    yield _durability(facts)
    yield from _settings(facts)
    if facts.standbys and not facts.synchronous_standbys:
        yield Check(
            "standbys",
            Status.WARN,
            f"{facts.standbys} server(s) copy this one later: a failover to one of them loses the "
            "events, budgets and revoked keys that it had not received yet",
            "as a superuser: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT "
            "pg_reload_conf();",
        )
    yield _rights(facts)
    yield from _rights_of_roles(facts)
    if facts.unlimited:
        yield Check(
            "connections",
            Status.WARN,
            f"no limit of connections: {', '.join(facts.unlimited)}; one of them can take all that "
            "the gateway needs",
            " ".join(
                f"ALTER ROLE {quoted(login)} CONNECTION LIMIT {facts.read_limit};"
                for login in facts.unlimited
            ),
        )
    if facts.talkative:
        yield Check(
            "log",
            Status.WARN,
            f"these logins may fill the server's disk by its log: {', '.join(facts.talkative)}",
            "as a superuser: "
            + " ".join(
                f"ALTER ROLE {quoted(login)} SET log_min_messages = 'fatal';"
                for login in facts.talkative
            ),
        )
    if facts.queue_share > QUEUE_WARN_SHARE:
        yield Check(
            "notifications",
            Status.WARN,
            f"the queue of notifications is {facts.queue_share:.0%} full: when it is full, no key "
            "can be revoked and no policy applied",
            "end the session that listens with an open transaction: SELECT pid, usename, "
            "xact_start FROM pg_stat_activity ORDER BY xact_start LIMIT 5;",
        )
    yield _locks(facts)


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _durability(facts: ServerFacts) -> Check:
    """Return the check of the losses in a crash of the server itself."""
    if not facts.fsync:
        return Check(
            "durability",
            Status.FAIL,
            "fsync is off: after a power cut this server has lost or damaged booked events",
            "as a superuser: ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();",
        )
    if not facts.full_page_writes:
        return Check(
            "durability",
            Status.WARN,
            "full_page_writes is off: a power cut may damage pages, unless the file system writes "
            "each page whole (as ZFS does)",
            "as a superuser: ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf();",
        )
    return Check(
        "durability", Status.OK, "fsync is on, and each of Tollgate's commits waits for the disk"
    )


def _settings(facts: ServerFacts) -> Iterator[Check]:
    """Yield a finding for each place that sets what Tollgate cannot work with; the server's own
    value only if no login or database explains it.
    """
    found = [setting for setting in facts.settings if UNSUITABLE[setting[1]].has(setting[2])]
    for place, name, value in found:
        if place != SERVER:
            remedy = f"as an administrator: ALTER {place} RESET {name};"
        elif any(other != SERVER and name == explained for other, explained, _ in found):
            continue
        else:
            remedy = f"as a superuser: ALTER SYSTEM RESET {name}; SELECT pg_reload_conf();"
        unsuitable = UNSUITABLE[name]
        finding = f"{place} sets it to {value}: {unsuitable.effect}"
        yield Check(name, unsuitable.status, finding, remedy)


def _rights(facts: ServerFacts) -> Check:
    """Return the check of the rights of every login, so also of a reader, to write on the disk."""
    database = quoted(facts.database)
    findings, remedies = [], []
    if facts.public_writes:
        findings.append("make large objects")
        remedies.append(
            f"as a superuser: REVOKE EXECUTE ON FUNCTION {', '.join(facts.public_writes)} FROM "
            "PUBLIC;"
        )
    if facts.public_locks:
        findings.append("take every lock of the server")
        locks = ", ".join(facts.public_locks)
        remedies += [
            f"as a superuser: GRANT EXECUTE ON FUNCTION {locks} TO {facts.owner};",
            "as a superuser, in each database that such a login may enter, where no other program "
            f"takes such locks: REVOKE EXECUTE ON FUNCTION {locks} FROM PUBLIC;",
        ]
    if facts.public_may_make_tables:
        findings.append("make tables in schema public")
        remedies.append("as its owner: REVOKE CREATE ON SCHEMA public FROM PUBLIC;")
    if facts.public_may_make_temporary:
        findings.append("make temporary tables")
        remedies.append(
            f"as its owner: REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC; GRANT TEMPORARY "
            f"ON DATABASE {database} TO tollgate_gateway, tollgate_admin;"
        )
    if not facts.limits_temporary_files:
        findings.append("fill the disk by the temporary files of one question")
        remedies.append(
            f"as a superuser: ALTER DATABASE {database} SET temp_file_limit = '{TEMP_FILE_LIMIT}';"
        )
    if findings:
        finding = f"every login of this server, so also a reader, may {'; '.join(findings)}"
        return Check("rights", Status.WARN, finding, "\n".join(remedies))
    return Check("rights", Status.OK, "a login without rights of its own can keep nothing here")


def _rights_of_roles(facts: ServerFacts) -> Iterator[Check]:
    """Yield the findings on the rights of Tollgate's own roles and logins: lost ones, as after a
    restored dump, and the way in for the logins of another Tollgate database.
    """
    remedy = f"as the owner of the tables ({facts.owner}): tollgate db upgrade"
    if facts.lost_rights:
        yield Check(ROLE_RIGHTS, Status.FAIL, _shortened(facts.lost_rights), remedy)
    if facts.loose_rights:
        finding = _shortened(facts.loose_rights)
        yield Check(ROLE_RIGHTS, Status.WARN, finding, f"{remedy}; or as a superuser")
    if facts.foreign_logins:
        database = quoted(facts.database)
        kept = ", ".join(map(quoted, facts.own_logins))
        yield Check(
            "rights of logins",
            Status.WARN,
            "logins of another Tollgate database on this server may read and write this one: "
            f"{_shortened(facts.foreign_logins)}",
            f"as the owner of the database: GRANT CONNECT ON DATABASE {database} TO {kept}; REVOKE "
            f"CONNECT ON DATABASE {database} FROM PUBLIC; (name each other login that needs it)",
        )


def _shortened(findings: tuple[str, ...]) -> str:
    """Return the first findings, and the number of the others."""
    more = len(findings) - MOST_NAMED
    return "; ".join(findings[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _locks(facts: ServerFacts) -> Check:
    """Return the check of Tollgate's locks: who has them, and whether others wait."""
    waited = [lock for lock in facts.locks if lock.waiting]
    if waited:
        finding = "; ".join(
            f"{lock.holder} has {lock.name}, and {lock.waiting} wait for it" for lock in waited
        )
        ends = " ".join(
            f"SELECT pg_terminate_backend({process});"
            for process in sorted({lock.process for lock in waited})
        )
        return Check("locks", Status.WARN, finding, f"as a superuser or that login: {ends}")
    held = "; ".join(f"{lock.name}: {lock.holder}" for lock in facts.locks)
    return Check("locks", Status.OK, f"no session waits{f' ({held})' if held else ''}")

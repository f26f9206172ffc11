"""Yields `doctor`'s checks of the ledger: the journals on this machine; and in Postgres the
workers, unknown usage, partitions, dead letters and roll-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gateway.domain.calendar_months import last_required_month
from gateway.domain.checks import Check, Status
from gateway.domain.ledger.health import RUNBOOKS, WRITER_LAG_WARN_S, state_checks
from gateway.domain.policy.unlisted_use import refused_use, teams_with_hard_budgets
from gateway.storage.journal import journals_on
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.state import read_state
from gateway.storage.ledger.unlisted_use import unlisted_uses
from gateway.storage.postgres.database import Database

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.ledger.journals import StoredJournal
    from gateway.domain.policy.policy import Policy

UNLISTED_DAYS, MOST_TEAMS = timedelta(days=30), 10
# Compared with every event in them, so limited to a second or two.
ROLLUP_HOURS = timedelta(hours=3)


def journal_checks(toolbox: Toolbox) -> Iterator[Check]:
    """Check the journal files below this home; warn of unreadable ones and of those that a gone
    gateway left behind.
    """
    odd: list[str] = []
    found = journals_on(
        toolbox.options.journal_path, on_odd=lambda journal_id, _: odd.append(str(journal_id))
    )
    left = [listing for listing in found if not listing.is_held]
    used_mib = sum(listing.used_bytes for listing in found) / 2**20
    finding = (
        f"{len(found)} on this machine, {used_mib:.1f} MiB; {len(found) - len(left)} "
        "held by a running gateway"
    )
    if odd:
        unread = f"{finding}; cannot be read: {', '.join(odd)}"
        yield Check(
            "journals",
            Status.WARN,
            unread,
            f"look at owner and rights below {toolbox.options.journal_path}",
        )
    if left:
        names = ", ".join(str(listing.journal_id) for listing in left)
        remedy = f"start a gateway on {toolbox.options.journal_path}: it writes their events"
        yield Check(
            "journals", Status.WARN, f"{finding}; left behind by one that is gone: {names}", remedy
        )
    if not odd and not left:
        yield Check("journals", Status.OK, finding)


def ledger_checks(toolbox: Toolbox, database: Database) -> Iterator[Check]:
    """Check the ledger in Postgres: silent workers, unknown usage, partitions, dead letters,
    roll-ups.
    """
    now = toolbox.now()
    yield _workers(JournalTable(database).all(), now=now)
    yield from state_checks(
        read_state(
            database,
            partitions_until=last_required_month(now.date()),
            rollup_since=(now - ROLLUP_HOURS).replace(minute=0, second=0, microsecond=0),
        )
    )


def unlisted_check(toolbox: Toolbox, database: Database, policy: Policy) -> Check:
    """Check if hard budgets would refuse requests of the last 30 days for their members."""
    teams = teams_with_hard_budgets(policy)
    since = toolbox.now() - UNLISTED_DAYS
    uses = unlisted_uses(database, teams=teams, since=since) if teams else ()
    refused = refused_use(policy, uses)
    if not refused:
        return Check("unlisted members", Status.OK, "no request of the last 30 days had one")
    finding = "; ".join(
        f"{one.team}: "
        + ", ".join(
            part
            for part in (
                f"{one.attempts:,} with {', '.join(one.names)}" if one.attempts else "",
                f"{one.unrecorded:,} with members that were not recorded" if one.unrecorded else "",
            )
            if part
        )
        for one in refused[:MOST_TEAMS]
    )
    return Check(
        "unlisted members",
        Status.WARN,
        f"a hard budget would refuse such requests of the last 30 days: {finding}",
        "leave them out, or add listed, unlisted: drop or unlisted: {factor: N} to the deployment "
        "(docs/guides/budgets.md)",
    )


def _workers(journals: Sequence[StoredJournal], *, now: datetime) -> Check:
    """Check when the workers last wrote, and warn if one is silent for too long: its journal holds
    events, or it is gone.
    """
    live = [journal for journal in journals if journal.state == "live"]
    if not live:
        return Check("writers", Status.OK, "no worker is running")
    oldest = min(live, key=lambda journal: journal.heartbeat)
    lag_s = (now - oldest.heartbeat).total_seconds()
    finding = (
        f"{len(live)} worker(s); the slowest one last wrote {lag_s:.0f} s ago ({oldest.replica})"
    )
    if lag_s < WRITER_LAG_WARN_S:
        return Check("writers", Status.OK, finding)
    return Check(
        "writers", Status.WARN, finding, f"see {RUNBOOKS}/writer-lag.md; tollgate journal list"
    )

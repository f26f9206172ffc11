"""Builds the ledger's health checks from one worker's journal figures and from Postgres's figures
for all workers; measures nothing.

The limits are those of the alert rules (deploy/alerts), so that `doctor`, `/readyz` and an alert
agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.checks import Check, Status

RUNBOOKS = "docs/runbooks"
DISK_SHARE = 0.8  # reservations and partly used segments take less than a fifth of a journal
JOURNAL_WARN_SHARE = 0.5  # five minutes of a journal that holds ten
# Longer than any attempt may run (`timeouts.total_s` is 600 by default) plus its drain.
UNSETTLED_WARN_S = 900.0
WRITER_LAG_WARN_S = 60.0
UNKNOWN_WARN_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHealth:
    """One worker's journal and writer, now.

    `oldest_unsettled_s` is the age of the oldest attempt still running. `writer_lag_s` is the age
    of the oldest settled record that is not in Postgres yet. `failing_since_s` is the time since
    writes began to fail. Each is None if there is none.
    """

    journal_used_bytes: int
    journal_max_bytes: int
    oldest_unsettled_s: float | None = None
    writer_lag_s: float | None = None
    waiting_events: int = 0
    is_full: bool = False
    is_gone: bool = False  # its folder was removed or moved away
    failing_since_s: float | None = None
    journal_room_bytes: int | None = None  # its disk's remaining space; None if it was not checked

    @property
    def journal_share(self) -> float:
        """Return the used share of the journal, 0 to 1, counting space that its full disk cannot
        provide.
        """
        if not self.journal_max_bytes:
            return 1.0
        used = self.journal_used_bytes / self.journal_max_bytes
        return (
            used
            if not self.lacks_disk
            else 1 - (self.journal_room_bytes or 0) / self.journal_max_bytes
        )

    @property
    def lacks_disk(self) -> bool:
        """Return True if the disk has less room than the journal may still take; its last
        segments are never whole.
        """
        room = self.journal_room_bytes
        left = self.journal_max_bytes - self.journal_used_bytes
        return room is not None and room < left * DISK_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """Postgres's state of the ledger, for all workers together.

    `missing_partitions` are those of this month and the next ones. `unknown_last_hour` counts
    unresolved attempts. `has_wrong_rollup` is None if the roll-up was not compared with the events.
    `future_events` carry a time that is yet to come: a gateway's clock was wrong. The events of
    `detached_partitions` are in no report.
    """

    missing_partitions: tuple[str, ...]
    default_partition_rows: int
    dead_letters: int
    conflicting_events: int
    attempts_last_hour: int
    unknown_last_hour: int
    has_wrong_rollup: bool | None = None
    future_events: int = 0
    detached_partitions: tuple[str, ...] = ()

    @property
    def unknown_share(self) -> float:
        """Return the share of the last hour's attempts with unknown usage, 0 to 1."""
        return self.unknown_last_hour / self.attempts_last_hour if self.attempts_last_hour else 0.0


def health_checks(health: LedgerHealth) -> tuple[Check, ...]:
    """Return the checks on one worker's journal, its unsettled attempts and its writer to
    Postgres.
    """
    return (_journal(health), _unsettled(health), _writer(health))


def state_checks(state: LedgerState) -> tuple[Check, ...]:
    """Return the checks on the whole ledger, from Postgres's figures for all workers."""
    return (
        _unknown(state),
        _partitions(state),
        _dead_letters(state),
        _conflicts(state),
        _rollup(state),
    )


def _journal(health: LedgerHealth) -> Check:
    """Return the check on the journal: FAIL if it is full or its folder is gone, a warning if half
    of it is used.
    """
    finding = (
        f"{_mebibytes(health.journal_used_bytes)} of {_mebibytes(health.journal_max_bytes)} MiB in "
        f"use ({health.journal_used_bytes / (health.journal_max_bytes or 1):.0%})"
    )
    if health.lacks_disk:
        finding += f"; its disk has room for {_mebibytes(health.journal_room_bytes or 0)} MiB more"
    if health.is_gone:
        finding = f"its folder was removed or moved away ({finding}); nothing new is admitted"
        return Check("journal", Status.FAIL, finding, _remedy("journal-gone"))
    if health.is_full:
        return Check(
            "journal",
            Status.FAIL,
            f"full: {finding}; nothing new is admitted",
            _remedy("journal-filling"),
        )
    if health.journal_share >= JOURNAL_WARN_SHARE:
        return Check("journal", Status.WARN, finding, _remedy("journal-filling"))
    return Check("journal", Status.OK, finding)


def _unsettled(health: LedgerHealth) -> Check:
    """Return the check on the oldest unsettled attempt: a warning if it is older than any attempt
    may run.
    """
    age_s = health.oldest_unsettled_s
    if age_s is None:
        return Check("unsettled attempts", Status.OK, "none is running")
    finding = f"the oldest has been running for {age_s:.0f} s"
    if age_s < UNSETTLED_WARN_S:
        return Check("unsettled attempts", Status.OK, finding)
    return Check("unsettled attempts", Status.WARN, finding, _remedy("journal-filling"))


def _writer(health: LedgerHealth) -> Check:
    """Return the check on the writer of events to Postgres: a warning if events wait too long or
    Postgres takes none.
    """
    lag_s = health.writer_lag_s or 0.0
    finding = f"{health.waiting_events:,} event(s) wait, the oldest for {lag_s:.0f} s"
    if health.failing_since_s is not None:
        finding += f"; Postgres has taken none for {health.failing_since_s:.0f} s"
    if lag_s < WRITER_LAG_WARN_S and health.failing_since_s is None:
        return Check("writer", Status.OK, finding)
    return Check(
        "writer", Status.WARN, f"{finding}; nothing is lost meanwhile", _remedy("writer-lag")
    )


def _unknown(state: LedgerState) -> Check:
    """Return the check on attempts of unknown usage: a warning if they are too large a share of the
    last hour's.
    """
    finding = (
        f"{state.unknown_last_hour:,} of {state.attempts_last_hour:,} attempts of the "
        "last hour are unknown"
    )
    if state.unknown_share <= UNKNOWN_WARN_SHARE:
        return Check("unknown usage", Status.OK, finding)
    return Check(
        "unknown usage",
        Status.WARN,
        f"{finding} ({state.unknown_share:.1%})",
        _remedy("unknown-usage"),
    )


def _partitions(state: LedgerState) -> Check:
    """Return the check on the ledger's partitions: FAIL if one is detached, a warning if a coming
    month's is missing or events are in the default one.
    """
    wrong = []
    if state.detached_partitions:
        names = ", ".join(state.detached_partitions)
        wrong.append(f"detached: {names}: their events are in no report and in no month")
    if state.missing_partitions:
        wrong.append(f"missing: {', '.join(state.missing_partitions)}")
    if state.default_partition_rows:
        wrong.append(f"{state.default_partition_rows:,} event(s) in the default partition")
    if state.future_events:
        wrong.append(
            f"{state.future_events:,} event(s) are dated in the future, and posted to the month of "
            "that date: a gateway's clock was wrong"
        )
    if wrong:
        return Check(
            "partitions",
            Status.FAIL if state.detached_partitions else Status.WARN,
            "; ".join(wrong),
            f"tollgate db upgrade; {_remedy('partition-missing')}",
        )
    return Check("partitions", Status.OK, "the coming months have theirs; the default one is empty")


def _dead_letters(state: LedgerState) -> Check:
    """Return the check on dead letters, records that Postgres refused: a warning if any exist."""
    if state.dead_letters:
        finding = f"{state.dead_letters:,} dead letter(s): records that Postgres refused"
        return Check("dead letters", Status.WARN, finding, _remedy("rejected-events"))
    return Check("dead letters", Status.OK, "none")


def _conflicts(state: LedgerState) -> Check:
    """Return the check on events that came again with other content: a warning if there are any."""
    if state.conflicting_events:
        finding = f"{state.conflicting_events:,} event(s) came again with other content"
        return Check("conflicting events", Status.WARN, finding, _remedy("rejected-events"))
    return Check("conflicting events", Status.OK, "none")


def _rollup(state: LedgerState) -> Check:
    """Return the check on the roll-up: FAIL if the given state says that it differs from the
    events; compares nothing itself.
    """
    if state.has_wrong_rollup is None:
        return Check("roll-up", Status.OK, "compared with the events by tollgate doctor alone")
    if state.has_wrong_rollup:
        return Check(
            "roll-up",
            Status.FAIL,
            "differs from the events",
            "tollgate db upgrade has it summed again; report it",
        )
    return Check("roll-up", Status.OK, "agrees with the events")


def _remedy(runbook: str) -> str:
    """Return the remedy that names a runbook."""
    return f"see {RUNBOOKS}/{runbook}.md"


def _mebibytes(size: int) -> str:
    """Return a number of bytes in MiB, without the unit."""
    return f"{size / 2**20:.1f}"

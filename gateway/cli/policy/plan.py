"""Runs `tollgate policy plan`, and makes the plan that `apply` shows: compares a document with the
current policy, and prints changes, harm and past cost.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.key import duration
from gateway.cli.policy.document import FilesArgument, read_policy, readable
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    Table,
    note,
    print_json,
    show,
    table_text,
    write,
)
from gateway.cli.terminal.progress import ProgressStep
from gateway.domain.money import format_usd, nusd_from_usd, usd_from_nusd
from gateway.domain.policy.policy import Policy, PolicyVersion
from gateway.domain.routing.replay import Place, Refusal
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.reports.report import Dataset
from gateway.services.policy.apply import document_sha256, prices_of
from gateway.services.policy.past_prices import PastPrices
from gateway.services.policy.plan import HarmfulChange, Plan, PlanContext
from gateway.services.policy.plan import plan as planned
from gateway.services.policy.plan_messages import notes
from gateway.services.policy.policy_diff import Change
from gateway.services.policy.replay import PastSource, Replay, RouteTally, replay
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.wire.parsed_policy import ParsedPolicy

if TYPE_CHECKING:
    from gateway.cli.toolbox import CredentialProblem, Toolbox
    from gateway.domain.policy.stored_policy import StoredPolicy
    from gateway.reports.reports import Reports
    from gateway.storage.policy.keys import KeyStore
    from gateway.storage.postgres.database import Database

QUIET_S = 2.0  # most replays take less
WEEK = timedelta(days=7)
ReplayOption = Annotated[
    str | None,
    typer.Option(
        "--replay", metavar="TIME", help="Decide the requests of this time again, such as 30d."
    ),
]
DemoOption = Annotated[
    bool, typer.Option("--demo", help="Replay generated demo data in place of real events.")
]


def plan(
    ctx: typer.Context,
    files: FilesArgument,
    past: ReplayOption = None,
    demo: DemoOption = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 1 if anything changes.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the changes of applying a document, the harmful ones first, and change nothing.

    With --replay past requests are decided again under the document: their destinations, costs,
    latency and refusals. CSV has the replay's rows, or the changes without one.
    """

    toolbox: Toolbox = ctx.obj
    parsed = read_policy(files)
    with toolbox.open_admin() as database:
        current = PolicyStore(database).current()
        made = make_plan(toolbox, database, parsed, current=current, past=past, demo=demo)
    if format is Format.JSON:
        print_json(_as_record(made))
    elif format is Format.CSV:
        show(
            _changes_table(made.changes) if made.replay is None else _replay_table(made.replay),
            format,
            empty="",
        )
        note(made.sentence)
    else:
        show_plan(made, lambda text: write(f"{text}\n"))
    if exit_code and made.changes:
        raise typer.Exit(1)


def make_plan(
    toolbox: Toolbox,
    database: Database,
    parsed: ParsedPolicy,
    *,
    current: StoredPolicy | None,
    past: str | None = None,
    demo: bool = False,
) -> Plan:
    """Compare a document with the policy in force and return the plan; with `past` (`30d`) also by
    the requests of that time.
    """

    now, policy = toolbox.now(), parsed.policy
    stored = PriceStore(database)
    known = readable(current)
    before = (
        None
        if current is None or known is None
        else _version(current.version, current.document, known)
    )
    after = _version(1 if current is None else current.version + 1, parsed.text, policy)
    book = stored.book(policy.deployments.values())
    place = Place(gateway_region=toolbox.options.region, day=now.date())
    with toolbox.open_reports() as reports:
        around = PlanContext(
            live_keys=_live_keys(KeyStore(database), now),
            traffic=_traffic(reports, now),
            used_nusd=_used(reports, now),
            unresolved=_unresolved(policy, toolbox.credentials.secret_problem),
            place=place,
            prices=prices_of(policy, at=now, builtin=builtin_price, book=book),
            charged=stored.charged(policy.deployments),
        )
        found: Replay | None = None
        if past is not None:
            dataset = Dataset.DEMO if demo else Dataset.REAL
            prices = PastPrices(policy, builtin=builtin_price, book=book)
            with reports.past_traffic(
                since=now - _replay_period(past), until=now, dataset=dataset
            ) as source:
                found = _replayed(after, source, prices, place)
    return planned(before, after, around=around, replay=found, now=now)


def show_plan(made: Plan, say: Callable[[str], None]) -> None:
    """Print a plan for people: harm, differences, replay and summary."""
    say(f"Compared with version {made.version}:" if made.version else "The first policy:")
    for hurt in made.hurts:
        if not hurt.is_note:
            say(f"  HURTS: {hurt.message}.")
    marks = {"added": "+", "removed": "-", "changed": "~"}
    for change in made.changes:
        say(f"  {marks[change.verb]} {change.kind} {change.name}")
        for detail in change.details:
            say(f"      {detail}")
    if not made.changes:
        say("  no difference in meaning")
    for hurt in made.hurts:
        if hurt.is_note:
            say(f"Note: {hurt.message}.")
    if made.replay is not None and made.replay.tallies:
        say(_replay_text(made.replay).rstrip("\n"))
        for one in notes(made.replay):
            say(f"Note: {one}")
    say(made.sentence)


def _replayed(after: PolicyVersion, source: PastSource, prices: PastPrices, place: Place) -> Replay:
    """Decide past requests again under the version `after`, with progress on standard error."""
    with ProgressStep("Replaying past requests", quiet_s=QUIET_S, out=sys.stderr) as step:
        return replay(
            after,
            source,
            prices=prices,
            place=place,
            on_progress=lambda done, requests: step.advance(f"{requests:,} requests", done=done),
        )


def _version(number: int, document: str, policy: Policy) -> PolicyVersion:
    """Return a parsed policy as a numbered version, for a comparison; nothing is stored."""
    return PolicyVersion(version=number, sha256=document_sha256(document), policy=policy)


def _replay_period(text: str) -> timedelta:
    """Parse the value of `--replay` as a time span. Raises `BadUsage`."""
    length = duration(text)
    if not length:
        raise BadUsage("--replay must name some time, such as 30d.")
    return length


def _traffic(reports: Reports, now: datetime) -> Mapping[tuple[str, str], int]:
    """Return each team's requests on each route in the last week; empty, with a note, if the
    reports' server is away.

    Reports may be on another server: a policy can be applied without them.
    """
    try:
        return reports.recent_traffic(now - WEEK)
    except DatabaseUnavailable as away:
        note(f"Which routes were used last week is not known: {away.message}")
        return {}


def _used(reports: Reports, now: datetime) -> Mapping[str, int]:
    """Return the amounts that are spent and leased in the running periods, by budget rule; empty,
    with a note, if the reports' server is away.
    """
    used: Counter[str] = Counter()
    try:
        for one in reports.budgets(now):
            amount_usd = one.spent_usd + one.leased_usd + one.taken_over_usd
            used[one.rule or one.budget] += nusd_from_usd(amount_usd)
    except DatabaseUnavailable as away:
        note(f"What the budgets have spent is not known: {away.message}")
    return used


def _live_keys(keys: KeyStore, now: datetime) -> Mapping[str, int]:
    """Return the number of live api keys of each team; expired ones do not count."""
    live = [key for key in keys.live() if key.expires_at is None or key.expires_at > now]
    return Counter(key.team for key in live)


def _unresolved(policy: Policy, secret_problem: CredentialProblem) -> Mapping[str, str]:
    """Return the deployments whose secret cannot be used on this machine, each with the reason."""
    found = {name: secret_problem(one) for name, one in policy.deployments.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def _replay_table(made: Replay) -> Table:
    """Return a replay as a table for CSV, a row for each team and route."""
    records = [_row(tally, made) for tally in made.tallies]
    columns = tuple(records[0]) if records else ("team", "route")
    return Table(columns, [tuple(record.values()) for record in records])


def _row(tally: RouteTally, made: Replay) -> dict[str, Any]:
    """Return the replayed figures of one team's route as a record for programs."""
    latency = tally.latency(made.speeds)
    return {
        "team": tally.team,
        "route": tally.route,
        "requests": tally.requests,
        "moved": sum(tally.moved.values()),
        "moves": [f"{way.before}→{way.after}: {count}" for way, count in tally.moved.items()],
        "cost_before_usd": usd_from_nusd(tally.cost_before_nusd),
        "cost_after_usd": usd_from_nusd(tally.cost_after_nusd),
        "difference_usd": usd_from_nusd(tally.cost_after_nusd - tally.cost_before_nusd),
        "not_compared": tally.unknown,
        "ttft_before_s": _seconds(latency.ttft_before_s),
        "ttft_after_s": _seconds(latency.ttft_after_s),
        "tpot_before_s": _seconds(latency.tpot_before_s),
        "tpot_after_s": _seconds(latency.tpot_after_s),
        **{f"refused_{refusal}": tally.refused[refusal] for refusal in Refusal},
        "blocked_budget": tally.blocked.total(),
    }


def _as_record(made: Plan) -> dict[str, Any]:
    """Return a plan as a record for JSON."""
    return {
        "version": made.version,
        "hurts": [_harm_record(hurt) for hurt in made.hurts],
        "changes": _changes_table(made.changes).records(),
        "replay": None if made.replay is None else _replay_record(made.replay),
        "sentence": made.sentence,
    }


def _replay_record(made: Replay) -> dict[str, Any]:
    """Return a replay as a record for JSON: totals, regions, and rows by team and route."""
    rows = []
    for tally in made.tallies:
        moves = [
            {"from": way.before, "to": way.after, "requests": count}
            for way, count in tally.moved.items()
        ]
        rows.append(_row(tally, made) | {"moves": moves, "blocked": dict(tally.blocked)})
    return {
        "first_at": made.first_at,
        "last_at": made.last_at,
        "requests": made.requests,
        "cost_before_usd": usd_from_nusd(made.cost_before_nusd),
        "cost_after_usd": usd_from_nusd(made.cost_after_nusd),
        "difference_usd": usd_from_nusd(made.cost_after_nusd - made.cost_before_nusd),
        "regions_before": made.regions_before,
        "regions_after": made.regions_after,
        "rows": rows,
        "notes": list(notes(made)),
    }


def _harm_record(hurt: HarmfulChange) -> dict[str, Any]:
    """Return one harmful change as a record for JSON."""
    return {"kind": hurt.kind, "name": hurt.name, "message": hurt.message, "is_note": hurt.is_note}


def _changes_table(changes: tuple[Change, ...]) -> Table:
    """Return the differences between two policies as a table."""
    return Table(
        ("verb", "kind", "name", "details"),
        [(c.verb, c.kind, c.name, list(c.details)) for c in changes],
    )


def _replay_text(made: Replay) -> str:
    """Return the replay as a table for people, without columns that are equal everywhere."""
    columns = (
        "team",
        "route",
        "requests",
        "moved",
        "cost before",
        "after",
        "difference",
        "ttft",
        "tpot",
        "refused",
    )
    rows = [_tally_cells(tally, made) for tally in made.tallies]
    return table_text(
        columns,
        rows,
        lambda place: columns[place] in ("requests", "cost before", "after", "difference"),
    )


def _tally_cells(tally: RouteTally, made: Replay) -> list[str]:
    """Return one route's row of the replay table: requests, moves, costs, latency and refusals."""
    before, after = usd_from_nusd(tally.cost_before_nusd), usd_from_nusd(tally.cost_after_nusd)
    latency = tally.latency(made.speeds)
    refused = [f"{count:,} {refusal}" for refusal, count in sorted(tally.refused.items())]
    refused += [f"{count:,} {account}" for account, count in sorted(tally.blocked.items())]
    return [
        tally.team,
        tally.route,
        f"{tally.requests:,}",
        ", ".join(f"{way.before}→{way.after} {count:,}" for way, count in tally.moved.items())
        or "—",
        format_usd(before),
        format_usd(after),
        _signed(after - before),
        _from_to(latency.ttft_before_s, latency.ttft_after_s),
        _from_to(latency.tpot_before_s, latency.tpot_after_s),
        ", ".join(refused) or "—",
    ]


def _signed(amount_usd: Decimal) -> str:
    """Return an amount in USD with its sign: plus for a rise of the cost."""
    return f"+{format_usd(amount_usd)}" if amount_usd > 0 else format_usd(amount_usd)


def _from_to(before_s: float | None, after_s: float | None) -> str:
    """Return two latencies as `before→after` for people, or one of them if they look the same."""
    words = ["—" if value is None else f"{value:.3g} s" for value in (before_s, after_s)]
    return words[0] if words[0] == words[1] else "→".join(words)


def _seconds(value: float | None) -> Decimal | None:
    """Return seconds for JSON and CSV, to the microsecond."""
    return None if value is None else Decimal(f"{value:.6f}")

"""Budgets, limits and alerts of a document: the resulting policy, the errors, the notes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.attribution import project
from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.budgets.limits import NO_LIMITS, Limits
from gateway.domain.policy.policy import Alerts, CostCentre
from gateway.errors import InvalidRequest
from gateway.services.policy.policy_diff import Change, changes
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, to_yaml
from tests.policy.documents import ALLOWED, EXAMPLE, changed, findings

USD = 10**9
ALERTS = 'alerts: {webhook: "https://hooks.example/messages", secret: "env:TOLLGATE_ALERT_SECRET"}'
MONTHLY = "{period: month, limit_usd: 5000, alert_at: [0.5, 1.0, 0.80]}"
ONCE = "{period: once, limit_usd: 200.000000001, name: pilot-2026, overdraft_usd: 1}"

# (the replaced text in the example with budgets, its replacement, line, field, a part of the
# message)
WRONG = [
    (
        "period: week",
        "period: weekly",
        48,
        "teams[0].projects[0].budgets[0].period",
        "did you mean 'week'?",
    ),
    ("period: week, ", "", 48, "teams[0].projects[0].budgets[0].period", "is missing"),
    (
        "limit_usd: 700",
        "limit_usd: 0",
        48,
        "teams[0].projects[0].budgets[0].limit_usd",
        "above 0 to 9000000",
    ),
    (
        "limit_usd: 700",
        "limit_usd: 0.0000000001",
        48,
        "teams[0].projects[0].budgets[0].limit_usd",
        "nine decimals",
    ),
    ("limit_usd: 700", "limit_usd: 1,000", 48, "teams[0].projects[0].budgets[0]", "must be text"),
    (
        "limit_usd: 700",
        "limit_usd: 7e2",
        48,
        "teams[0].projects[0].budgets[0].limit_usd",
        "plain decimal",
    ),
    (
        "limit_usd: 9000000",
        "limit_usd: 9000000.01",
        55,
        "cost_centres[0].budgets[0].limit_usd",
        "to 9000000",
    ),
    (
        "kind: soft",
        "kind: softly",
        48,
        "teams[0].projects[0].budgets[0].kind",
        "did you mean 'soft'?",
    ),
    (
        "kind: soft",
        "kind: soft, overdraft_usd: 1",
        48,
        "teams[0].projects[0].budgets[0].overdraft_usd",
        "a soft budget refuses nothing",
    ),
    (
        "[0.5, 1.0, 0.80]",
        "[0.5, 1.0, 0.50]",
        44,
        "teams[0].budgets[0].alert_at[2]",
        "0.50 is there twice",
    ),
    ("[0.5, 1.0, 0.80]", "[0]", 44, "teams[0].budgets[0].alert_at[0]", "above 0 to 10"),
    ("[0.5, 1.0, 0.80]", "[10.1]", 44, "teams[0].budgets[0].alert_at[0]", "above 0 to 10"),
    ("[0.5, 1.0, 0.80]", "0.5", 44, "teams[0].budgets[0].alert_at", "must be a list"),
    ("pilot-2026", "pilot/2026", 45, "teams[0].budgets[1].name", "letters, digits"),
    ("pilot-2026", "'pilot:2026'", 45, "teams[0].budgets[1].name", "letters, digits"),
    ("pilot-2026", "cost_centre", 45, "teams[0].budgets[1].name", "is reserved"),
    (
        "overdraft_usd: 1",
        "overdraft_usd: -1",
        45,
        "teams[0].budgets[1].overdraft_usd",
        "from 0 to 9000000",
    ),
    (
        ONCE,
        MONTHLY,
        45,
        "teams[0].budgets[1].period",
        "budget 'payments/month' is there twice (first in line 44); remove one, or give one of "
        "them a 'name'",
    ),
    (
        "night-job",
        "pilot-2026",
        52,
        "teams[0].keys[1].budgets[0].name",
        "budget 'pilot-2026' is there twice (first in line 45); choose another name",
    ),
    (
        "[{period: month, limit_usd: 1000}]",
        "[{period: month, limit_usd: 1}, {period: month, limit_usd: 2}]",
        49,
        "teams[0].projects[1].budgets[1].period",
        "'payments/project:*/month' is there twice (first in line 49)",
    ),
    (
        "9000000}]",
        "9}, {period: month, limit_usd: 8}]",
        55,
        "cost_centres[0].budgets[1].period",
        "'cost_centre:CC-0042/month' is there twice",
    ),
    ("Europe/Berlin", "Europe/Berlino", 42, "teams[0].time_zone", "did you mean 'Europe/Berlin'?"),
    ("Europe/Berlin", "xxxx", 42, "teams[0].time_zone", "write an IANA name such as Europe/Berlin"),
    ("Europe/Berlin", "localtime", 42, "teams[0].time_zone", "is not a time zone"),
    ("Europe/Berlin", "../../etc/passwd", 42, "teams[0].time_zone", "is not a time zone"),
    ("America/Havana", "2", 55, "cost_centres[0].time_zone", "must be text"),
    ("concurrent: 50", "concurrent: 0", 46, "teams[0].limits.concurrent", "from 1 to"),
    ("concurrent: 50", "concurrent: 1.5", 46, "teams[0].limits.concurrent", "a whole number"),
    ("concurrent: 50", "parallel: 50", 46, "teams[0].limits.parallel", "no such field"),
    ("{requests_per_minute: 60}", "[60]", 51, "teams[0].keys[0].limits", "must be a mapping"),
    ("{concurrent: 8}", "{concurrent: -8}", 33, "deployments[2].limits.concurrent", "from 1 to"),
    (
        'name: "*"',
        "name: checkout",
        49,
        "teams[0].projects[1].name",
        "project 'checkout' is there twice",
    ),
    ('name: "*"', "name: '**'", 49, "teams[0].projects[1].name", "each project that is not named"),
    (
        "key: 0A1b2C3d4E",
        'key: "*"',
        52,
        "teams[0].keys[1].key",
        "key '*' is there twice (first in line 51)",
    ),
    ("key: 0A1b2C3d4E", "key: tg_0A1b2C3d4E_x", 52, "teams[0].keys[1].key", "never the key itself"),
    ("key: 0A1b2C3d4E, ", "", 52, "teams[0].keys[1].key", "is missing"),
    (
        "max_output_tokens: 4096",
        "max_output_tokens: 0",
        35,
        "routes[0].max_output_tokens",
        "from 1 to",
    ),
    (
        "cost_centres:\n",
        "cost_centres:\n  - {name: CC-0042}\n",
        56,
        "cost_centres[1].name",
        "cost centre 'CC-0042' is there twice",
    ),
    (
        "https://hooks.example/messages",
        "http://hooks.example/x",
        56,
        "alerts.webhook",
        "unencrypted",
    ),
    (
        "https://hooks.example/messages",
        "https://a:b@hooks.example/x",
        56,
        "alerts.webhook",
        "its own field",
    ),
    (', secret: "env:TOLLGATE_ALERT_SECRET"', "", 56, "alerts.secret", "is missing"),
    ("env:TOLLGATE_ALERT_SECRET", "hunter2", 56, "alerts.secret", "never the secret itself"),
    ('webhook: "https://hooks.example/messages", ', "", 56, "alerts.webhook", "is missing"),
    (ALERTS, "alerts: {}", 56, "alerts", "name a webhook and its secret, or email"),
    (ALERTS, "alerts: {email: [a, b@c.example]}", 56, "alerts.email[0]", "a plain address"),
    (
        ALERTS,
        'alerts: {email: ["a@b.example\\nBcc: c@d.example"]}',
        56,
        "alerts.email[0]",
        "a plain address",
    ),
    (
        ALERTS,
        "alerts: {email: [a@b.example, a@b.example]}",
        56,
        "alerts.email[1]",
        "is there twice",
    ),
    (
        ALERTS,
        f"alerts: {{email: [{', '.join(f'a{n}@b.example' for n in range(21))}]}}",
        56,
        "alerts.email",
        "more than 20 addresses",
    ),
    (ALERTS, "alerts: {spikes_above_usd: -1}", 56, "alerts.spikes_above_usd", "must be USD"),
]

ODD = [
    (ALERTS, "alerts: {spikes_above_usd: 50}", 56, "alerts", "names no webhook and no email"),
    (
        ", limits: {requests_per_minute: 60}}",
        ", limits: {}}",
        51,
        "teams[0].keys[0].limits",
        "limits nothing",
    ),
    ("tokens_per_minute: 9000", "", 48, "teams[0].projects[0].limits", "limits nothing"),
    (
        "{requests_per_minute: 600, tokens_per_minute: 200000, concurrent: 50}",
        "{}",
        46,
        "teams[0].limits",
        "limits nothing",
    ),
    ("{concurrent: 8}", "{}", 33, "deployments[2].limits", "limits nothing"),
    (
        ", budgets: [{period: month, limit_usd: 1000}]}",
        "}",
        49,
        "teams[0].projects[1]",
        "it changes nothing",
    ),
    (
        "name: CC-0042, ",
        "name: CC-42, ",
        55,
        "cost_centres[0].name",
        "no team has cost centre 'CC-42'",
    ),
    (
        "name: CC-0042, ",
        "name: CC-42, ",
        38,
        "teams",
        "unlimited: search (no budgets and no limits)",
    ),
    (
        'alerts: {webhook: "https://hooks.example/messages", secret: '
        '"env:TOLLGATE_ALERT_SECRET"}\n',
        "",
        44,
        "teams[0].budgets[0].alert_at",
        "only in log and metrics",
    ),
    (
        "{period: day, limit_usd: 20}",
        "{period: month, limit_usd: 5001}",
        51,
        "teams[0].keys[0].budgets[0].limit_usd",
        "is larger than the whole team's, payments/month of 5000 USD",
    ),
    (
        "limit_usd: 1000}",
        "limit_usd: 5000.5}",
        49,
        "teams[0].projects[1].budgets[0].limit_usd",
        "larger than the",
    ),
    (  # the smaller one of two for the same period
        "{period: once, limit_usd: 200.000000001, name: pilot-2026, overdraft_usd: 1}",
        "{period: month, limit_usd: 900, name: pilot-2026}",
        49,
        "teams[0].projects[1].budgets[0].limit_usd",
        "is larger than the whole team's, pilot-2026 of 900 USD",
    ),
    (
        ", max_output_tokens: 4096",
        "",
        35,
        "routes[0].deployments[1]",
        "nothing bounds an answer of 'gpt-eu' here: neither the route nor the deployment has "
        "max_output_tokens, nor is there a context_window; if callers give no maximum, such "
        "requests of teams with a hard budget (payments, search) are refused",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "field", "part"), WRONG)
def test_a_wrong_allowance_is_found_with_line_and_field(
    old: str, new: str, line: int, field: str, part: str
) -> None:
    """A budget that was mistyped and accepted is found when the money is gone."""
    text = changed(old, new, text=ALLOWED)
    found = [f for f in findings(text) or () if f.field == field and f.line == line]
    assert [f for f in found if part in f.message], findings(text)


@pytest.mark.parametrize(("old", "new", "line", "field", "part"), ODD)
def test_an_odd_allowance_is_noted(old: str, new: str, line: int, field: str, part: str) -> None:
    """It is not the author's likely intention, but may be intended."""
    notes = parse(changed(old, new, text=ALLOWED)).notes
    assert [n for n in notes if (n.line, n.field) == (line, field) and part in n.message], notes
    assert not any(note.is_error for note in notes)


def test_a_wrong_owner_hides_no_other_mistake() -> None:
    """A budget whose owner or period cannot be read has no identity, and the rest is still
    checked.
    """
    text = changed("name: payments", "name: 'pay ments'", text=ALLOWED)
    text = changed("name: CC-0042, ", "", text=changed("period: hour", "period: hours", text=text))
    text = changed("night-job", "'night job'", text=text)
    assert [(f.line, f.field) for f in findings(text) or ()] == [
        (38, "teams[0].name"),
        (52, "teams[0].keys[1].budgets[0].period"),
        (52, "teams[0].keys[1].budgets[0].name"),
        (55, "cost_centres[0].name"),
    ]


def test_every_allowance_reaches_the_policy() -> None:
    """In whole nano-dollars, in the team's time zone, the team's own first."""
    policy = parse(ALLOWED).policy
    team, shares = policy.teams["payments"], tuple(map(Decimal, ("0.5", "0.8", "1")))

    def rule(rule_id: str, scope: BudgetScope, owner: str, *rest: Any, **others: Any) -> BudgetRule:
        period, limit_nusd = rest
        return BudgetRule(
            rule_id=rule_id,
            scope=scope,
            team="payments",
            owner=owner,
            period=period,
            limit_nusd=limit_nusd,
            time_zone="Europe/Berlin",
            **others,
        )

    of_team, of_project, of_key = BudgetScope.TEAM, BudgetScope.PROJECT, BudgetScope.KEY
    assert team.budgets == (
        rule(
            "payments/month", of_team, "payments", BudgetPeriod.MONTH, 5000 * USD, alert_at=shares
        ),
        rule(
            "pilot-2026", of_team, "payments", BudgetPeriod.ONCE, 200 * USD + 1, overdraft_nusd=USD
        ),
        rule(
            "payments/project:checkout/week",
            of_project,
            "checkout",
            BudgetPeriod.WEEK,
            700 * USD,
            kind=BudgetKind.SOFT,
        ),
        rule("payments/project:*/month", of_project, "*", BudgetPeriod.MONTH, 1000 * USD),
        rule("payments/key:*/day", of_key, "*", BudgetPeriod.DAY, 20 * USD),
        rule("night-job", of_key, "0A1b2C3d4E", BudgetPeriod.HOUR, USD // 2),
    )
    assert [str(share) for share in team.budgets[0].alert_at] == ["0.5", "0.8", "1"]
    assert team.time_zone == "Europe/Berlin"
    assert team.limits == Limits(requests_per_minute=600, tokens_per_minute=200000, concurrent=50)
    assert team.project_limits == {"checkout": Limits(tokens_per_minute=9000)}
    assert team.key_limits == {"*": Limits(requests_per_minute=60)}
    (shared,) = policy.cost_centres["CC-0042"].budgets
    assert policy.cost_centres == {
        "CC-0042": CostCentre(name="CC-0042", time_zone="America/Havana", budgets=(shared,))
    }
    assert shared == BudgetRule(
        rule_id="cost_centre:CC-0042/month",
        scope=BudgetScope.COST_CENTRE,
        team=None,
        owner="CC-0042",
        period=BudgetPeriod.MONTH,
        limit_nusd=9_000_000 * USD,
        time_zone="America/Havana",
    )
    assert policy.alerts == Alerts(
        webhook="https://hooks.example/messages", secret="env:TOLLGATE_ALERT_SECRET"
    )
    assert policy.routes["assistant"].max_output_tokens == 4096
    assert policy.deployments["partner"].limits == Limits(concurrent=8)
    assert policy.deployments["gpt-eu"].limits == policy.teams["search"].limits == NO_LIMITS


def test_the_example_with_budgets_has_nothing_odd() -> None:
    """It is a model policy, except for the region that its provider states twice, and that two
    teams share a provider's cache.
    """
    assert [note.field for note in parse(ALLOWED).notes] == ["deployments", "deployments[1].region"]


def test_empty_allowances_are_those_of_a_document_without_any() -> None:
    """A template may list every field."""
    empty = "routes: [assistant], budgets: [], limits: {}, projects: [], keys: []}"
    text = changed("routes: [assistant]}", empty) + "cost_centres: []\n"
    assert parse(text).policy == parse(EXAMPLE).policy


def test_nothing_is_noted_of_answers_that_are_bounded_or_not_held_for() -> None:
    """A note that is always there is not read."""
    unbounded = changed(", max_output_tokens: 4096", "", text=ALLOWED)
    embeds = changed(
        "    region: eu\n", "    region: eu\n    operations: [embeddings]\n", text=unbounded
    )
    bounded = changed(
        "    region: eu\n", "    region: eu\n    max_output_tokens: 99\n", text=unbounded
    )
    soft = EXAMPLE.replace(
        "routes: [assistant]}",
        "routes: [assistant], budgets: [{period: day, limit_usd: 1, kind: soft}]}",
    )
    for text in (embeds, bounded, soft):
        assert not any("nothing bounds" in note.message for note in parse(text).notes)


def test_a_part_may_have_more_than_a_soft_budget_or_one_of_another_period() -> None:
    """Only a hard one of the same period is always used up first."""
    larger = "{period: month, limit_usd: 6000}"
    soft = changed("limit_usd: 5000", "kind: soft, limit_usd: 5000", text=ALLOWED)
    for text in (
        changed("{period: day, limit_usd: 20}", larger, text=soft),
        ALLOWED.replace("limit_usd: 20}", "limit_usd: 6000}"),
    ):
        assert not any("larger" in note.message for note in parse(text).notes)


def test_a_team_is_unlimited_only_if_no_limit_applies() -> None:
    """A limit of one of its keys is one that somebody thought of."""
    for field in (
        "limits: {concurrent: 1}",
        "keys: [{key: '*', limits: {concurrent: 1}}]",
        "projects: [{name: a, limits: {concurrent: 1}}]",
    ):
        notes = parse(changed("routes: [assistant]}", f"routes: [assistant], {field}}}")).notes
        assert notes[-1].message == "unlimited: search (no budgets and no limits)"


def test_many_unlimited_teams_are_not_all_listed() -> None:
    """A thousand names hide the other notes."""
    teams = "".join(
        f"  - {{name: t{n}, cost_centre: c, data_class: public, routes: [assistant]}}\n"
        for n in range(9)
    )
    assert parse(EXAMPLE + teams).notes[-1].message.startswith("unlimited: payments, search, t0")
    assert "t7 and 1 more (no" in parse(EXAMPLE + teams).notes[-1].message


@pytest.mark.parametrize(
    "name", ["a", "a" * 64, "a" * 65, "a b", " a", "-a", "a/b:c@d+e-f.g_h", "é", "a*", "a\n"]
)
def test_a_project_may_be_declared_as_requests_may_name_it(name: str) -> None:
    """A budget for a project that no request can name would never count."""
    try:
        is_named = project({"x-tollgate-project": name}, None) == name
    except InvalidRequest:
        is_named = False
    document = yaml.safe_load(EXAMPLE)
    document["teams"][0]["projects"] = [{"name": name}]
    assert (findings(yaml.safe_dump(document)) is None) == is_named


class Exact(yaml.CSafeDumper):
    """Writes a decimal as a person does."""


Exact.add_representer(
    Decimal,
    lambda dumper, number: dumper.represent_scalar("tag:yaml.org,2002:float", f"{number:.9f}"),
)

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True).filter(
    lambda name: name != "cost_centre"
)
amounts = st.decimals("0.000000001", 9_000_000, places=9, allow_nan=False)
limits = st.fixed_dictionaries(
    {},
    optional={
        "requests_per_minute": st.integers(1, 10**9),
        "tokens_per_minute": st.integers(1, 10**9),
        "concurrent": st.integers(1, 10**6),
    },
)


@st.composite
def budgets(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Budgets of one owner, without names: each period at most once."""
    found = []
    for period in draw(st.lists(st.sampled_from(list(BudgetPeriod)), unique=True, max_size=3)):
        kind = draw(st.sampled_from(list(BudgetKind)))
        shares = draw(st.lists(st.integers(1, 10_000), unique=True, max_size=3))
        found.append(
            {
                "period": period.value,
                "limit_usd": draw(amounts),
                "kind": kind.value,
                "alert_at": [Decimal(share) / 1000 for share in shares],
                "overdraft_usd": draw(amounts) if kind is BudgetKind.HARD else 0,
            }
        )
    return found


def owners(field: str, owner: st.SearchStrategy[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Blocks of projects or keys, each owner once."""
    block = st.fixed_dictionaries({field: owner}, optional={"budgets": budgets(), "limits": limits})
    return st.lists(block, max_size=3, unique_by=lambda entry: str(entry[field]))


allowances = st.fixed_dictionaries(
    {},
    optional={
        "time_zone": st.sampled_from(
            ["UTC", "Europe/Berlin", "America/Havana", "Asia/Kathmandu", "Pacific/Apia"]
        ),
        "budgets": budgets(),
        "limits": limits,
        "projects": owners(
            "name",
            st.from_regex(r"[A-Za-z][A-Za-z0-9._:/@+ -]{0,9}", fullmatch=True) | st.just("*"),
        ),
        "keys": owners("key", st.from_regex(r"[A-Za-z0-9]{9}[A-Z]", fullmatch=True) | st.just("*")),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    allowances,
    allowances,
    budgets(),
    st.lists(names, unique=True),
    st.none() | st.integers(1, 10**8),
    limits,
)
def test_any_allowances_are_read_written_and_read_the_same(
    one: dict[str, Any],
    other: dict[str, Any],
    shared: list[dict[str, Any]],
    own_names: list[str],
    most: int | None,
    of_deployment: dict[str, int],
) -> None:
    """The output of `policy show --effective` may be applied: no limit moves by a nano-dollar."""
    document = yaml.load(EXAMPLE, Loader=yaml.CSafeLoader)
    document["teams"][0] |= one
    document["teams"][1] |= other
    document["cost_centres"] = [{"name": "CC-1207", "budgets": shared}]
    document["deployments"][0]["limits"] = of_deployment
    if most is not None:
        document["routes"][0]["max_output_tokens"] = most
    declared = [*one.get("budgets", ()), *shared]
    for budget, name in zip(declared, own_names, strict=False):
        budget["name"] = name
    policy = parse(yaml.dump(document, Dumper=Exact)).policy
    again = parse(to_yaml(policy)).policy
    assert again == policy
    assert effective(again) == effective(policy)
    assert changes(policy, again) == ()
    identities = [rule.rule_id for rule in policy.budgets]
    assert len(identities) == len(set(identities))
    read = [
        rule for rule in policy.budgets if rule.scope in (BudgetScope.TEAM, BudgetScope.COST_CENTRE)
    ]
    of_payments = [rule.limit_nusd for rule in read if rule.owner != "search"]
    assert of_payments == [int(budget["limit_usd"].scaleb(9)) for budget in declared]


def test_a_changed_budget_is_shown_by_its_own_name_and_field() -> None:
    """An admin confirms the difference: a changed limit must not hide in a list of lists."""
    after = changed("limit_usd: 5000", "limit_usd: 6000.5", text=ALLOWED)
    after = changed("limit_usd: 20}", "limit_usd: 30, alert_at: [0.9]}", text=after)
    after = changed("{tokens_per_minute: 9000}", "{}", text=after)
    after = changed("concurrent: 50", "concurrent: 60", text=after)
    after = changed("{requests_per_minute: 60}", "{requests_per_minute: 70}", text=after)
    after = changed("America/Havana", "UTC", text=after)
    after = changed("limit_usd: 9000000", "limit_usd: 1, kind: soft", text=after)
    after = changed("hooks.example", "alerts.example", text=after)
    after = changed(f"      - {ONCE}\n", "", text=after)
    after = changed("  - {name: search", "  - {name: seek", text=after)
    assert changes(parse(ALLOWED).policy, parse(after).policy) == (
        Change(verb="changed", kind="limits", name="payments", details=("concurrent: 50 → 60",)),
        Change(
            verb="changed",
            kind="limits",
            name="payments/project:checkout",
            details=("tokens_per_minute: 9000 → —",),
        ),
        Change(
            verb="changed",
            kind="limits",
            name="payments/key:*",
            details=("requests_per_minute: 60 → 70",),
        ),
        Change(verb="added", kind="team", name="seek"),
        Change(
            verb="changed",
            kind="cost centre",
            name="CC-0042",
            details=("time_zone: America/Havana → UTC",),
        ),
        Change(
            verb="changed",
            kind="budget",
            name="payments/month",
            details=("limit_usd: 5000 → 6000.5",),
        ),
        Change(
            verb="changed",
            kind="budget",
            name="payments/key:*/day",
            details=("limit_usd: 20 → 30", "alert_at: [] → [0.9]"),
        ),
        Change(
            verb="changed",
            kind="budget",
            name="cost_centre:CC-0042/month",
            details=("limit_usd: 9000000 → 1", "kind: hard → soft"),
        ),
        Change(
            verb="changed",
            kind="alerts",
            name="receivers",
            details=("webhook: https://hooks.example/messages → https://alerts.example/messages",),
        ),
        Change(verb="removed", kind="team", name="search"),
        Change(
            verb="removed",
            kind="budget",
            name="pilot-2026",
            details=(
                "of: team payments, period: once, limit_usd: 200.000000001, kind: hard, alert_at: "
                "[], overdraft_usd: 1",
            ),
        ),
    )


def test_the_first_budgets_and_limits_are_shown_with_their_figures() -> None:
    """`+ budget payments/month` alone says nothing of how much."""
    shown = {
        (c.kind, c.name): c.details for c in changes(parse(EXAMPLE).policy, parse(ALLOWED).policy)
    }
    tail = "alert_at: [], overdraft_usd: 0"
    assert shown["budget", "payments/project:*/month"] == (
        f"of: each project of team payments, period: month, limit_usd: 1000, kind: hard, {tail}",
    )
    assert shown["budget", "night-job"] == (
        f"of: key 0A1b2C3d4E of team payments, period: hour, limit_usd: 0.5, kind: hard, {tail}",
    )
    assert shown["budget", "cost_centre:CC-0042/month"][0].startswith(
        "of: cost centre CC-0042, period: month"
    )
    assert shown["limits", "payments/key:*"] == ("requests_per_minute: 60",)
    none = changed("{tokens_per_minute: 9000}", "{}", text=ALLOWED)
    first = {(c.kind, c.name): c.details for c in changes(None, parse(none).policy)}
    assert first["limits", "payments/project:checkout"] == ("no limit",)


def test_alerts_go_by_mail_with_or_without_a_webhook() -> None:
    """A team without a chat still hears of its budget; the stored document says so again."""
    text = changed(
        ALERTS,
        "alerts: {email: [finops@example.com, ana@b.example], spikes_above_usd: 0.5}",
        text=ALLOWED,
    )
    policy = parse(text).policy
    assert policy.alerts == Alerts(
        email=("finops@example.com", "ana@b.example"), spikes_above_nusd=USD // 2
    )
    assert parse(to_yaml(policy)).policy == policy

"""A document's regions, rules and facts, and their errors."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from gateway.domain.policy.policy import DataClass, ResidencyRule
from gateway.domain.providers.known_hosts import KNOWN_PLACES, Statement
from gateway.services.policy.policy_diff import Change, changes
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, to_yaml
from tests.policy.documents import EXAMPLE, changed, findings

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "policy.md").read_text(
    encoding="utf-8"
)
FULL = (
    EXAMPLE.replace(
        "deployments:\n  - name: qwen-eu",
        """\
data_tags:
  phi: {regions: [any], at_rest: [eu, ch], telemetry: [any], self_hosted: true, max_retention_days: 0,
        deny_regions: [cn, us-east], deny_providers: [openai, groq], gateway_regions: [de, eu-fr], mode: shadow}
  gdpr: {at_rest: []}
facts_valid_days: 90
deployments:
  - name: qwen-eu""",  # noqa: E501
    )
    .replace(
        "    region: eu-fr\n",
        "    region: eu-fr\n    residency: {at_rest: fr, telemetry: unknown, retention_days: 30,\n"
        "                sub_processor: Example Ltd, source: 'contract 7, annex 2', as_of: "
        "2026-11-20}\n",
    )
    .replace(
        "data_class: internal, routes",
        "data_class: internal, data_tags: [phi], residency: {deny_providers: [openai]}, routes",
    )
)

# (the replaced text in the full document, its replacement, line, field, a part of the message)
WRONG = [
    ("us: [us-east]", "us: [de]", 2, "regions.us[0]", "'de' is built in and does not lie in 'us'"),
    ("us: [us-east]", "eea: [ch]", 2, "regions.eea[0]", "does not lie in 'eea'"),
    (
        "us: [us-east]",
        "us: [x], x: [uk]",
        2,
        "regions.x[0]",
        "'uk' is built in and does not lie in 'us'",
    ),
    (
        "us: [us-east]",
        "de: [x], x: [eu]",
        2,
        "regions.x[0]",
        "'eu' is built in and does not lie in 'de'",
    ),
    ("us: [us-east]", "de: [x], x: [de]", 2, "regions.x", "under itself (x in de in x)"),
    (
        "restricted:   {regions: [eu]",
        "restricted:   {regions: [EU]",
        4,
        "classes.restricted.regions[0]",
        "mean 'eu'?",
    ),
    (
        "at_rest: [eu, ch]",
        "at_rest: [eu, gb]",
        9,
        "data_tags.phi.at_rest[1]",
        "neither built in nor declared",
    ),
    ("at_rest: [eu, ch]", "at_rest: [global]", 9, "data_tags.phi.at_rest[0]", "write any"),
    ("telemetry: [any]", "telemetry: [unknown]", 9, "data_tags.phi.telemetry[0]", "write any"),
    (
        "gateway_regions: [de,",
        "gateway_regions: [dee,",
        10,
        "data_tags.phi.gateway_regions[0]",
        "neither built in",
    ),
    (
        "deny_regions: [cn,",
        "deny_regions: [any,",
        10,
        "data_tags.phi.deny_regions[0]",
        "write 'regions: []'",
    ),
    (
        "deny_regions: [cn,",
        "deny_regions: [unknown,",
        10,
        "data_tags.phi.deny_regions[0]",
        "Every name here also denies",
    ),
    (
        "deny_regions: [cn,",
        "deny_regions: [us-est,",
        10,
        "data_tags.phi.deny_regions[0]",
        "did you mean 'us-east'?",
    ),
    (
        "deny_providers: [openai, groq]",
        "deny_providers: [grok]",
        10,
        "data_tags.phi.deny_providers[0]",
        "'groq'?",
    ),
    (
        "max_retention_days: 0",
        "max_retention_days: none",
        9,
        "data_tags.phi.max_retention_days",
        "whole number",
    ),
    ("mode: shadow", "mode: dark", 10, "data_tags.phi.mode", "there is: enforced, shadow"),
    ("  gdpr: {at_rest", "  Restricted: {at_rest", 11, "data_tags.Restricted", "is a data class"),
    ("  gdpr: {at_rest", "  'g d': {at_rest", 11, "data_tags.g d", "is not allowed"),
    ("  gdpr: {at_rest", "  gdpr: {region", 11, "data_tags.gdpr.region", "did you mean 'regions'?"),
    ("facts_valid_days: 90", "facts_valid_days: 0", 12, "facts_valid_days", "from 1 to"),
    (
        "at_rest: fr, tel",
        "at_rest: any, tel",
        35,
        "deployments[2].residency.at_rest",
        "'any' is for classes and other",
    ),
    (
        "telemetry: unknown, ret",
        "telemetry: mars, ret",
        35,
        "deployments[2].residency.telemetry",
        "neither built in",
    ),
    (
        "as_of: 2026-11-20",
        "as_of: 2026-02-30",
        36,
        "deployments[2].residency.as_of",
        "there is no such day",
    ),
    (
        "as_of: 2026-11-20",
        "as_of: 20.11.2026",
        36,
        "deployments[2].residency.as_of",
        "as in 2026-11-20",
    ),
    ("as_of: 2026-11-20", "as_of: [a]", 36, "deployments[2].residency.as_of", "as in 2026-11-20"),
    (
        "source: 'contract 7, annex 2', ",
        "",
        36,
        "deployments[2].residency.as_of",
        "goes with 'source'",
    ),
    (", as_of: 2026-11-20", "", 36, "deployments[2].residency.source", "goes with 'as_of'"),
    ("data_tags: [phi]", "data_tags: [ph]", 45, "teams[1].data_tags[0]", "did you mean 'phi'?"),
    (
        "residency: {deny_providers: [openai]}",
        "residency: {regions: [x-y]}",
        45,
        "teams[1].residency.regions[0]",
        "neither built in",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "field", "part"), WRONG)
def test_a_wrong_rule_is_found_with_line_and_field(
    old: str, new: str, line: int, field: str, part: str
) -> None:
    """A rule that is not read as it was meant is a breach with a document that permits it."""
    found = findings(changed(old, new, text=FULL)) or ()
    assert [f for f in found if (f.line, f.field) == (line, field) and part in f.message], found


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("regions: {eu: [eu-de, eu-fr], us: [us-east]}", "regions: [eu]", "regions"),
        ("  phi: {regions: [any], at", "  - {regions: [any], at", "data_tags"),
    ],
)
def test_after_unreadable_names_no_name_is_called_unknown(old: str, new: str, field: str) -> None:
    """One slip above must not make every line below it look wrong."""
    text = changed(old, new, text=FULL).replace(
        "  gdpr: {at_rest: []}\n", "" if field == "data_tags" else "  gdpr: {}\n"
    )
    assert [finding.field for finding in findings(text) or ()] == [field]


def test_every_field_reaches_the_policy_and_reads_back() -> None:
    """`policy show --effective` is a policy: a missing field would be lost when a person applies
    it.
    """
    policy = parse(FULL).policy
    assert policy.data_tags == {
        "phi": ResidencyRule(
            rule_id="tag:phi",
            regions=frozenset({"any"}),
            at_rest=frozenset({"eu", "ch"}),
            telemetry=frozenset({"any"}),
            self_hosted_only=True,
            max_retention_days=0,
            deny_regions=frozenset({"cn", "us-east"}),
            deny_providers=frozenset({"openai", "groq"}),
            gateway_regions=frozenset({"de", "eu-fr"}),
            is_shadow=True,
        ),
        "gdpr": ResidencyRule(rule_id="tag:gdpr", at_rest=frozenset()),
    }
    assert policy.facts_valid_days == 90
    assert policy.deployments["partner"].residency == Statement(
        at_rest="fr",
        telemetry="unknown",
        retention_days=30,
        sub_processor="Example Ltd",
        source="contract 7, annex 2",
        as_of=date(2026, 11, 20),
    )
    search = policy.teams["search"]
    assert search.data_tags == {"phi"}
    assert search.residency == ResidencyRule(
        rule_id="team:search", deny_providers=frozenset({"openai"})
    )
    assert parse(to_yaml(policy)).policy == policy
    assert effective(policy)["classes"]["restricted"] == {
        "regions": ["eu"],
        "self_hosted": True,
        "deny_regions": [],
        "deny_providers": [],
        "mode": "enforced",
    }


@pytest.mark.parametrize("field", ["regions", "at_rest", "telemetry", "gateway_regions"])
def test_an_empty_list_allows_nothing_and_an_absent_one_is_ignored(field: str) -> None:
    """The two must not be mistaken for each other anywhere between the document and the rule."""
    some = changed("gdpr: {at_rest: []}", f"gdpr: {{{field}: []}}", text=FULL)
    assert getattr(parse(some).policy.data_tags["gdpr"], field) == frozenset()
    none = changed("gdpr: {at_rest: []}", "gdpr: {}", text=FULL)
    assert getattr(parse(none).policy.data_tags["gdpr"], field) is None
    for text in (some, none):
        assert parse(to_yaml(parse(text).policy)).policy == parse(text).policy


def test_built_in_regions_need_no_declaration() -> None:
    """At every place for a region's name: in rules, of deployments, in facts."""
    text = changed("regions: {eu: [eu-de, eu-fr], us: [us-east]}\n", "", text=EXAMPLE)
    text = text.replace("region: eu-de", "region: de").replace("region: eu-fr", "region: fr")
    policy = parse(text).policy
    assert policy.regions == {}
    assert policy.region_tree.covered(
        "de", policy.classes[DataClass.RESTRICTED].regions or frozenset()
    )


def test_a_document_may_group_built_in_regions() -> None:
    """A company's own word for the countries it works in; each country stays in the world's place
    too.
    """
    policy = parse(changed("us: [us-east]", "us: [us-east], dach: [de, at, ch]")).policy
    assert policy.region_tree.ancestors("at") == {"at", "dach", "eu", "eea", "europe"}


def test_built_in_regions_may_be_declared_again() -> None:
    """Documents from before there were built-in regions stay valid; that it changes nothing is
    noted.
    """
    text = changed(
        "us: [us-east]",
        "europe: [eea], us: [us-east]",
        text=changed("[eu-de, eu-fr]", "[eu-de, eu-fr, de]"),
    )
    notes = [
        (note.field, note.message) for note in parse(text).notes if note.field.startswith("regions")
    ]
    assert notes == [
        ("regions.eu[2]", "changes nothing: 'de' lies in 'eu' as everybody knows"),
        ("regions.europe[0]", "changes nothing: 'eea' lies in 'europe' as everybody knows"),
    ]


HOSTED = "https://eu.api.openai.com/v1"


@pytest.mark.parametrize(
    ("url", "region", "message"),
    [
        (HOSTED, "eu", None),
        (HOSTED, "eea", None),
        (HOSTED, "europe", None),
        (HOSTED, "global", None),
        (HOSTED, "unknown", None),
        (HOSTED, "us", "eu.api.openai.com processes in eu (https://"),
        (HOSTED, "eu-de", "and 'eu-de' says more"),
        ("https://EU.API.openai.com./v1", "us", "eu.api.openai.com processes in eu"),
        ("https://us.api.openai.com/v1", "eu", "us.api.openai.com processes in us"),
        ("https://us.api.openai.com/v1", "us", None),
        ("https://us.api.openai.com/v1", "us-east", "write 'region: us'"),
        ("https://api.openai.com/v1", "us", "no place is promised for api.openai.com"),
        ("https://api.openai.com/v1", "global", None),
        ("https://api.anthropic.com/v1", "us", "no place is promised"),
        (
            "https://api.groq.com/openai/v1",
            "us",
            "no place is promised for api.groq.com (no primary source was found",
        ),
        ("https://europe-west4-aiplatform.googleapis.com/v1", "eu", "'region: unknown'"),
        ("https://aiplatform.googleapis.com/v1", "eu", "'region: global'"),
        ("https://openai.example/v1", "us", None),
        ("https://eu.api.openai.com.example/v1", "us", None),
    ],
)
def test_a_region_may_promise_less_than_the_provider_and_never_more(
    url: str, region: str, message: str | None
) -> None:
    """A document that says `us` of a host that runs anywhere would let restricted data out with a
    clear conscience.
    """
    at = f"    model: gpt-5.5\n    region: {region}\n"
    text = changed(HOSTED, url, text=changed("    model: gpt-5.5\n    region: eu\n", at))
    found = findings(text) or ()
    if message is None:
        assert found == ()
        return
    assert [(f.line, f.field) for f in found] == [(23, "deployments[1].region")]
    assert message in found[0].message
    own = "    residency: {source: contract 9, as_of: 2026-10-01}\n"
    sourced = changed(at, at + own, text=text)
    assert findings(sourced) is None, "who says more names who promises it, and when"
    half = sourced.replace("source: contract 9, as_of: 2026-10-01", "at_rest: eu")
    assert findings(half), "a block without a source promises nothing"


def test_facts_come_from_the_block_or_the_built_in_table() -> None:
    """Each with its own source and date: the auditor asks for both."""
    own = "    residency: {at_rest: de, source: contract 9, as_of: 2026-10-01}\n"
    shipped = parse(EXAMPLE).policy.deployments["gpt-eu"].facts
    assert (shipped.host, shipped.providers) == ("eu.api.openai.com", {"openai"})
    for fact, region in (
        (shipped.processing, "eu"),
        (shipped.at_rest, "eu"),
        (shipped.telemetry, "global"),
    ):
        assert (fact.value, fact.as_of) == (region, date(2026, 11, 20))
        assert fact.source.startswith("https://")
    assert (shipped.retention_days.value, shipped.sub_processor.value) == (None, None)
    stated = (
        parse(changed("    region: eu\n", f"    region: eu\n{own}"))
        .policy.deployments["gpt-eu"]
        .facts
    )
    assert (stated.at_rest.value, stated.at_rest.source, stated.at_rest.as_of) == (
        "de",
        "contract 9",
        date(2026, 10, 1),
    )
    assert (stated.processing.value, stated.processing.source) == ("eu", "contract 9")
    assert stated.telemetry == shipped.telemetry
    unknown = parse(EXAMPLE).policy.deployments["partner"].facts
    assert (unknown.at_rest.value, unknown.processing.value, unknown.processing.as_of) == (
        "unknown",
        "eu-fr",
        None,
    )


def test_built_in_facts_have_a_source_and_a_date() -> None:
    """A fact without a source is a rumour, and one that no page of ours shows cannot be checked."""
    for place in KNOWN_PLACES:
        assert place.statement.source
        assert place.statement.as_of is not None
        cells = [
            place.processing,
            place.statement.at_rest or "unknown",
            place.statement.telemetry or "unknown",
        ]
        row = " | ".join(f"`{word}`" for word in (place.host, place.provider, *cells))
        assert f"| {row} | {place.statement.source}, {place.statement.as_of} |" in REFERENCE


def test_a_provider_that_contradicts_itself_is_noted() -> None:
    """OpenAI's guide and its help centre say different things of one host; whoever names a source
    has looked.
    """
    notes = [note for note in parse(EXAMPLE).notes if note.field == "deployments[1].region"]
    assert [note.message[:73] for note in notes] == [
        "OpenAI's help centre says 'the European Economic Area and Switzerland' of"
    ]
    own = "    region: eu\n    residency: {source: contract 9, as_of: 2026-10-01}\n"
    for instead in (own, "    region: unknown\n"):
        assert not [
            note
            for note in parse(changed("    region: eu\n", instead)).notes
            if "help centre" in note.message
        ]


@pytest.mark.parametrize(
    ("old", "new", "field", "part"),
    [
        (
            "restricted:   {regions: [eu]",
            "restricted:   {mode: shadow, regions: [eu]",
            "classes.restricted",
            "allows everything (mode: shadow), which the lower class confidential",
        ),
        ("gdpr: {at_rest: []}", "gdpr: {mode: shadow}", "data_tags.gdpr.mode", "denies nothing"),
        (
            "residency: {deny_providers: [openai]}",
            "residency: {mode: shadow}",
            "teams[1].residency.mode",
            "denies not",
        ),
        (
            "data_tags: [phi]",
            "data_tags: [gdpr]",
            "teams[1].routes[0]",
            "class:internal, tag:gdpr, team:search allows none",
        ),
    ],
)
def test_odd_rules_are_noted(old: str, new: str, field: str, part: str) -> None:
    """A rule in shadow looks like one that protects."""
    notes = parse(changed(old, new, text=FULL)).notes
    assert [note for note in notes if note.field == field and part in note.message], notes


def test_a_gateways_place_and_a_facts_age_are_not_known_to_a_document() -> None:
    """They depend on the place and time of its use: no note that a route is of no use."""
    text = changed(
        "residency: {deny_providers: [openai]}",
        "residency: {gateway_regions: [jp]}",
        text=changed("data_tags: [phi]", "data_tags: []", text=FULL),
    )
    assert not [note for note in parse(text).notes if "cannot use" in note.message]


def test_a_lower_class_in_shadow_is_narrower_than_nothing() -> None:
    """It allows all, so a higher class cannot allow more."""
    text = changed("confidential: {regions: [eu]}", "confidential: {mode: shadow, regions: [eu]}")
    notes = parse(
        changed(
            "restricted:   {regions: [eu], self_hosted: true}",
            "restricted:   {regions: [us]}",
            text=text,
        )
    ).notes
    assert not [note for note in notes if "lower class confidential" in note.message]


def test_changed_tags_and_facts_are_shown_before_an_apply() -> None:
    """An admin must see a document's effect on residency."""
    after = FULL.replace("facts_valid_days: 90", "facts_valid_days: 30").replace(
        "gdpr: {at_rest: []}", "gdpr: {at_rest: [eu]}"
    )
    assert changes(parse(FULL).policy, parse(after).policy) == (
        Change(verb="changed", kind="data tag", name="gdpr", details=("at_rest: [] → [eu]",)),
        Change(verb="changed", kind="facts", name="facts_valid_days", details=("90 → 30",)),
    )

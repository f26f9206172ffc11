"""For any text of a policy file, the answer is a policy or findings that point into it."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.policy.policy import DataClass
from gateway.domain.residency.rules import denials
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, to_yaml
from tests.factories import NOW
from tests.policy.documents import ALLOWED, EXAMPLE, findings

SECRET = "sk-never-to-be-seen"
SCRAPS = [
    "",
    " ",
    "\t",
    "\n",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "!!int ",
    "? ",
    "#",
    "'",
    '"',
    "\\",
    "|",
    ">",
    "---\n",
    "...",
    "<<: ",
    "no",
    "null",
    "~",
    "1e3",
    ".inf",
    "0x10",
    "1_0",
    "-1",
    "0",
    "2026-11-20",
    "\x00",
    "\x85",
    "\u2028",
    "\ufeff",
    "\ud800",
    "é",
    "name",
    "regions",
    "eu",
    "any",
    "global",
    "%YAML 9.9\n",
    "@",
    "`",
]

scraps = st.sampled_from(SCRAPS)
leaf = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), scraps)
trees = st.recursive(
    leaf,
    lambda sub: st.lists(sub, max_size=4) | st.dictionaries(st.text(max_size=8), sub, max_size=4),
    max_leaves=12,
)


def check(text: str) -> None:
    """Parse; anything raised must be `PolicyRejected` with findings inside the document."""
    lines = max(1, len(text.replace("\r\n", "\n").replace("\r", "\n").split("\n")))
    errors = findings(text)
    if errors is None:
        parsed = parse(text)
        assert parse(to_yaml(parsed.policy)).policy == parsed.policy
    else:
        assert errors, "a rejection says why"
        assert all(finding.is_error for finding in errors)
    for finding in parsed.notes if errors is None else errors:
        assert 1 <= finding.line <= lines
        assert finding.field
        assert finding.message
        assert str(finding).isprintable(), "a finding must not move a terminal's cursor"


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_or_rejected(text: str) -> None:
    """An operator's file may be anything, and a traceback is no help to them."""
    check(text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(ALLOWED)), st.integers(0, 40), st.lists(scraps, max_size=3).map("".join))
def test_a_garbled_example_is_read_or_rejected(start: int, length: int, scrap: str) -> None:
    """Most mistakes are one slip in a good file."""
    check(ALLOWED[:start] + scrap + ALLOWED[start + length :])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_in_any_place_is_read_or_rejected(data: st.DataObject) -> None:
    """Valid YAML of the wrong shape takes other paths than broken YAML."""
    document = yaml.load(ALLOWED, Loader=yaml.CSafeLoader)
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    if data.draw(st.booleans()):
        node[key] = data.draw(trees)
    else:
        del node[key]
    check(yaml.safe_dump(document, allow_unicode=data.draw(st.booleans())))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(EXAMPLE)), st.integers(0, 60), st.lists(scraps, max_size=2).map("".join))
def test_a_literal_key_is_never_repeated_in_a_finding(start: int, length: int, scrap: str) -> None:
    """Findings go to terminals and CI logs; a key pasted by mistake must not."""
    text = EXAMPLE.replace('"env:OPENAI_API_KEY"', SECRET)
    at = text.index(SECRET)
    if start < at + len(SECRET) and at < start + length + 1:
        return  # the slip itself cut the secret up
    errors = findings(text[:start] + scrap + text[start + length :])
    assert SECRET not in "".join(map(str, errors or ()))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["eu", "us", "eu-de", "eu-fr", "us-east"]), unique=True), st.booleans()
)
def test_narrowing_a_class_never_adds_a_deployment(regions: list[str], self_hosted: bool) -> None:
    """A denial always wins: taking a region away may only deny more."""
    document = yaml.load(EXAMPLE, Loader=yaml.CSafeLoader)
    document["classes"]["internal"] = {"regions": regions, "self_hosted": self_hosted}
    wide = parse(yaml.dump(document, Dumper=yaml.CSafeDumper)).policy
    for dropped in regions:
        document["classes"]["internal"]["regions"] = [
            region for region in regions if region != dropped
        ]
        narrow = parse(yaml.dump(document, Dumper=yaml.CSafeDumper)).policy
        for name, deployment in wide.deployments.items():
            was, now = (
                denials(
                    (p.classes[DataClass.INTERNAL],),
                    p.deployments[name],
                    regions=p.region_tree,
                    gateway_region="unknown",
                    day=NOW.date(),
                    valid_days=None,
                )
                for p in (wide, narrow)
            )
            assert not was or now, f"{deployment.name} became allowed"


def test_reading_the_effective_document_gives_the_same_policy() -> None:
    """`policy show --effective` is a policy: a person may apply its output."""
    policy = parse(EXAMPLE).policy
    assert parse(to_yaml(policy)).policy == policy
    assert effective(policy)["deployments"][1]["timeouts"]["total_s"] == 600

"""Attribution headers: good values are kept, bad ones get an error, and no class is lowered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.api import attribution
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass
from gateway.domain.request.request import RequestFacts, unsent
from gateway.errors import InvalidRequest
from tests.factories import team


def test_a_project_comes_from_the_header_or_the_key() -> None:
    """A key without a project may name one; a key bound to one cannot leave it."""
    assert attribution.project({}, None) is None
    assert attribution.project({}, "checkout") == "checkout"
    assert attribution.project({"x-tollgate-project": "checkout"}, None) == "checkout"
    assert attribution.project({"x-tollgate-project": "checkout"}, "checkout") == "checkout"


@pytest.mark.parametrize(
    ("sent", "of_key", "message"),
    [
        ("other", "checkout", "belongs to project 'checkout'; x-tollgate-project says 'other'"),
        ("x\x07" * 99, "checkout", "says 'xxx"),
        ("-no", None, "start with a letter"),
        ("x" * 65, None, "up to 64"),
        ("", None, "up to 64"),
    ],
)
def test_a_bad_project_is_refused(sent: str, of_key: str | None, message: str) -> None:
    """Spending must not be booked on a project that is closed to the key."""
    with pytest.raises(InvalidRequest, match=message):
        attribution.project({"x-tollgate-project": sent}, of_key)


def test_the_message_lists_each_character_that_a_project_may_have() -> None:
    """It listed four, and seven are accepted beside letters and digits."""
    accepted = set()
    for character in map(chr, range(32, 127)):
        try:
            attribution.project({"x-tollgate-project": f"a{character}"}, None)
        except InvalidRequest as refused:
            listed = str(refused).partition(" or ")[2].partition(" (")[0]
        else:
            accepted.add(character)
    others = {one for one in accepted if not one.isalnum()}
    assert {" ", *listed.split()} == others
    with pytest.raises(InvalidRequest, match="letters, digits, blanks or"):
        attribution.project({"x-tollgate-project": "é"}, None)


@pytest.mark.parametrize(
    ("sent", "tags"),
    [
        ("", ()),
        ("env=prod", (("env", "prod"),)),
        (" b=2 , a = 1,", (("a", "1"), ("b", "2"))),
        ("a=b", (("a", "b"),)),
    ],
)
def test_tags_are_sorted_pairs(sent: str, tags: tuple[tuple[str, str], ...]) -> None:
    """One way to write them down, so that the same tags are the same group in a report."""
    assert attribution.tags({"x-tollgate-tags": sent} if sent else {}) == tags


@pytest.mark.parametrize(
    "sent", ["a", "a=", "=b", "a=1,a=2", "a=b=c;", "é=1", ",".join(f"t{i}=1" for i in range(17))]
)
def test_bad_tags_are_refused(sent: str) -> None:
    """A silently dropped tag would be untraceable spending."""
    with pytest.raises(InvalidRequest, match="x-tollgate-tags"):
        attribution.tags({"x-tollgate-tags": sent})


def labels(
    sent: str | None,
    of_team: DataClass = DataClass.INTERNAL,
    *,
    team_tags: frozenset[str] = frozenset(),
) -> tuple[DataClass, str, frozenset[str]]:
    headers = {} if sent is None else {"x-tollgate-data-class": sent}
    return attribution.data_labels(
        headers, team(data_class=of_team, data_tags=team_tags), declared_tags={"phi", "gdpr"}
    )


@given(st.sampled_from(DataClass), st.sampled_from(DataClass))
def test_a_header_raises_the_class_and_never_lowers_it(
    of_team: DataClass, asked: DataClass
) -> None:
    """Whoever calls may be more careful than its team, never less."""
    found, source, _ = labels(asked.label, of_team)
    assert found == max(of_team, asked)
    assert source == ("header" if asked > of_team else "team")


@given(
    st.frozensets(st.sampled_from(["phi", "gdpr"])),
    st.lists(st.sampled_from(["phi", "gdpr", "RESTRICTED", "restricted", " ", ""]), max_size=6),
)
def test_a_header_adds_data_tags_and_removes_no_tag(
    team_tags: frozenset[str], words: list[str]
) -> None:
    """A team's own tags apply to all its requests, in any order of the header's tags."""
    named = {word for word in words if word.strip()}
    if not named:
        return
    found, source, tags = labels(", ".join(words), team_tags=team_tags)
    assert tags == team_tags | (named & {"phi", "gdpr"})
    is_raised = bool(named & {"RESTRICTED", "restricted"})
    assert (found, source) == (
        (DataClass.RESTRICTED, "header") if is_raised else (DataClass.INTERNAL, "team")
    )


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (
            "secret",
            "'secret' is not known. Write at most one of public, internal, confidential, "
            "restricted, and any",
        ),
        ("phi, PHI", "'PHI' is not known. .* data tags: gdpr, phi"),
        ("restricted phi", "'restricted phi' is not known"),
        ("phi;gdpr", "'phi;gdpr' is not known"),
        ("x\x07" * 99, "'xxx"),
        ("internal, restricted", "internal and restricted are two classes"),
        ("", "nothing is in it"),
        (" , ", "nothing is in it"),
    ],
)
def test_an_unknown_label_is_refused(sent: str, message: str) -> None:
    """A typo must not end as the team's lower class, or without the rule that the tag would have
    added.
    """
    with pytest.raises(InvalidRequest, match=message):
        labels(sent)


def test_without_declared_tags_the_header_takes_a_class_alone() -> None:
    """As before there were tags; and without the header all is the team's."""
    assert labels(None, DataClass.PUBLIC, team_tags=frozenset({"phi"})) == (
        DataClass.PUBLIC,
        "team",
        frozenset({"phi"}),
    )
    with pytest.raises(InvalidRequest, match="data tags: it declares none"):
        attribution.data_labels({"x-tollgate-data-class": "phi"}, team(), declared_tags=())


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({}, None),
        ({"x-request-id": "abc"}, "abc"),
        ({"x-client-request-id": "abc"}, "abc"),
        ({"x-request-id": "a b"}, None),
        ({"x-request-id": "x" * 201}, None),
        ({"x-request-id": "é"}, None),
    ],
)
def test_the_callers_own_id_is_kept_if_it_is_sane(
    headers: dict[str, str], kept: str | None
) -> None:
    """It goes into the ledger and the log: short and printable, or not at all."""
    assert attribution.client_request_id(headers) == kept


@pytest.mark.parametrize(
    ("sent", "is_kept"), [(f"00-{'a' * 32}-{'b' * 16}-01", True), ("00-x", False), ("", False)]
)
def test_a_trace_context_is_kept_if_it_is_one(sent: str, is_kept: bool) -> None:
    """It is passed on upstream."""
    assert attribution.traceparent({"traceparent": sent}) == (sent if is_kept else None)


@pytest.mark.parametrize(
    "sent", [None, "k", "a b", '"8e03978e-40d5-43e8-bc93-6894a57f9324"', "~" * 255, " ", "!"]
)
def test_an_idempotency_key_is_taken_as_it_came(sent: str | None) -> None:
    """Trimmed or cut, two keys that differ would be one, and the second request would never be
    sent.
    """
    assert attribution.idempotency_key({} if sent is None else {"idempotency-key": sent}) == sent


@pytest.mark.parametrize(
    "sent", ["", "x" * 256, "caf\xe9", "a\tb", "a\x7f", "a\n", "a\0", "\x1f", "\x80"]
)
def test_a_bad_idempotency_key_is_refused_by_name_and_not_repeated(sent: str) -> None:
    """Passed over in silence, a request that its caller believes safe to repeat would be charged
    twice.
    """
    with pytest.raises(
        InvalidRequest, match="Idempotency-Key: write 1 to 255 printable ASCII"
    ) as refused:
        attribution.idempotency_key({"idempotency-key": sent})
    assert refused.value.param == "Idempotency-Key"
    assert len(sent) < 2 or sent not in refused.value.message


def test_every_header_that_is_read_is_handed_over() -> None:
    """Only the headers named in `HEADERS` are decoded for a request: one that is missing there
    would never be seen.
    """
    asked: set[bytes] = set()

    class Headers(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name.encode())
            return super().get(name, default)

    headers = Headers()
    attribution.project(headers, None)
    attribution.tags(headers)
    attribution.data_labels(headers, team(), declared_tags=())
    attribution.client_request_id(headers)
    attribution.idempotency_key(headers)
    attribution.traceparent(headers)
    attribution.session(headers, unsent(Operation.CHAT, "assistant"))
    assert asked == attribution.HEADERS


def an_ask(*, cache_key: str | None = None, end_user: str | None = None) -> RequestFacts:
    return replace(unsent(Operation.CHAT, "assistant"), cache_key=cache_key, end_user=end_user)


def test_a_session_is_the_header_else_the_cache_key_else_the_user() -> None:
    """Whoever knows its session best says it: an agent's loop by header, OpenAI's own name for it,
    a person last.
    """
    named = {"x-session-id": "s"}
    assert attribution.session(named, an_ask(cache_key="c", end_user="u")) == "s"
    assert attribution.session({"x-session-id": ""}, an_ask(cache_key="c", end_user="u")) == "c"
    assert attribution.session({}, an_ask(end_user="u")) == "u"
    assert attribution.session({}, an_ask()) is None

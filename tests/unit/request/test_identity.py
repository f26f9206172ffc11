"""Request ids carry their moment; keys are checked before anything is looked up."""

from __future__ import annotations

from binascii import crc32
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import id_of, occurred_at, uuid7
from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.policy.api_keys import ALPHABET, PATTERN, RANDOM_BYTES, Pepper, key_id_of, mint
from tests.factories import NOW, key


@given(st.binary(min_size=16, max_size=16))
def test_an_id_of_bytes_is_the_library_s(id_bytes: bytes) -> None:
    """It is made without the library's checks."""
    made, theirs = id_of(id_bytes), UUID(bytes=id_bytes)
    assert (made, hash(made), str(made), made.bytes) == (
        theirs,
        hash(theirs),
        str(theirs),
        id_bytes,
    )


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC)),
    st.binary(min_size=10, max_size=10),
)
def test_the_moment_is_inside_the_id(moment: datetime, random: bytes) -> None:
    """`occurred_at` is read from the id: so all attempts of a request agree, and a month prunes by
    id.
    """
    milliseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    made = uuid7(milliseconds, random)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert (occurred_at(made) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    ) == milliseconds


def test_random_bytes_fill_the_rest_of_the_id() -> None:
    """74 random bits: two ids of one millisecond must not meet."""
    ones, zeros = uuid7(0, b"\xff" * 10), uuid7(0, bytes(10))
    assert f"{ones}" == "00000000-0000-7fff-bfff-ffffffffffff"
    assert f"{zeros}" == "00000000-0000-7000-8000-000000000000"


def test_ids_sort_by_time() -> None:
    """The primary key grows at its end."""
    assert uuid7(1, b"\xff" * 10) < uuid7(2, bytes(10))


@given(st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES))
def test_a_minted_key_is_well_formed(random: bytes) -> None:
    """Its public id is inside it, and secret scanners find it by the published pattern."""
    made = mint(random)
    match = PATTERN.fullmatch(made)
    assert match is not None
    assert key_id_of(made) == match[1]


@given(st.integers(min_value=3, max_value=len(key()) - 1), st.sampled_from(ALPHABET))
def test_a_typo_in_a_key_is_noticed(place: int, letter: str) -> None:
    """One wrong letter is refused without a look-up: so a stale gateway can still say 401."""
    good = key()
    typo = good[:place] + letter + good[place + 1 :]
    assert (key_id_of(typo) is None) == (typo != good)


@pytest.mark.parametrize(
    "token", ["", "sk-abc", "tg_", key()[:-1], key() + "x", key().upper(), " " + key()]
)
def test_other_tokens_are_no_keys(token: str) -> None:
    """A key of another product has no id here."""
    assert key_id_of(token) is None


def checksum(head: str) -> str:
    """CRC-32 in six digits of base 62, as the format is published."""
    number = crc32(head.encode())
    return "".join(ALPHABET[number // 62**place % 62] for place in range(6))


@pytest.mark.parametrize("head", ["tg_", "tg_short_secret", key()[:-7], "sk_" + key()[3:-6]])
def test_a_right_checksum_does_not_make_a_key(head: str) -> None:
    """Whoever reads the published format can compute one: the answer is 401, not a fault of
    ours.
    """
    assert key_id_of(head + checksum(head)) is None
    assert key().endswith(checksum(key()[:-6]))


def test_too_little_entropy_is_our_mistake() -> None:
    """`mint` is never called with less than it needs."""
    with pytest.raises(AssertionError):
        mint(b"short")


def test_a_digest_needs_the_pepper() -> None:
    """A stolen table of digests is worth nothing without the pepper, and its id reveals nothing of
    it.
    """
    one, other = Pepper(b"one"), Pepper(b"other")
    assert one.digest(key()) != other.digest(key())
    assert len(one.digest(key())) == 32
    assert one.pepper_id != other.pepper_id
    assert len(one.pepper_id) == 16


def test_outcomes_are_stable_names() -> None:
    """Reports and alerts are written against these words (docs/reference/outcomes.md)."""
    assert [outcome.value for outcome in Outcome] == [
        "ok",
        "upstream_error",
        "upstream_cut",
        "upstream_timeout",
        "upstream_unreachable",
        "client_gone",
        "gateway_error",
        "gateway_stopped",
        "interrupted",
    ]


def test_the_clock_of_tests_stands_still() -> None:
    """Nothing here depends on today."""
    assert datetime(2026, 11, 20, 12, tzinfo=UTC) == NOW

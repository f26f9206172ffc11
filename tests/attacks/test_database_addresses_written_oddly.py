"""A raw `@` or `/` in the password of a database address printed a part of the password, or all of
it.
"""

from __future__ import annotations

import string
from contextlib import closing, suppress
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from gateway.domain.words import host_and_port
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.postgres.database import Database, parse_url
from gateway.storage.postgres.logins import Login, _with_login
from tests.gateway_process import free_port

FIRST, LAST = "S3CRET", "T0PS3CR3T"
SHAPES = ["{}", "1{}2", "{0}{0}", "{0}1{0}", "{}@", "{}/", "@{}", "/{}", "[{}]", ":{}:"]


@pytest.mark.parametrize("letter", string.punctuation + " 7ä\n\t")
def test_no_part_of_a_password_is_ever_shown(letter: str) -> None:
    """Whatever stands in a password, an address is read right or refused without a part of it."""
    place = f"127.0.0.1:{free_port()}/ledger"
    for shape in SHAPES:
        password = f"{FIRST}{shape.format(letter)}{LAST}"
        for url in (f"postgresql://me:{password}@{place}", f"postgresql://{password}@{place}"):
            said = ""
            with suppress(BadUsage, DatabaseUnavailable):
                try:
                    with closing(Database(url)) as database:
                        said = database.name
                        database.begin().__enter__()
                except (BadUsage, DatabaseUnavailable) as refused:
                    said += str(refused)
                    raise
            if url.startswith("postgresql://me:"):
                assert FIRST not in said, said
                assert LAST not in said, said


@pytest.mark.parametrize("digits", ["12/34", "12/34@x", "1@2", "5432/1"])
def test_digits_are_a_password_too(digits: str) -> None:
    """With digits alone before the slash, its beginning reads as a port."""
    with pytest.raises(BadUsage, match="Percent-encode"):
        parse_url(f"postgresql://me:{digits}@db.example/ledger")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:p%40ss%2Fword@db.example:5432/ledger",
        "postgresql://me@db.example/ledger?password=p@ss/word",
        "postgresql:///ledger?host=/run/postgresql&user=me@corp",
        "postgresql://me:p#ss@[::1]:5432/ledger?sslmode=require",
        "postgresql://me:p@one.example:1,two.example:2/ledger?target_session_attrs=read-write",
    ],
)
def test_addresses_with_one_reading_are_taken(url: str) -> None:
    """A new refusal of an address that worked would stop a gateway at its upgrade."""
    given = parse_url(url)
    assert given["dbname"] == "ledger"
    login = Login(user="a b", password="p/w@#?")
    assert parse_url(_with_login(url, login)) == given | {"user": "a b", "password": "p/w@#?"}


def test_an_ipv6_address_stands_in_brackets() -> None:
    """`http://:::8080/v1` is no address that a person could use."""
    assert host_and_port("::", 8080) == "[::]:8080"
    assert host_and_port("10.0.0.1", 8080) == "10.0.0.1:8080"
    host = quote("::1", safe="")
    with closing(Database(f"postgresql://me:p@[::1]:7/ledger?hostaddr={host}")) as database:
        assert database.name == "[::1]:7/ledger"
    assert conninfo_to_dict("postgresql://[::1]:7/x")["host"] == "::1"

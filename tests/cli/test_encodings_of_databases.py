"""Attack on 2026-11-29: a database encoded in SQL_ASCII ended every command with a traceback."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import psycopg
import pytest

from tests.cli.conftest import Cli
from tests.postgres import drop_database

_numbers = count(1)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
@pytest.mark.parametrize("command", [("db", "upgrade"), ("db", "check"), ("doctor",)])
def test_another_encoding_is_refused_by_name(
    cli_at: Callable[[str], Cli], postgres_url: str, encoding: str, command: tuple[str, ...]
) -> None:
    name = f"tollgate_encoded_{encoding.lower()}_{next(_numbers)}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' "
            "LOCALE_PROVIDER libc TEMPLATE template0".encode()
        )
    try:
        path, question, options = postgres_url.partition("?")
        url = f"{path.rpartition('/')[0]}/{name}{question}{options}"
        ran = cli_at(url)(*command)
    finally:
        drop_database(postgres_url, name)
    assert ran.code in (1, 2)
    assert f"is encoded in {encoding}" in ran.out + ran.err

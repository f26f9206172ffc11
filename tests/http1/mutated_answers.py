"""Answers of an upstream, drawn from a seed: valid ones, damaged ones, and arbitrary bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gateway.providers.http1.answer import MAX_FRAMING_BYTES, MAX_HEAD_BYTES, MAX_HEADERS
from tests.providers.recorded_answers import MALFORMED, RECORDED, chunked

BODIES = (b"", b"ok", b'{"id":"c","usage":{"total_tokens":3}}', b"data: [DONE]\n\n" * 9)
STATUSES = (b"200 OK", b"200", b"404 Not Found", b"429 Too Many Requests", b"503 \xff")
CLOSES = (None, "ConnectionResetError")
# Bytes that parsers disagree about, inserted anywhere.
JUNK = (
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b";",
    b"\r\n folded",
    b"\r\n\tfolded",
    b"\x80\xff",
    b"content-length: 5\r\n",
    b"Content-Length : 5\r\n",
    b"content-length: +5\r\n",
    b"content-length: 0x5\r\n",
    b"content-length: 5, 5\r\n",
    b"content-length:\r\n",
    b"content-length: 18446744073709551617\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: chunked, chunked\r\n",
    b"transfer-encoding:\x0bchunked\r\n",
    b"transfer-encoding: identity\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"connection: close\r\n",
    b"connection: keep-alive, upgrade\r\nupgrade: h2c\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n",
    b"HTTP/2 200\r\n",
    b"0\r\n\r\n",
    b"00000000000000005\r\n",
    b"5;a=b\r\n",
    b"5 \r\n",
    b"-1\r\n",
    b"ffffffffffffffffff\r\n",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The only possible reading of a valid answer. With `ends_at_close`, only the connection's end
    ends it.
    """

    status: int
    body: bytes
    ends_at_close: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The bytes of one connection and its end: `closed_by` is None for FIN, else the error's name.

    `meaning` is known for a valid answer. `surplus` are bytes behind it, already in `raw`.
    """

    raw: bytes
    closed_by: str | None = None
    meaning: Meaning | None = None
    surplus: bytes = b""


def case(rng: Random) -> Case:
    """Draw one case."""
    draw = rng.choices((_valid, _damaged, _arbitrary, _huge), (6, 12, 2, 1))[0]
    return draw(rng)


def cuts(rng: Random, raw: bytes) -> list[bytes]:
    """Return the bytes in pieces, some of them empty."""
    positions = sorted(rng.randint(0, len(raw)) for _ in range(rng.randint(0, 12)))
    return [raw[a:b] for a, b in zip([0, *positions], [*positions, len(raw)], strict=True)]


# ---- kinds of cases


def _valid(rng: Random) -> Case:
    raw, meaning = valid_answer(rng)
    surplus = b"" if meaning.ends_at_close or rng.random() < 0.5 else _surplus(rng)
    closed_by = None if meaning.ends_at_close else rng.choice(CLOSES)
    return Case(raw=raw + surplus, closed_by=closed_by, meaning=meaning, surplus=surplus)


def _damaged(rng: Random) -> Case:
    raw = _base(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        raw = rng.choice(DAMAGES)(rng, raw)
    return Case(raw=raw, closed_by=rng.choice(CLOSES))


def _arbitrary(rng: Random) -> Case:
    head = rng.choice((b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"))
    return Case(raw=head + rng.randbytes(rng.randint(0, 300)), closed_by=rng.choice(CLOSES))


def _huge(rng: Random) -> Case:
    """Draw bytes near or over one of the limits."""
    around = rng.randint(-3, 3)
    head, stream = b"HTTP/1.1 200 OK\r\n", b"transfer-encoding: chunked\r\n\r\n"
    raw = rng.choice(
        (
            lambda: head + b"x: " + b"a" * (MAX_HEAD_BYTES + around * 9) + b"\r\n\r\n",
            lambda: head + b"x: y\r\n" * (MAX_HEADERS + around) + b"content-length: 0\r\n\r\n",
            lambda: b"HTTP/1.1 103 X\r\n\r\n" * (10 + around) + head + b"content-length: 0\r\n\r\n",
            lambda: head + stream + chunked(*[b"a"] * (MAX_FRAMING_BYTES // 5 + around * 999)),
            lambda: head + stream + b"2;" + b"e" * (MAX_FRAMING_BYTES + around * 9) + b"\r\nok\r\n",
            lambda: head + stream + b"0\r\n" + b"t: u\r\n" * (MAX_HEADERS + around) + b"\r\n",
            lambda: head + b"content-length: 90000\r\n\r\n" + b"b" * (90_000 + around),
        )
    )()
    return Case(raw=raw, closed_by=rng.choice(CLOSES))


# ---- valid answers


def valid_answer(rng: Random) -> tuple[bytes, Meaning]:
    """Draw a valid answer and its meaning."""
    before = rng.choice((b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", _hints(rng)))
    status = rng.choice(STATUSES)
    body = rng.choice((*BODIES, rng.randbytes(rng.randint(1, 90))))
    fields = [b"%s: %s\r\n" % (rng.choice((b"x", b"X-Y", b"server")), _value(rng)) for _ in "ab"]
    framing, ends_at_close = rng.choice(("length", "chunks", "chunks", "close")), False
    if framing == "length":
        fields.append(_cased(rng, b"content-length") + b":%d\r\n" % len(body))
        sent = body
    elif framing == "chunks":
        fields.append(_cased(rng, b"transfer-encoding") + b": " + _cased(rng, b"chunked\r\n"))
        sent = _in_chunks(rng, body)
    else:
        sent, ends_at_close = body, True
    rng.shuffle(fields)
    raw = before + b"HTTP/1.1 " + status + b"\r\n" + b"".join(fields) + b"\r\n" + sent
    return raw, Meaning(status=int(status[:3]), body=body, ends_at_close=ends_at_close)


def _hints(rng: Random) -> bytes:
    return b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * rng.randint(1, 3)


def _value(rng: Random) -> bytes:
    return bytes(rng.choice(b'abc 9,;="\t\xe9') for _ in range(rng.randint(0, 9))).strip()


def _cased(rng: Random, name: bytes) -> bytes:
    return rng.choice((name, name.title(), name.upper()))


def _in_chunks(rng: Random, body: bytes) -> bytes:
    pieces = [piece for piece in cuts(rng, body) if piece]
    extension = rng.choice((b"", b"", b";a=b", b';a="b c"', b";x"))
    trailers = rng.choice((b"", b"", b"x-sum: 1\r\n", b"x-a: b\r\nx-c:\r\n"))
    return chunked(*pieces, extension=extension, trailers=trailers)


def _surplus(rng: Random) -> bytes:
    again, _ = valid_answer(rng)
    return rng.choice((again, b"X", b"\0", rng.randbytes(5), again[: len(again) // 2]))


# ---- damages


def _base(rng: Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice([one.raw for one in RECORDED.values()])
    if kind == 1:
        return rng.choice([raw for raw in MALFORMED.values() if len(raw) < 1000])
    return valid_answer(rng)[0]


def _insert(rng: Random, raw: bytes) -> bytes:
    at = rng.randint(0, len(raw))
    return raw[:at] + rng.choice(JUNK) + raw[at:]


def _insert_line(rng: Random, raw: bytes) -> bytes:
    """Insert after a line break, so that a header line becomes one."""
    ends = [at + 2 for at in range(len(raw) - 1) if raw[at : at + 2] == b"\r\n"]
    at = rng.choice(ends or [0])
    return raw[:at] + rng.choice(JUNK) + raw[at:]


def _delete(rng: Random, raw: bytes) -> bytes:
    at = rng.randint(0, len(raw))
    return raw[:at] + raw[at + rng.choice((1, 1, 2, 5, 40)) :]


def _flip(rng: Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw)) if raw else 0
    return (
        raw[:at]
        + bytes([rng.choice((0, 9, 10, 13, 32, 127, 255, rng.randrange(256)))])
        + raw[at + 1 :]
    )


def _repeat(rng: Random, raw: bytes) -> bytes:
    a, b = sorted(rng.randint(0, len(raw)) for _ in "ab")
    return raw[:b] + raw[a:b] * rng.choice((1, 1, 2, 300 if b - a < 30 else 1)) + raw[b:]


def _truncate(rng: Random, raw: bytes) -> bytes:
    return raw[: rng.randint(0, len(raw))]


def _unbreak(rng: Random, raw: bytes) -> bytes:
    """Turn line breaks into bare ones."""
    return raw.replace(b"\r\n", rng.choice((b"\n", b"\r", b"\r\r\n")), rng.choice((1, 2, -1)))


Damage = Callable[[Random, bytes], bytes]
DAMAGES: tuple[Damage, ...] = (
    _insert,
    _insert_line,
    _insert_line,
    _delete,
    _flip,
    _repeat,
    _truncate,
    _unbreak,
)

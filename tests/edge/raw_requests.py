"""Raw requests for the server, with the expected answers and refusals."""

from __future__ import annotations

from dataclasses import dataclass

PATH = b"/v1/chat/completions"
START = b"POST " + PATH + b" HTTP/1.1\r\nhost: x\r\n"


def chunked(*chunks: bytes) -> bytes:
    """Return a chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The bytes of a caller, and the (path, body) of each request in them."""

    raw: bytes
    requests: tuple[tuple[str, bytes], ...]
    stays_open: bool = True


CHAT = "/v1/chat/completions"
WELL_FORMED = {
    "a length": Sent(raw=START + b"content-length: 2\r\n\r\n{}", requests=((CHAT, b"{}"),)),
    "no body": Sent(raw=START + b"\r\n", requests=((CHAT, b""),)),
    "chunks": Sent(
        raw=START + b"transfer-encoding: chunked\r\n\r\n" + chunked(b"{", b"}"),
        requests=((CHAT, b"{}"),),
    ),
    "a chunk extension": Sent(
        raw=START + b"transfer-encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n",
        requests=((CHAT, b"{}"),),
    ),
    "a trailer": Sent(
        raw=START
        + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nauthorization: Bearer x\r\n\r\n",
        requests=((CHAT, b"{}"),),
    ),
    "padded fields": Sent(
        raw=START + b"a:   b  \r\ncontent-length:  2 \r\n\r\n{}", requests=((CHAT, b"{}"),)
    ),
    "two, the second before its turn": Sent(
        raw=START + b"content-length: 2\r\n\r\n{}" + START + b"content-length: 2\r\n\r\n[]",
        requests=((CHAT, b"{}"), (CHAT, b"[]")),
    ),
    "chunks, then a plain path, then a length": Sent(
        raw=START
        + b"transfer-encoding: chunked\r\n\r\n"
        + chunked(b"{}")
        + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        + START
        + b"content-length: 1\r\n\r\n1",
        requests=((CHAT, b"{}"), ("/healthz", b""), (CHAT, b"1")),
    ),
    "a plain path with a body": Sent(
        raw=b"POST /v1/route/explain HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
        requests=(("/v1/route/explain", b"{}"),),
    ),
    "another spelling of the path": Sent(
        raw=b"POST http://x/v1/%63hat/completions?a=b HTTP/1.1\r\nhost: x\r\ncontent-length: "
        b"2\r\n\r\n{}",
        requests=((CHAT, b"{}"),),
    ),
    "an end after the answer": Sent(
        raw=START + b"connection: close\r\ncontent-length: 2\r\n\r\n{}",
        requests=((CHAT, b"{}"),),
        stays_open=False,
    ),
    "HTTP/1.0": Sent(
        raw=b"POST " + PATH + b" HTTP/1.0\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
        requests=((CHAT, b"{}"),),
        stays_open=False,
    ),
    "an upgrade that is not taken": Sent(
        raw=b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        requests=(("/healthz", b""),),
        stays_open=False,
    ),
    "HEAD": Sent(raw=b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n", requests=(("/healthz", b""),)),
}

_CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
# Each is refused for any packet sizes, and no byte after it is read as a request.
MALFORMED = {
    "length and chunks": START
    + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(b"{}"),
    "chunks and length": START
    + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n"
    + chunked(b"{}"),
    "a coding like chunked": START + b"transfer-encoding: xchunked\r\n\r\n" + chunked(b"{}"),
    "chunked, then identity": START
    + b"transfer-encoding: chunked, identity\r\n\r\n"
    + chunked(b"{}"),
    "identity, then chunked": START
    + b"transfer-encoding: identity, chunked\r\n\r\n"
    + chunked(b"{}"),
    "gzip, then chunked": START + b"transfer-encoding: gzip, chunked\r\n\r\n" + chunked(b"{}"),
    "identity": START + b"transfer-encoding: identity\r\n\r\n",
    "two codings": START
    + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(b"{}"),
    "a blank before the colon": START + b"transfer-encoding : chunked\r\n\r\n" + chunked(b"{}"),
    "a vertical tab": START + b"transfer-encoding: \x0bchunked\r\n\r\n" + chunked(b"{}"),
    "chunks in HTTP/1.0": b"POST "
    + PATH
    + b" HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(b"{}"),
    "a folded field": START + b"a: b\r\n c\r\ncontent-length: 2\r\n\r\n{}",
    "a folded length": START + b"content-length:\r\n 2\r\n\r\n{}",
    "a bare line feed": START + b"a: b\ncontent-length: 2\r\n\r\n{}",
    "bare line feeds alone": b"POST " + PATH + b" HTTP/1.1\nhost: x\n\n",
    "a bare carriage return": START + b"a: b\rc\r\n\r\n",
    "two lengths": START + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{} ",
    "the same length twice": START + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "lengths in a list": START + b"content-length: 2, 2\r\n\r\n{}",
    "a signed length": START + b"content-length: +2\r\n\r\n{}",
    "a negative length": START + b"content-length: -2\r\n\r\n{}",
    "a length in hexadecimal": START + b"content-length: 0x2\r\n\r\n{}",
    "a huge length": START + b"content-length: 99999999999999999999999\r\n\r\n{}",
    "an empty length": START + b"content-length:\r\n\r\n{}",
    "a chunk size with a line feed": _CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    "a chunk size in 0x": _CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk size that overflows": _CHUNKED + b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "a chunk without its end": _CHUNKED + b"2\r\n{}X0\r\n\r\n",
    "a NUL": START + b"a: b\0c\r\n\r\n",
    "no colon": START + b"a b\r\n\r\n",
    "an empty name": START + b": b\r\n\r\n",
    "a blank before a name": START.replace(b"\r\nhost", b"\r\n host") + b"\r\n",
    "a method in lower case": b"post " + PATH + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "tabs in the request line": b"POST\t" + PATH + b"\tHTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/2's greeting": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0": b"POST " + PATH + b" HTTP/2.0\r\nhost: x\r\n\r\n",
    "HTTP/0.9": b"POST " + PATH + b" HTTP/0.9\r\nhost: x\r\n\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n",
    "two hosts": START + b"host: x\r\n\r\n",
    "an address of another host": b"POST http://y/v1/chat/completions HTTP/1.1\r\nhost: "
    b"x\r\ncontent-length: 0\r\n\r\n",
    "a target that is no address": b"POST ::: HTTP/1.1\r\nhost: x\r\n\r\n",
    "an upgrade with a body": START
    + b"connection: upgrade\r\nupgrade: websocket\r\ncontent-length: 2\r\n\r\n{}",
}

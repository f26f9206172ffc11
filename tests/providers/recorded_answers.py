"""Raw answers for the HTTP client, each with its expected meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recorded:
    """The bytes of an answer. With `ends_at_close`, only the end of the connection ends it."""

    raw: bytes
    status: int
    body: bytes
    may_keep_alive: bool = True
    ends_at_close: bool = False


EVENTS = (
    b"".join(
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"t%d"}}]}\n\n' % number
        for number in range(4)
    )
    + b"data: [DONE]\n\n"
)


def chunked(*chunks: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    """Return a chunked body."""
    framed = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return framed + b"0\r\n" + trailers + b"\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = b'{"id":"chatcmpl-1","choices":[{"message":{"content":"\xc3\xa9"}}],"usage":{"total_tokens":18}}'  # noqa: E501

RECORDED = {
    "plain": Recorded(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY, 200, BODY),
    "empty": Recorded(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
    "stream": Recorded(STREAM + chunked(EVENTS[:70], EVENTS[70:71], EVENTS[71:]), 200, EVENTS),
    "trailers": Recorded(
        STREAM + chunked(b"one", b"two", extension=b";a=b", trailers=b"x-sum: 1\r\nx-t: 2\r\n"),
        200,
        b"onetwo",
    ),
    "informational": Recorded(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
        + HEAD
        + b"content-length: 3\r\n\r\nabc",
        200,
        b"abc",
    ),
    "to close": Recorded(
        HEAD + b"\r\n" + BODY, 200, BODY, may_keep_alive=False, ends_at_close=True
    ),
    "closing": Recorded(
        HEAD + b"connection: close\r\ncontent-length: 3\r\n\r\nabc",
        200,
        b"abc",
        may_keep_alive=False,
    ),
    "old": Recorded(
        b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc", 200, b"abc", may_keep_alive=False
    ),
    "no content": Recorded(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": Recorded(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 500\r\n\r\n", 304, b""),
    "error": Recorded(
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nx-odd: "
        b"\xff\xfe\r\ncontent-length: 4\r\n\r\nslow",
        429,
        b"slow",
    ),
    "redirect": Recorded(
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
        302,
        b"",
    ),
    "garbage after": Recorded(
        HEAD + b"content-length: 3\r\n\r\nabcXXXX", 200, b"abc", may_keep_alive=False
    ),
    "second answer after": Recorded(
        HEAD + b"content-length: 3\r\n\r\nabc" + HEAD + b"content-length: 3\r\n\r\nabc",
        200,
        b"abc",
        may_keep_alive=False,
    ),
    # RFC 9112 lets a recipient take these, and close the connection.
    "length and chunks": Recorded(
        b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunked(b"ok"),
        200,
        b"ok",
        may_keep_alive=False,
    ),
    "chunks and length": Recorded(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n"
        + chunked(b"o", b"k"),
        200,
        b"ok",
        may_keep_alive=False,
    ),
    "one length twice": Recorded(
        HEAD + b"content-length: 2\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
        may_keep_alive=False,
    ),
    "a list of one length": Recorded(
        HEAD + b"content-length: 2, 2\r\n\r\nok", 200, b"ok", may_keep_alive=False
    ),
    "bare line feeds": Recorded(
        b"HTTP/1.1 200 OK\nx: a\ncontent-length: 2\n\nok", 200, b"ok", may_keep_alive=False
    ),
    "one bare line feed": Recorded(
        b"HTTP/1.1 200 OK\r\nx: a\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"ok"),
        200,
        b"ok",
        may_keep_alive=False,
    ),
    "bare line feeds to close": Recorded(
        b"HTTP/1.0 200 OK\nx: a\n\nok", 200, b"ok", may_keep_alive=False, ends_at_close=True
    ),
}

MALFORMED = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok!",
    "a list of two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\nok!",
    "negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "endless length": b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    "no chunk size": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nok\r\n",
    "chunk too long": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokXX0\r\n\r\n",
    "other coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, "
    b"chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "unknown coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "NUL in a header": b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n",
    "folded header": b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n",
    "bare line feeds behind hints": b"HTTP/1.1 103 Early Hints\r\n\r\n"
    b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    "bare line feeds in chunks": STREAM + b"2\nok\n0\n\n",
    "space in a header name": b"HTTP/1.1 200 OK\r\nx y: a\r\ncontent-length: 0\r\n\r\n",
    "no header name": b"HTTP/1.1 200 OK\r\n: a\r\ncontent-length: 0\r\n\r\n",
    "other protocol": b"HTTP/3.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "short status": b"HTTP/1.1 42 OK\r\ncontent-length: 0\r\n\r\n",
    "informational flood": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 11
    + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 257 + b"content-length: 0\r\n\r\n",
}

"""Sends POST requests upstream and reads their answers: our own HTTP/1.1 client, which imports
nothing else of this repository.

Three modules, each on the one before: bytes (`answer`), one exchange (`connection`), reuse
(`pool`); `errors` has the tree of errors. It does only the things that a gateway needs: POST with
a complete body, answers read as they arrive, back-pressure, deadlines, verified TLS.

    pool = Pool(100, ssl.create_default_context())
    connection = await pool.take(pool.origin("127.0.0.1", 8000, is_tls=False), 2.0)
    exchange = connection.start(head, body, name="engine", first_byte_s=60, ...)
    try:
        status, headers = await exchange.head()
        while piece := await exchange.chunk():
            ...
    finally:
        exchange.close()

Promises:

- A cancelled read loses nothing: `head`, `chunk` and `read` may be awaited again, by another task.
- Content is returned once and in order, however the network cuts it. The part that came before a
  cut, a reset or a malformed byte can still be read.
- An answer is complete or the reader gets an error: a cut body is never a shorter body. Bytes
  behind an answer belong to no answer; they end the connection.
- A request is sent once. A failure before its first byte is a `NotSent`, after it an
  `AnswerFailed`; `errors` has no third kind.
- Everything has a limit: 64 KiB of head, 256 headers, 10 informational answers, 64 KiB of framing
  beyond the content (compared once for each piece that arrives), 256 KiB held for a slow reader,
  the pool's connections, and each wait.
- No redirects, proxies, cookies, retries, pipelining or decompression, and no unverified TLS.

`make fuzz` feeds it arbitrary and mutated answers for a minute: `python -m tests.http1 --seconds
600 --seed 7` for longer. It needs no gateway. docs/decisions/0007 gives the reasons for a client
of our own.
"""

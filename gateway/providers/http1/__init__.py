"""Our own HTTP/1.1 client for upstream calls: bytes (`answer`), one exchange (`connection`), reuse
(`pool`).

It does only the things that a gateway needs: POST with a complete body, answers read as they
arrive, back-pressure, deadlines, verified TLS. No redirects, proxies, cookies, retries or
decompression. docs/decisions/0007 gives the reasons.
"""

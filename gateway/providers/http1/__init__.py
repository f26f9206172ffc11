"""Our own HTTP/1.1 client for upstream calls: bytes (`answer`), one exchange (`connection`), reuse
(`pool`).

It does what a gateway needs and nothing else: POST with a whole body, answers read as they come,
back-pressure, deadlines, verified TLS. No redirects, proxies, cookies, retries or decompression.
docs/decisions/0007 says why.
"""

"""The server side of HTTP/1.1: bytes (`parser`), one request and its answer (`exchange`, `plain`),
one socket (`connection`), all sockets' deadlines (`deadlines`) and the connection cap (`table`).
docs/decisions/0020 explains why it is our own.

The limits hold for every path. `exchange` answers forwarded requests, uvicorn's own cycle all
others.
"""

"""Our side of HTTP/1.1: bytes (`parser`), one request and its answer (`exchange`, `plain`), one
socket (`connection`), and all sockets together: deadlines (`deadlines`), the cap (`table`).
docs/decisions/0020 says why it is our own.

The limits hold for every path. What is forwarded is answered by `exchange`, all else by uvicorn's
own cycle.
"""

"""The server side of HTTP/1.1: bytes (`parser`), one request and its answer (`caller_exchange`,
`app_exchange`), one socket (`connection`), all sockets' deadlines (`deadlines`), the connection cap
(`connection_table`). docs/decisions/0020 explains why it is our own.

The limits hold for every path. `caller_exchange` answers forwarded requests, uvicorn's own cycle
all others.
"""

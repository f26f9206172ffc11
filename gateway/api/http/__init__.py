"""Serves HTTP/1.1 on callers' sockets: bytes (`parser`), one request and its answer
(`caller_exchange`, `app_exchange`), one socket (`connection`).

`deadlines` checks all sockets' deadlines, and `connection_table` enforces the connection cap.
docs/decisions/0020 explains why the server is our own.

The limits hold for every path. `caller_exchange` answers forwarded requests, uvicorn's own cycle
all others.
"""

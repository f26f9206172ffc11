"""Builds and runs one serving process: journal and ledger, admission, deployments and dispatch,
shared jobs, and the HTTP edge.

`main` imports it only for serving. It and `gateway.composition` alone name concrete adapters.
"""

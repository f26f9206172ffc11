"""Declares one request's values (caller, facts, idempotency key), and computes its bound, estimate
and recorded end user; parses no body.
"""

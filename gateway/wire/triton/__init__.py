"""Triton's generate extension as the dialect of an upstream (triton-inference-server/server,
docs/protocol/extension_generate.md, commit 0bd93bc80166, looked up 2026-11-24).
"""

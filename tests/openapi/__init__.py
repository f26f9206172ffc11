"""Fuzzes a running gateway by its own OpenAPI description; run by hand with `make fuzz-api`,
because the fuzzer has an environment of its own.
"""

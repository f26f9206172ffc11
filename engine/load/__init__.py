"""Sends load to an OpenAI-compatible server and measures each streamed answer: seeded workloads,
open and closed loops, on the standard library alone.

Its texts are drawn from a fixed list of words: no caller's content passes through here.
"""

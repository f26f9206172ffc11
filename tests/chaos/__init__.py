"""Chaos runs: the product as processes, faults from a seed, and a checker that believes none of
them.

`python -m tests.chaos --help` lists the scenarios. They are judges, not tests: no file here is
collected by pytest, since a run takes minutes and wants the machine for itself. `docs/chaos.md` has
the figures of the last full runs.
"""

"""Tracks each deployment in one worker (breaker, slots, load, estimates, ejection), and samples,
probes and settles self-hosted engines.
"""

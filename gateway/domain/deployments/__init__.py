"""Contains the pure rules of deployments' state: circuit breaker, retry budget, engine metrics, and
unknown attempts' costs from engine counters.
"""

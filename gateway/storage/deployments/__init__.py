"""Stores deployments' ejections, engine samples, probes and GPU hours in Postgres, and books
attempts' costs from engine counters.
"""

"""Applies, plans, replays, tests and explains policies, finds their deployments' prices, computes
price changes and verifies past attempts.
"""

"""Deployments as the gateway sees them: load, samples, breakers."""

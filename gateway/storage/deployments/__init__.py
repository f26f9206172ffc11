"""Samples, probes and ejections of deployments, in Postgres."""

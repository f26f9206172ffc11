"""Fetches and renews the access tokens of platforms' identities, off the path of requests."""

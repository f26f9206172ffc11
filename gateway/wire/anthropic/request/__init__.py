"""Reads the requests of Anthropic's clients into the facts that the gateway needs."""
